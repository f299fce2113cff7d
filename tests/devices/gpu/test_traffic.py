"""Bandwidths of working sets about as large as the L2 cache, and of mixed reads and writes."""

import dataclasses
import math

import pytest

from pydlbench.devices.findings import Bandwidth
from pydlbench.devices.gpu.record import extend_record, start_record
from pydlbench.devices.gpu.traffic import BETWEEN, bytes_per_s
from pydlbench.devices.roofline import memory_time

MIB = 1 << 20


def bandwidth(level, pattern, size, gbps):
    return Bandwidth(
        level=level,
        pattern=pattern,
        bytes_per_s=gbps * 1e9,
        median_bytes_per_s=gbps * 1e9,
        working_set_bytes=size,
        kernel=pattern,
    )


# What an H100 has for memory and L2, and invented working sets between.
SETS = {
    "memory": (1 << 30, 3153, 3306, 3040),
    "l2": (17 * MIB, 10371, 4216, 7419),
    "l2 x 1": (50 * MIB, 5000, 3900, 4000),
    "l2 x 2": (100 * MIB, 3300, 3310, 3100),
    "l2 x 4": (200 * MIB, 3100, 3306, 3050),
}
PROBED = tuple(
    bandwidth(level, pattern, size, rate)
    for level, (size, *rates) in SETS.items()
    for pattern, rate in zip(("read", "write", "copy"), rates, strict=True)
)


def h100(gpu, bandwidths=PROBED):
    facts = gpu(name="NVIDIA H100 80GB HBM3", l2_bytes=50 * MIB, memory_bytes=80 * 10**9)
    return dataclasses.replace(start_record(facts), bandwidths=bandwidths)


@pytest.mark.parametrize(
    ("size", "written", "gbps"),
    [
        (17 * MIB, 0.0, 10371),
        (50 * MIB, 0.5, 4000),
        (1, 0.5, 7419),
        (1 << 40, 0.5, 3040),
        (math.inf, 1.0, 3306),
        # A larger working set that was faster raises the smaller ones: 3153 GB/s from memory.
        (200 * MIB, 0.0, 3153),
        # In the middle of the logarithms, and of two patterns, the times per byte have their mean.
        (math.sqrt(50 * 100) * MIB, 0.5, 2 / (1 / 4000 + 1 / 3100)),
        (17 * MIB, 0.25, 2 / (1 / 10371 + 1 / 7419)),
    ],
)
def test_a_bandwidth_is_interpolated(size, written, gbps):
    assert bytes_per_s(PROBED, size, written) == pytest.approx(gbps * 1e9)


def test_a_working_set_beyond_l2_is_not_served_by_the_whole_cache(gpu):
    """The ReLU of 148.7 MB that reaches 97 % of the copy bandwidth of an H100."""
    moved = 148.7e6
    took_s = moved / (0.97 * 3040e9)
    seconds, level = memory_time(0, moved, h100(gpu).levels_for(None, moved, 0, moved / 2))
    assert level == "memory"
    assert 0.94 < seconds / took_s < 1
    # With the whole cache at the bandwidth of a third of it, the roof would be far away.
    whole = memory_time(0, moved, h100(gpu).levels())
    assert whole[0] / took_s < 0.7


@pytest.mark.parametrize(
    ("warm", "cold", "written", "level", "seconds"),
    [
        (50 * MIB, 0, 25 * MIB, "l2", 50 * MIB / 4000e9),
        # Cold operands are read, and written to L2: each part has its pattern.
        (17 * MIB, 17 * MIB, 17 * MIB, "memory", 17 * MIB / 3153e9),
        (0, 64 * MIB, 32 * MIB, "memory", 64 * MIB / 3040e9),
        (0, 64 * MIB, 64 * MIB, "memory", 64 * MIB / 3306e9),
    ],
)
def test_each_part_of_the_traffic_has_its_own_pattern(gpu, warm, cold, written, level, seconds):
    levels = h100(gpu).levels_for(("memory", "l2"), warm, cold, written)
    assert memory_time(cold, warm, levels) == (pytest.approx(seconds), level)


def test_levels_that_do_not_count_are_not_interpolated(gpu):
    near, far = h100(gpu).levels_for(("l2",), 50 * MIB, 0, 0)
    assert (near.bytes_per_s, far.bytes_per_s) == (pytest.approx(10371e9), math.inf)


@pytest.mark.parametrize(
    ("l2_bytes", "names"),
    [(50 * MIB, set(BETWEEN)), (300 * MIB, set(BETWEEN) - {"l2 x 4"}), (0, set())],
)
def test_working_sets_between_l2_and_memory_are_probed_once(gpu, l2_bytes, names):
    asked = []

    def probe(name, **arguments):
        asked.append((name, arguments.get("kind"), arguments.get("bytes")))
        rates = {"per_second": 1e12, "median_per_second": 1e12, "clock_hz": 1e9}
        times = dict.fromkeys(("single_kernel_s", "empty_kernel_s", "host_s", "graph_node_s"), 1e-6)
        return {**rates, **times, "rounds": 9, "kernel": name}

    record = extend_record(start_record(gpu(l2_bytes=l2_bytes)), (), {}, probe)
    found = {item.level for item in record.bandwidths} - {"memory", "l2"}
    assert found == names
    between = [
        bytes_
        for _, kind, bytes_ in asked
        if kind == "copy" and asked.count(("bandwidth", kind, bytes_)) == 1
    ]
    assert len(between) == len(names)
    count = len(asked)
    assert extend_record(record, (), {}, probe) == record
    assert len(asked) == count
