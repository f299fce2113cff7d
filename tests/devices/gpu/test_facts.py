import json

import pytest

from pydlbench.devices.gpu.facts import GpuFacts

REPLY = {
    "index": 1,
    "name": "NVIDIA H200",
    "uuid": "GPU-8e",
    "pci": "0000:1b:00.0",
    "major": 9,
    "minor": 0,
    "capability": "9.0",
    "multiprocessors": 132,
    "memory_bytes": 150_000_000_000,
    "l2_bytes": 62914560,
    "shared_bytes_per_block": 232448,
    "clock_hz": 1.98e9,
    "memory_clock_hz": 3.2e9,
    "memory_bus_bits": 6144,
    "threads_per_multiprocessor": 2048,
    "ecc": True,
    "integrated": False,
    "driver_version": 13000,
    "runtime_version": 12080,
    "something_new": 1,
}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        (
            {},
            {
                "device": "cuda:1",
                "label": "cuda:1 (NVIDIA H200, compute capability 9.0)",
                "multiprocessors": 132,
                "driver_version": "13.0",
                "runtime_version": "12.8",
                # Two transfers per clock.
                "memory_bytes_per_s": 2 * 3.2e9 * 6144 / 8,
            },
        ),
        (
            {"clock_hz": 0.0, "memory_clock_hz": 0.0, "driver_version": 0},
            {"clock_hz": None, "memory_bytes_per_s": None, "driver_version": None},
        ),
        ({"index": 0, "ecc": False}, {"index": 0, "ecc": False}),
        # Of a slice only the whole card's bandwidth is known.
        ({"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}, {"memory_bytes_per_s": None}),
    ],
)
def test_facts_are_those_of_the_driver(changes, facts):
    read = GpuFacts.from_driver({**REPLY, **changes})
    assert {name: getattr(read, name) for name in facts} == facts
    document = json.loads(json.dumps(read.to_dict()))
    assert document["memory_bytes_per_s"] == read.memory_bytes_per_s
