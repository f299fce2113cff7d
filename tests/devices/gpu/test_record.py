import dataclasses
import json
import math

import pytest
from invented_readings import bandwidth, reading

from pydlbench.devices.findings import ImpossiblePeakError
from pydlbench.devices.gpu.record import GpuRecord, LaunchCost, gpu_peak
from pydlbench.devices.roofline import Level
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


def test_measured_stands_beside_theory_at_both_clocks(record):
    peak = record.peak("fp32")
    assert peak.theoretical.flops_per_s == 132 * 256 * 1.5e9
    assert peak.nominal.flops_per_s == 132 * 256 * 1.98e9


def test_the_peak_of_fp16_accumulates_in_float16(record):
    peak = record.peak("fp16")
    assert (peak.theoretical.accumulate, peak.theoretical.flops_per_s) == (
        "float16",
        132 * 512 * 1.5e9,
    )


def test_a_probe_that_beats_the_hardware_is_an_error(gpu):
    with pytest.raises(ImpossiblePeakError, match="this GPU's entry in the table of FLOP rates"):
        gpu_peak(gpu(), "fp32", reading(1.04 * 132 * 256 * 1.5e9, 1.5e9))
    assert gpu_peak(gpu(), "fp32", reading(1.02 * 132 * 256 * 1.5e9, 1.5e9)).theoretical is not None


def test_a_probe_that_beats_an_assumption_drops_it(gpu):
    peak = gpu_peak(gpu(name="NVIDIA H300"), "fp32", reading(2 * 132 * 256 * 1.5e9, 1.5e9))
    assert peak.theoretical is peak.nominal is None
    assert peak.measured == 2 * 132 * 256 * 1.5e9


def test_limits_follow_the_clock(record):
    limits = record.limits("fp32", clock_hz=0.75e9)
    assert limits.measured == pytest.approx(25e12)
    assert limits.theoretical == pytest.approx(132 * 256 * 0.75e9)


def test_limits_follow_the_accumulator(record):
    assert record.limits("fp16").measured == 100e12
    assert record.limits("fp16", accumulate="float16").measured == 100e12
    assert record.limits("fp16", accumulate="float32").measured == 50e12


def test_limits_that_were_not_measured_say_why(record):
    with pytest.raises(UnsupportedError, match=r"^no product of this mode$"):
        record.limits("fp8-tc")
    with pytest.raises(UnsupportedError, match=r"tf32: .*not probed"):
        record.limits("tf32")


def test_levels(record):
    l2, memory = record.levels()
    assert l2 == Level(name="l2", capacity=60 << 20, bytes_per_s=9e12)
    assert memory == Level(name="memory", capacity=math.inf, bytes_per_s=4.3e12)
    assert record.levels(("memory", "l2")) == (l2, memory)
    free = dataclasses.replace(l2, bytes_per_s=math.inf)
    assert record.levels(("memory",)) == (free, memory)


def test_without_a_reading_of_l2_there_is_the_memory(record):
    record = dataclasses.replace(record, bandwidths=record.bandwidths[:2])
    assert [level.bytes_per_s < math.inf for level in record.levels()] == [False, True]
    with pytest.raises(UnsupportedError, match="memory: its bandwidth was not probed"):
        dataclasses.replace(record, bandwidths=()).levels()


def test_the_launch_is_that_of_an_empty_kernel(record):
    assert record.launch_s == 2e-6
    assert dataclasses.replace(record, launch=None).launch_s is None


def test_the_dict_is_json(record):
    found = json.loads(json.dumps(record.to_dict()))
    assert (found["kind"], found["name"], found["device"]) == ("cuda", "NVIDIA H200", "cuda:0")
    assert found["product"]["name"] == "H200 SXM"
    assert found["peaks"][0]["measured_flops_per_s"] == 50e12
    assert found["peaks"][0]["theoretical"]["flop_per_clock_per_multiprocessor"] == 256
    assert found["launch"]["host_s"] == 3e-6
    assert found["bandwidths"][1]["bytes_per_s"] == 4.3e12


def test_a_node_of_a_graph_starts_sooner_than_a_launch(record):
    assert record.launch_in("events") == 2e-6
    assert record.launch_in("events", alone=True) == 4e-6
    assert record.launch_in("cuda-graph") == 1.5e-6
    assert dataclasses.replace(record, launch=None).launch_in("events") == 0.0
