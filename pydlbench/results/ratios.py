"""How far the ratio of a row to the fastest backend can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydlbench.results.records import Measurement

__all__ = ["SLOW", "UNCERTAIN_LEGEND", "is_tied", "is_uncertain"]

#: From this ratio to the fastest on, a row is explained.
SLOW = 1.1
# Half of an interval's width, as a share of the ratio.
_WIDE = 0.05

UNCERTAIN_LEGEND = (
    f"the ratio is known to no better than {100 * _WIDE:.0f} %, may lie on either side of "
    f"{SLOW:g}x, or comes from too few rounds for an interval"
)


def is_uncertain(row: Measurement) -> bool:
    """Whether a row's ratio has a wide interval, none, or one around the threshold of slowness."""
    if row.ratio is None or _is_best(row):
        return False
    median, low, high = (row.ratio[name] for name in ("median", "ci_low", "ci_high"))
    if low is None or high is None:
        return True
    return bool((high - low) / 2 > _WIDE * median or low < SLOW < high)


def is_tied(row: Measurement) -> bool:
    """Whether a row that is not the fastest cannot be told from it: its interval holds 1.

    Without an interval, which takes some rounds, the ratio itself has to do.
    """
    if row.ratio is None or _is_best(row):
        return False
    low = row.ratio["ci_low"]
    return bool((row.ratio["median"] if low is None else low) <= 1)


def _is_best(row: Measurement) -> bool:
    """Whether the ratio is that of the fastest to itself."""
    return row.ratio is not None and row.ratio["to"] == row.who
