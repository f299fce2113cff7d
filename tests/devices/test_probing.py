"""Which peaks and bandwidths of a CPU are probed, and which are taken from earlier runs."""

import pytest
from said import says

from pydlbench.devices import tries
from pydlbench.devices.cpu.record import extend_record, revisit, start_record
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
    # Launch, three tries of the peak, three windows of each bandwidth.
    assert len(probe.calls) == 1 + 3 + 3 * 3 * 4
    again = extend(facts, probe, ["fp32"], record)
    assert len(probe.calls) == 40
    assert again == record
    more = extend(facts, probe, ["fp32", "bf16"], record)
    assert [peak.precision for peak in more.peaks] == ["fp32", "bf16"]
    assert len(probe.calls) == 43


class Noted:
    """Kept bandwidths in memory, and what was written when."""

    def __init__(self, known=()):
        self.known = tuple(known)
        self.writes = []
        self.peaks = {}

    def read_peaks(self):
        return self.peaks

    def write_peak(self, precision, per_cycle):
        self.peaks[precision] = per_cycle

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
    # A window of each level agrees, and counts among its windows.
    assert kept.writes == [3]
    assert max(len(one.windows) for one in kept.known) == 4
    extend(facts, anew, [], kept=kept, take_over=False)
    assert kept.writes == [3, 3 * 4]
    assert len(anew.calls) > len(believed.calls)


def peaks_of(probe):
    return sum(name == "fma_peak" for name, _ in probe.calls)


def test_a_peak_is_kept_and_confirmed_by_one_try(machine):
    facts, kept = machine(cores=2), Noted()
    first, later, anew = Probes(), Probes(), Probes()
    record = extend(facts, first, ["fp32"], patterns=(), kept=kept)
    assert peaks_of(first) == 3
    assert kept.peaks["fp32"] == pytest.approx(max(record.peak("fp32").tries))
    again = extend(facts, later, ["fp32"], patterns=(), kept=kept)
    assert peaks_of(later) == 1
    assert again.peak("fp32").measured == pytest.approx(record.peak("fp32").measured)
    extend(facts, anew, ["fp32"], patterns=(), kept=kept, take_over=False)
    assert peaks_of(anew) == 3


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_kept_peak_that_a_try_contradicts_is_probed_anew(machine, factor):
    facts, kept, probe = machine(cores=2), Noted(), Probes()
    record = extend(facts, Probes(), ["fp32"], patterns=(), kept=kept)
    kept.peaks["fp32"] *= factor
    again = extend(facts, probe, ["fp32"], patterns=(), kept=kept)
    assert peaks_of(probe) == 4
    assert again.peak("fp32").measured == pytest.approx(record.peak("fp32").measured)
    assert kept.peaks["fp32"] == pytest.approx(max(record.peak("fp32").tries))


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


@pytest.fixture
def pauses(monkeypatch):
    found = []
    monkeypatch.setattr(tries.time, "sleep", found.append)
    return found


@pytest.mark.usefixtures("pauses")
def test_a_weak_probe_is_a_warning(machine):
    record = extend(machine(cores=2), Probes(share=0.5), ["fp32"], patterns=())
    assert any(says(advice.symptom, "50 %", "theoretical") for advice in record.warnings)
    strong = extend(machine(cores=2), Probes(share=0.97), ["fp32"], patterns=())
    assert not any("theoretical" in advice.symptom for advice in strong.warnings)


def test_a_peak_that_falls_short_is_probed_again_and_the_best_is_kept(machine, pauses):
    shares = [0.5, 0.6, 0.96, 0.98, 0.97]

    class Recovering(Probes):
        def __call__(self, name, **arguments):
            if name == "fma_peak":
                self.share = shares[sum(one == name for one, _ in self.calls)]
            return super().__call__(name, **arguments)

    record = extend(machine(cores=2), Recovering(), ["fp32"], patterns=())
    peak = record.peak("fp32")
    assert peak.measured / peak.theoretical.flops_per_s == pytest.approx(0.98)
    assert peak.low / peak.theoretical.flops_per_s == pytest.approx(0.5)
    # The theory decides on pauses only: the tries end once two agree.
    assert (len(pauses), len(peak.tries)) == (2, 5)
    assert not any("FMA probe" in advice.symptom for advice in record.warnings)


@pytest.mark.parametrize("first", [[0.85, 1.2, 0.8], [1.2, 1.2, 0.85], [1.2, 0.85]])
@pytest.mark.usefixtures("pauses")
def test_a_clock_that_jumps_while_a_peak_is_probed_costs_nothing(machine, first):
    shares = iter([*first, *[0.7] * 20])

    class Jumping(Probes):
        def __call__(self, name, **arguments):
            if name == "fma_peak":
                self.share = next(shares)
            return super().__call__(name, **arguments)

    peak = extend(machine(cores=2), Jumping(), ["fp32"], patterns=()).peak("fp32")
    assert peak.measured / peak.theoretical.flops_per_s == pytest.approx(0.85)
    assert peak.impossible == first.count(1.2)
    assert len(peak.tries) + peak.impossible == 7


@pytest.mark.usefixtures("pauses")
def test_an_impossible_probe_is_an_error(machine):
    with pytest.raises(ImpossiblePeakError):
        extend(machine(cores=2), Probes(share=1.05), ["fp32"], patterns=())


class Bandwidths(Probes):
    """Answers bandwidth probes from lists by level: best, median, and what was seen beside it.

    The last one stays.
    """

    def __init__(self, **readings):
        super().__init__()
        self.readings = {name: list(pairs) for name, pairs in readings.items()}

    def __call__(self, name, **arguments):
        reply = super().__call__(name, **arguments)
        if name != "bandwidth":
            return reply
        level = {96 << 20: "memory", 16 << 20: "llc", 1 << 20: "l2"}[arguments["bytes"]]
        pairs = self.readings[level]
        best, middle, *seen = pairs.pop(0) if len(pairs) > 1 else pairs[0]
        disturbance = seen[0] if seen else None
        return {
            **reply,
            "per_second": best,
            "median_per_second": middle,
            "disturbance": disturbance,
        }

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


def test_quiet_readings_have_three_windows_that_lie_apart(machine):
    record, probe = read_bandwidths(
        machine, memory=[(30, 25), (28, 27), (29, 27)], llc=[(90, 80)], l2=[(200, 190)]
    )
    order = [call["bytes"] for name, call in probe.calls if name == "bandwidth"]
    assert order == 3 * [96 << 20, 16 << 20, 1 << 20]
    assert rates(record) == {"memory": 30, "llc": 90, "l2": 200}
    (memory,) = (one for one in record.bandwidths if one.level == "memory")
    assert (memory.windows, memory.low_bytes_per_s) == ((30, 28, 29), 28)
    assert slow_levels(record) == []


def test_an_unsteady_window_is_probed_again_and_the_best_is_kept(machine):
    unsteady = [(30, 20), (28, 20), (29, 20), (28, 27)]
    record, probe = read_bandwidths(machine, memory=unsteady, llc=[(90, 80)], l2=[(200, 10)])
    assert rates(record)["memory"] == 30
    # Memory once more; the level that never quietens twice more, and no further.
    assert probe.count() == 9 + 1 + 2


def test_a_disturbed_window_is_taken_again_and_does_not_count(machine):
    record, probe = read_bandwidths(
        machine, memory=[(15, 15, "busy"), (30, 30)], llc=[(90, 90)], l2=[(200, 200)]
    )
    assert probe.count() == 9 + 1
    (memory,) = (one for one in record.bandwidths if one.level == "memory")
    assert (memory.windows, memory.disturbed) == ((30, 30, 30), 1)
    assert not any("undisturbed" in one.symptom for one in record.warnings)


def test_what_has_no_undisturbed_window_is_a_warning_and_is_not_kept(machine):
    kept = Noted()
    probe = Bandwidths(memory=[(15, 15, "busy")], llc=[(90, 90)], l2=[(200, 200)])
    record = extend(machine(cores=2), probe, [], patterns=["read"], kept=kept)
    assert rates(record)["memory"] == 15  # there is no other
    (advice,) = [one for one in record.warnings if "undisturbed" in one.symptom]
    assert "busy" in advice.symptom
    assert [one.level for one in kept.known] == ["llc", "l2"]


def test_a_later_window_widens_the_spread_and_raises_the_roof(machine):
    probe = Bandwidths(memory=[(30, 30)], llc=[(90, 90)], l2=[(200, 200)])
    first = extend(machine(cores=2), probe, ["fp32"], patterns=["read"])
    kept = Noted()
    probe.readings["memory"] = [(33, 32)]
    probe.share = 0.995
    later = revisit(first, probe, kept)
    assert rates(later)["memory"] == 33
    (memory,) = (one for one in later.bandwidths if one.level == "memory")
    assert memory.windows == (30, 30, 30, 33)
    assert (len(first.peak("fp32").tries), len(later.peak("fp32").tries)) == (3, 4)
    assert later.peak("fp32").measured > first.peak("fp32").measured
    assert kept.writes == [3]


def test_a_nearer_level_that_reads_slower_is_probed_again(machine):
    record, probe = read_bandwidths(
        machine, memory=[(30, 30)], llc=[*3 * [(20, 20)], (90, 90)], l2=[(200, 200)]
    )
    # Its windows are far apart then, and one more tells whether that is so again.
    assert probe.count() == 9 + 1
    assert rates(record)["llc"] == 90
    assert slow_levels(record) == []


def test_a_nearer_level_that_stays_slower_is_a_warning(machine):
    record, probe = read_bandwidths(
        machine, memory=[(30e9, 30e9)], llc=[(20e9, 20e9)], l2=[(25e9, 25e9)]
    )
    assert probe.count() == 9 + 2 + 2
    llc, l2 = (advice.symptom for advice in slow_levels(record))
    assert says(llc, "read", "llc", "20.0 GB/s", "memory", "30.0")
    assert says(l2, "read", "l2", "25.0 GB/s", "memory", "30.0")
    again = extend(machine(cores=2), probe, [], record, patterns=["read"])
    assert again == record
    assert probe.count() == 13


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
    assert sum(one.endswith(record.bandwidth_reason) for one in symptoms) == 1
    assert extend(machine(cores=2), probe, ["fp32"], record) == record
    assert calls.count("bandwidth") == 1


def test_a_probe_that_beats_what_was_only_assumed_is_a_warning(machine):
    facts = machine(cores=2, family=99, isa=("sse2",))
    record = extend(facts, Probes(), ["fp32"], patterns=())
    assert record.peak("fp32").theoretical is None
    assert record.peak("fp32").measured
    (advice,) = [item for item in record.warnings if "unknown core" in item.symptom]
    assert says(advice.symptom, "assumed")
