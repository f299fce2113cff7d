"""What a GPU's readings say against samples: heat, power, other processes."""

import json

import msgspec
import pytest
from said import says

from pydlbench.timing.chunk import Chunk, GpuReadings
from pydlbench.timing.guards import combine, disturbance, disturbed_by, judge, reasons_of
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.timing.procedure import Sampling
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


def test_a_power_cap_is_recorded_and_held_against_nobody():
    readings = GpuReadings(reasons=("power cap",), power_w=700.0, readings=3)
    assert disturbance(readings) is None
    sampling = Sampling(Policy(budget_s=0.1), alone=True)
    while sampling.next_request():
        sampling.feed(chunk(gpu=readings))
    result = sampling.result()
    assert not result.contended
    assert result.discarded == 0
    assert result.gpu.reasons == ("power cap",)
    assert result.gpu.power_w == 700.0


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
    assert disturbance(readings) == text
    assert disturbed_by(chunk(disturbance=text), 1, POLICY) == text


def test_no_readings_say_nothing():
    assert disturbance(None) is None
    assert disturbance(GpuReadings()) is None


def test_a_hot_chunk_among_cool_ones_is_discarded():
    chunks = [chunk(), chunk(0.0013, disturbance="hot"), chunk(), chunk()]
    verdict = judge(chunks, 1, POLICY)
    assert not verdict.contended
    assert [any(row) for row in verdict.keep] == [True, False, True, True]
    assert verdict.discarded == 20


def test_a_gpu_that_stays_hot_keeps_its_samples_and_is_flagged():
    sampling = Sampling(Policy(budget_s=0.1), alone=True)
    asked = 0
    while sampling.next_request():
        sampling.feed(chunk(disturbance="software thermal slowdown at 91 degrees C"))
        asked += 1
        assert asked < 1000
    result = sampling.result()
    assert result.contended
    assert says(result.contention_reason, "thermal", "91")
    assert result.discarded == 0
    assert result.retries == POLICY.max_retries
    assert len(result.seconds) == len(result.all_seconds) > 0


def test_readings_of_several_chunks_make_one_account():
    both = combine(
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
    assert combine([]) is None
    assert combine([GpuReadings()]) is None


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
    policy = gpu_policy(POLICY, timing, cache)
    sampling = Sampling(policy, alone=True)
    request = sampling.next_request()
    while sampling.phase == "calibrate":
        sampling.feed(chunk(2e-6, request.samples))
        request = sampling.next_request()
    assert (request.inner == 1) is single
