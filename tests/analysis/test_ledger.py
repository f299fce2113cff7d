"""The ledger of a recorded step: sums, limits, parts that repeat, and differences of two."""

import shlex

import pytest
from invented_profile import (
    ADD,
    ADD_BYTES,
    MM,
    MM_BYTES,
    MM_FLOPS,
    event,
    launched,
    module,
    step,
    write,
)
from msgspec.structs import replace

from pydlbench.analysis.ledger import ledger_of
from pydlbench.analysis.ledger_difference import compare_ledgers
from pydlbench.analysis.rows import fastest_kernels
from pydlbench.devices.gpu.cards import card_named
from pydlbench.errors import UsageError
from pydlbench.report.text import as_text
from pydlbench.report.trace import comparison_report
from pydlbench.steps.traced import meaning_of_call
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store
from pydlbench.traces.files import read

CARD = card_named("NVIDIA H100 80GB HBM3")


@pytest.fixture
def ledger(tmp_path):
    def make(events, name="trace", card=CARD, **how):
        return ledger_of(read(write(tmp_path / f"{name}.json", events)), name, card=card, **how)

    return make


def layers(count=3, kernel="g", dur=100, first=0):
    """A model of equal layers, each a product and an addition."""
    events = [module("Net_0", 0, 100 * count)]
    for layer in range(count):
        events.append(module(f"Layer_{layer}", 100 * layer, 90))
        begin = 1000 + 300 * layer
        events += launched("aten::mm", kernel, 100 * layer + 5, begin, dur, first + 2 * layer, **MM)
        number = first + 2 * layer + 1
        events += launched("aten::add", "a", 100 * layer + 40, begin + 150, 50, number, **ADD)
    return events


def test_rows_add_up_to_the_time_line(ledger):
    events = layers()
    events += launched("c10d::allreduce_", "ncclDevKernel_AllReduce", 310, 1700, 300, 50, stream=20)
    events.append(event("kernel", "of_nobody", 2100, 70, tid=7, pid=0, correlation=999))
    found = ledger(events)
    line = found.device_time
    assert line.kernel_s == pytest.approx((3 * 150 + 300 + 70) * 1e-6)
    assert line.busy_s == pytest.approx(line.kernel_s - line.overlapped_s)
    assert line.span_s == pytest.approx(line.busy_s + line.idle_s)
    assert sum(each.seconds for each in found.idle) == pytest.approx(line.idle_s)
    assert found.unattributed_s == 0
    for rows in (found.calls, found.categories, found.directions):
        assert sum(row.device_s for row in rows) == pytest.approx(line.kernel_s)
    assert sum(row.kernels for row in found.calls) == 8


def test_limits_are_those_of_the_card(ledger):
    calls = {call.operator: call for call in ledger(layers(1)).calls}
    product, addition = calls["aten.mm"], calls["aten.add"]
    compute_s, memory_s = MM_FLOPS / 989.4e12, MM_BYTES / 3350e9
    assert product.flops == MM_FLOPS
    assert product.limit_s == pytest.approx(max(compute_s, memory_s))
    assert addition.limit_s == pytest.approx(ADD_BYTES / 3350e9)
    assert (product.category, addition.category) == ("product", "element-wise")


def test_what_has_no_limit_says_why(ledger):
    events = launched("c10d::allreduce_", "ncclDevKernel_AllReduce", 0, 100, 10, 1)
    events += launched("mylib::op", "x", 30, 120, 10, 2, **MM)
    events += [
        event("cuda_runtime", "cudaMemcpyAsync", 60, 5, correlation=3),
        event("gpu_memcpy", "Memcpy HtoD", 140, 10, tid=9, pid=0, correlation=3, bytes=1000),
    ]
    missing = {call.operator: call.limit_missing for call in ledger(events).calls}
    assert "links" in missing["c10d.allreduce_"]
    assert "mylib" in missing["mylib.op"] or "rule" in missing["mylib.op"]
    assert "host and device" in missing["Memcpy HtoD"]
    without = ledger(layers(1), card=None, missing="no such card")
    assert {call.limit_missing for call in without.calls} == {"no such card"}
    assert without.limit_s is None


def test_float32_products_faster_than_the_cuda_cores_ran_on_tensor_cores(ledger):
    shapes = {**MM, "Input type": ["float", "float"]}
    slow, fast = (
        ledger(launched("aten::mm", "g", 0, 100, dur, 1, **shapes)).calls[0] for dur in (900, 1)
    )
    assert slow.limit_s == pytest.approx(MM_FLOPS / 66.9e12)
    assert fast.limit_s == pytest.approx(2 * MM_BYTES / 3350e9)
    # Each call by its own kernel's name, not by those of the file.
    on_tensor_cores = ("sm80_tf32_gemm", "cutlass_80_tensorop_s1688gemm", "ampere_s16816gemm_tn")
    events = []
    for n, name in enumerate((*on_tensor_cores, "ampere_sgemm_128x64", "sm80_s16816gemm_f16")):
        events += launched("aten::mm", name, 100 * n, 1000 * n + 1000, 900, n, **shapes)
    (row,) = ledger(events).calls
    assert row.limit_s == pytest.approx(3 * fast.limit_s + 2 * slow.limit_s)


@pytest.mark.parametrize(("dur", "contradicts"), [(1, True), (900, False)])
def test_a_time_below_the_limit_is_a_contradiction(ledger, dur, contradicts):
    found = ledger(launched("aten::add", "a", 0, 100, dur, 1, **ADD))
    assert (found.calls[0].contradiction is not None) is contradicts


@pytest.mark.parametrize(
    ("changes", "best_s"),
    [
        ({}, 6e-4),
        ({"precision": "tf32"}, None),
        ({"status": "failed"}, None),
        ({"problem": "64x64:64x64"}, None),
    ],
)
def test_the_best_known_kernel_is_the_fastest_row_of_the_card(
    ledger, measurement, run_record, tmp_path, changes, best_s
):
    events = launched("aten::mm", "g", 0, 100, 900, 1, **MM)
    (layer,) = (each.layer for each in meaning_of_call(_only_call(tmp_path, events)).layers)
    with Store.open(tmp_path / "runs.sqlite") as store:
        for number, machine in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA H200")):
            run = replace(run_record, id=f"20300102-{number:08x}", device={"name": machine})
            store.begin(run, "layers")
            for seconds in (6e-4, 7e-4) if number == 0 else (1e-6,):
                row = measurement(
                    **{"problem": layer.problem, "precision": "bf16-tc", "pass_": "forward"}
                    | changes
                ).to_dict()
                row["time_s"] = {**(row["time_s"] or {}), "median": seconds}
                store.add(run.id, Entry.from_document("layer", row))
        known = fastest_kernels(store, CARD)
        (call,) = ledger(events, best_s=known).calls
    assert call.best_s == (None if best_s is None else pytest.approx(best_s))


def _only_call(tmp_path, events):
    return read(write(tmp_path / "one.json", events)).calls[0]


def test_modules_that_repeat_are_one_row(ledger):
    net, layer = ledger(layers()).modules
    assert (net.module, net.repeats, net.depth) == ("Net", 1, 0)
    assert (layer.module, layer.repeats, layer.depth) == ("Net/Layer", 3, 1)
    assert layer.device_s == pytest.approx(450e-6)
    assert layer.low_s == layer.high_s == pytest.approx(150e-6)
    assert layer.slowest.startswith("aten.mm")


def test_several_steps_are_their_mean_with_their_spread(ledger):
    events = [step(1, 0, 100), step(2, 100, 100)]
    events += launched("aten::mm", "g", 10, 300, 200, 1, **MM)
    events += launched("aten::mm", "g", 110, 500, 400, 2, **MM)
    found = ledger(events)
    assert found.steps == 2
    assert found.step_s == pytest.approx(300e-6)
    assert (found.step_low_s, found.step_high_s) == pytest.approx((200e-6, 400e-6))
    assert (found.calls[0].count, found.calls[0].kernels) == (1, 1)


@pytest.mark.parametrize(
    ("events", "kind", "name"),
    [
        (launched("aten::add", "a", 0, 100, 900, 1, **ADD), "category", "element-wise"),
        (
            launched("aten::add", "a", 0, 100, 10, 1, **ADD)
            + launched("aten::add", "a", 900, 950, 10, 2, **ADD),
            "idle",
            "the host had not launched yet",
        ),
        (
            launched("c10d::allreduce_", "ncclDevKernel_AllReduce", 0, 100, 900, 1),
            "communication",
            "exposed communication",
        ),
    ],
)
def test_the_part_with_most_time_above_its_limit_dominates(ledger, events, kind, name):
    found = ledger(events).dominant
    assert (found.kind, found.name) == (kind, name)
    assert 0 < found.share <= 1


def test_rows_of_two_steps_add_up_to_their_difference(ledger):
    before = ledger(layers(3), "before")
    after = ledger(layers(2, kernel="other", dur=60), "after")
    found = compare_ledgers(before, after)
    assert sum(row.difference_s for row in found.rows) == pytest.approx(found.difference_s)
    assert found.difference_s == pytest.approx(after.step_s - before.step_s)


@pytest.mark.parametrize(("counts", "longer"), [((2, 3), "after"), ((3, 2), "before")])
def test_the_report_of_two_steps_names_the_longer_one_to_look_at_next(ledger, counts, longer):
    before, after = (
        ledger(layers(count), name) for count, name in zip(counts, ("before", "after"), strict=True)
    )
    found = compare_ledgers(before, after)
    for options in ([], ["--on", "H100 SXM", "--capture", "graph.json"]):
        lines = as_text(comparison_report(found, options=options)).splitlines()
        assert shlex.split(lines[1]) == ["next:", "pydlbench", "trace", longer, *options]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kernel": "other"}, "other kernel"),
        ({"dur": 140}, "other speed"),
        ({"count": 2}, "other count"),
        ({}, "same"),
    ],
)
def test_a_difference_has_a_reason(ledger, change, why):
    found = compare_ledgers(ledger(layers(), "before"), ledger(layers(**change), "after"))
    (row,) = (row for row in found.rows if row.operator == "aten.mm")
    assert row.why == why


def test_calls_of_one_step_only_are_named(ledger):
    one = ledger(launched("aten::mm", "g", 0, 100, 100, 1, **MM), "one")
    other = ledger(launched("aten::add", "a", 0, 100, 100, 1, **ADD), "other")
    reasons = {row.operator: row.why for row in compare_ledgers(one, other).rows}
    assert (reasons["aten.mm"], reasons["aten.add"]) == ("only in A", "only in B")


def test_steps_without_times_have_no_difference(ledger):
    timed = ledger(layers(1))
    with pytest.raises(UsageError, match="no times"):
        compare_ledgers(timed, timed.__class__(file="x", source="PyTorch execution trace"))


def test_time_without_a_limit_counts_in_the_conclusion(ledger):
    events = launched("mylib::moe", "moe_kernel", 0, 100, 9990, 1, **MM)
    events += launched("aten::add", "a", 30, 10100, 10, 2, **ADD)
    found = ledger(events)
    assert (found.dominant.kind, found.dominant.seconds) == ("category", pytest.approx(9990e-6))
    assert found.limited_share < 0.01


def test_operands_that_were_not_recorded_make_no_limit_of_zero(ledger):
    (call,) = ledger(launched("aten::relu_", "a", 0, 100, 10, 1)).calls
    assert call.limit_s is None
    assert call.limit_missing
