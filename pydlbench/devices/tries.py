"""A compute peak from several tries: what the arithmetic units do, whoever else was on them once.

Tries go on until the two best agree, whatever the theory says, so that both are witnesses of their
own. Only a peak that falls short of the theory is tried further, with pauses: a host may run two of
a virtual machine's CPUs on one core for some seconds. More tries can bring a peak no higher than
the hardware; how many there were, and how far they lie apart, is kept and printed.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from pydlbench.devices.findings import ImpossiblePeakError, PrecisionPeak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Three are the fewest of which two can agree without the third; the best of seven with pauses is
# 3 s where two threads share a core for good.
_LEAST = 3
_MOST = 7
# Bursts of a quiet machine agree within 1 to 3 %.
_AGREES = 0.98
# More than the hardware can do, so often in a row, is a wrong table or a wrong probe.
_IMPOSSIBLE = 3
_PAUSE_S = 0.5


def try_peak(
    once: Callable[[], PrecisionPeak],
    falls_short: Callable[[PrecisionPeak], bool],
    least: int = _LEAST,
) -> PrecisionPeak:
    """Return the best of several tries, with all of them.

    Args:
        once: probes once; a peak without a measurement, whose reason says why, ends the tries.
        falls_short: whether a peak is so far below the theory that it is tried further.
        least: tries that are made even where all is well; with one, none has to agree with it.

    Raises:
        ImpossiblePeakError: the first three tries exceeded the theory.
    """
    tries: list[PrecisionPeak] = []
    impossible = 0
    while True:
        try:
            peak = once()
        except ImpossiblePeakError:
            # A clock that jumped, or was read while somebody else had the core: once or twice.
            impossible += 1
            if not tries and impossible == _IMPOSSIBLE:
                raise
            pause = True
        else:
            if peak.measured is None:
                return peak
            tries.append(peak)
            best = _joined(tries, impossible)
            pause = falls_short(best)
            if not pause and _settled(tries, least):
                return best
        if len(tries) + impossible >= _MOST:
            return _joined(tries, impossible)
        if pause:
            time.sleep(_PAUSE_S)


def confirmed(
    once: Callable[[], PrecisionPeak], kept_per_cycle: float | None
) -> PrecisionPeak | None:
    """Return a peak of an earlier run with one more try, where that agrees; else None.

    Args:
        once: probes once.
        kept_per_cycle: FLOP per core cycle that the earlier run has found; None without one.
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
    if not _AGREES <= now / kept_per_cycle <= 1 / _AGREES:
        return None
    best = max(now, kept_per_cycle)
    return dataclasses.replace(peak, measured=best * peak.clock_hz, tries=(kept_per_cycle, now))


def better_of(known: PrecisionPeak, later: PrecisionPeak) -> PrecisionPeak:
    """Return a peak with one more try, which was made later in a run.

    Args:
        known: of the tries so far.
        later: the new one; without a measurement it counts for nothing.
    """
    if known.measured is None or later.measured is None:
        return known
    best = max(known, later, key=_per_cycle)
    return dataclasses.replace(
        best, tries=(*known.tries, _per_cycle(later)), impossible=known.impossible
    )


def _per_cycle(peak: PrecisionPeak) -> float:
    return (peak.measured or 0.0) / (peak.clock_hz or 1.0)


def _settled(tries: Sequence[PrecisionPeak], least: int) -> bool:
    if len(tries) < least:
        return False
    rates = sorted(map(_per_cycle, tries))
    return least == 1 or rates[-2] >= _AGREES * rates[-1]


def _joined(tries: Sequence[PrecisionPeak], impossible: int) -> PrecisionPeak:
    return dataclasses.replace(
        max(tries, key=_per_cycle), tries=tuple(map(_per_cycle, tries)), impossible=impossible
    )
