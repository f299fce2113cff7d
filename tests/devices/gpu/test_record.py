import dataclasses
import json
import math

import pytest
from invented_readings import bandwidth, reading

from pydlbench.devices.gpu.record import GpuRecord, LaunchCost, gpu_peak
from pydlbench.devices.roofline import MemoryLevel
from pydlbench.errors import UnsupportedError


@pytest.fixture
def record(gpu):
    facts = gpu()
    return GpuRecord(
        facts=facts,
        clock_hz=1.5e9,
        peaks=(
            gpu_peak(facts, "fp32", reading(50e12, 1.5e9)),
            gpu_peak(facts, "fp16", reading(100e12, 1.5e9)),
            gpu_peak(facts, "fp8-tc", "no product of this mode"),
        ),
        bandwidths=(
            bandwidth("memory", "read", 4.0e12),
            bandwidth("memory", "copy", 4.3e12),
            bandwidth("l2", "read", 9e12),
        ),
        launch=LaunchCost(
            single_kernel_s=4e-6, empty_kernel_s=2e-6, host_s=3e-6, graph_node_s=1.5e-6
        ),
        nvml={"power_limit_w": 700.0},
    )


def test_limits_follow_the_accumulator(record):
    assert record.limits("fp16").measured == 100e12
    assert record.limits("fp16", accumulate="float16").measured == 100e12
    assert record.limits("fp16", accumulate="float32").measured == 50e12


def test_levels(record):
    l2, memory = record.levels()
    assert l2 == MemoryLevel(name="l2", capacity=60 << 20, bytes_per_s=9e12)
    assert memory == MemoryLevel(name="memory", capacity=math.inf, bytes_per_s=4.3e12)
    assert record.levels(("memory", "l2")) == (l2, memory)
    free = dataclasses.replace(l2, bytes_per_s=math.inf)
    assert record.levels(("memory",)) == (free, memory)


def test_without_a_reading_of_l2_there_is_the_memory(record):
    record = dataclasses.replace(record, bandwidths=record.bandwidths[:2])
    assert [level.bytes_per_s < math.inf for level in record.levels()] == [False, True]
    with pytest.raises(UnsupportedError, match="memory: "):
        dataclasses.replace(record, bandwidths=()).levels()


def test_the_dict_is_json(record):
    found = json.loads(json.dumps(record.to_dict()))
    assert (found["kind"], found["name"], found["device"]) == ("cuda", "NVIDIA H200", "cuda:0")
    assert found["product"]["name"] == "H200 SXM"
    assert found["peaks"][0]["measured_flops_per_s"] == 50e12
    assert found["peaks"][0]["theoretical"]["flop_per_clock"] == 256
    assert found["launch"]["host_s"] == 3e-6
    assert found["bandwidths"][1]["bytes_per_s"] == 4.3e12


def test_measured_stands_beside_theory_at_both_clocks(record):
    peak, half = record.peak("fp32"), record.peak("fp16")
    assert peak.theoretical.flops_per_s == 132 * 256 * 1.5e9
    assert peak.nominal.flops_per_s == 132 * 256 * 1.98e9
    assert half.theoretical.flops_per_s == 132 * 512 * 1.5e9
    assert half.theoretical.accumulate == "float16"


def test_what_a_launch_costs_depends_on_how_it_is_timed(record):
    assert record.launch_s == record.launch_in("events") == 2e-6
    assert record.launch_in("events", alone=True) == 4e-6
    assert record.launch_in("cuda-graph") == 1.5e-6
    unprobed = dataclasses.replace(record, launch=None)
    assert (unprobed.launch_s, unprobed.launch_in("events")) == (None, 0.0)
