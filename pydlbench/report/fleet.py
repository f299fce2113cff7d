"""The report on a fleet: which nodes are slow and why, what a step loses, how the fleet spreads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.records.fields import columns_of
from pydlbench.records.fleet import SIGNED
from pydlbench.report.blocks import Heading, Lines, Table, some_names
from pydlbench.report.figures.nodes import nodes
from pydlbench.units import format_seconds, percent

if TYPE_CHECKING:
    from pydlbench.records.fleet import (
        FleetChange,
        FleetComparison,
        FleetEffect,
        FleetNode,
        FleetStep,
        FleetVerdict,
    )
    from pydlbench.report.blocks import Block

# Metrics of a slow node, metrics of the fleet, and nodes with failed rounds that are shown.
_OF_NODE: Final = 4
_METRICS: Final = 24
_FAILED: Final = 12
# Fields, in the order of their columns.
_SPREAD: Final = "metric kind nodes median_s spread least..most resolution"
_CHANGES: Final = "node metric before_s after_s change ci_low..ci_high verdict"
_COMMON: Final = "metric kind nodes change least..most"


def fleet_report(verdict: FleetVerdict, early: str = "") -> list[Block]:
    """Return the report, the slow nodes first.

    Args:
        verdict: on the fleet.
        early: how its run has ended before its end; empty where it has not.
    """
    shown, metrics = slow_rows(verdict, _OF_NODE), verdict.metrics[:_METRICS]
    commands = {one.node: one.command for one in reversed(shown) if one.command}
    part = [f"this run is {early}: it is not all that was asked for"] if early else []
    blocks: list[Block] = [
        Heading([_summary(verdict), _what(verdict)], bold=1),
        Lines(part, alarm=True),
        *nodes(verdict),
        Table.of(columns_of(shown, "node metric effect ci_low..ci_high rounds evidence"), shown),
        Lines([f"try: {command}  # on {node}" for node, command in reversed(commands.items())]),
        Lines(_unclear(verdict), alarm=True),
        Lines([_step(one) for one in verdict.steps]),
        Table.of(columns_of(metrics, _SPREAD), metrics),
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
        interval = f" (95 % {SIGNED(one.ci_low)} .. {SIGNED(one.ci_high)})"
    text = (
        f"{one.metric}: a synchronous step on {one.nodes} nodes waits for {one.slowest}: "
        f"{format_seconds(one.slowest_s)}, {SIGNED(one.loss)}{interval} over the others' "
        f"{format_seconds(one.median_s)}, communication apart"
    )
    if one.without_slow is not None:
        text += f"; without the SLOW nodes {SIGNED(one.without_slow)}"
    return text


def _unclear(verdict: FleetVerdict) -> list[str]:
    rows = unclear_rows(verdict)
    lines = [
        f"unclear: {one.node} {SIGNED(one.effect)} in {one.metric} ({_certainty(one)}): more "
        "--rounds would tell"
        for one in rows[:_FAILED]
    ]
    return lines + _and_more(len(rows))


def _certainty(one: FleetEffect) -> str:
    return (
        "a single round"
        if one.ci_low is None
        else f"95 % {SIGNED(one.ci_low)} .. {SIGNED(one.ci_high)}"
    )


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


# -----------------------------------------------------------------------------
# Two runs of a fleet.


def fleet_comparison(found: FleetComparison) -> list[Block]:
    """Return the report on two runs, the nodes that became slower first."""
    shown = [one for verdict in ("SLOWER", "FASTER") for one in _of_nodes(found, verdict)]
    common = found.common[:_METRICS]
    blocks: list[Block] = [
        Heading([_changed(found), _compared(found)], bold=1),
        Table.of(columns_of(shown, _CHANGES), shown),
        Table.of(columns_of(common, _COMMON), common),
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
