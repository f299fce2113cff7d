"""Probes that are repeated until their readings are steady: bandwidths, and compute peaks."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydlbench.devices.findings import (
    Bandwidth,
    DeviceAdvice,
    ImpossiblePeakError,
    PrecisionPeak,
    ProbedDevice,
    Reading,
)
from pydlbench.devices.probe_cache import AGREES
from pydlbench.errors import UnsupportedError

#: Runs a native probe: ``probe("fma_peak", precision=..., cpus=..., seconds=...)``.
Probe = Callable[..., Mapping[str, Any]]


_Device = TypeVar("_Device", bound=ProbedDevice)

PATTERNS = ("read", "write", "copy", "triad")
#: Levels of the memory, from the farthest to the nearest.
LEVELS = ("memory", "llc", "l2")

#: Number of windows of each reading. A window is one run of the native probe: several timed rounds.
#: Windows of different readings alternate, so that the windows of one reading are spread over time:
#: other load on the memory bus comes and goes.
ROUNDS = 3
# Rounds on an idle machine agree within a few per cent. If the best round of a window exceeds the
# median by this factor, the window was disturbed, and its best round may be, too.
_UNSTEADY = 1.25
_MAX_REPEATS = 2
# Maximum number of repetitions of a window during which interference was observed.
_MAX_DISTURBED_REPEATS = 2


class _Prober:
    """Probes bandwidths and counts the repetitions of each."""

    def __init__(
        self,
        known: Sequence[Bandwidth],
        sizes: Mapping[str, int | None],
        ask: Callable[[str, str, int], Mapping[str, Any]],
        kept: Sequence[Bandwidth] = (),
        windows: int = ROUNDS,
    ) -> None:
        self._windows = windows
        self._sizes = sizes
        self._kept = {(item.level, item.pattern): item for item in kept}
        self._agrees: dict[str, bool] = {}
        self._ask = ask
        self._repeats: dict[tuple[str, str], int] = {}
        self.known = {(item.level, item.pattern): item for item in known}
        self.new: set[tuple[str, str]] = set()

    def extend(self, levels: Sequence[str], patterns: Sequence[str]) -> None:
        """Probe unknown readings, and repeat unsteady ones."""
        wanted = [
            (level, pattern)
            for level in levels
            for pattern in patterns
            if (level, pattern) not in self.known and self._sizes.get(level) is not None
        ]
        self.new.update(wanted)
        unknown = [key for key in wanted if not self._take_over(*key)]
        for _ in range(self._windows):
            for level, pattern in unknown:
                self.take(level, pattern)
        for level, pattern in unknown:
            while self._unsteady(level, pattern) and self.repeat(level, pattern):
                pass

    def _unsteady(self, level: str, pattern: str) -> bool:
        bandwidth = self.known[level, pattern]
        return bandwidth.bytes_per_s > _UNSTEADY * bandwidth.median_bytes_per_s

    def _take_over(self, level: str, pattern: str) -> bool:
        """Use a kept reading if a new window of its level agrees; return whether it does.

        The new window is added to the reading that it belongs to.
        """
        kept = self._kept.get((level, pattern))
        # A single window was taken for a row that cannot be bound by memory.
        if kept is None or len(kept.windows) < self._windows:
            return False
        if level not in self._agrees:
            agrees = self._sizes.get(level) == kept.working_set_bytes
            if agrees:
                window = self._window(level, pattern, kept.working_set_bytes)
                agrees = AGREES <= window.bytes_per_s / kept.bytes_per_s <= 1 / AGREES
                if agrees:
                    kept = kept.merge(window)
            self._agrees[level] = agrees
        if self._agrees[level]:
            self.known[level, pattern] = kept
        return self._agrees[level]

    def repeat(self, level: str, pattern: str) -> bool:
        """Measure one more window; return False if the limit of repetitions is reached."""
        count = self._repeats.get((level, pattern), 0)
        if count >= _MAX_REPEATS:
            return False
        self._repeats[level, pattern] = count + 1
        self.take(level, pattern)
        return True

    def take(self, level: str, pattern: str) -> None:
        """Measure one more window, and merge it into the reading of this level and pattern."""
        size = self._sizes.get(level)
        if size is None:
            raise ValueError(f"{level}: no such level")
        bandwidth = self._window(level, pattern, size)
        known = self.known.get((level, pattern))
        self.known[level, pattern] = bandwidth if known is None else known.merge(bandwidth)

    def _window(self, level: str, pattern: str, size: int) -> Bandwidth:
        """Measure a window, and repeat it while other work disturbs it."""
        bandwidth: Bandwidth | None = None
        for _ in range(1 + _MAX_DISTURBED_REPEATS):
            reading = Reading.from_reply(self._ask(level, pattern, size))
            now = Bandwidth.from_reading(level, pattern, size, reading)
            bandwidth = now if bandwidth is None else bandwidth.merge(now)
            if now.disturbance is None:
                break
        assert bandwidth is not None
        return bandwidth

    def inconsistent(self) -> Iterator[tuple[Bandwidth, Bandwidth]]:
        """Yield readings that are slower than a farther level, with the reading of that level."""
        for pattern in dict.fromkeys(pattern for _, pattern in self.known):
            items = (self.known.get((level, pattern)) for level in self._sizes)
            for far, near in itertools.combinations([item for item in items if item], 2):
                fresh = {(far.level, pattern), (near.level, pattern)} & self.new
                if fresh and near.bytes_per_s < far.bytes_per_s:
                    yield near, far


def add_windows(
    record: ProbedDevice,
    sizes: Mapping[str, int | None],
    ask: Callable[[str, str, int], Mapping[str, Any]],
) -> tuple[Bandwidth, ...]:
    """Return a device's bandwidths with one more window of each level's fastest pattern.

    Args:
        record: device with bandwidths.
        sizes: bytes that a probe of each level moves, see :func:`probe_levels`.
        ask: runs a native probe of a level and a pattern on a number of bytes.
    """
    prober = _Prober(record.bandwidths, sizes, ask)
    for level in dict.fromkeys(item.level for item in record.bandwidths):
        best = record.bandwidth(level)
        if best is not None:
            prober.take(level, best.pattern)
    return tuple(prober.known.values())


def probe_levels(
    known: Sequence[Bandwidth],
    sizes: Mapping[str, int | None],
    patterns: Sequence[str],
    levels: Sequence[str],
    ask: Callable[[str, str, int], Mapping[str, Any]],
    kept: Sequence[Bandwidth] = (),
    windows: int = ROUNDS,
) -> tuple[tuple[Bandwidth, ...], tuple[DeviceAdvice, ...]]:
    """Return the known bandwidths with the missing ones probed, and warnings about the new ones.

    A single window of some milliseconds would determine every roof. Each reading therefore consists
    of three windows that are spread over time, and of up to two more if its best round is far above
    the median, or if it is slower than a farther level. The bandwidth is the best round of all, the
    windows give its spread. A disturbed window is repeated, and counts only if all are disturbed.

    Args:
        known: bandwidths that were measured so far.
        sizes: the device's levels, from the farthest to the nearest, with the bytes that a probe of
            the level moves; None if the device lacks the level.
        patterns: patterns whose bandwidths are needed.
        levels: levels whose bandwidths are needed; levels that the device lacks are skipped.
        ask: runs a native probe of a level and a pattern on a number of bytes.
        kept: bandwidths of an earlier run, used if one new reading of the level agrees.
        windows: minimum number of windows of each reading.
    """
    prober = _Prober(known, sizes, ask, kept, windows)
    prober.extend(levels, patterns)
    for _ in range(_MAX_REPEATS):
        for near in dict.fromkeys(near for near, _ in prober.inconsistent()):
            prober.repeat(near.level, near.pattern)
    slower = tuple(
        DeviceAdvice(
            symptom=f"the {near.pattern} probe of {near.level} reached "
            f"{near.bytes_per_s / 1e9:.1f} GB/s, that of {far.level} {far.bytes_per_s / 1e9:.1f} "
            "GB/s: a nearer level cannot be slower, so roofs based on it are unreliable",
            remedy="stop other load and measure again",
        )
        for near, far in prober.inconsistent()
    )
    bandwidths = tuple(prober.known.values())
    new = [item for item in bandwidths if (item.level, item.pattern) in prober.new]
    return bandwidths, (*slower, *_disturbed(new))


def _disturbed(bandwidths: Sequence[Bandwidth]) -> Iterator[DeviceAdvice]:
    """Yield a warning for each level with readings that have no undisturbed window."""
    levels: dict[str, list[Bandwidth]] = {}
    for item in bandwidths:
        if item.disturbance is not None:
            levels.setdefault(item.level, []).append(item)
    for level, items in levels.items():
        patterns = ", ".join(item.pattern for item in items)
        yield DeviceAdvice(
            symptom=f"no window of the {level} probes ({patterns}) was undisturbed: "
            f"{items[0].disturbance}; rows that need them have no roof",
            remedy="stop other load and measure again",
        )


def extend_bandwidths(
    record: _Device,
    probe: Callable[[], tuple[tuple[Bandwidth, ...], tuple[DeviceAdvice, ...]]],
) -> tuple[_Device, tuple[DeviceAdvice, ...]]:
    """Return the record with bandwidths, or with the reason why it has none; and new warnings.

    Args:
        record: record of the device so far.
        probe: returns all bandwidths and warnings about them.
    """
    if record.bandwidth_reason is not None:
        return record, ()
    try:
        bandwidths, advice = probe()
    except UnsupportedError as error:
        missing = DeviceAdvice(
            symptom=f"no bandwidth was probed: {error}",
            remedy="times and rates are measured without a roof",
        )
        return dataclasses.replace(record, bandwidth_reason=str(error)), (missing,)
    return dataclasses.replace(record, bandwidths=bandwidths), advice


# -----------------------------------------------------------------------------
# A compute peak from several tries, so that short interference does not matter.

#: The least number of which two can agree without the third.
MIN_TRIES = 3
# With pauses they take 3 s if two threads share a core permanently.
_MAX_TRIES = 7
# Bursts on an idle machine agree within 1 to 3 %.
_AGREEMENT = 0.98
# The first three tries above the theoretical peak mean a wrong table or a wrong probe.
_MAX_IMPOSSIBLE_TRIES = 3
_PAUSE_S = 0.5


def try_peak(
    once: Callable[[], PrecisionPeak],
    falls_short: Callable[[PrecisionPeak], bool],
    least: int = MIN_TRIES,
) -> PrecisionPeak:
    """Return the best of several tries, with all of them.

    Args:
        once: function that probes once; a peak without a measurement ends the tries.
        falls_short: function that tells whether a peak is so far below the theoretical one that
            tries go on.
        least: minimum number of tries; if 1, no second try has to agree.

    Raises:
        ImpossiblePeakError: the first three tries exceeded the theoretical peak.
    """
    tries: list[PrecisionPeak] = []
    impossible = 0
    while True:
        try:
            peak = once()
        except ImpossiblePeakError:
            # The clock jumped, or was read while another process had the core.
            impossible += 1
            if not tries and impossible == _MAX_IMPOSSIBLE_TRIES:
                raise
            pause = True
        else:
            if peak.measured is None:
                return peak
            tries.append(peak)
            best = _best_try(tries, impossible)
            pause = falls_short(best)
            if not pause and _agree(tries, least):
                return best
        if len(tries) + impossible >= _MAX_TRIES:
            return _best_try(tries, impossible)
        if pause:
            time.sleep(_PAUSE_S)


def confirm_peak(
    once: Callable[[], PrecisionPeak], kept_per_cycle: float | None
) -> PrecisionPeak | None:
    """Return the peak of an earlier run if one more try agrees with it, else None.

    Args:
        once: function that probes once.
        kept_per_cycle: peak of the earlier run in FLOP per core cycle; None if there is no earlier
            run.
    """
    if kept_per_cycle is None:
        return None
    try:
        peak = once()
    except ImpossiblePeakError:
        return None
    if peak.measured is None or peak.clock_hz is None:
        return None
    now = _per_cycle(peak)
    if not _AGREEMENT <= now / kept_per_cycle <= 1 / _AGREEMENT:
        return None
    best = max(now, kept_per_cycle)
    return dataclasses.replace(peak, measured=best * peak.clock_hz, tries=(kept_per_cycle, now))


def better_of(known: PrecisionPeak, later: PrecisionPeak) -> PrecisionPeak:
    """Return a peak with one more try, made later in the run.

    Args:
        known: peak of the tries so far.
        later: peak of the new try; ignored without a measurement.
    """
    if known.measured is None or later.measured is None:
        return known
    best = max(known, later, key=_per_cycle)
    return dataclasses.replace(
        best, tries=(*known.tries, _per_cycle(later)), impossible=known.impossible
    )


def _per_cycle(peak: PrecisionPeak) -> float:
    return (peak.measured or 0.0) / (peak.clock_hz or 1.0)


def _agree(tries: Sequence[PrecisionPeak], least: int) -> bool:
    if len(tries) < least:
        return False
    rates = sorted(map(_per_cycle, tries))
    return least == 1 or rates[-2] >= _AGREEMENT * rates[-1]


def _best_try(tries: Sequence[PrecisionPeak], impossible: int) -> PrecisionPeak:
    return dataclasses.replace(
        max(tries, key=_per_cycle), tries=tuple(map(_per_cycle, tries)), impossible=impossible
    )
