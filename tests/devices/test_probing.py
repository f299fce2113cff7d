"""Which peaks and bandwidths of a CPU are probed, and which are taken from earlier runs."""

from __future__ import annotations

import pytest

from pydlbench.devices.cpu import record as probing
from pydlbench.devices.cpu.record import extend_record, start_record
from pydlbench.devices.findings import ImpossiblePeakError
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


class Noted:
    """Kept bandwidths in memory, and what was written when."""

    def __init__(self, known=()):
        self.known = tuple(known)
        self.writes = []

    def read(self):
        return self.known

    def write(self, bandwidths):
        self.writes.append(len(bandwidths))
        self.known = tuple(bandwidths)


def test_a_reading_is_kept_once_whatever_another_process_keeps(machine):
    facts, kept = machine(cores=2), Noted()
    record = extend(facts, Probes(), [], kept=kept)
    assert kept.writes == [3 * 4]
    kept.known = ()  # another process has kept its own
    assert extend(facts, Probes(), ["fp32"], record, kept=kept).bandwidths == record.bandwidths
    assert kept.writes == [3 * 4]


def test_what_is_not_taken_over_is_probed_and_kept_anew(machine):
    facts = machine(cores=2)
    kept = Noted(extend(facts, Probes(), []).bandwidths)
    believed, anew = Probes(), Probes()
    extend(facts, believed, [], kept=kept)
    assert kept.writes == []
    extend(facts, anew, [], kept=kept, take_over=False)
    assert kept.writes == [3 * 4]
    assert len(anew.calls) > len(believed.calls)


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


def test_a_weak_probe_is_a_warning(machine, monkeypatch):
    monkeypatch.setattr(probing.time, "sleep", lambda _: None)
    record = extend(machine(cores=2), Probes(share=0.5), ["fp32"], patterns=())
    assert any("50 % of the theoretical peak" in advice.symptom for advice in record.warnings)
    strong = extend(machine(cores=2), Probes(share=0.97), ["fp32"], patterns=())
    assert not any("theoretical" in advice.symptom for advice in strong.warnings)


def test_a_peak_that_falls_short_is_probed_again_and_the_best_is_kept(machine, monkeypatch):
    pauses = []
    monkeypatch.setattr(probing.time, "sleep", pauses.append)
    shares = [0.5, 0.6, 0.97, 0.99]

    class Recovering(Probes):
        def __call__(self, name, **arguments):
            if name == "fma_peak":
                self.share = shares[sum(one == name for one, _ in self.calls)]
            return super().__call__(name, **arguments)

    record = extend(machine(cores=2), Recovering(), ["fp32"], patterns=())
    peak = record.peak("fp32")
    assert peak.measured / peak.theoretical.flops_per_s == pytest.approx(0.97)
    assert len(pauses) == 2
    assert not any("FMA probe" in advice.symptom for advice in record.warnings)


@pytest.mark.parametrize("first", [[0.85, 1.2, 0.8], [1.2, 1.2, 0.85], [1.2, 0.85]])
def test_a_clock_that_jumps_while_a_peak_is_probed_costs_nothing(machine, monkeypatch, first):
    monkeypatch.setattr(probing.time, "sleep", lambda _: None)
    shares = iter([*first, *[0.7] * 20])

    class Jumping(Probes):
        def __call__(self, name, **arguments):
            if name == "fma_peak":
                self.share = next(shares)
            return super().__call__(name, **arguments)

    peak = extend(machine(cores=2), Jumping(), ["fp32"], patterns=()).peak("fp32")
    assert peak.measured / peak.theoretical.flops_per_s == pytest.approx(0.85)


def test_an_impossible_probe_is_an_error(machine, monkeypatch):
    monkeypatch.setattr(probing.time, "sleep", lambda _: None)
    with pytest.raises(ImpossiblePeakError):
        extend(machine(cores=2), Probes(share=1.05), ["fp32"], patterns=())


class Bandwidths(Probes):
    """Answers bandwidth probes from lists of (best, median) by level; the last one stays."""

    def __init__(self, **readings):
        super().__init__()
        self.readings = {name: list(pairs) for name, pairs in readings.items()}

    def __call__(self, name, **arguments):
        reply = super().__call__(name, **arguments)
        if name != "bandwidth":
            return reply
        level = {96 << 20: "memory", 16 << 20: "llc", 1 << 20: "l2"}[arguments["bytes"]]
        pairs = self.readings[level]
        best, middle = pairs.pop(0) if len(pairs) > 1 else pairs[0]
        return {**reply, "per_second": best, "median_per_second": middle}

    def count(self):
        return sum(name == "bandwidth" for name, _ in self.calls)


def read_bandwidths(machine, **readings):
    probe = Bandwidths(**readings)
    record = extend(machine(cores=2), probe, [], patterns=["read"])
    return record, probe


def rates(record):
    return {item.level: item.bytes_per_s for item in record.bandwidths}


def slow_levels(record):
    return [advice for advice in record.warnings if "a nearer level" in advice.symptom]


def test_quiet_readings_are_taken_once(machine):
    record, probe = read_bandwidths(machine, memory=[(30, 25)], llc=[(90, 80)], l2=[(200, 190)])
    assert probe.count() == 3
    assert rates(record) == {"memory": 30, "llc": 90, "l2": 200}
    assert slow_levels(record) == []


def test_a_disturbed_window_is_probed_again_and_the_best_is_kept(machine):
    record, probe = read_bandwidths(
        machine, memory=[(30, 20), (28, 27)], llc=[(90, 80)], l2=[(200, 10)]
    )
    assert rates(record)["memory"] == 30
    # Memory once more; the level that never quietens twice more, and no further.
    assert probe.count() == 3 + 1 + 2


def test_a_nearer_level_that_reads_slower_is_probed_again(machine):
    record, probe = read_bandwidths(
        machine, memory=[(30, 30)], llc=[(20, 20), (90, 90)], l2=[(200, 200)]
    )
    assert probe.count() == 4
    assert rates(record)["llc"] == 90
    assert slow_levels(record) == []


def test_a_nearer_level_that_stays_slower_is_a_warning(machine):
    record, probe = read_bandwidths(
        machine, memory=[(30e9, 30e9)], llc=[(20e9, 20e9)], l2=[(25e9, 25e9)]
    )
    assert probe.count() == 3 + 2 + 2
    found = [advice.symptom.partition(":")[0] for advice in slow_levels(record)]
    assert found == [
        "the read probe of llc reached 20.0 GB/s, that of memory 30.0",
        "the read probe of l2 reached 25.0 GB/s, that of memory 30.0",
    ]
    again = extend(machine(cores=2), probe, [], record, patterns=["read"])
    assert again == record
    assert probe.count() == 7


def test_without_a_bandwidth_probe_the_rest_is_kept(machine):
    calls = []

    def probe(name, **arguments):
        calls.append(name)
        if name == "bandwidth":
            raise UnsupportedError("bandwidth: not on this CPU")
        return Probes()(name, **arguments)

    record = extend(machine(cores=2), probe, ["fp32"])
    assert record.peak("fp32").measured
    assert record.bandwidths == ()
    assert record.bandwidth_reason == "bandwidth: not on this CPU"
    symptoms = [advice.symptom for advice in record.warnings]
    assert symptoms.count("no bandwidth was probed: bandwidth: not on this CPU") == 1
    assert extend(machine(cores=2), probe, ["fp32"], record) == record
    assert calls.count("bandwidth") == 1


def test_a_probe_that_beats_what_was_only_assumed_is_a_warning(machine):
    facts = machine(cores=2, family=99, isa=("sse2",))
    record = extend(facts, Probes(), ["fp32"], patterns=())
    assert record.peak("fp32").theoretical is None
    assert record.peak("fp32").measured
    (advice,) = [item for item in record.warnings if "unknown core" in item.symptom]
    assert "x what was assumed" in advice.symptom
