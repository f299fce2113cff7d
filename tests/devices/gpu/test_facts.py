import json

from pydlbench.devices.gpu.facts import GpuFacts

TOLD = {
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


def test_what_the_driver_tells_is_taken_over():
    facts = GpuFacts.from_driver(TOLD)
    assert (facts.device, facts.capability, facts.multiprocessors) == ("cuda:1", "9.0", 132)
    assert (facts.driver_version, facts.runtime_version) == ("13.0", "12.8")
    assert facts.label == "cuda:1 (NVIDIA H200, compute capability 9.0)"


def test_a_zero_clock_was_not_told():
    facts = GpuFacts.from_driver(
        {**TOLD, "clock_hz": 0.0, "memory_clock_hz": 0.0, "driver_version": 0}
    )
    assert facts.clock_hz is facts.memory_clock_hz is facts.driver_version is None
    assert facts.memory_bytes_per_s is None


def test_index_zero_and_ecc_off_are_told():
    facts = GpuFacts.from_driver({**TOLD, "index": 0, "ecc": False})
    assert facts.index == 0
    assert facts.ecc is False


def test_memory_moves_twice_per_clock():
    assert GpuFacts.from_driver(TOLD).memory_bytes_per_s == 2 * 3.2e9 * 6144 / 8


def test_a_slice_of_a_card_has_a_part_of_its_bandwidth_which_nobody_tells():
    facts = GpuFacts.from_driver({**TOLD, "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"})
    assert facts.memory_bytes_per_s is None


def test_the_dict_is_json():
    found = json.loads(json.dumps(GpuFacts.from_driver(TOLD).to_dict()))
    assert found["l2_bytes"] == 60 << 20
    assert found["memory_bytes_per_s"] == 2 * 3.2e9 * 6144 / 8
