"""Backends side by side: who is fastest, by how much, and how far from the limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydlbench.report.kernel import short_name
from pydlbench.results.accumulators import less_exact
from pydlbench.results.columns import number, percent
from pydlbench.results.ratios import is_tied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.results.records import Measurement

__all__ = ["compare_backends"]


def compare_backends(timed: Sequence[Measurement]) -> list[str]:
    """Return a sentence or two about rows whose backends were sampled in turn.

    Args:
        timed: ``ok`` rows; those without a ratio to the fastest are left out.
    """
    found: dict[tuple[str, ...], list[list[Measurement]]] = {}
    for row in timed:
        if row.ratio is None:
            continue
        contests = found.setdefault(_problem(row), [[]])
        if any(one.who == row.who for one in contests[-1]):
            contests.append([])  # the same with another setting, which only some backends know
        contests[-1].append(row)
    several = [rows for contests in found.values() for rows in contests if len(rows) > 1]
    if not several:
        return []
    return _one(several[0]) if len(several) == 1 else _many(several)


def _problem(row: Measurement) -> tuple[str, ...]:
    shared = (row.layer, row.problem, row.pass_, row.precision, row.cache, row.layout_request)
    return (*shared, row.propagation, row.device, row.fuse, str(row.threads))


def _one(rows: Sequence[Measurement]) -> list[str]:
    best = _best(rows)
    coarse = sorted((row for row in rows if _coarser(row, best)), key=_ratio)
    slower = sorted((row for row in rows if row is not best and row not in coarse), key=_ratio)
    tied = [row.who for row in slower if is_tied(row)]
    layer = short_name(best.layer)
    limit = ""
    if best.roofline is not None:
        limit = f", at {percent(best.roofline.efficiency)} of its measured limit"
    if tied:
        names = ", ".join([best.who, *tied[:-1]])
        text = f"{names} and {tied[-1]} cannot be told apart on {layer}"
        text += " and are the fastest" if len(tied) + 1 < len(rows) else ""
        text += limit.replace(", at", f", {best.who} at")
    else:
        text = f"{best.who} runs {layer} fastest{limit}"
    others = [
        f"{row.who} takes {number(_ratio(row), 3)}x as long" for row in slower if not is_tied(row)
    ]
    lines = [f"{text}; {', '.join(others)}." if others else f"{text}."]
    return [*lines, *(_why_coarse(row, best) for row in coarse)]


def _coarser(row: Measurement, best: Measurement) -> bool:
    return less_exact(row.accumulate, best.accumulate)


def _why_coarse(row: Measurement, best: Measurement) -> str:
    """What a row that sums in fewer bits takes, which no other row is to be measured by."""
    high = row.ratio["ci_high"] if row.ratio else None
    faster = (_ratio(row) if high is None else high) < 1
    because = ", faster because less exact" if faster else ", and less exact"
    return (
        f"{row.who} sums in {row.accumulate}, {best.who} in {best.accumulate}: it takes "
        f"{number(_ratio(row), 3)}x as long{because}."
    )


def _many(contests: Sequence[Sequence[Measurement]]) -> list[str]:
    """Geometric means, each sentence over the problems that all of its backends have in common."""
    problems: list[dict[str, Measurement]] = []
    winners: list[str | None] = []
    coarse: dict[tuple[str, str], int] = {}
    for rows in contests:
        best = _best(rows)
        for row in rows:
            if _coarser(row, best):
                key = row.who, row.accumulate or ""
                coarse[key] = coarse.get(key, 0) + 1
        exact = {row.who: row for row in rows if not _coarser(row, best)}
        problems.append(exact)
        winners.append(None if any(map(is_tied, exact.values())) else best.who)
    ran: dict[str, tuple[int, ...]] = {}
    for who in dict.fromkeys(name for exact in problems for name in exact):
        ran[who] = tuple(i for i, exact in enumerate(problems) if who in exact)
    lines = []
    for common in sorted(dict.fromkeys(ran.values()), key=len, reverse=True):
        names = [name for name, where in ran.items() if set(where) >= set(common)]
        if len(names) < 2:
            continue
        own = [name for name, where in ran.items() if where == common]
        over = f"over {_counted(len(common), 'problem')}"
        if len(common) < len(contests):
            over += f" of {len(contests)}, those of {_listed(own)}"
        lines.append(f"{over}, geometric mean: {_means(names, common, problems, winners)}.")
    for (who, sums), count in coarse.items():
        lines.append(
            f"{who} sums in {sums} in {_counted(count, 'problem')}, less exactly than the fastest: "
            "that counts in no mean."
        )
    undecided = winners.count(None)
    if undecided:
        lines.append(
            f"in {undecided} of {len(contests)} problems the fastest cannot be told apart from "
            "another and none counts as the fastest."
        )
    return lines


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
    return ", ".join(
        f"{name} {number(means[name], 3)}x the fastest "
        f"({[winners[i] for i in common].count(name)} of {len(common)} fastest)"
        for name in sorted(means, key=lambda name: means[name])
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _best(rows: Sequence[Measurement]) -> Measurement:
    """The row that the ratios refer to; without it, the one that is nearest to it."""
    names = {row.ratio["to"] for row in rows if row.ratio}
    return min(rows, key=lambda row: (row.who not in names, _ratio(row)))


def _ratio(row: Measurement) -> float:
    return float(row.ratio["median"]) if row.ratio else math.inf
