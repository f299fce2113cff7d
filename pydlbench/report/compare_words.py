"""Ratios, verdicts and settings of a comparison in words, for its table and its Markdown alike."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from pydlbench.compare.keys import describe
from pydlbench.results.columns import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.compare import ComparedRow, Comparison, Row, Side
    from pydlbench.compare.comparison import Estimate

__all__ = [
    "change",
    "interval",
    "left_over",
    "legend",
    "names_of",
    "ratio_text",
    "resolution",
    "side_lines",
    "unclear_reasons",
    "wrapped",
]

_SHOWN: Final = 6
_WIDTH: Final = 150
# Beyond this a ratio is said as a factor.
_FACTOR: Final = 2.0
# Less than half a percent in common is nothing to speak of.
_WORTH_SAYING: Final = 0.005


def ratio_text(value: float) -> str:
    """Format a ratio: ``1.032``, ``0.970``, ``12.4``."""
    return f"{value:.3f}" if 0.0995 <= value < 9.995 else number(value)


def interval(estimate: Estimate) -> str:
    """Format an interval: ``1.021 to 1.043``."""
    if estimate.ci_low is None or estimate.ci_high is None:
        return "-"
    return f"{ratio_text(estimate.ci_low)} to {ratio_text(estimate.ci_high)}"


def resolution(estimate: Estimate) -> str:
    """Format what could have been told from one: ``12 %``, ``2.1x``."""
    value = estimate.resolution
    if value is None or value > 99:
        return "-"
    # From 99.5 % on, two digits of a percentage would take an exponent.
    return f"{value:.1f}x" if value >= _FACTOR - 0.005 else f"{100 * (value - 1):.2g} %"


def change(ratio: float) -> str:
    """Say how much faster or slower: ``4 % slower``, ``2.1x as fast``, ``3.4x as slow``."""
    if ratio >= _FACTOR:
        return f"{number(ratio, 2)}x as slow"
    if ratio > 1:
        return f"{_percent(ratio - 1)} slower"
    return (
        f"{number(1 / ratio, 2)}x as fast"
        if ratio <= 1 / _FACTOR
        else f"{_percent(1 - ratio)} faster"
    )


def names_of(rows: Iterable[Row]) -> str:
    """Name some rows and count the others."""
    named = list(dict.fromkeys(describe(row) for row in rows))
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


def side_lines(found: Comparison) -> list[str]:
    """Say what A and B are."""
    lines = [f"{mark}  {_side(side)}" for mark, side in (("A", found.a), ("B", found.b))]
    if found.passes:
        lines.append(
            f"both measured in turn here, prepared anew {found.passes} times: "
            f"{found.b.machine or 'machine not recorded'}"
        )
    if found.matching.axis:
        first, second = found.matching.values
        lines.append(
            f"no row has the same setting in both: matched across {found.matching.axis}, "
            f"A {first or 'none'}, B {second or 'none'}"
        )
    return lines


def left_over(found: Comparison) -> list[str]:
    """Say which rows have no partner, and which were skipped or failed."""
    lines = []
    for mark, rows in (("A", found.matching.only_a), ("B", found.matching.only_b)):
        if rows:
            lines.append(f"only in {mark}, {_rows(len(rows))}: {names_of(rows)}")
    untimed: dict[tuple[str, str], list[Row]] = {}
    for pair in found.matching.untimed:
        untimed.setdefault((pair.a.status, pair.b.status), []).append(pair.b)
    for (first, second), rows in untimed.items():
        which = "in both" if first == second else f"in A, {second} in B"
        lines.append(f"{first} {which}, {_rows(len(rows))}: {names_of(rows)}")
    return lines


def unclear_reasons(found: Comparison) -> list[str]:
    """Say why rows have no verdict where it is not the scatter between runs."""
    reasons: dict[str, list[Row]] = {}
    for row in found.rows:
        if row.counts.reason is not None:
            reasons.setdefault(row.counts.reason, []).append(row.b)
    return [
        f"no verdict, {_rows(len(rows))}: {reason}: {names_of(rows)}"
        for reason, rows in reasons.items()
    ]


def legend(found: Comparison) -> list[str]:
    """Explain the columns and what a verdict takes."""
    settings = found.settings
    beyond = f"{100 * settings.margin:g} %"
    if found.passes:
        spread = f"the scatter between {found.passes} preparations"
    elif found.repeats:
        spread = f"the scatter between runs, of {found.repeats} earlier ones and a measured figure"
    else:
        spread = "the scatter between runs, a measured figure: no earlier runs tell more"
    level = f"{100 * settings.confidence:g} %"
    ratio = f"ratio: B over A; its {level} interval counts {spread}"
    chance = f"the chance of any false one among all rows is {100 * settings.alpha:g} % (Holm)"
    lines = [
        f"{ratio}; resolves: the smallest difference that would have been seen",
        f"SLOWER, FASTER: beyond {beyond}, and {chance}; SAME: within {beyond}; UNCLEAR: neither",
    ]
    if found.drift is not None and abs(found.drift - 1) >= _WORTH_SAYING:
        lines.append(
            f"B was {change(found.drift)} in most rows, as much as a whole run may be by chance: "
            "only what goes beyond that counts"
        )
    if found.in_cycles:
        lines.append("verdicts are those of the cycles: nothing but the clock differs")
    return lines


def wrapped(text: str) -> str:
    """Return lines of prose no wider than a table may be, those of tables as they are."""
    return "\n".join(
        line if len(line) <= _WIDTH else textwrap.fill(line, _WIDTH, subsequent_indent="  ")
        for line in text.splitlines()
    )


def _side(side: Side) -> str:
    parts = [side.name]
    if side.run_id and side.run_id != side.name:
        parts.append(f"run {side.run_id}")
    return "  ".join(filter(None, [*parts, side.created_utc, side.machine]))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _percent(fraction: float) -> str:
    value = 100 * fraction
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def groups_of(rows: Sequence[ComparedRow]) -> dict[str, list[ComparedRow]]:
    """Return rows by their verdict."""
    found: dict[str, list[ComparedRow]] = {}
    for row in rows:
        found.setdefault(row.verdict, []).append(row)
    return found
