"""What a call takes besides its kernel: fresh pages, conversions of layouts, the call itself.

Each part yields a cause's name, its seconds and the measurement in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.causes.evidence import Evidence

__all__ = ["allocation", "dispatch", "reorders"]


def allocation(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what pages that are touched for the first time take longer."""
    own, best = evidence.own, evidence.best
    if own.allocation_s is None:
        return
    kept = format_seconds(own.time_s - own.allocation_s)
    how = f"{kept} with an allocator that keeps its pages"
    if own.faults:
        how += f", which saves {own.faults:.0f} page faults per call"
    seconds = own.allocation_s - (best.allocation_s or 0.0)
    yield "allocation", seconds, how + _beside(best.allocation_s)


def reorders(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what bringing operands into other layouts takes longer."""
    own, best = evidence.own, evidence.best
    if own.reorder_s:
        how = f"operands brought into other layouts, {own.reorder_by}{_beside(best.reorder_s)}"
        yield "reorders", own.reorder_s - (best.reorder_s or 0.0), how


def dispatch(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what a call that does nothing takes longer."""
    own, best = evidence.own, evidence.best
    if own.empty_s is None:
        return
    how = f"{format_seconds(own.empty_s)} for a call that does nothing"
    if own.queued:
        # The device works while the next call is made: what the calls take longer is waited for.
        yield "dispatch", own.empty_s - best.time_s, f"{how}, more than the fastest takes in all"
        return
    beside = None if best.queued else best.empty_s
    yield "dispatch", own.empty_s - (beside or 0.0), how + _beside(beside)


def _beside(seconds: float | None) -> str:
    return f"; {format_seconds(seconds)} in the fastest" if seconds else ""
