"""From samples to the summary that every row carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.results.parts import TimeSummary
from pydlbench.timing.statistics import summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["time_summary"]


def time_summary(seconds: Sequence[float], confidence: float) -> TimeSummary:
    """Summarise samples (seconds per execution); the interval is None where there are too few."""
    summary = summarize(seconds, confidence)
    return TimeSummary(
        median=summary.median,
        ci_low=summary.interval.low if summary.interval else None,
        ci_high=summary.interval.high if summary.interval else None,
        q1=summary.q1,
        q3=summary.q3,
        min=summary.min,
        n=summary.n,
        confidence=confidence,
    )
