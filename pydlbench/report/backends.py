"""Backends side by side: who is fastest, by how much, and how far from the limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydlbench.report.kernel import short_name
from pydlbench.results.columns import number, percent
from pydlbench.results.ratios import is_tied

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    slower = sorted((row for row in rows if row is not best), key=_ratio)
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
    return [f"{text}; {', '.join(others)}." if others else f"{text}."]


def _many(contests: Sequence[Sequence[Measurement]]) -> list[str]:
    wins: dict[str, int] = {}
    ratios: dict[str, list[float]] = {}
    undecided = 0
    for rows in contests:
        if any(is_tied(row) for row in rows):
            undecided += 1
        else:
            best = _best(rows).who
            wins[best] = wins.get(best, 0) + 1
        for row in rows:
            ratios.setdefault(row.who, []).append(_ratio(row))
    means = {
        name: math.exp(sum(map(math.log, values)) / len(values)) for name, values in ratios.items()
    }
    parts = [
        f"{name} {number(means[name], 3)}x the fastest ({wins.get(name, 0)} of {len(ratios[name])} "
        "fastest)"
        for name in sorted(means, key=lambda name: means[name])
    ]
    lines = [f"over {len(contests)} problems, geometric mean: {', '.join(parts)}."]
    if undecided:
        lines.append(
            f"in {undecided} of {len(contests)} problems the fastest cannot be told apart from "
            "another and none counts as the fastest."
        )
    return lines


def _best(rows: Sequence[Measurement]) -> Measurement:
    """The row that the ratios refer to; without it, the one that is nearest to it."""
    names = {row.ratio["to"] for row in rows if row.ratio}
    return min(rows, key=lambda row: (row.who not in names, _ratio(row)))


def _ratio(row: Measurement) -> float:
    return float(row.ratio["median"]) if row.ratio else math.inf
