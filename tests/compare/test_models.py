"""Two models' steps in turn: the verdict, what they compute, and the calls by which they differ."""

from types import SimpleNamespace

import msgspec
import pytest

from pydlbench.cli.compare_models import read_task
from pydlbench.cli.compare_options import CompareOptions
from pydlbench.compare import swaps
from pydlbench.compare.models import change_of, compare_models, impossible_steps, is_resolved
from pydlbench.compare.swaps import CallsAlone, saving_of
from pydlbench.errors import UsageError
from pydlbench.records.agreement import Agreement, ModelChange, StepAgreement, SwapSaving, SwapTerm
from pydlbench.records.comparison import CompareDocument
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.records.trace import CallInContext, RecordedCall
from pydlbench.report.change import change_report, conclude
from pydlbench.report.text import as_text
from pydlbench.timing.chunk import Chunk, ChunkRequest

#: Seconds of the calls of A, by module.
CALLS = {"fc1": 0.02, "fc2": 0.03, "head": 0.01}
BETWEEN_S = 0.005


def agreement(error=1e-7):
    compared = Agreement(
        frameworks=("A", "B"),
        output=error,
        gradients=None,
        worst=None,
        median=None,
        tensors={"output": error},
        norms={"output": error},
        tolerance=1e-5,
    )
    return StepAgreement(agreement=compared, shared=4, weights=(4, 4), timed=0)


def record(name, factor=1.0, scatter=0.002, calls=CALLS, **fields):
    """A step whose rounds drift together with those of the other one."""
    drift = (1, 1.2, 0.9, 1.1, 1, 0.95)
    own = (1, -1, 0.5, -0.5, 1, -1)
    whole = (sum(calls.values()) + BETWEEN_S) * factor
    rounds = {
        n: whole * d * (1 + scatter * o) for n, (d, o) in enumerate(zip(drift, own, strict=True))
    }
    time = TimeSummary(
        median=whole, ci_low=whole, ci_high=whole, q1=whole, q3=whole, min=whole, n=6, repetitions=6
    )
    rows = tuple(
        CallInContext(
            operator="aten.addmm",
            module=module,
            direction="forward",
            count=1,
            in_context_s=seconds * factor,
            share=seconds / whole,
            flops=10**9,
        )
        for module, seconds in calls.items()
    )
    fields = {"calls": rows, "between_calls_s": BETWEEN_S, **fields}
    spec = StepSpec(model=f"{name}.py:build")
    return StepRecord(spec=spec, status="ok", time=time, rounds_s=rounds, **fields)


def compared(run_record, b, results=None):
    a = record("old", scatter=-0.002)
    change = change_of(a, b, results or agreement())
    return compare_models([a, b], change, run_record)


@pytest.mark.parametrize(
    ("factor", "scatter", "verdict", "word"),
    [
        (1.0, 0.002, "SAME", "as fast as A"),
        (0.9, 0.002, "FASTER", "1.11"),
        (1.1, 0.002, "SLOWER", "slower"),
        (1.03, 0.002, "SLOWER", "slower"),
        (1.01, 0.2, "UNCLEAR", "unclear"),
    ],
)
def test_the_verdict_is_that_of_the_rounds_in_turn(run_record, factor, scatter, verdict, word):
    found = compared(run_record, record("new", factor, scatter))
    (row,) = found.rows
    assert row.verdict == verdict
    assert row.estimate.ratio == pytest.approx(factor, rel=0.06)
    assert row.estimate.ci_low < row.estimate.ratio < row.estimate.ci_high
    (first, *_) = conclude(found, found.change)
    assert word in first
    assert "outputs agree" in first
    assert found.to_dict()["settings"]["confidence"] == 0.95


@pytest.mark.parametrize(
    ("ratio", "scatter", "verdict"),
    [
        (1.0, 0.02, "SAME"),  # it resolves 2.1 %
        (1.006, 0.02, "SAME"),
        (1.012, 0.02, "UNCLEAR"),
        (1.0, 0.06, "UNCLEAR"),  # the interval reaches beyond 3 %
    ],
)
def test_steps_are_the_same_within_what_the_comparison_resolves(
    run_record, ratio, scatter, verdict
):
    ratios = {n: (ratio * (1 + scatter * (-1) ** n),) * 3 for n in range(12)}
    found = compared(run_record, record("new", ratios=ratios))
    (row,) = found.rows
    assert row.verdict == found.geomean.verdict == verdict
    assert found.to_dict()["settings"]["worth"] == 0.03
    change = change_of(record("old"), record("new"), agreement())
    steps = [record("old"), record("new", ratios=ratios)]
    (named,) = compare_models(steps, change, run_record, margin=0.01).rows
    assert named.verdict == "UNCLEAR"  # the user has said what counts as the same
    if verdict == "SAME":
        assert found.same_within == pytest.approx(row.estimate.resolution - 1)
        assert max(row.estimate.ci_high, 1 / row.estimate.ci_low) < 1 + found.same_within


def test_no_call_is_named_if_traced_steps_differ_otherwise(run_record):
    slow = {name: 3 * seconds for name, seconds in CALLS.items()}
    b = msgspec.structs.replace(record("new", 1.1), calls=record("new", calls=slow).calls)
    found = compared(run_record, b)
    first = conclude(found, found.change)[0]
    assert found.rows[0].verdict == "SLOWER"
    assert "added: 6.50 ms" in first
    assert "aten.addmm" not in first


def test_the_ratios_of_adjacent_samples_come_before_those_of_medians(run_record):
    ratios = {n: (1.05 + 0.001 * (n % 2),) * 2 for n in range(6)}
    found = compared(run_record, record("new", 0.9, ratios=ratios))
    (row,) = found.rows
    assert row.verdict == "SLOWER"
    assert row.estimate.ratio == pytest.approx(1.0505, rel=1e-4)
    assert CompareDocument.from_dict(found.to_dict()).rows[0].ratio == row.estimate.ratio


@pytest.mark.parametrize(
    ("counts", "scatter", "ratio", "enough"),
    [
        ((12, 12), 0.005, 1.5, True),
        ((12, 12), 0.1, 1.5, False),
        ((12, 12), 0.1, 2.0, True),  # it resolves 11 %
        ((9, 9), 0.1, 2.0, False),
        ((9, 9), 0.005, 1.5, False),
        ((11, 12), 0.005, 1.5, False),
        # Resolutions of 2.1 % and of 1 %.
        ((12, 12), 0.02, 1.035, True),
        ((12, 12), 0.02, 1.015, False),
        ((12, 12), 0.02, 0.985, False),
        ((12, 12), 0.02, 1.005, True),
        ((12, 12), 0.01, 1.008, True),
    ],
)
def test_repetitions_end_when_a_small_change_could_be_told(counts, scatter, ratio, enough):
    steps = {}
    for side, count in enumerate(counts):
        ratios = {n: (ratio * (1 + scatter * (-1) ** n),) * 3 for n in range(count)}
        fields = {"rounds_s": dict.fromkeys(ratios, 0.1), "ratios": ratios if side else {}}
        steps[side] = msgspec.structs.replace(record("new"), **fields)
    assert is_resolved(steps, least=10) is enough


def test_rows_add_up_to_the_difference_and_name_the_new_layer(run_record):
    b = record("new", calls={**CALLS, "extra": 0.02})
    found = compared(run_record, b)
    whole = sum(row.difference_s for row in found.change.rows)
    assert whole == pytest.approx(0.02)
    first = found.change.rows[0]
    assert (first.module, first.why) == ("extra", "only in B")
    assert "added: 20.0 ms, of which aten.addmm 20.0 ms" in conclude(found, found.change)[0]
    assert "extra" in as_text(change_report(found))
    assert "\nnext: a command\n" in as_text(change_report(found, following="a command"))
    document = CompareDocument.from_dict(found.to_dict())
    assert document.change.rows == found.change.rows
    assert document.rows[0].ratio == found.rows[0].estimate.ratio


def test_calls_of_renamed_modules_correspond_by_what_they_compute(run_record):
    names = {f"blocks.{number}": seconds for number, seconds in enumerate(CALLS.values())}
    found = compared(run_record, record("new", calls=names))
    assert not {"only in A", "only in B"} & {row.why for row in found.change.rows}


def test_a_faster_step_that_computes_something_else_is_named_first(run_record):
    found = compared(run_record, record("new", 0.5), agreement(0.3))
    first, second = conclude(found, found.change)
    assert "something else" in first
    assert "0.30 of the scale" in first
    assert "2.000x as fast" in second
    assert found.to_dict()["change"]["results"]["agreement"]["output"] == 0.3


def test_steps_that_are_not_ranked_have_no_next_command(run_record):
    refused = msgspec.structs.replace(agreement(), refused=("A is not ranked: it cheats",))
    found = compared(run_record, record("new", 0.5), refused)
    text = as_text(change_report(found, following="a command"))
    assert "it cheats" in text
    assert "a command" not in text


@pytest.mark.parametrize(("timed", "told"), [(None, True), (0, False), (5, False)])
def test_a_comparison_that_ended_early_says_what_is_not_compared(run_record, timed, told):
    results = msgspec.structs.replace(agreement(), timed=timed)
    found = compared(run_record, record("new", 0.5), results)
    ended = "timed steps are not compared: the run ended before"
    (first,) = conclude(found, found.change)
    assert ("of a first step agree" in first) is told
    text = " ".join(as_text(change_report(found)).split())
    assert text.count(ended) == told, text
    assert CompareDocument.from_dict(found.to_dict()).change.results.timed == timed


def test_a_step_that_was_not_traced_has_its_time_and_the_reason(run_record):
    b = record("new", 0.9, calls=CALLS, untraced="a graph", between_calls_s=None)
    found = compared(run_record, b.__class__.from_dict({**b.to_dict(), "calls": None}))
    assert found.rows[0].verdict == "FASTER"
    assert found.change.rows == ()
    assert found.change.untraced == "B: a graph"


@pytest.mark.parametrize(
    ("factor", "peak", "limits", "operator", "refused"),
    [
        # The calls of A need 3 GFLOP; its step takes 65 ms.
        (0.1, 1e11, (None, None), "aten.addmm", "4.6 times the roof"),
        (0.3, 1e11, (None, None), "aten.addmm", None),
        (0.1, 1e11, (None, None), "aten.convolution", None),
        (0.1, None, (None, None), "aten.addmm", None),
        (0.1, 1e11, (0.02, 0.002), "aten.addmm", None),  # it needs fewer FLOPs
        (0.1, None, (0.02, 0.02), "aten.addmm", "9.2 times the roof"),
        (0.01, 1e11, (0.02, None), "aten.addmm", "46 times the roof"),
    ],
)
def test_a_step_below_its_limit_is_not_ranked(run_record, factor, peak, limits, operator, refused):
    def limited(step, limit_s):
        change = {"limit_s": limit_s, "operator": operator}
        rows = tuple(msgspec.structs.replace(row, **change) for row in step.calls)
        return msgspec.structs.replace(step, calls=rows)

    a, b = (limited(record("m", f), s) for f, s in zip((1, factor), limits, strict=True))
    words = impossible_steps(a, b, peak)
    if refused is None:
        assert words == ()
        return
    assert words[0].startswith(f"B is not ranked: impossible: {refused}")
    found = compare_models([a, b], ModelChange(results=StepAgreement(refused=words)), run_record)
    assert conclude(found, found.change)[0].startswith("B is not ranked")
    assert [row.verdict for row in found.rows if row.verdict != "UNCLEAR"] == []


FILES = {
    "old.py": "import torch\ndef build(size=1): pass\n",
    "new.py": "import torch\ndef build(size=1): pass\n",
    "reference.py": "import torch\nclass Model: pass\ndef get_inputs(): pass\n",
    "faster.py": "import torch\nclass ModelNew: pass\n",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("files")
def test_the_sides_are_read_as_step_reads_models():
    words = ["old.py:build", "--set-a", "size=1", "--set-b", "size=2", "--phase", "training"]
    task, _ = read_task(CompareOptions.parse(words))
    specs = [row.spec for row in task.rows]
    assert [spec.options for spec in specs] == [{"size": "1"}, {"size": "2"}]
    assert {spec.phase for spec in specs} == {"training"}
    task, _ = read_task(CompareOptions.parse(["reference.py:Model", "faster.py:ModelNew"]))
    references = [row.spec.own.reference for row in task.rows]
    assert references == [None, "reference.py:Model"]
    words = ["mnist", "old.py:build", "--batch", "4", "--optimizer", "adam", "--seed", "3"]
    task, _ = read_task(CompareOptions.parse(words))
    a, b = (row.spec for row in task.rows)
    assert (a.batch, a.own, a.seed, a.framework) == (4, None, 3, "torch")
    assert (b.batch, b.own.optimizer, b.seed) == (None, "adam", 3)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "words",
    [
        ["old.py:build"],
        ["old.py:biuld", "new.py:build"],
        ["old.py", "new.py:build"],
        ["gone.py:build", "new.py:build"],
        ["old.py:build", "last"],
        ["old.py:build", "new.py:build", "--phase", "all"],
        ["mnist", "mnist", "--set-b", "sice=2"],
    ],
)
def test_bad_sides_are_refused_with_the_nearest_choice(words):
    with pytest.raises(UsageError, match="nearest"):
        read_task(CompareOptions.parse(words))


@pytest.mark.usefixtures("files")
def test_a_swap_makes_b_of_one_model():
    words = ["mnist", "--swap", "aten.relu_=old.py:build,module:fc1=new.py:build"]
    task, _ = read_task(CompareOptions.parse(words))
    a, b = (row.spec for row in task.rows)
    assert (a.model, b.model, a.framework) == ("mnist", "mnist", "torch")
    assert (a.swaps, len(b.swaps)) == (None, 2)
    assert "swaps" not in a.to_dict()
    # compare_models names A and B.
    assert read_task(CompareOptions.parse(["mnist", *words]))[0].rows == task.rows
    for more in (["cifar10", *words], [*words, "--set-a", "batch=2"]):
        with pytest.raises(UsageError, match="--swap: B is the one model"):
            read_task(CompareOptions.parse(more))
    for bad in ("aten.relu", "relu"):
        with pytest.raises(UsageError, match="nearest: aten"):
            read_task(CompareOptions.parse(["mnist", "--swap", bad]))


@pytest.mark.parametrize(
    ("foretold", "step", "told"),
    [(0.004, 0.004, True), (0.004, 0.001, False), (0.0005, 0.0005, None)],
)
def test_the_saving_of_a_swap_adds_up_and_is_held_against_what_was_foretold(
    run_record, foretold, step, told
):
    # The calls take 20 ms in the step, and the swap itself costs 2 ms.
    rounds = dict(enumerate((0.0, 2e-4, -2e-4, 1e-4, -1e-4, 3e-4)))
    calls = [RecordedCall(signature="aten.addmm(...)", operator="aten.addmm.default", count=3)]

    def taken(seconds, call_s, noise, faults=0):
        spread = {n: seconds + noise * x for n, x in rounds.items()}
        one = record("x", calls={"fc1": call_s})
        swapped = {n: call_s + x for n, x in rounds.items()}, dict.fromkeys(rounds, faults)
        return msgspec.structs.replace(one, rounds_s=spread, swapped=swapped)

    a, control = taken(0.05, 0.02, 1), taken(0.052, 0.02, 2)
    b = taken(0.052 - step, 0.02 - foretold, -2 if told is not None else -9, faults=512)
    # The calls save 0.1 ms less alone than in the step.
    alone_s = [{n: x + foretold - 1e-4 for n, x in rounds.items()}, dict.fromkeys(rounds, 0.0)]
    alone_s = CallsAlone(calls, alone_s)
    saving = saving_of(alone_s, a, b, control)
    assert saving.calls == 3
    assert saving.as_foretold is told
    assert saving.foretold.saved_s == pytest.approx(foretold - 5e-5)
    assert saving.foretold.ci_high - saving.foretold.ci_low < 1e-3
    place = saving.between[0]
    assert place.term == swaps.AT_PLACE
    assert foretold == pytest.approx(saving.foretold.saved_s + place.saved_s)
    assert "512 after" in place.how  # page faults
    assert saving.dispatch.saved_s == pytest.approx(0.002, abs=3e-4)
    parts = [saving.foretold, *saving.between]
    assert sum(part.saved_s for part in parts) == pytest.approx(saving.step.saved_s)
    of_device = [msgspec.structs.replace(each, swapped=()) for each in (a, b, control)]
    on_device = saving_of(alone_s, *of_device)
    assert swaps.AT_PLACE not in [row.term for row in on_device.between]
    found = compared(run_record, record("new"))
    change = msgspec.structs.replace(found.change, swap=saving)
    first = conclude(found, change)[0]
    words = {True: ": as foretold", False: "not as foretold", None: "cannot tell"}
    assert words[told] in first
    assert ModelChange.from_dict(change.to_dict()).swap == saving


@pytest.mark.parametrize(
    ("foretold", "step", "told"),
    [
        ((1.0, 0.98, 1.02), (1.1, 0.8, 1.4), True),
        ((1.0, 0.98, 1.02), (1.4, 1.1, 1.7), False),
        ((1.0, 0.9, 1.1), (5.0, 4.0, 9.0), False),
        ((-1.0, -1.3, -0.7), (-1.3, -1.6, -1.0), True),
        ((-1.0, -1.3, -0.7), (-1.5, -1.8, -1.2), False),
        ((1.0, 0.9, 1.1), (0.6, -0.1, 1.2), None),
        ((1.0, None, None), (1.0, 0.9, 1.1), None),
    ],
)
def test_savings_agree_if_they_differ_by_less_than_both_intervals(foretold, step, told):
    def term(saved, low, high):
        return SwapTerm(term="x", saved_s=saved, ci_low=low, ci_high=high, how="")

    of_hook = term(0.0, 0.0, 0.0)
    saving = SwapSaving(
        calls=1, foretold=term(*foretold), step=term(*step), between=(), dispatch=of_hook
    )
    assert saving.as_foretold is told


def test_causes_of_a_swap_are_those_that_traced_steps_show():
    calls = [RecordedCall(signature="aten.relu(...)", operator="aten.relu", count=1)]
    rounds = range(6)
    alone = CallsAlone(calls, [dict.fromkeys(rounds, 0.010), dict.fromkeys(rounds, 0.008)])

    def step(relu_s, others_s, between_s):
        parts = {"relu": relu_s, "fc": others_s}
        one = record("x", calls=parts, between_calls_s=between_s)
        traced = tuple(
            msgspec.structs.replace(call, operator=f"aten.{call.module}") for call in one.calls
        )
        whole = dict.fromkeys(rounds, relu_s + others_s + between_s)
        swapped = dict.fromkeys(rounds, relu_s), dict.fromkeys(rounds, 0.0)
        return msgspec.structs.replace(one, calls=traced, rounds_s=whole, swapped=swapped)

    control = step(0.014, 0.050, 0.004)
    saving = saving_of(alone, control, step(0.008, 0.051, 0.003), control)
    rows = {row.term: row.saved_s for row in saving.between}
    assert saving.foretold.saved_s == pytest.approx(0.002)
    assert rows[swaps.AT_PLACE] == pytest.approx(0.004)
    assert rows["other calls"] == pytest.approx(-0.001)
    assert rows["between calls"] == pytest.approx(0.001)
    assert rows["unexplained"] == pytest.approx(0, abs=1e-9)
    assert "aten.fc" in saving.between[1].how


def test_numbers_of_swapped_calls_are_summed_over_a_step():
    # Two calls, made twice and once; of each the original and the kernel.
    row = (1.0, 0.5, 3.0, 2.0)
    kernel = SimpleNamespace(sample=lambda _: Chunk(seconds=row * 2))
    chunk = swaps._rounds(kernel, [2, 1], ChunkRequest(samples=2))
    assert chunk.parts == ((5.0, 3.0),) * 2
    assert chunk.seconds == (8.0, 8.0)
