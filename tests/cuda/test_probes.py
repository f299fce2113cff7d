"""The GPU's probes: what they reach is near, and not above, what the card's facts allow."""

import os
import subprocess
import sys

import pytest

from pydlbench.errors import InsufficientMemoryError, UnsupportedError

pytestmark = pytest.mark.gpu

FIELDS = {
    *("per_second", "median_per_second", "clock_hz", "median_clock_hz"),
    *("seconds", "rounds", "kernel"),
}
# Multiply-adds on float32 per cycle and multiprocessor, by compute capability (CUDA C++ Programming
# Guide, arithmetic instructions).
LANES = {"7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128, "9.0": 128}


def test_the_fma_probe_keeps_the_units_busy(gpu):
    facts = gpu.device.facts
    lanes = LANES.get(str(facts["capability"]))
    if lanes is None:
        pytest.skip(f"no published rate for compute capability {facts['capability']} here")
    found = gpu.native.fma_peak(gpu.device, "fp32", 0.3)
    assert set(found) == FIELDS
    limit = 2 * lanes * int(facts["multiprocessors"]) * found["clock_hz"]
    assert 0.95 * limit <= found["per_second"] <= 1.01 * limit
    assert found["median_per_second"] <= found["per_second"]


def test_pairs_of_halves_are_at_least_as_fast_as_floats(gpu):
    single = gpu.native.fma_peak(gpu.device, "fp32", 0.2)
    half = gpu.native.fma_peak(gpu.device, "fp16", 0.2)
    ratio = (half["per_second"] / half["clock_hz"]) / (single["per_second"] / single["clock_hz"])
    assert 0.9 <= ratio <= 4.1


@pytest.mark.parametrize("kind", ["read", "write", "copy"])
def test_memory_is_slower_than_its_pins_and_the_cache_is_faster(gpu, kind):
    facts = gpu.device.facts
    l2 = int(facts["l2_bytes"])
    memory = gpu.native.bandwidth(gpu.device, kind, 8 * l2, 0.2)
    cache = gpu.native.bandwidth(gpu.device, kind, l2 // 4, 0.2)
    assert set(memory) == FIELDS
    assert kind in memory["kernel"]
    # Two transfers per clock; 0 where the driver does not tell the memory's clock.
    pins = 2 * float(facts["memory_clock_hz"]) * int(facts["memory_bus_bits"]) / 8
    if pins > 0:
        assert 0.6 * pins <= memory["median_per_second"] <= 1.01 * pins
    assert cache["median_per_second"] > memory["median_per_second"]


def test_starting_a_kernel_takes_microseconds(gpu):
    found = gpu.native.launch_seconds(gpu.device)
    assert set(found) == {"single_kernel_s", "empty_kernel_s", "host_s", "graph_node_s"}
    assert all(1e-8 < seconds < 1e-3 for seconds in found.values())
    assert found["graph_node_s"] <= 1.5 * found["empty_kernel_s"]


@pytest.mark.usefixtures("gpu")
def test_launches_that_wait_for_the_device_are_found_out():
    code = "import pydlbench._cuda as c; c.launch_seconds(c.Device(0))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert "starting a kernel waits for the device" in done.stderr


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda n, d: n.fma_peak(d, "bf16", 0.1), UnsupportedError, "no FMA probe for bf16"),
        (lambda n, d: n.fma_peak(d, "fp32", 0.0), ValueError, "seconds"),
        (lambda n, d: n.bandwidth(d, "triad", 1 << 26, 0.1), UnsupportedError, "triad"),
        (lambda n, d: n.bandwidth(d, "read", 100, 0.1), ValueError, "working set"),
        (lambda n, d: n.bandwidth(d, "read", 1 << 50, 0.1), InsufficientMemoryError, "bandwidth"),
    ],
)
def test_what_cannot_be_probed_is_refused(gpu, call, error, said):
    with pytest.raises(error, match=said):
        call(gpu.native, gpu.device)
