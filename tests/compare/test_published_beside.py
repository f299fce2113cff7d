import msgspec
import pytest

from pydlbench.compare.published import find_figures, match_figures, measured_figures
from pydlbench.records.published import OwnFigure
from pydlbench.records.run import RunInfo, RunRecord
from pydlbench.store.documents import Loaded
from pydlbench.store.entry import Entry

OWN = OwnFigure(
    model="vgg16",
    phase="forward",
    precision="fp32",
    batch=16,
    seconds=0.1,
    who="torch eager",
    device="Invented 9000",
    run="mine",
)


def figures():
    return [one for one in find_figures("vgg16") if one.hardware == "Tesla V100"]


def pairs(*own):
    return [(figure, result) for figure in match_figures(figures(), own) for result in figure.own]


def test_the_same_model_phase_precision_and_batch_stand_beside_each_other():
    matched = pairs(OWN)
    assert {(figure.stage, figure.precision) for figure, _ in matched} == {("eval", "fp32")}
    pytorch = next(own for figure, own in matched if figure.framework == "PyTorch 0.3.0")
    assert pytorch.value == pytest.approx(100)  # ms, as the source has it
    assert pytorch.speedup == pytest.approx(0.262)
    assert pytorch.marks == ("plain step",)


@pytest.mark.parametrize(
    "changes", [{"model": "vgg19"}, {"phase": "training"}, {"precision": "bf16"}]
)
def test_what_is_not_the_same_does_not(changes):
    assert pairs(msgspec.structs.replace(OWN, **changes)) == []


@pytest.mark.parametrize(
    ("changes", "value", "marks"),
    [
        ({"batch": 32}, 50, ("per image, batch 32", "plain step")),
        ({"options": "classes=10"}, 100, ("plain step", "classes=10")),
        ({"precision": "fp16-tc"}, 100, ("plain step", "fp16-tc")),
    ],
)
def test_differences_from_the_figure_are_marked(changes, value, marks):
    figure, own = pairs(msgspec.structs.replace(OWN, **changes))[0]
    assert (own.value, own.marks) == (pytest.approx(value), marks)
    assert figure.precision == own.precision.removesuffix("-tc")


def test_a_variant_of_the_model_does_not_replace_it():
    variant = msgspec.structs.replace(OWN, options="classes=10")
    assert {own.options for _, own in pairs(OWN, variant)} == {"", "classes=10"}


def test_the_nearest_batch_is_taken():
    near, far = (msgspec.structs.replace(OWN, batch=batch) for batch in (32, 4))
    assert {own.batch for _, own in pairs(far, near)} == {32}
    assert {own.batch for _, own in pairs(far, near, OWN)} == {16}


def test_what_ran_as_the_script_goes_before_a_plain_step():
    played = msgspec.structs.replace(
        OWN, phase="eval", stage="eval", protocol="deep-learning-benchmark", seconds=0.2
    )
    matched = pairs(OWN, played)
    assert {own.seconds for _, own in matched} == {0.2}
    assert matched[0][1].marks == ()
    other = msgspec.structs.replace(played, protocol="convnet-benchmarks")
    assert pairs(other) == []


def loaded(*entries):
    record = RunRecord(id="x", created_utc="2030", device={"name": "Invented 9000"})
    info = RunInfo(
        id="x", created_utc="2030", kind="step", status="done", command=(), machine="Invented"
    )
    return Loaded(info, record, list(entries))


def read(*entries):
    return list(measured_figures("mine", loaded(*entries), lambda _protocol, _model: 128))


SHARED = {"model": "vgg16", "phase": "forward", "precision": "fp32", "batch": 16}


def test_steps_breakdowns_and_estimates_are_figures():
    found = read(
        Entry("step", {**SHARED, "framework": "torch", "mode": "eager", "time_s": {"median": 0.1}}),
        Entry("breakdown", {**SHARED, "framework": "tensorflow", "measured_s": {"median": 0.2}}),
        Entry("estimate", {**SHARED, "estimate": {"time_s": 0.05}, "missing": []}),
    )
    assert [(one.who, one.seconds) for one in found] == [
        ("torch eager", 0.1),
        ("tensorflow", 0.2),
        ("native layers, summed", 0.05),
    ]
    assert {one.device for one in found} == {"Invented 9000"}


def test_a_step_that_brings_its_results_to_the_host_is_another_one():
    step = {**SHARED, "framework": "torch", "mode": "eager"}
    plain = Entry("step", {**step, "time_s": {"median": 0.1}})
    fetching = Entry("step", {**step, "fetch": True, "time_s": {"median": 0.2}})
    seconds = {own.who: own.seconds for _, own in pairs(*read(plain, fetching))}
    assert seconds == {"torch eager": 0.1, "torch eager fetch": 0.2}


def test_what_has_no_time_is_none():
    assert (
        read(
            Entry("step", {**SHARED, "status": "failed", "time_s": None}),
            Entry("estimate", {**SHARED, "estimate": {"time_s": 1.0}, "missing": [{}]}),
        )
        == []
    )


@pytest.mark.parametrize(
    ("protocol", "number", "stage", "seconds"),
    [
        ("alexnet-tutorial", {"name": "Forward", "value": 0.5, "unit": "s"}, "forward", 0.5),
        (
            "cifar10-tutorial",
            {"name": "examples/sec", "value": 64, "unit": "examples/s"},
            "train",
            2,
        ),
        ("mnist-tutorial", {"name": "Step", "value": 4, "unit": "ms"}, "train", 4e-3),
        (
            "deep-learning-benchmark",
            {"name": "vgg16 eval", "value": 30, "unit": "ms"},
            "eval",
            0.03,
        ),
        (
            "convnet-benchmarks",
            {"name": ":TOTAL:", "value": 30, "unit": "ms"},
            "forward-backward",
            0.03,
        ),
    ],
)
def test_a_played_protocols_numbers_are_figures(protocol, number, stage, seconds):
    document = {
        "protocol": protocol,
        "model": "vgg16",
        "framework": "torch",
        "mode": "eager",
        "precision": "fp32",
        "batch": None,
        "numbers": [number, {"name": "Test error", "value": 3, "unit": "%"}],
    }
    (own,) = read(Entry("protocol", document))
    assert (own.protocol, own.stage, own.batch) == (protocol, stage, 128)
    assert own.seconds == pytest.approx(seconds)
