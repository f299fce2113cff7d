from __future__ import annotations

import pytest

from pydlbench.devices.cpu import ImpossiblePeakError
from pydlbench.devices.probing import extend_record, start_record
from pydlbench.errors import UnsupportedError

CLOCK = 3.7e9


class Probes:
    """Answers like the native worker; the FMA units reach ``share`` of the theory."""

    def __init__(self, share=0.99):
        self.share = share
        self.calls = []

    def __call__(self, name, **arguments):
        self.calls.append((name, arguments))
        if name == "launch":
            return {"seconds": 2e-6}
        if arguments.get("precision") == "fp16":
            raise UnsupportedError("fp16: not here")
        rate = {"fp32": 32 * 2 * CLOCK, "bf16": 64 * 2 * CLOCK}.get(
            arguments.get("precision"), 40e9 / self.share
        )
        return {
            "per_second": self.share * rate,
            "median_per_second": self.share * rate,
            "clock_hz": CLOCK,
            "median_clock_hz": CLOCK,
            "seconds": 0.1,
            "rounds": 9,
            "kernel": name,
        }


def extend(facts, probe, precisions, record=None, **more):
    library = {"name": "oneDNN", "version": "3.2.0", "threads": None, "isa": "AVX-512"}
    record = record or start_record(facts, (0, 1))
    return extend_record(record, precisions, library, probe, **more)


def test_everything_is_probed_once(machine):
    probe = Probes()
    facts = machine(cores=2)
    record = extend(facts, probe, ["fp32"])
    assert len(probe.calls) == 2 + 3 * 4
    again = extend(facts, probe, ["fp32"], record)
    assert len(probe.calls) == 14
    assert again == record
    more = extend(facts, probe, ["fp32", "bf16"], record)
    assert [peak.precision for peak in more.peaks] == ["fp32", "bf16"]
    assert len(probe.calls) == 15


def test_what_the_cpu_lacks_is_a_reason_not_an_error(machine):
    record = extend(machine(cores=2), Probes(), ["fp16"], patterns=())
    assert record.peak("fp16").reason == "fp16: not here"
    assert record.clock_hz is None


def test_memory_is_streamed_and_the_cache_is_not(machine):
    probe = Probes()
    extend(machine(cores=2), probe, [], patterns=["copy"])
    moves = [call for name, call in probe.calls if name == "bandwidth"]
    found = {(call["streaming"], call["bytes"]) for call in moves}
    # Three times the last level, half of it, half of the level before it.
    assert found == {(True, 96 << 20), (False, 16 << 20), (False, 1 << 20)}


def test_clock_and_library_are_recorded(machine):
    record = extend(machine(cores=2), Probes(), ["bf16", "fp32"], patterns=())
    assert record.clock_hz == CLOCK
    assert record.libraries == {"oneDNN": "3.2.0", "isa": "AVX-512"}


def test_a_weak_probe_is_a_warning(machine):
    record = extend(machine(cores=2), Probes(share=0.5), ["fp32"], patterns=())
    assert any("50 % of the theoretical peak" in advice.symptom for advice in record.warnings)
    strong = extend(machine(cores=2), Probes(share=0.97), ["fp32"], patterns=())
    assert not any("theoretical" in advice.symptom for advice in strong.warnings)


def test_an_impossible_probe_is_an_error(machine):
    with pytest.raises(ImpossiblePeakError):
        extend(machine(cores=2), Probes(share=1.05), ["fp32"], patterns=())
