"""Two runs of a fleet: which nodes became slower or faster, and which changes all nodes share.

A node's effect is how much slower it is than the others of its kind; its change is the effect in
the second run minus that in the first. A change of all nodes, by a day, an update or the room's
temperature, is therefore in no node's change. It is listed separately, and has no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UsageError
from pydlbench.fleet.effects import FAST, SLOW, Effects, changed
from pydlbench.fleet.verdict import (
    WHOLE,
    Fleet,
    effect_fields,
    fractions,
    group_fields,
    node_means,
    or_none,
    tabled,
)
from pydlbench.records.fleet import FleetChange, FleetCommon, FleetComparison
from pydlbench.units import some_names

__all__ = ["compare_fleets"]

_WORDS: Final = {SLOW: "SLOWER", FAST: "FASTER"}


def compare_fleets(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], beyond: float
) -> FleetComparison:
    """Compare two runs of a fleet.

    Args:
        before: visits of the earlier run, as JSON objects of
            :class:`~pydlbench.records.fleet.FleetVisit`.
        after: visits of the later run.
        beyond: minimum size of a change, as a fraction.

    Raises:
        UsageError: a run has no complete visit, or they have no node or no metric in common.
    """
    fleets = tabled(before, beyond), tabled(after, beyond)
    names = [sorted(fleet.latest) for fleet in fleets]
    both = [
        name
        for name in fleets[1].table.nodes
        if name in fleets[0].latest and len({_machine(fleet, name) for fleet in fleets}) == 1
    ]
    if not both:
        raise _nothing_common("node")
    common = _common_kinds((before, after), fleets, both)
    first, second = (tabled(visits, beyond) for visits in common)
    metrics = [name for name in second.names if name in first.names]
    if not metrics:
        raise _nothing_common("metric")
    effects = changed(_part(first, both, metrics), _part(second, both, metrics), beyond)
    seconds = [_seconds(fleet, both, metrics) for fleet in (first, second)]
    groups = np.array([second.groups[second.table.nodes.index(name)] for name in both])
    return FleetComparison(
        beyond=beyond,
        nodes=tuple(both),
        gone=tuple(name for name in names[0] if name not in both),
        came=tuple(name for name in names[1] if name not in both),
        changes=tuple(_changes(both, metrics, effects, seconds)),
        common=tuple(_common(metrics, groups, seconds[1] - seconds[0])),
        notes=tuple(_notes(*fleets, both)),
    )


def _nothing_common(what: str) -> UsageError:
    return UsageError(
        f"RUN: the two fleets have no {what} in common; nearest: two runs of one file on the same "
        "nodes"
    )


def _common_kinds(
    runs: tuple[Sequence[Mapping[str, Any]], ...], fleets: tuple[Fleet, Fleet], both: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield each run's visits of the common nodes, with a kind that combines those of both runs.

    A node is compared with the same others in both runs. Otherwise nodes that came, left or had
    other versions in one run would make all others slower or faster.
    """
    for index, visits in enumerate(runs):
        kinds = {name: [fleet.latest[name]["kind"] for fleet in fleets] for name in both}
        renamed = []
        for visit in visits:
            if visit["node"] in kinds:
                kind = list(kinds[visit["node"]])
                kind[index] = visit["kind"]
                renamed.append({**visit, "kind": " ".join(kind)})
        yield renamed


def _machine(fleet: Fleet, name: str) -> str:
    return str(fleet.latest[name]["machine"])


def _part(fleet: Fleet, nodes: Sequence[str], metrics: Sequence[str]) -> Effects:
    """Return the effects of some nodes in some metrics."""
    at = np.ix_(
        [fleet.table.nodes.index(name) for name in nodes],
        [fleet.names.index(name) for name in metrics],
    )
    effects = fleet.effects
    arrays = {field.name: getattr(effects, field.name)[at] for field in fields(effects)}
    return replace(effects, **arrays)


def _seconds(fleet: Fleet, nodes: Sequence[str], metrics: Sequence[str]) -> NDArray[Any]:
    """Return logarithms of seconds, nodes x metrics; NaN for all metrics together."""
    rows = [fleet.table.nodes.index(name) for name in nodes]
    means = node_means(fleet.table.log_s)
    unknown = np.full(len(rows), np.nan)
    columns = [
        unknown if name == WHOLE else means[rows, fleet.table.metrics.index(name)]
        for name in metrics
    ]
    return np.stack(columns, axis=1)


def _changes(
    nodes: Sequence[str],
    metrics: Sequence[str],
    effects: Effects,
    seconds: Sequence[NDArray[Any]],
) -> list[FleetChange]:
    change = fractions(effects.log)
    before, after = (or_none(np.exp(logs)) for logs in seconds)
    return [
        FleetChange(
            **{**common, "verdict": _WORDS.get(common["verdict"], common["verdict"])},
            before_s=before[node][metric],
            after_s=after[node][metric],
            change=change[node][metric],
        )
        for node, metric, common in effect_fields(effects, nodes, metrics)
    ]


def _common(
    metrics: Sequence[str], groups: NDArray[Any], ratios: NDArray[Any]
) -> list[FleetCommon]:
    """Return the change that nodes share; ``ratios`` are logarithms of after over before."""
    return [
        FleetCommon(**common, change=math.expm1(float(np.median(values))))
        for common, _, _, values in group_fields(metrics, groups, ratios)
    ]


def _notes(first: Fleet, second: Fleet, nodes: Sequence[str]) -> list[str]:
    """Return notes on nodes with other versions, and on names that belong to another machine."""
    nodes_by_text: dict[str, list[str]] = {}
    for name in nodes:
        old, new = (fleet.latest[name]["versions"] for fleet in (first, second))
        for library in sorted({*old, *new}):
            if old.get(library) != new.get(library):
                text = f"{library} {old.get(library, 'none')} -> {new.get(library, 'none')}"
                nodes_by_text.setdefault(text, []).append(name)
    notes = [
        f"{'all nodes' if len(names) == len(nodes) else some_names(names)}: {text}"
        for text, names in nodes_by_text.items()
    ]
    others = [name for name in second.latest if name in first.latest and name not in nodes]
    if others:
        machines = {f"{_machine(first, name)} -> {_machine(second, name)}" for name in others}
        notes.append(
            f"{some_names(others)}: another machine, not compared ({'; '.join(sorted(machines))})"
        )
    missing = sorted({*first.names} ^ {*second.names})
    if missing:
        notes.append(f"in one of the fleets only, not compared: {some_names(missing)}")
    return notes
