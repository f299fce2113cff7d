"""What a GPU's readings say against samples: heat, power, other processes."""

import json

import msgspec
import pytest

from pydlbench.timing.chunk import Chunk, GpuReadings
from pydlbench.timing.guards import (
    describe_interference,
    gpu_disturbance,
    merge_readings,
    reasons_of,
)
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.workers.channel import encode

POLICY = Policy()


def chunk(seconds=0.001, samples=20, **words):
    return Chunk(seconds=(seconds,) * samples, wall_s=seconds * samples, **words)


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0, ()),
        (0x4, ("power cap",)),
        (0x4 | 0x20, ("power cap", "software thermal slowdown")),
        (0x40 | 0x80, ("hardware thermal slowdown", "power brake")),
        (0x1000, ("reason 0x1000",)),
        (0x1 | 0x1000, ("idle", "reason 0x1000")),
    ],
)
def test_reasons_are_named(bits, names):
    assert reasons_of(bits) == names


@pytest.mark.parametrize(
    ("readings", "text"),
    [
        (
            GpuReadings(reasons=("software thermal slowdown",), temperature_c=91.0),
            "software thermal slowdown at 91 degrees C",
        ),
        (
            GpuReadings(reasons=("hardware slowdown", "power cap")),
            "hardware slowdown",
        ),
        (
            GpuReadings(others=(17, 18)),
            "another process computed on the GPU (process 17, 18)",
        ),
    ],
)
def test_heat_and_other_processes_speak_against_samples(readings, text):
    assert gpu_disturbance(readings) == text
    beside = {"fma": None, "wait_s": 0.0, "steal_s": 0.0, "wall_s": 0.02}
    assert describe_interference(disturbance=text, policy=POLICY, **beside) == text


@pytest.mark.parametrize(
    "readings",
    [None, GpuReadings(), GpuReadings(reasons=("power cap",), power_w=700.0, readings=3)],
)
def test_a_power_cap_is_no_disturbance(readings):
    assert gpu_disturbance(readings) is None


def test_readings_of_several_chunks_make_one_account():
    both = merge_readings(
        [
            GpuReadings(sm_clock_hz=1e9, temperature_c=50, readings=1, reasons=("power cap",)),
            GpuReadings(readings=0, temperature_c=99),
            GpuReadings(sm_clock_hz=2e9, temperature_c=60, readings=3, others=(5,)),
        ]
    )
    assert both.sm_clock_hz == pytest.approx(1.75e9)
    assert both.temperature_c == 60
    assert both.power_w is None
    assert both.reasons == ("power cap",)
    assert both.others == (5,)
    assert both.readings == 4
    assert merge_readings([]) is None
    assert merge_readings([GpuReadings()]) is None


def test_readings_cross_the_wire():
    readings = GpuReadings(sm_clock_hz=1.98e9, reasons=("power cap",), others=(3,), readings=2)
    sent = json.loads(encode({"ok": chunk(disturbance="why", gpu=readings)}))["ok"]
    assert msgspec.convert(sent, Chunk) == chunk(disturbance="why", gpu=readings)


@pytest.mark.parametrize(
    ("cache", "timing", "single"),
    [
        ("hot", "cuda-graph", False),
        ("hot", "events", False),
        ("all-cold", "events", True),
        ("weights-cold", "events", True),
        ("all-cold", "cuda-graph", False),
    ],
)
def test_behind_a_flush_a_sample_is_one_execution(cache, timing, single):
    assert (gpu_policy(POLICY, timing, cache).min_sample_s == 0) is single
