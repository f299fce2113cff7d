"""The report on a fleet: which nodes are slow and why, what a step loses, how the fleet spreads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.records.fields import Column, cut
from pydlbench.report.blocks import Heading, Lines, Table, some_names
from pydlbench.report.figures.nodes import nodes
from pydlbench.units import format_seconds, percent

if TYPE_CHECKING:
    from pydlbench.records.fleet import (
        FleetChange,
        FleetCommon,
        FleetComparison,
        FleetEffect,
        FleetMetric,
        FleetNode,
        FleetStep,
        FleetVerdict,
    )
    from pydlbench.report.blocks import Block

# Metrics of a slow node, metrics of the fleet, and nodes with failed rounds that are shown.
_OF_NODE: Final = 4
_METRICS: Final = 24
_FAILED: Final = 12
_WIDE: Final = 48


def fleet_report(verdict: FleetVerdict, early: str = "") -> list[Block]:
    """Return the report, the slow nodes first.

    Args:
        verdict: on the fleet.
        early: how its run has ended before its end; empty where it has not.
    """
    shown = slow_rows(verdict, _OF_NODE)
    commands = {one.node: one.command for one in reversed(shown) if one.command}
    part = [f"this run is {early}: it is not all that was asked for"] if early else []
    blocks: list[Block] = [
        Heading([_summary(verdict), _what(verdict)], bold=1),
        Lines(part, alarm=True),
        *nodes(verdict),
        Table.of(_SLOW, shown),
        Lines([f"try: {command}  # on {node}" for node, command in reversed(commands.items())]),
        Lines(_unclear(verdict), alarm=True),
        Lines([_step(one) for one in verdict.steps]),
        Table.of(_SPREAD, verdict.metrics[:_METRICS]),
        Lines(_more(verdict)),
        Lines(_failed(verdict.nodes), alarm=True),
        Lines([f"note: {one}" for one in verdict.notes]),
    ]
    return [one for one in blocks if not isinstance(one, Table) or one.cells]


def unclear_rows(verdict: FleetVerdict) -> list[FleetEffect]:
    """Return what might be slow: nodes that are slower than the margin, but not for certain."""
    rows = [one for one in verdict.whole if one.verdict == "UNCLEAR"]
    beyond = [one for one in rows if (one.effect or 0.0) > verdict.beyond]
    return sorted(beyond, key=lambda one: -(one.effect or 0.0))


def unknown_nodes(verdict: FleetVerdict) -> list[str]:
    """Return the nodes of which nothing is known: without a whole round, or the only ones."""
    known = {one.node for one in verdict.effects}
    return [one.node for one in verdict.nodes if one.node not in known]


def _summary(verdict: FleetVerdict) -> str:
    names = list(dict.fromkeys(one.node for one in verdict.slow))
    if not names:
        return (
            f"no node is known to be slower than the others by more than {percent(verdict.beyond)}"
        )
    are = "is SLOW" if len(names) == 1 else "are SLOW"
    return f"{len(names)} of {len(verdict.nodes)} nodes {are}: {some_names(names)}"


def _what(verdict: FleetVerdict) -> str:
    rounds = max(one.rounds for one in verdict.nodes)
    words = [
        f"{len(verdict.nodes)} nodes",
        f"up to {rounds} rounds",
        f"{len({one.metric for one in verdict.metrics})} metrics",
        f"margin {percent(verdict.beyond)}",
    ]
    for whole in verdict.metrics[-1:]:
        if whole.resolution is not None:
            slower = f"a node slower by {percent(whole.resolution)} in {whole.metric}"
            words.append(f"{slower} would be found")
    return ", ".join(words)


def slow_rows(verdict: FleetVerdict, most: int | None = None) -> list[FleetEffect]:
    """Return the slow nodes' metrics, node by node; all metrics together come first.

    Args:
        verdict: on the fleet.
        most: metrics of a node; all by default.
    """
    whole = verdict.metrics[-1].metric if verdict.metrics else ""
    by_node: dict[str, list[FleetEffect]] = {}
    for one in verdict.slow:
        by_node.setdefault(one.node, []).append(one)
    ordered = [sorted(own, key=lambda one: one.metric != whole) for own in by_node.values()]
    return [one for own in ordered for one in own[:most]]


def _step(one: FleetStep) -> str:
    interval = ""
    if one.ci_low is not None and one.ci_high is not None:
        interval = f" (95 % {_signed(one.ci_low)} .. {_signed(one.ci_high)})"
    text = (
        f"{one.metric}: a synchronous step on {one.nodes} nodes waits for {one.slowest}: "
        f"{format_seconds(one.slowest_s)}, {_signed(one.loss)}{interval} over the others' "
        f"{format_seconds(one.median_s)}, communication apart"
    )
    if one.without_slow is not None:
        text += f"; without the SLOW nodes {_signed(one.without_slow)}"
    return text


def _unclear(verdict: FleetVerdict) -> list[str]:
    rows = unclear_rows(verdict)
    lines = [
        f"unclear: {one.node} {_signed(one.effect)} in {one.metric} ({_certainty(one)}): more "
        "--rounds would tell"
        for one in rows[:_FAILED]
    ]
    return lines + _and_more(len(rows))


def _certainty(one: FleetEffect) -> str:
    return "a single round" if one.ci_low is None else f"95 % {_interval(one)}"


def _and_more(count: int) -> list[str]:
    return [f"... and {count - _FAILED} more"] if count > _FAILED else []


def _failed(nodes: tuple[FleetNode, ...]) -> list[str]:
    failed = sorted((one for one in nodes if one.failed), key=lambda one: one.rounds > 0)
    lines = [
        f"{one.node}: {one.failed} of {one.rounds + one.failed} rounds are not whole: {one.reason}"
        for one in failed[:_FAILED]
    ]
    return lines + _and_more(len(failed))


def _more(verdict: FleetVerdict) -> list[str]:
    left = len(verdict.metrics) - _METRICS
    return [f"... and {left} more metrics: --json has them"] if left > 0 else []


def _signed(fraction: float | None) -> str:
    """Return a fraction in percent with its sign."""
    return percent(fraction, signed=True)


def _interval(one: FleetEffect) -> str:
    return f"{_signed(one.ci_low)} .. {_signed(one.ci_high)}"


def _ends(one: FleetMetric) -> str:
    return f"{_signed(one.least)} .. {_signed(one.most)}"


_SLOW: Final[tuple[Column[FleetEffect], ...]] = (
    Column("slow node", lambda one: one.node, right=False),
    Column("metric", lambda one: cut(one.metric, _WIDE), right=False),
    Column("slower by", lambda one: _signed(one.effect)),
    Column("95 % CI", _interval),
    Column("rounds", lambda one: str(one.rounds)),
    Column("read beside it", lambda one: "; ".join(x.text for x in one.evidence), right=False),
)
_SPREAD: Final[tuple[Column[FleetMetric], ...]] = (
    Column("metric", lambda one: cut(one.metric, _WIDE), right=False),
    Column("kind", lambda one: str(one.group + 1)),
    Column("nodes", lambda one: str(one.nodes)),
    Column("median", lambda one: _time(one.median_s)),
    Column("spread", lambda one: percent(one.spread)),
    Column("fastest .. slowest", _ends),
    Column("found from", lambda one: percent(one.resolution)),
)


# -----------------------------------------------------------------------------
# Two runs of a fleet.


def fleet_comparison(found: FleetComparison) -> list[Block]:
    """Return the report on two runs, the nodes that became slower first."""
    shown = [one for verdict in ("SLOWER", "FASTER") for one in _of_nodes(found, verdict)]
    blocks: list[Block] = [
        Heading([_changed(found), _compared(found)], bold=1),
        Table.of(_CHANGES, shown),
        Table.of(_COMMON, found.common[:_METRICS]),
        Lines([f"note: {one}" for one in found.notes]),
    ]
    return [one for one in blocks if not isinstance(one, Table) or one.cells]


def _of_nodes(found: FleetComparison, verdict: str) -> list[FleetChange]:
    by_node: dict[str, list[FleetChange]] = {}
    for one in found.of(verdict):
        by_node.setdefault(one.node, []).append(one)
    whole = found.changes[-1].metric if found.changes else ""
    ordered = [sorted(own, key=lambda one: one.metric != whole) for own in by_node.values()]
    return [one for own in ordered for one in own[:_OF_NODE]]


def _changed(found: FleetComparison) -> str:
    said = []
    for verdict in ("SLOWER", "FASTER"):
        names = list(dict.fromkeys(one.node for one in found.of(verdict)))
        if names:
            said.append(f"{len(names)} {verdict} than before: {some_names(names)}")
    margin = percent(found.beyond)
    return "; ".join(said) or f"no node is known to have changed against the others by {margin}"


def _compared(found: FleetComparison) -> str:
    words = [f"{len(found.nodes)} nodes in both runs", f"margin {percent(found.beyond)}"]
    for what, names in (("gone", found.gone), ("new", found.came)):
        if names:
            words.append(f"{len(names)} {what}: {some_names(names)}")
    return ", ".join(words)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


_CHANGES: Final[tuple[Column[FleetChange], ...]] = (
    Column("node", lambda one: one.node, right=False),
    Column("metric", lambda one: cut(one.metric, _WIDE), right=False),
    Column("before", lambda one: _time(one.before_s)),
    Column("after", lambda one: _time(one.after_s)),
    Column("against the others", lambda one: _signed(one.change)),
    Column("95 % CI", lambda one: f"{_signed(one.ci_low)} .. {_signed(one.ci_high)}"),
    Column("verdict", lambda one: one.verdict, right=False),
)
_COMMON: Final[tuple[Column[FleetCommon], ...]] = (
    Column("all nodes together", lambda one: cut(one.metric, _WIDE), right=False),
    Column("kind", lambda one: str(one.group + 1)),
    Column("nodes", lambda one: str(one.nodes)),
    Column("median change", lambda one: _signed(one.change)),
    Column("least .. most", lambda one: f"{_signed(one.least)} .. {_signed(one.most)}"),
)
