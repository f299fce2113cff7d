"""What is looked for in a step without a graph: its recorded calls, by the user's modules."""

import time
from types import SimpleNamespace

import msgspec
import pytest
from breakdown_records import level, make_record, term
from invented_calls import CALLS
from invented_evidence import row
from planted_world import summary

from pydlbench.analysis.mapped import map_calls
from pydlbench.backends import capabilities
from pydlbench.diagnose import evidence, rules
from pydlbench.diagnose.ablation import AgainstNative, LayerChange, StepChange
from pydlbench.diagnose.run import suspect
from pydlbench.errors import PrimitiveError
from pydlbench.records.breakdown import BrokenDownCall
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.records.trace import RecordedCall, operator_of
from pydlbench.records.user_model import UserModelSpec
from pydlbench.runner.rows import empty_row

CASE = StepSpec(
    model="my_model.py:build",
    phase="training",
    own=UserModelSpec(optimizer="adam"),
    options={"width": 3},
)
STEP_S, CALL_S, NATIVE_S = 1.0, 0.1, 0.01


# What a model makes with ``clone()`` or ``to()``, and what it computes with.
IMAGES = "float32[2, 8, 6, 6](288, 36, 6, 1)"
COPIES = [
    f"aten.clone.default({IMAGES})",
    f"aten.clone.default({IMAGES}, memory_format=torch.channels_last)",
    f"aten._to_copy.default({IMAGES}, dtype=torch.bfloat16)",
    f"aten.copy_.default({IMAGES}, {IMAGES})",
]
COMPUTED = [f"aten.relu.default({IMAGES})", f"aten.mul.Tensor({IMAGES}, {IMAGES})"]


@pytest.fixture
def mapped(request):
    # The second convolution has channels that fill no vector.
    odd = msgspec.structs.replace(
        CALLS[0],
        signature=CALLS[0]
        .signature.replace("8, 3, 3](72", "3, 3, 3](27")
        .replace("2, 8, 6, 6](288", "2, 3, 6, 6](108"),
        count=1,
        names=("stem",),
        parts=(),
    )
    calls = (odd, *CALLS, *getattr(request, "param", ()))
    return calls, map_calls(calls, "training", "fp32", "cpu", None)


@pytest.fixture
def look(mapped, monkeypatch):
    """Look at a step of these calls; every native kernel reaches a tenth of its roof."""
    calls, stands = mapped
    lost = SimpleNamespace(reason="")

    def break_down(*_, **__):
        found = []
        for one in calls:
            native_s = None if one.operator == "my.op" else NATIVE_S
            for name, share in one.shares().items():
                found.append(
                    BrokenDownCall(
                        operator=one.operator,
                        module=name,
                        direction=one.direction,
                        count=int(share),
                        in_context_s=share * CALL_S,
                        share=0.1,
                        alone_s=share * CALL_S,
                        native_s=None if native_s is None else share * native_s,
                        signatures=(one.signature,),
                    )
                )
        update = BrokenDownCall(
            operator="aten._foreach_add_",
            module="optimizer",
            direction="optimizer",
            count=1,
            in_context_s=CALL_S,
            share=0.1,
            alone_s=CALL_S,
            signatures=("u",),
        )
        yield make_record(
            model=CASE.model,
            batch=2,
            phase=CASE.phase,
            measured=level(1e3 * STEP_S),
            terms=(term("dispatch", "experiment", 100, "alone"),),
            calls=(*found, update),
            modules=(),
            lines={"a": "my_model.py:15"},
            notes=(f"no native row: kernel: {lost.reason}", "no native row: kernel: other"),
        )

    def fails(*_, **__):
        yield from ()
        raise PrimitiveError("no breakdown today")

    def measure(cases, *_, **__):
        for one in cases:
            if lost.reason:
                yield one, empty_row(one, None, "failed", lost.reason)
            else:
                yield one, row(one, NATIVE_S, roof=NATIVE_S / 10)

    worker = SimpleNamespace(probe=lambda *_, **__: {"seconds": STEP_S / 100})
    session = SimpleNamespace(
        measure=measure, cache_bytes=lambda _: None, worker=lambda *_, **__: worker
    )
    monkeypatch.setattr(evidence, "map_step", lambda *_: stands)

    def look(inputs=("2x8x6x6",), *, explained=True, asked=CASE, reason=""):
        lost.reason = reason
        case = msgspec.structs.replace(asked, batch=2)
        step = StepRecord(spec=case, status="ok", time=summary(STEP_S), inputs=inputs)
        *_, (seen, notes) = evidence.observe(
            step, session, time.monotonic(), 100.0, str, break_down if explained else fails
        )
        return suspect(seen), notes

    return look


def of(kind, found):
    return {one: because[0] for one, because in found.items() if isinstance(one, kind)}


def test_calls_with_a_native_layer_are_tried_against_it_by_module_and_line(look):
    found, notes = look()
    against = of(AgainstNative, found)
    assert {one.where: experiment.count for experiment, one in against.items()} == {
        "a and 2 like it forward": 3,
        "stem forward": 1,
    }
    assert {experiment.spec.backend for experiment in against} == {"torch"}
    (first,) = (one for one in against.values() if one.where.startswith("a "))
    assert first.evidence == ("a is called in my_model.py:15",)
    assert first.most_s == pytest.approx(3 * (CALL_S - NATIVE_S))
    assert any("has no graph" in one for one in notes)


def test_the_work_of_a_step_is_told_by_direction_and_kind(look):
    (work,) = (note for note in look()[1] if note.startswith("calls by direction"))
    by_direction, by_kind = work.split("; by kind: ")
    assert "forward" in by_direction
    assert "optimizer 10 %" in by_direction
    assert "optimizer 10 %" in by_kind
    assert not any("by direction" in note for note in look(explained=False)[1])


@pytest.mark.parametrize(
    ("mapped", "copied"),
    [
        ((RecordedCall(signature=one, operator=operator_of(one), names=("c",)),), one in COPIES)
        for one in (*COPIES, *COMPUTED)
    ],
    indirect=["mapped"],
)
def test_copies_are_told_from_other_pointwise_calls(look, mapped, copied):
    found, notes = look()
    (work,) = (note for note in notes if note.startswith("calls by direction"))
    assert ("copy 10 %" in work) is copied
    seen = [line for because in found.values() for one in because for line in one.evidence]
    name = f"{mapped[0][-1].operator} of c"
    assert any(line.startswith("copies") and name in line for line in seen) is copied


def test_why_native_rows_are_missing_is_told_once(look):
    notes = [note for note in look(reason="a: b")[1] if note.startswith("no native row")]
    assert sorted(note.rpartition(": ")[2] for note in notes) == ["b", "other"]


def test_each_recorded_call_is_started_with_a_layer_or_without(mapped):
    calls, stands = mapped
    plan = SimpleNamespace(terms=(None,) * 2)
    seen = SimpleNamespace(
        spec=CASE, difference=lambda _: None, dispatch_s=1e-6, mapped=stands, plan=plan
    )
    number = sum(one.count for one in calls)
    assert number > len(calls)
    assert rules._dispatch(seen)[0] == pytest.approx(number * 1e-6)
    seen.mapped = {}
    assert rules._dispatch(seen)[0] == pytest.approx(2e-6)


def test_rules_on_layers_know_the_layers_of_calls(look):
    changes = of(LayerChange, look()[0])
    padded = [(one.where, new.count) for new, one in changes.items() if "padded" in new.what]
    assert padded == [("stem forward", 1)]
    roofs = {new.count for new in changes if new.what == "twice the batch"}
    assert roofs == {3}  # the other one is below 1 % of the step


def test_a_fused_optimizer_and_a_larger_batch_are_changes_of_the_user_s_step(look):
    changes = of(StepChange, look()[0])
    by_what = {experiment.what: (experiment, one) for experiment, one in changes.items()}
    fused, because = by_what["a fused optimizer (fused=True)"]
    assert dict(fused.changes)["own"].optimizer == "adam-fused"
    assert because.next.startswith("pydlbench diagnose my_model.py:build")
    assert "--optimizer adam-fused" in because.next
    assert "--set width=3" in because.next
    larger, because = by_what["batch 4"]
    assert [one.text for one in dict(larger.changes)["own"].inputs] == ["4x8x6x6"]
    assert dict(larger.changes)["batch"] is None  # that of the inputs
    assert "--input 4x8x6x6" in because.next
    assert "compiled" in by_what


@pytest.mark.parametrize(
    ("rows", "optimizer", "proposed"),
    [
        (300_000, "adamw", "adamw-sparse"),
        (300_000, "sgd", "sgd-sparse"),
        (20_000, "adam", None),  # most rows are used
        (300_000, "adam-fused", None),  # has no sparse counterpart
    ],
)
def test_sparse_gradients_are_tried_where_a_step_uses_few_rows_of_a_table(
    rows, optimizer, proposed
):
    indices = "int64[12800](1), int64[512](1), int64[12800](1), int64[512](1), int64[512](1)"
    signature = (
        f"aten._embedding_bag_backward.default(float32[512, 64](64, 1), {indices}, {rows}, False, "
        "1, False, None)"
    )
    call = RecordedCall(
        signature=signature, operator="aten._embedding_bag_backward", direction="backward"
    )
    case = msgspec.structs.replace(CASE, own=UserModelSpec(optimizer=optimizer), mode="eager")
    seen = evidence.Observations(
        spec=case,
        model=None,
        mapped=map_calls([call], "training", "fp32", "cpu", None),
        step=StepRecord(spec=case, status="ok", time=summary(STEP_S)),
        plan=None,
        rows={},
        estimate=None,
        native=None,
    )
    found = [dict(each.experiment.changes)["own"] for each in rules.find_unused_rows(seen)]
    assert [own.optimizer for own in found] == ([proposed] if proposed else [])


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


@pytest.mark.parametrize(
    ("signature", "changed"),
    [
        (  # heads that are a view of (batch, positions, heads, size)
            f"{ATTENTION}({', '.join(['float32[2, 8, 16, 4](512, 4, 32, 1)'] * 3)})",
            f"{ATTENTION}({', '.join(['float32[2, 8, 16, 4](512, 64, 4, 1)'] * 3)})",
        ),
        (f"{ATTENTION}({', '.join(['float32[2, 8, 16, 4](512, 64, 4, 1)'] * 3)})", None),
        (
            "aten.bmm.default(float32[2, 3, 4](4, 8, 1), float32[2, 4, 5](20, 1, 4))",
            "aten.bmm.default(float32[2, 3, 4](12, 4, 1), float32[2, 4, 5](20, 1, 4))",
        ),
        ("aten.mm.default(float32[3, 4](1, 3), float32[4, 5](1, 4))", None),  # BLAS takes these
    ],
)
def test_products_and_attentions_are_tried_on_contiguous_operands(signature, changed):
    call = RecordedCall(signature=signature, operator=operator_of(signature), direction="forward")
    timed = BrokenDownCall(
        operator=call.operator,
        module="heads",
        direction="forward",
        count=2,
        in_context_s=CALL_S,
        share=0.1,
        alone_s=CALL_S,
        signatures=(signature,),
    )
    seen = SimpleNamespace(
        spec=msgspec.structs.replace(CASE, mode="eager"),
        framework=capabilities.declaration("torch").steps,
        calls=lambda _: [timed],
        mapped=map_calls([call], "forward", "fp32", "cpu", None),
        matters=lambda _: True,
        share=str,
        called=lambda _: (),
    )
    found = [(each.experiment.changed, each.experiment.count) for each in rules.find_strides(seen)]
    assert found == ([(changed, 2)] if changed else [])


def test_inputs_that_nobody_can_double_are_not(look):
    changes = of(StepChange, look(inputs=())[0])
    assert not any("batch" in one.what for one in changes)


def test_without_a_breakdown_there_is_no_excess_to_look_at(look):
    found, notes = look(explained=False)
    assert not of(AgainstNative, found)
    assert any("channels last" in one.what for one in of(StepChange, found))
    assert any("no breakdown today" in one for one in notes)


KERAS = StepSpec(model="my_keras.py:build", phase="training", framework="tensorflow")
FILE = StepSpec(model="net.onnx", framework="onnxruntime")


def test_a_model_of_keras_is_tried_with_what_tensorflow_has(look):
    found, notes = look(asked=KERAS)
    against = of(AgainstNative, found)
    assert {one.where for one in against.values()} >= {"a and 2 like it forward", "stem forward"}
    assert {experiment.spec.backend for experiment in against} == {"tensorflow"}
    changes = {one.what for one in of(StepChange, found)}
    assert {"xla", "batch 4"} <= changes
    assert not any("fused" in one or "channels last" in one for one in changes)
    assert any("fused optimizer" in one for one in notes)


def test_a_file_has_no_node_that_could_be_run_in_another_way(look):
    found, notes = look(asked=FILE)
    assert not of(AgainstNative, found)
    assert not of(LayerChange, found)
    changes = of(StepChange, found)
    assert {one.what for one in changes} >= {"batch 4"}
    assert not any("bf16" in one.what for one in changes)
    (larger,) = (because for one, because in changes.items() if one.what == "batch 4")
    assert "--input 4x8x6x6" in larger.next
    assert any("single node" in one for one in notes)


def test_a_file_that_runs_as_it_is_written_is_tried_rewritten(look):
    found, _ = look(asked=msgspec.structs.replace(FILE, mode="unoptimized"))
    (change,) = (one for one in of(StepChange, found) if one.what == "optimized")
    assert dict(change.changes) == {"mode": "optimized"}


@pytest.mark.parametrize(("mode", "asks"), [("eager", True), ("compiled", False)])
def test_only_what_starts_its_operators_one_by_one_is_asked_what_that_costs(look, mode, asks):
    case = msgspec.structs.replace(CASE, mode=mode)
    found, _ = look(asked=case, explained=False)
    reasons = {one.reason for because in found.values() for one in because}
    assert ("launch gaps" in reasons) == asks
