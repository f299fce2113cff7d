import math

import pytest

from pydlbench.devices.roofline import MemoryLevel, memory_time, roof, with_launch

L2 = MemoryLevel(name="l2", capacity=2e6, bytes_per_s=400e9)
LLC = MemoryLevel(name="llc", capacity=32e6, bytes_per_s=200e9)
MEMORY = MemoryLevel(name="memory", capacity=math.inf, bytes_per_s=20e9)
UNPROBED = MemoryLevel(name="l2", capacity=2e6, bytes_per_s=math.inf)


@pytest.mark.parametrize(
    ("levels", "cold", "warm", "seconds", "slowest"),
    [
        ((LLC, MEMORY), 0, 16e6, 16e6 / 200e9, "llc"),
        # What does not fit comes from memory.
        ((LLC, MEMORY), 0, 132e6, 100e6 / 20e9, "memory"),
        # Cold bytes do, however few they are.
        ((LLC, MEMORY), 4e6, 8e6, 4e6 / 20e9, "memory"),
        # All levels move at the same time, and the slowest bounds: 50 us of memory, 100 of cache.
        ((LLC, MEMORY), 1e6, 20e6, 100e-6, "llc"),
        ((LLC, MEMORY), 4e6, 20e6, 200e-6, "memory"),
        ((LLC, MEMORY), 0, 0, 0, "llc"),
        # Each level moves what it can hold.
        ((L2, LLC, MEMORY), 0, 1e6, 1e6 / 400e9, "l2"),
        ((L2, LLC, MEMORY), 0, 12e6, 10e6 / 200e9, "llc"),
        ((L2, LLC, MEMORY), 0, 134e6, 100e6 / 20e9, "memory"),
        # What a cache without a probe may hold is charged to no level.
        ((UNPROBED, LLC, MEMORY), 0, 1e6, 0, "llc"),
        ((UNPROBED, LLC, MEMORY), 0, 3e6, 1e6 / 200e9, "llc"),
    ],
)
def test_the_slowest_level_bounds(levels, cold, warm, seconds, slowest):
    assert memory_time(cold, warm, levels) == (pytest.approx(seconds), slowest)


@pytest.mark.parametrize(
    ("move_s", "bound", "time_s"),
    [(0.001, "compute", 0.01), (0.01, "compute", 0.01), (0.02, "memory", 0.02)],
)
def test_the_higher_limit_is_the_roof(move_s, bound, time_s):
    limit = roof(flops=1e9, flops_per_s=1e11, move_s=move_s, bandwidth="llc")
    assert (limit.bound, limit.time_s, limit.bandwidth) == (bound, pytest.approx(time_s), "llc")


@pytest.mark.parametrize(
    ("launch_s", "median_s", "bound", "time_s"),
    [
        (2e-6, 3e-6, "launch", 2e-6),
        # Over sooner: it ran on fewer threads, and only its operations are a lower bound.
        (2e-6, 1e-6, "launch", 1e-7),
        (1e-8, 3e-6, "compute", 1e-7),
        (0.0, 3e-6, "compute", 1e-7),
    ],
)
def test_a_short_kernel_is_bound_by_its_launch(launch_s, median_s, bound, time_s):
    base = roof(flops=1e4, flops_per_s=1e11, move_s=5e-8, bandwidth="l2")
    limit = with_launch(base, launch_s, median_s)
    assert (limit.bound, limit.time_s, limit.bandwidth) == (bound, pytest.approx(time_s), "l2")
