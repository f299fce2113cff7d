"""A compute peak from several tries, so that short interference does not matter.

Tries are repeated until the two best agree, independently of the theoretical peak. If the result is
far below the theoretical peak, further tries follow with pauses: a host may run two CPUs of a
virtual machine on one core for some seconds. More tries cannot exceed the hardware's peak; their
number and spread are recorded and printed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from pydlbench.devices.findings import ImpossiblePeakError, PrecisionPeak

# Three is the least number of which two can agree without the third. Seven with pauses take 3 s if
# two threads share a core permanently.
_MIN_TRIES = 3
_MAX_TRIES = 7
# Bursts on an idle machine agree within 1 to 3 %.
_AGREEMENT = 0.98
# The first three tries above the theoretical peak mean a wrong table or a wrong probe.
_MAX_IMPOSSIBLE_TRIES = 3
_PAUSE_S = 0.5


def try_peak(
    once: Callable[[], PrecisionPeak],
    falls_short: Callable[[PrecisionPeak], bool],
    least: int = _MIN_TRIES,
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
