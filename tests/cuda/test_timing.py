"""How samples are taken on a GPU: what must hold of them on any card, however fast it is.

The gate's time-out, a work that waits for the device or throws, and the prefetch after a flush need
a work of their own, which Python has not: tests/cpp/test_real_calls.py shows them. Whoever else
uses the card disturbs times, so what compares two of them may try again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.ops.op import Layer


pytestmark = pytest.mark.gpu

_TRIES = 5
# Events tick so often.
_TICK_S = 0.5e-6
# Some 100 us on a fast card, some milliseconds on a slow one.
PRODUCT = build_layer("gemm", m=2048, k=2048, n=2048)


def _case(layer: Layer = PRODUCT, **words: str) -> KernelSpec:
    return KernelSpec(layer=layer, device="cuda:0", **words)


def _eventually(holds: Callable[[], bool]) -> bool:
    return any(holds() for _ in range(_TRIES))


def _median(kernel: Any, samples: int = 20, inner: int = 1, untimed: int = 3) -> float:
    return float(np.median(kernel.sample(samples, inner, untimed)["seconds"]))


def test_events_and_graphs_agree_on_a_long_kernel(gpu):
    case = _case()
    plan = gpu.kernel(case).plan
    events = gpu.kernel(case, plan, timing="events")
    graph = gpu.kernel(case, plan, timing="cuda-graph")

    def agree() -> bool:
        return _median(events, 20, 8) == pytest.approx(_median(graph, 20, 8), rel=0.05)

    assert _eventually(agree)


def test_a_flush_makes_a_small_layer_slower(gpu):
    quarter = gpu.device.facts["l2_bytes"] // 4
    layer = build_layer("relu", channels=64, height=8, width=8, batch=quarter // 4 // 4096)
    hot = gpu.kernel(_case(layer), cache="hot")
    cold = gpu.kernel(_case(layer), cache="all-cold")
    assert _eventually(lambda: _median(cold, 50) > _median(hot, 50) + _TICK_S)


def test_cold_weights_are_between_hot_and_all_cold(gpu):
    """A row vector times a large matrix: the weights are nearly all that is read."""
    wide = gpu.device.facts["l2_bytes"] // 4 // 4 // 1024
    case = _case(build_layer("gemm", m=1, k=1024, n=wide))
    plan = gpu.kernel(case).plan
    hot, weights, cold = (
        gpu.kernel(case, plan, cache=cache) for cache in ("hot", "weights-cold", "all-cold")
    )

    def between() -> bool:
        least, middle, most = (_median(one, 50) for one in (hot, weights, cold))
        return least + _TICK_S < middle < most + 2 * _TICK_S

    assert _eventually(between)


def test_a_cold_graph_rotates_its_operands(gpu):
    l2 = gpu.device.facts["l2_bytes"]
    layer = build_layer("relu", channels=64, height=8, width=8, batch=l2 // 8 // 4 // 4096)
    hot = gpu.kernel(_case(layer), timing="cuda-graph")
    cold = gpu.kernel(_case(layer), cache="all-cold", timing="cuda-graph", cold_bytes=2 * l2)
    assert hot.rotating_sets == 1
    # A quarter of L2 per set.
    assert 6 <= cold.rotating_sets <= 10
    assert _eventually(lambda: _median(cold, 20, 32) > 1.1 * _median(hot, 20, 32))


@pytest.mark.parametrize("timing", ["events", "cuda-graph"])
def test_samples_are_as_many_as_asked_for_and_per_execution(gpu, timing):
    kernel = gpu.kernel(_case(), timing=timing)
    one = _median(kernel, 5)
    for samples, inner in ((1, 1), (7, 1), (3, 5)):
        raw = kernel.sample(samples, inner)
        assert raw["seconds"].shape == (samples,)
        assert raw["seconds"].dtype == np.float64
        assert (raw["seconds"] > 0).all()
        assert raw["gate_timeouts"] == 0
        assert raw["wall_s"] >= inner * raw["seconds"].sum()
    assert _eventually(lambda: 0.5 < _median(kernel, 5, 8) / one < 1.5)


@pytest.mark.parametrize("timing", ["events", "cuda-graph"])
def test_untimed_executions_take_their_time_outside_of_the_samples(gpu, timing):
    kernel = gpu.kernel(_case(), timing=timing)
    one = _median(kernel, 5)
    raw = kernel.sample(1, 1, 200)
    assert raw["seconds"].shape == (1,)
    assert raw["wall_s"] > 200 * 0.5 * one


@pytest.mark.parametrize("timing", ["events", "cuda-graph"])
def test_the_clock_is_one_that_the_card_has(gpu, timing):
    rated = gpu.device.facts["clock_hz"]
    # Each sample is longer than 200 us, so each has a reading.
    clocks = gpu.kernel(_case(), timing=timing).sample(5, 16, 3)["clock_hz"]
    assert clocks.shape == (5,)
    assert ((clocks > 0.2 * rated) & (clocks < 1.1 * rated)).all(), clocks


def test_short_samples_share_one_reading(gpu):
    kernel = gpu.kernel(_case(build_layer("gemm", m=16, k=16, n=16)))
    assert kernel.sample(200)["clock_hz"].size <= 1


def test_three_clocks_read_one_kernel(gpu):
    times = gpu.kernel(_case()).launch_times(10)
    assert {"event_s", "graph_s", "host_s"} <= set(times)
    assert all(value > 0 for value in times.values())
    # The host only enqueues.
    assert times["host_s"] < times["event_s"]


def test_a_layer_of_one_element_is_all_launch(gpu):
    kernel = gpu.kernel(_case(build_layer("relu", channels=1)))
    times = kernel.launch_times(20)
    assert 0 < times["graph_s"] < 100e-6
    assert 0 < times["host_s"] < 1e-3


def test_a_cold_sample_on_events_is_one_execution(gpu):
    kernel = gpu.kernel(_case(), cache="all-cold")
    with pytest.raises(ValueError, match="inner must be 1"):
        kernel.sample(1, inner=2)
    assert kernel.sample(1)["seconds"].size == 1


@pytest.mark.parametrize("words", [{"cache": "warm"}, {"timing": "stopwatch"}])
def test_words_that_do_not_exist_are_refused(gpu, words):
    with pytest.raises(ValueError, match="there is"):
        gpu.kernel(_case(), **words)


def test_running_for_a_time_keeps_to_it(gpu):
    steady = gpu.kernel(_case()).run_for(0.2)
    assert steady["executions"] > 1
    assert 0.05 < steady["seconds"] < 2


def test_a_kernel_outlives_what_it_was_made_of(gpu):
    case = _case(build_layer("gemm", m=33, k=65, n=17))
    arena = gpu.native.Arena(gpu.device, gpu.inputs(case))
    kernels = []
    for plan in gpu.plans(case)[:2]:
        kernels.append(gpu.native.Kernel(plan, arena))
    arena.clear()
    del plan, arena
    for kernel in kernels:
        kernel.run_poisoned()
        assert np.isfinite(kernel.output()).all()
        assert kernel.sample(2)["seconds"].size == 2
