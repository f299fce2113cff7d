"""What the layers of a run add up to, by backend. Times in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.report.page.markup import plain
from pydlbench.report.page.rungs import Ladder, Rung, Segment
from pydlbench.report.page.runs import node_name
from pydlbench.results.axes import AXES, axis_values, label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.report.page.runs import PageRun
    from pydlbench.results import Measurement

__all__ = ["layer_sums"]

# What makes it another sum besides batch, precision and caches; named where rows differ in it.
_OWN: Final = ("device", "threads", "fuse", "layout")


def layer_sums(runs: Sequence[PageRun]) -> Iterator[Ladder]:
    """Yield what the layers of a run add up to where they belong to one model, by backend.

    Only layers that every backend has timed are in the sums.
    """
    for run in runs:
        if run.kind not in ("layers", "sweep") or len(run.models) != 1 or not run.whole:
            continue
        differ = [axis for axis in _OWN if len(axis_values(run.timed, axis)) > 1]
        groups: dict[tuple[Any, ...], list[Measurement]] = {}
        for row in run.timed:
            key = (row.batch, row.precision, row.cache, *(AXES[axis](row) for axis in _OWN))
            groups.setdefault(key, []).append(row)
        for (batch, precision, cache, *_), rows in groups.items():
            rungs = _sums(run, rows)
            names = {row.layer for row in rows}
            if rungs and len(names) > 1:
                passes = ", ".join(dict.fromkeys(row.pass_ for row in rows))
                title = f"{run.models[0]}  batch {batch}  {passes}  {precision}  {cache} cache"
                told = label(rows[0], differ).removeprefix(rows[0].layer).strip()
                title += f"  {told}" if told else ""
                yield Ladder(title=title[:110], rungs=rungs, step=False)


def _sums(run: PageRun, rows: Sequence[Measurement]) -> list[Rung]:
    """Limits by the first backend's rows, then every backend."""
    backends = list(dict.fromkeys(row.who for row in rows))
    by_problem: dict[tuple[str, str, str, str], dict[str, Measurement]] = {}
    for row in rows:
        key = (row.layer, row.problem, row.pass_, row.propagation)
        by_problem.setdefault(key, {})[row.who] = row
    # Only what all of them can do may be added up and compared.
    common = [group for group in by_problem.values() if all(who in group for who in backends)]
    if not common:
        return []
    lead = "native" if "native" in backends else backends[0]
    first = [group[lead] for group in common]

    def rung(name: str, times: Sequence[tuple[Measurement, float | None]]) -> Rung:
        sums: dict[tuple[str, str], float] = {}
        for row, seconds in times:
            key = (plain(node_name(row.layer), 40), row.kind)
            sums[key] = sums.get(key, 0.0) + (seconds or 0.0)
        parts = tuple(Segment(*key, seconds) for key, seconds in sums.items() if seconds > 0)
        return Rung(name=plain(name, 40), segments=parts, source=run.number)

    theory = [
        (row, row.flops_executed / (row.peak.theoretical * 1e12) if row.peak.theoretical else None)
        for row in first
    ]
    roofs = [
        (row, row.roofline.time_s if row.roofline else row.time.median if row.time else None)
        for row in first
    ]
    found = [rung("theoretical", theory), rung("measured roof", roofs)]
    for who in backends:
        times = [(group[who], group[who].time) for group in common]
        found.append(rung(who, [(row, time.median if time else None) for row, time in times]))
    return [one for one in found if one.segments]
