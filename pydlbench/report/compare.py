"""A comparison as text and Markdown: the conclusion first, then the rows."""

import heapq
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from pydlbench.compare.comparison import (
    ALPHA,
    FASTER,
    SAME,
    SLOWER,
    UNCLEAR,
    ComparedRow,
    Comparison,
    Estimate,
)
from pydlbench.compare.rows import AXES, LAYER_KINDS, Side, SideRow, describe
from pydlbench.compare.stored import CONTENDED
from pydlbench.grouping import group_by
from pydlbench.records.comparison import FACTOR, least_change, ratio_text
from pydlbench.records.record import columns_of
from pydlbench.records.run import command_text
from pydlbench.report.blocks import Block, Heading, Headline, Lines, TableBlock
from pydlbench.units import (
    format_seconds,
    number,
    percent,
    quantity,
    some_names,
    time_in,
    time_unit,
)

# -----------------------------------------------------------------------------
# Ratios, verdicts and settings of a comparison in words.

_MAX_NAMED_ROWS: Final = 6


def interval(estimate: Estimate) -> str:
    """Format an interval: ``1.021 to 1.043``."""
    if estimate.ci_low is None or estimate.ci_high is None:
        return "-"
    return f"{ratio_text(estimate.ci_low)} to {ratio_text(estimate.ci_high)}"


def change(ratio: float) -> str:
    """Return a ratio in words: ``4 % slower``, ``2.1x as fast``, ``3.4x as slow``."""
    if ratio >= FACTOR:
        return f"{number(ratio, 2)}x as slow"
    if ratio > 1:
        return f"{percent(ratio - 1)} slower"
    return (
        f"{number(1 / ratio, 2)}x as fast"
        if ratio <= 1 / FACTOR
        else f"{percent(1 - ratio)} faster"
    )


def names_of(rows: Iterable[SideRow]) -> str:
    """Return the names of some rows, and the number of the others."""
    return some_names(list(dict.fromkeys(describe(row) for row in rows)), _MAX_NAMED_ROWS)


def side_lines(comparison: Comparison) -> list[str]:
    """Return the lines on A and B."""
    b, passes = comparison.b, comparison.passes
    lines = [
        f"{mark}  {side.name if passes else _side(side)}"
        for mark, side in (("A", comparison.a), ("B", b))
    ]
    if passes:
        in_turn = f"both measured here, in turn, each prepared {quantity(passes, 'time')}"
        words = (in_turn, b.run_id and f"run {b.run_id}", b.machine or "machine not recorded")
        lines.append("  ".join(filter(None, words)))
    if comparison.matching.axis:
        first, second = comparison.matching.values
        lines.append(
            f"no row has the same setting in both: matched across {comparison.matching.axis}, "
            f"A {first or 'none'}, B {second or 'none'}"
        )
    return lines


def left_over(comparison: Comparison) -> list[str]:
    """Return lines on rows without a partner, and on rows that were skipped or failed."""
    alone = {"A": comparison.matching.only_a, "B": comparison.matching.only_b}
    lines = [
        f"only in {mark}, {quantity(len(rows), 'row')}: {names_of(rows)}"
        for mark, rows in alone.items()
        if rows
    ]
    untimed = group_by(comparison.matching.untimed, lambda pair: (pair.a.status, pair.b.status))
    if comparison.refused:  # the first line names them
        return lines
    for (first, second), pairs in untimed.items():
        which = "in both" if first == second else f"in A, {second} in B"
        names = names_of(pair.b for pair in pairs)
        lines.append(f"{first} {which}, {quantity(len(pairs), 'row')}: {names}")
    return lines


def unclear_reasons(comparison: Comparison) -> list[str]:
    """Return the reasons why rows have no verdict, other than the scatter between runs."""
    reasons = group_by(comparison.rows, lambda row: row.estimate.reason)
    return [
        f"no verdict, {quantity(len(rows), 'row')}: {reason}: {names_of(row.b for row in rows)}"
        for reason, rows in reasons.items()
        if reason is not None
    ]


def legend(comparison: Comparison) -> list[str]:
    """Return the explanation of the columns and the verdicts."""
    level = f"{100 * comparison.confidence:g} %"
    if comparison.passes:
        interval_of = (
            f"its {level} interval is that of {quantity(comparison.passes, 'preparation')}"
        )
    elif comparison.assumed_sd is None:
        interval_of = (
            f"its {level} prediction interval counts what {comparison.replicates} runs of the same "
            "code differ by"
        )
    else:
        interval_of = (
            f"its {level} prediction interval assumes that runs of the same code differ by "
            f"{100 * comparison.assumed_sd:g} % (standard deviation), as the store has too few of "
            "them"
        )
    same = f"the interval lies within {100 * comparison.margin:g} %"
    if comparison.worth > comparison.margin:
        same += f", or within what the row resolves (at most {100 * comparison.worth:g} %)"
    chance = f"the chance of a false verdict among all rows is {100 * ALPHA:g} %"
    return [
        f"ratio: B over A; {interval_of}",
        *(
            ["resolves: smaller changes cannot be detected"]
            if any(row.estimate.resolution is not None for row in comparison.rows)
            else []
        ),
        f"SLOWER, FASTER: beyond what the scatter allows; {chance}",
        f"SAME: {same}; UNCLEAR: neither",
    ]


# -----------------------------------------------------------------------------
# Advice on undecided rows.

# Advice on a disturbed row.
_QUIET: Final = "measure again when nothing else runs"


def what_would_decide(comparison: Comparison, threshold: float) -> list[str]:
    """Return a line per cause why it is undecided whether rows are slower, with advice.

    Args:
        comparison: a comparison.
        threshold: a row counts as slower if it is slower by more than this fraction.

    Returns:
        Empty if it is decided for all rows.
    """
    causes: dict[str, list[SideRow]] = {}
    coarse: list[ComparedRow] = []
    for row in comparison.undecided(threshold):
        reason = row.estimate.reason
        if reason is None:
            coarse.append(row)
        else:
            causes.setdefault(f"{reason}; {_remedy(reason, comparison, row.b)}", []).append(row.b)
    if lost := comparison.lost:
        where = "not timed now" if comparison.passes else "timed in A and not in B"
        causes[f"{where}; measure again"] = lost
    lines = [
        f"{quantity(len(rows), 'row')} ({names_of(rows)}): {cause}"
        for cause, rows in causes.items()
    ]
    if coarse:
        known = [row.estimate.resolution for row in coarse if row.estimate.resolution is not None]
        much = f"resolve no less than {least_change(min(known))}" if known else "have no resolution"
        names = names_of(row.b for row in coarse)
        ways = _either(_ways(comparison, [row.b for row in coarse]))
        lines.append(f"{quantity(len(coarse), 'row')} ({names}): {much}; {ways}")
    return lines


class Judgement(NamedTuple):
    """The result of a gate.

    Attributes:
        slower: the rows that are significantly slower by more than the threshold, in words; empty
            if there are none.
        undecided: a line for each cause why rows are undecided, with advice; empty if none is, or
            if some are slower.
    """

    slower: str
    undecided: tuple[str, ...]


def judge(comparison: Comparison, threshold: float) -> Judgement:
    """Return whether rows are slower by more than a fraction."""
    limit = f"{100 * threshold:g} %"
    if slow := comparison.slower(threshold):
        count = "1 row is" if len(slow) == 1 else f"{len(slow)} rows are"
        names = names_of(row.b for row in slow)
        most = change(slow[0].estimate.ratio)
        return Judgement(f"{count} slower by more than {limit}: {names}; the most: {most}", ())
    causes = what_would_decide(comparison, threshold)
    return Judgement("", tuple(f"cannot tell {limit}: {cause}" for cause in causes))


def _remedy(reason: str, comparison: Comparison, row: SideRow) -> str:
    return _QUIET if reason == CONTENDED else _either(_ways(comparison, [row]))


def _ways(comparison: Comparison, rows: Sequence[SideRow]) -> list[str]:
    """Return ways to detect smaller changes."""
    if comparison.passes:
        return ["more repetitions"]
    again = comparison.matching.axis and any(row.kind in (*LAYER_KINDS, "step") for row in rows)
    return [*(["--interleave"] if again else []), "more runs of both sides in the store"]


def _either(ways: Sequence[str]) -> str:
    return ", or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))


def _side(side: Side) -> str:
    parts = [side.name]
    if side.run_id and side.run_id != side.name:
        parts.append(f"run {side.run_id}")
    return "  ".join(filter(None, [*parts, side.created_utc, side.machine]))


# -----------------------------------------------------------------------------
# The conclusion: one sentence on the result, and one on what to do next.

_MAX_NAMED_CHANGES = 3
# Settings whose values name a row among others.
_SHORT_AXES: Final = frozenset(("layer", "pass_", "precision", "backend", "mode", "cache"))


def conclude(comparison: Comparison) -> list[str]:
    """Return the conclusion: slower rows, faster rows, the others; then advice.

    Args:
        comparison: a comparison with a row, or with kernels that are not ranked.
    """
    lines = [f"{text}." for text in comparison.refused]
    if not comparison.rows:
        return lines
    if comparison.passes and len(comparison.rows) == 1:
        return [*lines, f"{ratio_sentence(comparison)}."]
    groups = group_by(comparison.rows, lambda row: row.verdict)
    total = len(comparison.rows)
    changed = [
        _changed(groups[verdict], comparison) for verdict in (SLOWER, FASTER) if verdict in groups
    ]
    if changed:
        sentence = f"B is {' and '.join(changed)}"
    elif len(groups.get(SAME, ())) == total:
        count = "the row is" if total == 1 else f"all {total} rows are"
        sentence = f"no change is seen: {count} the same within {_within(comparison)}"
    elif SAME in groups:
        verb = "is" if len(groups[SAME]) == 1 else "are"
        sentence = (
            f"nothing is known to be faster or slower: {len(groups[SAME])} of "
            f"{quantity(total, 'row')} {verb} the same within {_within(comparison)}"
        )
    elif total == 1:
        sentence = f"it is unclear which is faster: {_single(comparison)}"
    else:
        sentence = f"nothing is certain about the {total} rows that both have"
    rest = [
        f"{len(groups[verdict])} {words}"
        for verdict, words in (
            (SAME, f"the same within {_within(comparison)}"),
            (UNCLEAR, "unclear"),
        )
        if verdict in groups and changed
    ]
    overall = comparison.geomean
    mean = ""
    if overall is not None and total > 1:
        mean = f"; all in all B takes {ratio_text(overall.ratio)}x A's time"
        mean += f" ({interval(overall)}, {overall.verdict})"
    lines += [f"{sentence}{''.join(f', {part}' for part in rest)}{mean}."]
    return [*lines, *_next(comparison, groups)]


def ratio_sentence(comparison: Comparison) -> str:
    """Return the conclusion on the only row of sides that were measured in turn."""
    (row,) = comparison.rows
    estimate = row.estimate
    level = f"{100 * comparison.confidence:g} %"
    ends = (estimate.ci_low, estimate.ci_high)
    a, b = (format_seconds(side.median or 0.0) for side in (row.a, row.b))
    times = f"{b} against {a}"
    if estimate.verdict == FASTER:
        low, high = (ratio_text(1 / end) for end in reversed(ends) if end)
        faster = ratio_text(1 / estimate.ratio)
        return f"B is {faster}x as fast as A ({level} {low} .. {high}): {times}"
    low, high = (ratio_text(end) if end else "-" for end in ends)
    ratio = f"{ratio_text(estimate.ratio)}x A's time ({level} {low} .. {high})"
    if estimate.verdict == SLOWER:
        return f"B is slower than A: it takes {ratio}, {times}"
    if estimate.verdict == SAME:
        return f"B is as fast as A within {_within(comparison)}: it takes {ratio}, {times}"
    known = estimate.resolution
    least = estimate.reason or (
        f"changes below {least_change(known)} cannot be told" if known else "too few repetitions"
    )
    return f"it is unclear which is faster: {_single(comparison)}; {least} (--repetitions)"


def _single(comparison: Comparison) -> str:
    """Return the ratio of the only row with its interval, and both times."""
    (row,) = comparison.rows
    estimate = row.estimate
    text = f"B takes {ratio_text(estimate.ratio)}x A's time"
    if estimate.ci_low is not None and estimate.ci_high is not None:
        ends = f"{ratio_text(estimate.ci_low)} .. {ratio_text(estimate.ci_high)}"
        text += f" ({100 * comparison.confidence:g} % {ends})"
    medians = [side.median or 0.0 for side in (row.b, row.a)]
    return f"{text}, {' against '.join(map(format_seconds, medians))}"


def _changed(rows: Sequence[ComparedRow], comparison: Comparison) -> str:
    """Return ``4 % slower in 2 of 11 rows (conv1, conv2)``, or a range if they differ."""
    every = comparison.rows
    ratios = sorted(row.estimate.ratio for row in rows)
    slow = ratios[0] > 1
    least, most = (ratios[0], ratios[-1]) if slow else (ratios[-1], ratios[0])
    first, second = change(least), change(most)
    much = first if first == second else _range(first, second)
    ordered = sorted(rows, key=lambda row: -row.estimate.ratio if slow else row.estimate.ratio)
    layers = {row.b.layer for row in every}
    axes = ["layer"] if len(layers) > 1 or len(every) == 1 else []
    axes += [] if len(layers) == len(every) else _varying(comparison, every)
    names = [
        " ".join(filter(None, (getattr(row.b, axis) for axis in axes)))
        if _SHORT_AXES.issuperset(axes)
        else describe(row.b)
        for row in ordered
    ]
    more = ", ..." if len(names) > _MAX_NAMED_CHANGES else ""
    shown = ", ".join(names[:_MAX_NAMED_CHANGES])
    return f"{much} in {len(rows)} of {quantity(len(every), 'row')} ({shown}{more})"


def _range(first: str, second: str) -> str:
    """Return ``4.1 to 12 % slower``."""
    number, _, words = first.partition(" ")
    last, _, others = second.partition(" ")
    return f"{number} to {last} {words}" if words == others else f"{first} to {second}"


def _next(comparison: Comparison, groups: dict[str, list[ComparedRow]]) -> list[str]:
    """Return advice on unclear rows, and on rows that are the same within more than the margin."""
    coarse = comparison.same_within > comparison.margin
    unclear = [*groups.get(UNCLEAR, []), *(groups.get(SAME, []) if coarse else [])]
    others = [row.b for row in unclear if row.estimate.reason != CONTENDED]
    ways = [_QUIET] if len(others) < len(unclear) else []
    ways += _ways(comparison, others) if others else []
    if not ways:
        return []
    advice = f"for a clearer answer: {'; '.join(ways)}."
    command = command_text(comparison.b.command)
    same = comparison.a.command == comparison.b.command and not comparison.passes
    return [advice, *([f"next, for each side: pydlbench {command}"] if same and command else [])]


def _within(comparison: Comparison) -> str:
    return least_change(1 + comparison.same_within)


# -----------------------------------------------------------------------------
# The report: the conclusion first, the sides, the rows, rows without a partner.

#: Maximum number of printed rows; files have all rows.
LIMIT: Final = 60
# Settings that have a column if rows differ in them.
_AXES: Final = (
    *("kind", "batch", "pass_", "precision", "device", "backend", "mode", "cache", "threads"),
    *("layout_request", "fuse", "propagation"),
)
# Settings that only layers have: they do not differ between layers and steps.
_LAYER_AXES: Final = frozenset(("cache", "fuse", "propagation"))


def comparison_report(
    comparison: Comparison, *, following: str = "", everything: bool = True
) -> list[Block]:
    """Return the conclusion, the sides, warnings, the rows, and rows without a partner.

    Args:
        comparison: a comparison with at least one row.
        following: the command to run next; "" for none.
        everything: show all rows, however many there are.
    """
    shown = _shown(comparison.rows, everything)
    more = len(comparison.rows) - len(shown)
    others = [
        *left_over(comparison),
        *unclear_reasons(comparison),
        *(f"note: {note}" for note in comparison.notes),
    ]
    return [
        Headline([*conclude(comparison), *([f"next: {following}"] if following else ())]),
        Heading(side_lines(comparison), bold=0),
        Lines(
            [f"warning: {difference.text}" for difference in comparison.differences],
            listed=True,
        ),
        _rows_table(comparison, shown),
        Lines([f"... {more} rows more; --all prints them"] if more else []),
        Lines(others, listed=True),
        Lines(legend(comparison) if comparison.rows else []),
    ]


def _rows_table(comparison: Comparison, shown: Sequence[ComparedRow]) -> TableBlock:
    """Return rows with the settings in which they differ, times, ratio, resolution and verdict."""
    rows = [row.document() for row in shown]
    unit = time_unit([side.median or 0.0 for row in shown for side in (row.a, row.b)])
    level = f"{100 * comparison.confidence:g}_%_interval"
    settings = " ".join(_varying(comparison, shown))
    libraries = "a.library=A b.library=B" if comparison.installations else ""
    layer = "layer" if any(row.kind in LAYER_KINDS for row in rows) else "layer=model"
    names = (
        f"{layer} {settings} {libraries} a.median=A b.median=B ratio ci_low..ci_high={level} "
        "resolution verdict cycles"
    )
    slower = {at for at, row in enumerate(rows) if row.verdict == SLOWER}
    columns = columns_of(rows, names, seconds=partial(time_in, unit))
    return TableBlock.from_rows(columns, rows, alarms=slower)


def _shown(rows: Sequence[ComparedRow], everything: bool) -> Sequence[ComparedRow]:
    """Return the printed rows: all if they fit, else changed ones and the largest ratios."""
    if everything or len(rows) <= LIMIT:
        return rows

    def weight(at: int) -> tuple[bool, float]:
        return rows[at].verdict in (SLOWER, FASTER), abs(math.log(rows[at].estimate.ratio))

    places = heapq.nlargest(LIMIT, range(len(rows)), key=weight)
    return [rows[at] for at in sorted(places)]


def _varying(comparison: Comparison, rows: Sequence[ComparedRow]) -> list[str]:
    """Return the settings in which rows differ, except those that they are matched across."""
    across = AXES.get(comparison.matching.axis or "", ())
    varying = []
    for axis in _AXES:
        values = {getattr(row.b, axis) for row in rows}
        if axis == "kind":
            values = {"layer" if value in LAYER_KINDS else value for value in values}
        if axis in _LAYER_AXES:
            layers = [row.b for row in rows if row.b.kind in LAYER_KINDS]
            known = [row for row in layers if axis != "propagation" or row.pass_ == "forward"]
            values = {getattr(row, axis) for row in known}
        if len(values) > 1 and axis not in across:
            varying.append(axis)
    return varying
