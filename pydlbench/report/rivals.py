"""Conclusions on rows side by side: on backends, and on settings such as precision or layout."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from pydlbench.grouping import group_by
from pydlbench.records.measurement import Measurement, is_tied, less_exact
from pydlbench.report.columns import AXES, axis_values, by_problem, label, short_name
from pydlbench.units import (
    format_seconds,
    join_names,
    number,
    percent,
    quantity,
    time_in,
    time_unit,
)


def compare_backends(timed: Sequence[Measurement]) -> list[str]:
    """Return a few sentences about rows whose backends were interleaved.

    Args:
        timed: ``ok`` rows; those without a ratio to the fastest are left out.
    """
    problems = by_problem([row for row in timed if row.ratio is not None])
    several = [rows for rows in problems if len(rows) > 1]
    if not several:
        return []
    return _one_problem(several[0]) if len(several) == 1 else _several_problems(several)


def _one_problem(rows: Sequence[Measurement]) -> list[str]:
    best = _best(rows)
    ordered = sorted(rows, key=_ratio)
    coarse = [row for row in ordered if less_exact(row.accumulate, best.accumulate)]
    slower = [row for row in ordered if row is not best and row not in coarse]
    tied = [row.who for row in slower if is_tied(row)]
    layer = short_name(best.layer)
    limit = ""
    if best.roofline is not None:
        owner = "a direct kernel's" if best.fewer_flops else "its"
        limit = f", at {percent(best.roofline.efficiency)} of {owner} measured limit"
    if tied:
        text = f"{join_names([best.who, *tied])} cannot be told apart on {layer}"
        text += " and are the fastest" if len(tied) + 1 < len(rows) else ""
        text += limit.replace(", at", f", {best.who} at")
    else:
        text = f"{best.who} runs {layer} fastest{limit}"
    others = [
        f"{row.who} takes {number(_ratio(row), 3)}x as long" for row in slower if not is_tied(row)
    ]
    lines = [f"{text}; {', '.join(others)}." if others else f"{text}."]
    return [*lines, *(_coarse_line(row, best) for row in coarse)]


def _coarse_line(row: Measurement, best: Measurement) -> str:
    """Return the line on a row that sums in fewer bits, with which others are not compared."""
    high = row.ratio["ci_high"] if row.ratio else None
    faster = (_ratio(row) if high is None else high) < 1
    because = ", faster because less exact" if faster else ", and less exact"
    return (
        f"{row.who} sums in {row.accumulate}, {best.who} in {best.accumulate}: it takes "
        f"{number(_ratio(row), 3)}x as long{because}."
    )


def _several_problems(problems: Sequence[Sequence[Measurement]]) -> list[str]:
    """Return geometric means, each sentence over the problems that all of its backends have."""
    exactly: list[dict[str, Measurement]] = []
    winners: list[str | None] = []
    coarse: Counter[tuple[str, str | None]] = Counter()
    for rows in problems:
        best = _best(rows)
        inexact = [row for row in rows if less_exact(row.accumulate, best.accumulate)]
        coarse.update((row.who, row.accumulate) for row in inexact)
        exactly.append({row.who: row for row in rows if row not in inexact})
        winners.append(None if any(map(is_tied, exactly[-1].values())) else best.who)
    ran = {
        who: tuple(i for i, exact in enumerate(exactly) if who in exact)
        for who in dict.fromkeys(name for exact in exactly for name in exact)
    }
    lines: list[str] = []
    for common in sorted(dict.fromkeys(ran.values()), key=len, reverse=True):
        names = [name for name, where in ran.items() if set(where) >= set(common)]
        if len(names) < 2:
            continue
        over = f"over {quantity(len(common), 'problem')}"
        if len(common) < len(problems):
            limiting = [name for name, where in ran.items() if where == common]
            over += f" of {len(problems)}, those of {join_names(limiting)}"
        means = f"{over}, geometric mean: {_means(names, common, exactly, winners)}."
        lines.append(means if lines else _most_often(exactly, winners) + means)
    for (who, sums), count in coarse.items():
        lines.append(
            f"{who} sums in {sums} in {quantity(count, 'problem')}, less exactly than the fastest: "
            "the means leave these out."
        )
    undecided = winners.count(None)
    if undecided:
        lines.append(
            f"in {undecided} of {quantity(len(problems), 'problem')} the two fastest cannot be "
            "told apart, so that none counts as the fastest."
        )
    return lines


def _most_often(
    problems: Sequence[Mapping[str, Measurement]], winners: Sequence[str | None]
) -> str:
    """Return which backend is fastest most often, and its share of the limit; empty if none is."""
    counts = Counter(who for who in winners if who is not None)
    if not counts:
        return ""
    who, count = counts.most_common(1)[0]
    rows = [exact[who] for exact in problems if who in exact]
    shares = [row.roofline.efficiency for row in rows if row.roofline is not None]
    known = [share for share in shares if share > 0]
    limit = ""
    if known:
        mean = math.exp(sum(map(math.log, known)) / len(known))
        limit = f", at {percent(mean)} of the measured limit on average"
    return f"{who} is fastest in {count} of {len(problems)} problems{limit}; "


def _means(
    names: Sequence[str],
    common: Sequence[int],
    problems: Sequence[Mapping[str, Measurement]],
    winners: Sequence[str | None],
) -> str:
    means = {
        name: math.exp(sum(math.log(_ratio(problems[i][name])) for i in common) / len(common))
        for name in names
    }
    wins = Counter(winners[i] for i in common)
    return ", ".join(
        f"{name} {number(means[name], 3)}x the fastest"
        + (f" (fastest in {wins[name]} of {len(common)})" if wins[name] else "")
        for name in sorted(means, key=lambda name: means[name])
    )


def _best(rows: Sequence[Measurement]) -> Measurement:
    """Return the row that the ratios refer to; if it is missing, the one with the least ratio."""
    names = {row.ratio["to"] for row in rows if row.ratio}
    return min(rows, key=lambda row: (row.who not in names, _ratio(row)))


def _ratio(row: Measurement) -> float:
    return float(row.ratio["median"]) if row.ratio else math.inf


# -----------------------------------------------------------------------------
# Conclusions on settings side by side: which precision, layout, cache state... is faster.

# Minimum ratio that counts as a difference. Rows of one run are timed one after another, and the
# machine drifts in between by several percent, which no interval of a single row shows.
_MIN_RATIO = 1.10
_TOO_CLOSE = "too close to tell apart unless interleaved"


def compare_settings(timed: Sequence[Measurement], settings: Sequence[str]) -> list[str]:
    """Return one sentence about rows that differ along ``settings``.

    Along one axis, its fastest and its slowest value are compared over the rows that all values
    have. With several axes, these are the fastest and the slowest row of a layer, or the row
    that takes most time above its limit.

    Args:
        timed: ``ok`` rows, at least two.
        settings: Axes other than layer and pass along which the rows differ.
    """
    if len(settings) == 1:
        return _one_axis(timed, settings[0])
    one_problem = len({(row.layer, row.problem, row.pass_) for row in timed}) == 1
    if one_problem:
        ordered = sorted(timed, key=lambda row: row.time.median if row.time else 0.0)
        fast, slow = ordered[0], ordered[-1]
        ratio = slow.time.median / fast.time.median if slow.time and fast.time else 1.0
        name = label(fast, settings)
        if ratio < _MIN_RATIO:
            return [f"{len(timed)} settings of {fast.layer} differ by {_gap(ratio)}: {_TOO_CLOSE}."]
        text = f"fastest of {len(timed)} settings: {name}, {_two_digits(ratio)} faster than "
        return [f"{text}{label(slow, settings).removeprefix(slow.layer).strip() or slow.layer}."]
    lost = [
        (row.time.median - row.roofline.time_s, row)
        for row in timed
        if row.time is not None and row.roofline is not None
    ]
    if not lost:
        return [f"{len(timed)} rows were timed."]
    seconds, worst = max(lost, key=lambda pair: pair[0])
    reached = percent(worst.roofline.efficiency) if worst.roofline else "-"
    passes = ["pass"] if len({row.pass_ for row in timed}) > 1 else []
    name = label(worst, [*passes, *settings])
    if seconds <= 0:
        return [f"none of {quantity(len(lost), 'row')} with a limit takes longer than that."]
    above = f"{format_seconds(seconds)} above its limit, of which it reaches {reached}"
    return [f"of {quantity(len(lost), 'row')} with a limit, {name} loses most: {above}."]


def _one_axis(timed: Sequence[Measurement], axis: str) -> list[str]:
    values = axis_values(timed, axis)
    others = [name for name in AXES if name not in {axis, "accumulate"}]
    by_others = group_by(timed, lambda row: tuple(AXES[name](row) for name in others))
    groups = [{AXES[axis](row): row for row in rows} for rows in by_others.values()]
    common = [group for group in groups if all(value in group for value in values)]
    if not common:
        return [f"{len(timed)} rows were timed; no row was timed for every {axis}."]
    sums = {value: _add([group[value] for group in common], axis) for value in values}
    fast = min(values, key=lambda value: sums[value][1])
    slow = max((value for value in values if value != fast), key=lambda value: sums[value][1])
    over = "" if len(common) == 1 else f", added up over {len(common)} rows each"
    per = " per image" if axis == "batch" else ""
    quick, late = _name(axis, fast), _name(axis, slow)
    unit = time_unit([sums[fast][1], sums[slow][1]])
    times = f"{time_in(unit, sums[fast][1])} against {time_in(unit, sums[slow][1])}"
    ratio = sums[slow][1] / sums[fast][1] if sums[fast][1] > 0 else 1.0
    if ratio < _MIN_RATIO:
        return [f"{quick} and {late} differ by {_gap(ratio)}{per}{over} ({times}): {_TOO_CLOSE}."]
    if sums[fast][2] >= sums[slow][0]:
        return [f"{quick} and {late} do not differ{per} beyond their intervals{over} ({times})."]
    return [f"{quick} is {_two_digits(ratio)} faster{per} than {late}{over} ({times})."]


def _two_digits(value: float) -> str:
    """Format a ratio with two digits: the others are drift."""
    return f"{number(float(f'{value:.1e}'), 2)}x"


def _gap(ratio: float) -> str:
    gap = int(100 * (ratio - 1))  # rounded down: 9.9 % is below the limit of 10 %
    return f"{gap} %" if gap else "less than 1 %"


def _add(rows: Sequence[Measurement], axis: str) -> tuple[float, float, float]:
    """Return the sums of lower ends, medians and upper ends, a conservative interval of the sum."""
    terms = [
        (row.time, row.batch if axis == "batch" else 1) for row in rows if row.time is not None
    ]
    return (
        sum((time.q1 if time.ci_low is None else time.ci_low) / per for time, per in terms),
        sum(time.median / per for time, per in terms),
        sum((time.q3 if time.ci_high is None else time.ci_high) / per for time, per in terms),
    )


def _name(axis: str, value: str) -> str:
    threads = "1 thread" if value == "1" else f"{value} threads"
    plain = {"batch": f"batch {value}", "threads": threads}
    return plain.get(axis, value or {"propagation": "inference"}.get(axis, f"no {axis}"))
