"""Kernels on a GPU: poisoned runs, samples, rotating sets, and what is refused."""

from typing import Any

import numpy as np
import pytest

from pydlbench.errors import InsufficientMemoryError, PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer

pytestmark = pytest.mark.gpu

DIMS = {"batch": 4, "channels": 6, "height": 9, "width": 5}
SHAPE = tuple(DIMS.values())
MB = 1 << 20


def uniform(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def relu(cuda: Any, device: Any, **dims: int) -> Any:
    fields = build_layer("relu", **{**DIMS, **dims}).problem_fields()
    return cuda.plans(device, "pointwise", "forward-inference", "fp32", fields)[0]


@pytest.fixture
def arena(cuda, device):
    return cuda.Arena(device, {"src": uniform(1, *SHAPE)})


@pytest.mark.parametrize("timing", ["events", "cuda-graph"])
@pytest.mark.parametrize("cache", ["hot", "all-cold"])
def test_a_poisoned_run_writes_every_element(cuda, device, arena, cache, timing):
    kernel = cuda.Kernel(relu(cuda, device), arena, cache, timing, MB)
    for _ in range(2):
        kernel.run_poisoned()
        np.testing.assert_array_equal(kernel.output(), np.maximum(uniform(1, *SHAPE), 0))
        kernel.sample(2)
    assert list(kernel.outputs()) == ["dst"]


@pytest.mark.parametrize("timing", ["events", "cuda-graph"])
@pytest.mark.parametrize("cache", ["hot", "all-cold"])
def test_samples_are_seconds_per_execution(cuda, device, arena, cache, timing):
    kernel = cuda.Kernel(relu(cuda, device), arena, cache, timing, MB)
    chunk = kernel.sample(7, untimed=3)
    assert chunk["seconds"].shape == (7,)
    assert chunk["seconds"].dtype == np.float64
    assert (chunk["seconds"] > 0).all()
    assert chunk["seconds"].sum() < chunk["wall_s"]
    assert chunk["gate_timeouts"] == 0
    assert ((chunk["clock_hz"] > 1e8) & (chunk["clock_hz"] < 5e9)).all()


def test_only_cold_graphs_rotate(cuda, device, arena):
    plan = relu(cuda, device)
    each = 2 * -(-uniform(1, *SHAPE).nbytes // 256) * 256  # src and dst, aligned
    for cache, timing, sets in (
        ("hot", "events", 1),
        ("hot", "cuda-graph", 1),
        ("all-cold", "events", 1),
        ("all-cold", "cuda-graph", -(-MB // each) + 1),
    ):
        assert cuda.Kernel(plan, arena, cache, timing, MB).rotating_sets == sets


def test_without_weights_they_cannot_be_cold(cuda, device, arena):
    with pytest.raises(UnsupportedError, match="no weights"):
        cuda.Kernel(relu(cuda, device), arena, "weights-cold")


@pytest.mark.parametrize(("cache", "timing"), [("warm", "events"), ("hot", "stopwatch")])
def test_what_there_is_not_is_answered_with_what_there_is(cuda, device, arena, cache, timing):
    with pytest.raises(ValueError, match="there is: "):
        cuda.Kernel(relu(cuda, device), arena, cache, timing)


def test_a_plan_is_built_once(cuda, device, arena):
    plan = relu(cuda, device)
    seconds = plan.build()
    assert seconds >= 0
    assert plan.build() == seconds
    kernel = cuda.Kernel(plan, arena)
    assert kernel.build_seconds == seconds
    assert kernel.plan is plan


def test_what_is_overwritten_is_restored_before_it_is_verified(cuda, device):
    count = 1000
    given = {role: uniform(seed, count) for seed, role in enumerate(("weights", "velocity"))}
    gradient = uniform(9, count)
    fields = build_layer("momentum", channels=count, rate=0.25, mu=0.5).problem_fields()
    plan = cuda.plans(device, "pointwise", "forward-training", "fp32", fields)[0]
    arena = cuda.Arena(device, {**given, "gradient": gradient})
    kernel = cuda.Kernel(plan, arena)
    velocity = 0.5 * given["velocity"] + gradient
    for _ in range(2):
        kernel.sample(3, inner=4)
        kernel.run_poisoned()
        found = kernel.outputs()
        assert set(found) == {"weights", "velocity"}
        np.testing.assert_allclose(found["velocity"], velocity, atol=1e-6)
        np.testing.assert_allclose(found["weights"], given["weights"] - 0.25 * velocity, atol=1e-6)


def test_copies_beyond_the_memory_are_refused_and_leave_it_usable(cuda, device):
    dims = {"batch": 128, "channels": 64, "height": 128, "width": 256}  # 1 GB a copy, 256 at most
    arena = cuda.Arena(device, {"src": uniform(1, *dims.values())})
    plan = relu(cuda, device, **dims)
    free = device.free_bytes
    much = int(1.2 * device.facts["memory_bytes"])
    with pytest.raises(InsufficientMemoryError, match="copies"):
        cuda.Kernel(plan, arena, "all-cold", "cuda-graph", much)
    assert device.free_bytes >= free - 2048 * MB  # the input stays
    kernel = cuda.Kernel(plan, arena)
    kernel.run_poisoned()
    assert kernel.output().min() == 0


def test_a_device_is_kept_busy_for_as_long_as_wanted(cuda, device, arena):
    kernel = cuda.Kernel(relu(cuda, device), arena)
    load = kernel.run_for(0.05)
    assert load["seconds"] >= 0.05
    assert load["executions"] > 100  # of microseconds each


def test_three_clocks_time_a_launch(cuda, device, arena):
    times = cuda.Kernel(relu(cuda, device), arena).launch_times(5)
    assert {"event_s", "graph_s", "host_s"} <= set(times)
    assert all(0 < one < 1e-2 for one in times.values())


def test_a_kernel_that_writes_something_else_is_not_verified(cuda, device, arena):
    kernel = cuda.Kernel(relu(cuda, device), arena)
    fields = build_layer("gemm", m=2, k=3, n=4).problem_fields()
    reference = cuda.reference("gemm", "backward-weights", fields)
    with pytest.raises(PrimitiveError, match="writes no weights"):
        kernel.verify(reference, arena)
