"""From samples to a row: invented samples and devices, so that every number is known."""

import dataclasses

import pytest
from said import says

from pydlbench.backends.base import KernelFacts
from pydlbench.devices.cpu.facts import Cache, CpuFacts, LogicalCpu
from pydlbench.devices.cpu.record import DeviceRecord
from pydlbench.devices.findings import Bandwidth, PrecisionPeak
from pydlbench.errors import UsageError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness, KernelSpec
from pydlbench.runner.memory import check_memory, memory_held, memory_needed
from pydlbench.runner.rows import measured_row, with_limits
from pydlbench.study.table import Interference, Series, Visit

CASE = KernelSpec(layer=build_layer("gemm", m=100, k=10, n=20))
FACTS = KernelFacts(
    accumulate="float32",
    library="oneDNN 3.2.0",
    algorithm="brgemm",
    layout="ab",
    correct=Correctness(status="ok", rel_error=0.0, tolerance=1e-6, detail="all"),
    workspace_bytes=0,
    reorder_s={},
    setup_s=0.001,
    candidates=[],
)


def samples(rounds=(1e-3,) * 9, *, clock_hz=3e9, fma=None, each=10, **changes):
    """Rounds of so many equal samples."""
    return Series(
        [
            Visit(
                subject="it",
                round=number,
                seconds=(seconds,) * each,
                inner=4,
                clock_hz=clock_hz,
                wall_s=0.02,
                interference=Interference(fma=fma),
                **changes,
            )
            for number, seconds in enumerate(rounds)
        ]
    )


def row(facts=FACTS, **changes):
    return measured_row(CASE, 2, facts, samples(**changes))


def test_what_sampling_did_is_in_the_row():
    record = row()
    assert (record.stop_rule, record.stop_reason) == ("rounds", "9 rounds, 0.18 s")
    assert record.inner == 4
    assert (record.time.n, record.time.repetitions) == (90, 1)
    assert record.cycles == pytest.approx(3e6)
    assert record.warnings == ()
    assert row(clock_hz=None).cycles is None


def test_the_clock_of_somebody_else_stands_in_for_one_that_was_not_read():
    record = measured_row(CASE, 2, FACTS, samples(clock_hz=None), clock_hz=2e9)
    assert (record.clock_hz, record.cycles) == (2e9, pytest.approx(2e6))


def test_repetitions_are_counted_and_kept():
    visits = [
        Visit(subject="it", round=i, preparation=i, process=i % 2, seconds=(1e-3 + i * 1e-5,))
        for i in range(6)
    ]
    lost = measured_row(CASE, 2, FACTS, Series([*visits[:2], *visits[3:]])).time
    assert lost.laps == (0, 1, 3, 4, 5)
    time = measured_row(CASE, 2, FACTS, Series(visits)).time
    assert (time.repetitions, time.processes) == (6, 2)
    assert time.laps is None
    assert time.visit_s == pytest.approx([1e-3 + i * 1e-5 for i in range(6)])
    assert (time.median, time.ci_low, time.ci_high) == pytest.approx((1.025e-3, 1e-3, 1.05e-3))


def test_interference_is_said():
    record = row(fma=0.5)
    assert record.contended
    assert "50%" in record.contention_reason
    assert record.time.ci_low == pytest.approx(0.5e-3)
    assert record.warnings == ()


def late(seconds):
    """A step in no interval of the median, since most rounds were before it."""
    return [1e-3] * 24 + [seconds] * 7


def test_drift_between_rounds_is_a_warning():
    (text,) = row(rounds=late(1.06e-3)).warnings
    assert says(text, "rose", "6 %")
    (text,) = row(rounds=late(0.9e-3)).warnings
    assert says(text, "fell", "10 %")
    assert row(rounds=late(1.04e-3)).warnings == ()
    assert row(rounds=late(1.06e-3), fma=0.5).warnings == ()


def test_rounds_that_scatter_do_not_drift():
    assert row(rounds=(1e-3, 1.1e-3, 1e-3, 1.1e-3, 1e-3, 1.1e-3)).warnings == ()
    assert row(rounds=(1e-3, 1e-3, 1.2e-3, 1e-3, 1e-3)).warnings == ()


def test_what_the_row_s_interval_shows_is_not_said_once_more():
    steps = [1e-3 * (1 + 0.02 * i) for i in range(9)]
    assert row(rounds=steps).warnings == ()
    time = row(rounds=steps).time
    assert time.ci_high - time.ci_low > 0.1e-3


def test_drift_on_a_gpu_has_causes_of_its_own():
    case = KernelSpec(layer=build_layer("gemm", m=100, k=10, n=20), device="cuda:0")
    (text,) = measured_row(case, None, FACTS, samples(rounds=late(1.06e-3))).warnings
    assert says(text, "rose", "6 %", "heat", "cycles")
    assert "neighbour" not in text


def test_the_interval_is_that_of_the_rounds():
    rounds = (0.97e-3, 0.98e-3, 1e-3, 1e-3, 1.01e-3, 1.02e-3)
    time = row(rounds=rounds).time
    assert (time.ci_low, time.median, time.ci_high) == (0.97e-3, 1e-3, 1.02e-3)
    assert row(rounds=rounds[:1]).time.ci_low is None


@pytest.mark.parametrize(
    ("seconds", "faster"),
    [((0.5e-3, 2e-3, 2e-3), False), ((0.9e-3, 0.9e-3, 9e-3), True), ((), False)],
)
def test_a_wrong_candidate_is_named_if_its_median_is_faster(seconds, faster):
    wrong = {
        "algorithm": "winograd",
        "status": "failed",
        "reason": "wrong by 0.1",
        "seconds": list(seconds),
    }
    found = row(dataclasses.replace(FACTS, candidates=[wrong])).warnings
    assert [says(text, "winograd", "wrong by 0.1") for text in found] == [True] * faster


def device(launch_s=0.0, **rates):
    rates = {"memory": 20e9, "llc": 100e9} | rates
    cpu = LogicalCpu(index=0, socket=0, siblings=(0,))
    caches = (
        Cache(level=2, type="Unified", size_bytes=1 << 20, shared_cpus=(0,)),
        Cache(level=3, type="Unified", size_bytes=32 << 20, shared_cpus=(0,)),
    )
    return DeviceRecord(
        facts=CpuFacts(cpus=(cpu,), caches=caches),
        cpus=(0,),
        launch_s=launch_s,
        peaks=(PrecisionPeak(precision="fp32", measured=1e11, clock_hz=3e9),),
        bandwidths=tuple(
            Bandwidth(
                level=level,
                pattern="copy",
                bytes_per_s=rate,
                median_bytes_per_s=rate,
                working_set_bytes=1,
                kernel="zmm",
            )
            for level, rate in rates.items()
        ),
    )


def test_a_kernel_shorter_than_its_start_is_bound_by_launch():
    # 40 000 FLOP at 100 GFLOP/s are 0.4 us.
    over = with_limits(row(rounds=[4e-6] * 9), CASE, device(launch_s=2e-6)).roofline
    assert (over.bound, over.time_s, over.efficiency) == ("launch", 2e-6, pytest.approx(0.5))
    over = with_limits(row(rounds=[1e-6] * 9), CASE, device(launch_s=2e-6)).roofline
    assert (over.bound, over.time_s) == ("launch", pytest.approx(4e-7))
    over = with_limits(row(), CASE, device(launch_s=2e-7)).roofline
    assert over.bound == "compute"


def test_levels_that_other_rows_had_probed_do_not_change_the_roof():
    names = ("memory", "llc")
    record = row()
    fewer = with_limits(record, CASE, device(llc=1e9), names)
    assert with_limits(record, CASE, device(llc=1e9, l2=400e9), names) == fewer
    assert with_limits(record, CASE, device(llc=1e9, l2=400e9)).roofline != fewer.roofline


@pytest.mark.parametrize(("rate", "bound"), [(1e9, None), (100e9, "compute")])
def test_a_bandwidth_that_was_never_undisturbed_is_no_roof(rate, bound):
    """Unless another limit is the higher one even so: the level is no slower than it was read."""
    found = device(l2=rate)
    probed = [
        dataclasses.replace(one, disturbance="somebody else") if one.level == "l2" else one
        for one in found.bandwidths
    ]
    held = with_limits(row(), CASE, dataclasses.replace(found, bandwidths=tuple(probed)))
    assert held.peak.measured == pytest.approx(0.1)
    assert (held.roofline and held.roofline.bound) == bound
    assert ["l2" in one for one in held.warnings] == ([] if bound else [True])


BIAS = parse_problem("bias:mb2ic5ih10")


@pytest.mark.parametrize(
    ("layer", "pass_", "elements", "output"),
    [
        (CASE.layer, "forward", 3200, 2000),
        (CASE.layer, "backward-data", 3200, 1000),
        (CASE.layer, "backward-weights", 3200, 200),
        (BIAS, "backward-weights", 1005, 5),  # whose result is not the weights
    ],
)
def test_memory_that_is_needed(layer, pass_, elements, output):
    words = {"layer": layer, "pass_": pass_}
    assert memory_needed(KernelSpec(**words), layer, 777) == elements * (4 + 3 * 4) + 4 * output
    hot, cold = (
        memory_needed(KernelSpec(**words, precision="bf16", cache=cache), layer, 1000)
        for cache in ("hot", "all-cold")
    )
    assert hot == elements * (4 + 3 * 2) + 4 * output
    assert cold - hot == 2 * (1000 + 2 * elements * 2)  # two pools


@pytest.mark.parametrize("cache", ["hot", "all-cold"])
def test_a_gpu_row_needs_inputs_and_output_of_the_host_and_is_not_refused(cache):
    layer = build_layer("gemm", m=1, k=200, n=4)  # 1004 elements
    case = KernelSpec(layer=layer, device="cuda:0", precision="tf32", cache=cache)
    assert memory_needed(case, layer, 1 << 40) == 4 * 1004
    check_memory([case, case], 1, 1 << 40)
    with pytest.raises(UsageError, match="are available"):
        check_memory([KernelSpec(layer=layer, cache=cache)], 1, 1 << 40)


def test_memory_that_is_held_until_the_last_one_is_timed():
    layer = build_layer("gemm", m=1, k=200, n=4)  # 1004 elements
    # A pool spans the caches and ends with a whole copy.
    for cache, size in (("hot", 1004 * 2), ("all-cold", 1000 + 2 * 1004 * 2)):
        case = KernelSpec(layer=layer, precision="bf16", cache=cache)
        assert memory_held(case, layer, 1000) == size < memory_needed(case, layer, 1000)
    assert memory_held(KernelSpec(layer=layer, device="cuda:0"), layer, 1000) == 0
