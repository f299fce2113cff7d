"""Which peaks and bandwidths of a CPU are probed, and which are taken from earlier runs."""

import pytest
from said import says

from pydlbench.devices import bandwidths
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


def peaks_of(probe):
    return sum(name == "fma_peak" for name, _ in probe.calls)


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
    endings = [advice.symptom.endswith(record.bandwidth_reason) for advice in record.warnings]
    assert sum(endings) == 1
    assert extend(machine(cores=2), probe, ["fp32"], record) == record
    assert calls.count("bandwidth") == 1


def test_a_probe_that_beats_what_was_only_assumed_is_a_warning(machine):
    facts = machine(cores=2, family=99, isa=("sse2",))
    record = extend(facts, Probes(), ["fp32"], patterns=())
    assert record.peak("fp32").theoretical is None
    assert record.peak("fp32").measured
    (advice,) = [item for item in record.warnings if "unknown core" in item.symptom]
    assert says(advice.symptom, "assumed")


def test_what_is_kept_is_confirmed_or_probed_anew(machine):
    facts, kept = machine(cores=2), Noted()
    first, confirming, anew = Probes(), Probes(), Probes()
    record = extend(facts, first, ["fp32"], kept=kept)
    assert peaks_of(first) == 3
    assert kept.peaks["fp32"] == pytest.approx(max(record.peak("fp32").tries))
    again = extend(facts, confirming, ["fp32"], kept=kept)
    assert peaks_of(confirming) == 1
    assert again.peak("fp32").measured == pytest.approx(record.peak("fp32").measured)
    # A window of each level agrees, and is kept among its windows.
    assert kept.writes == [3 * 4, 3]
    assert max(len(item.windows) for item in kept.known) == 4
    extend(facts, anew, ["fp32"], kept=kept, take_over=False)
    assert peaks_of(anew) == 3
    assert kept.writes == [3 * 4, 3, 3 * 4]


class Varying(Probes):
    """FMA units that reach one share of the theory after the other; the last one stays."""

    def __init__(self, shares):
        super().__init__()
        self.shares = list(shares)

    def __call__(self, name, **arguments):
        if name == "fma_peak":
            self.share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        return super().__call__(name, **arguments)


@pytest.fixture
def pauses(monkeypatch):
    seconds = []
    monkeypatch.setattr(bandwidths.time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize(
    ("shares", "best", "count", "impossible", "paused"),
    [
        ([0.97], 0.97, 3, 0, 0),
        # The theory decides on pauses only: the tries end once two agree.
        ([0.5, 0.6, 0.96, 0.98, 0.97], 0.98, 5, 0, 2),
        ([0.5], 0.5, 7, 0, 6),
        # A clock that jumps costs nothing.
        ([0.85, 1.2, 0.8, 0.7], 0.85, 6, 1, 6),
        ([1.2, 1.2, 0.85, 0.7], 0.85, 5, 2, 6),
        ([1.2, 0.85, 0.7], 0.85, 6, 1, 6),
    ],
)
def test_a_peak_is_the_best_of_tries_that_agree(
    machine, pauses, shares, best, count, impossible, paused
):
    record = extend(machine(cores=2), Varying(shares), ["fp32"], patterns=())
    peak = record.peak("fp32")
    theory = peak.theoretical.flops_per_s
    assert peak.measured / theory == pytest.approx(best)
    assert peak.low / theory == pytest.approx(min(shares))
    assert (len(peak.tries), peak.impossible, len(pauses)) == (count, impossible, paused)
    warned = [advice for advice in record.warnings if "FMA probe" in advice.symptom]
    assert len(warned) == (best < 0.9)


@pytest.mark.usefixtures("pauses")
def test_an_impossible_probe_is_an_error(machine):
    with pytest.raises(ImpossiblePeakError):
        extend(machine(cores=2), Probes(share=1.05), ["fp32"], patterns=())


class Bandwidths(Probes):
    """Answers bandwidth probes from lists by level: best, median, and a disturbance.

    The last one of a list stays. Levels without a list are quiet.
    """

    def __init__(self, **readings):
        super().__init__()
        self.readings = {"memory": [(30, 30)], "llc": [(90, 90)], "l2": [(200, 200)], **readings}

    def __call__(self, name, **arguments):
        reply = super().__call__(name, **arguments)
        if name != "bandwidth":
            return reply
        level = {96 << 20: "memory", 16 << 20: "llc", 1 << 20: "l2"}[arguments["bytes"]]
        first, *rest = self.readings[level]
        self.readings[level] = rest or [first]
        best, middle, *disturbance = first
        rates = {"per_second": best, "median_per_second": middle}
        return {**reply, **rates, "disturbance": next(iter(disturbance), None)}

    def sizes(self):
        return [arguments["bytes"] for name, arguments in self.calls if name == "bandwidth"]


def rates(record):
    return {item.level: item.bytes_per_s for item in record.bandwidths}


@pytest.mark.parametrize(
    ("readings", "windows", "repeated"),
    [
        ({"memory": [(30, 25), (28, 27), (29, 27)]}, (30, 28, 29), 0),
        # Unsteady ones are probed again, and a level that never quietens twice more.
        (
            {"memory": [(30, 20), (28, 20), (29, 20), (28, 27)], "l2": [(200, 10)]},
            (30, 28, 29, 28),
            1 + 2,
        ),
        # A disturbed one does not count.
        ({"memory": [(15, 15, "busy"), (30, 30)]}, (30, 30, 30), 1),
        # A nearer level cannot be slower; its windows lie apart, and one more tells.
        ({"llc": [*3 * [(20, 20)], (90, 90)]}, (30, 30, 30), 1),
    ],
    ids=["quiet", "unsteady", "disturbed", "slower"],
)
def test_the_best_of_several_windows_counts(machine, readings, windows, repeated):
    probe = Bandwidths(**readings)
    before = start_record(machine(cores=2), (0, 1))
    record = extend(machine(cores=2), probe, [], before, patterns=["read"])
    assert rates(record) == {"memory": 30, "llc": 90, "l2": 200}
    memory = record.bandwidth("memory")
    assert (memory.windows, memory.low_bytes_per_s) == (windows, min(windows))
    assert memory.disturbed == sum(len(window) > 2 for window in readings.get("memory", ()))
    # The windows of a reading lie apart.
    assert probe.sizes()[:3] in ([96 << 20, 16 << 20, 1 << 20], [96 << 20, 96 << 20, 16 << 20])
    assert len(probe.sizes()) == 9 + repeated
    assert record.warnings == before.warnings


def test_what_has_no_undisturbed_window_is_a_warning_and_is_not_kept(machine):
    kept, before = Noted(), start_record(machine(cores=2), (0, 1))
    probe = Bandwidths(memory=[(15, 15, "busy")])
    record = extend(machine(cores=2), probe, [], before, patterns=["read"], kept=kept)
    assert rates(record)["memory"] == 15  # there is no other
    (advice,) = record.warnings[len(before.warnings) :]
    assert says(advice.symptom, "memory", "read", "busy")
    assert [item.level for item in kept.known] == ["llc", "l2"]


def test_a_later_window_widens_the_spread_and_raises_the_roof(machine):
    probe, kept = Bandwidths(), Noted()
    first = extend(machine(cores=2), probe, ["fp32"], patterns=["read"])
    probe.readings["memory"] = [(33, 32)]
    probe.share = 0.995
    later = revisit(first, probe, kept)
    assert rates(later)["memory"] == 33
    assert later.bandwidth("memory").windows == (30, 30, 30, 33)
    assert (len(first.peak("fp32").tries), len(later.peak("fp32").tries)) == (3, 4)
    assert later.peak("fp32").measured > first.peak("fp32").measured
    assert kept.writes == [3]


def test_a_nearer_level_that_stays_slower_is_a_warning(machine):
    probe = Bandwidths(memory=[(30e9, 30e9)], llc=[(20e9, 20e9)], l2=[(25e9, 25e9)])
    before = start_record(machine(cores=2), (0, 1))
    record = extend(machine(cores=2), probe, [], before, patterns=["read"])
    assert len(probe.sizes()) == 9 + 2 + 2
    llc, l2 = record.warnings[len(before.warnings) :]
    assert says(llc.symptom, "read", "llc", "20.0 GB/s", "memory", "30.0")
    assert says(l2.symptom, "read", "l2", "25.0 GB/s", "memory", "30.0")
    assert extend(machine(cores=2), probe, [], record, patterns=["read"]) == record
    assert len(probe.sizes()) == 13
