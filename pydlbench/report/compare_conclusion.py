"""One sentence on what a comparison found, and one on what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.compare.comparison import FASTER, SAME, SLOWER, UNCLEAR
from pydlbench.compare.keys import LAYER_KINDS
from pydlbench.report.compare_words import change, groups_of, interval, ratio_text

if TYPE_CHECKING:
    from pydlbench.compare import ComparedRow, Comparison

__all__ = ["conclude"]

_NAMED = 3


def conclude(found: Comparison) -> list[str]:
    """Return the conclusion: what is slower, what faster, what the rest; then what to do.

    Args:
        found: with at least one row.
    """
    groups = groups_of(found.rows)
    total = len(found.rows)
    changed = [
        _changed(groups[verdict], total) for verdict in (SLOWER, FASTER) if verdict in groups
    ]
    if changed:
        sentence = f"B is {' and '.join(changed)}"
    elif len(groups.get(SAME, ())) == total:
        count = "the row is" if total == 1 else f"all {total} rows are"
        sentence = f"A and B do not differ: {count} the same within {_margin(found)}"
    elif SAME in groups:
        sentence = (
            f"nothing is known to be faster or slower: {len(groups[SAME])} of {_rows(total)} are "
            f"the same within {_margin(found)}"
        )
    else:
        sentence = f"nothing can be said for sure of {_those(total)}"
    rest = [
        f"{len(groups[verdict])} {words}"
        for verdict, words in ((SAME, "the same"), (UNCLEAR, "unclear"))
        if verdict in groups and changed
    ]
    overall = found.main_geomean
    mean = ""
    if overall is not None and total > 1:
        unit = " cycles" if found.in_cycles else ""
        mean = f"; all in all B takes {ratio_text(overall.ratio)}x A's{unit or ' time'}"
        mean += f" ({interval(overall)}, {overall.verdict})"
    lines = [f"{sentence}{''.join(f', {one}' for one in rest)}{mean}."]
    return [*lines, *_next(found, groups)]


def _changed(rows: list[ComparedRow], total: int) -> str:
    """``4 % slower in 2 of 11 rows (conv1, conv2)``; a range where they differ."""
    ratios = sorted(row.counts.ratio for row in rows)
    slow = ratios[0] > 1
    least, most = (ratios[0], ratios[-1]) if slow else (ratios[-1], ratios[0])
    first, second = change(least), change(most)
    much = first if first == second else _range(first, second)
    ordered = sorted(rows, key=lambda row: -row.counts.ratio if slow else row.counts.ratio)
    names = list(dict.fromkeys(row.b.layer for row in ordered))
    more = ", ..." if len(names) > _NAMED else ""
    return f"{much} in {len(rows)} of {_rows(total)} ({', '.join(names[:_NAMED])}{more})"


def _range(first: str, second: str) -> str:
    """``4.1 to 12 % slower``."""
    number, _, words = first.partition(" ")
    last, _, others = second.partition(" ")
    return f"{number} to {last} {words}" if words == others else f"{first} to {second}"


def _next(found: Comparison, groups: dict[str, list[ComparedRow]]) -> list[str]:
    """Say what would tell more."""
    if UNCLEAR not in groups:
        return []
    if found.passes:
        return ["more --passes would tell smaller differences."]
    layers = [row for row in groups[UNCLEAR] if row.b.kind in LAYER_KINDS]
    if not layers:
        return []
    text = "between runs these rows differ by as much on their own: --interleave measures both "
    return [f"{text}sides in turn and tells differences of a few percent."]


def _margin(found: Comparison) -> str:
    return f"{100 * found.settings.margin:g} %"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _those(count: int) -> str:
    return "the row that both have" if count == 1 else f"the {count} rows that both have"
