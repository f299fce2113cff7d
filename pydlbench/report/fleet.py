"""The report on a fleet: slow nodes and their causes, losses of steps, spread between nodes."""

from collections.abc import Sequence
from typing import Final, TypeVar

from pydlbench.grouping import group_by
from pydlbench.records.fleet import (
    SIGNED,
    FleetChange,
    FleetComparison,
    FleetEffect,
    FleetNode,
    FleetStep,
    FleetVerdict,
)
from pydlbench.records.record import columns_of
from pydlbench.report.blocks import Block, Heading, Headline, Lines, TableBlock
from pydlbench.report.figures.nodes import nodes
from pydlbench.units import format_seconds, holding, percent, quantity, some_names

Row = TypeVar("Row", FleetEffect, FleetChange)
# Maximum number of metrics shown per node, of metrics shown of the fleet, and of nodes shown.
_MAX_NODE_METRICS: Final = 4
_MAX_METRICS: Final = 24
_MAX_NODES: Final = 12
# Columns of the tables.
_SPREAD: Final = "metric kind nodes median_s spread least..most resolution"
_CHANGES: Final = "node metric before_s after_s change ci_low..ci_high verdict"
_COMMON: Final = "metric kind nodes change least..most"


def fleet_report(verdict: FleetVerdict, early: str = "") -> list[Block]:
    """Return the report, the slow nodes first.

    Args:
        verdict: verdict on the fleet.
        early: status of a run that did not finish; empty if it did.
    """
    shown, metrics = slow_rows(verdict, _MAX_NODE_METRICS), verdict.metrics[:_MAX_METRICS]
    commands = {effect.node: effect.command for effect in reversed(shown) if effect.command}
    tries = [f"{command}  # on {node}" for node, command in reversed(commands.items())]
    part = [f"this run is {early}: it is incomplete"] if early else []
    return [
        Headline([_summary(verdict), *(f"next: {each}" for each in tries[:1])]),
        Heading([_what(verdict)], bold=0),
        Lines(part, alarm=True),
        *nodes(verdict),
        TableBlock.from_rows(
            columns_of(shown, "node metric effect ci_low..ci_high rounds evidence"), shown
        ),
        Lines([f"try: {each}" for each in tries[1:]]),
        Lines(_unclear(verdict), alarm=True),
        Lines([_step(step) for step in verdict.steps]),
        TableBlock.from_rows(columns_of(metrics, _SPREAD), metrics),
        Lines(_more(verdict)),
        Lines(_failed(verdict.nodes), alarm=True),
        Lines([f"note: {note}" for note in verdict.notes]),
    ]


def unclear_rows(verdict: FleetVerdict) -> list[FleetEffect]:
    """Return nodes that are slower than the margin, but not significantly."""
    rows = [effect for effect in verdict.whole if effect.verdict == "UNCLEAR"]
    beyond = [row for row in rows if (row.effect or 0.0) > verdict.beyond]
    return sorted(beyond, key=lambda row: -(row.effect or 0.0))


def unknown_nodes(verdict: FleetVerdict) -> list[str]:
    """Return nodes without an effect: they have no complete round, or are alone of their kind."""
    known = {effect.node for effect in verdict.effects}
    return [node.node for node in verdict.nodes if node.node not in known]


def judge_nodes(verdict: FleetVerdict) -> tuple[str, list[str]]:
    """Return the number of slow nodes in words (or an empty text), and why others are undecided."""
    slow = {effect.node for effect in verdict.slow}
    unclear, unknown = [row.node for row in unclear_rows(verdict)], unknown_nodes(verdict)
    healthy = any(node.verdict in ("SAME", "FAST") for node in verdict.nodes)
    undecided = {
        f"{some_names(unclear)} cannot be judged; more --rounds would tell": unclear,
        f"nothing is known about {some_names(unknown)}": unknown,
        "no node is known to be as fast as others; more --rounds would tell": not healthy,
    }
    are = "is" if len(slow) == 1 else "are"
    return f"{quantity(len(slow), 'node')} {are} slow" if slow else "", holding(undecided)


def judge_changes(comparison: FleetComparison) -> tuple[str, list[str]]:
    """Return the nodes that became slower (or an empty text), and why others are undecided.

    Changes within the margin do not count.
    """
    by = f"{100 * comparison.beyond:g} %"
    slower = list(dict.fromkeys(change.node for change in comparison.with_verdict("SLOWER")))
    whole = comparison.changes[-1].metric if comparison.changes else ""
    unclear = [
        change.node
        for change in comparison.with_verdict("UNCLEAR")
        if (change.change or 0.0) > comparison.beyond and change.metric == whole
    ]
    judged = {change.node for change in comparison.changes}
    alone = [name for name in comparison.nodes if name not in judged]
    known = comparison.with_verdict("SAME") or comparison.with_verdict("FASTER")
    undecided = {
        f"whether it is {by} is unclear for {some_names(unclear)}; more --rounds would tell": (
            unclear
        ),
        f"the second run has no times of {some_names(comparison.gone)}": comparison.gone,
        f"nothing is known about {some_names(alone)}: there is no other node of the kind": alone,
        "whether any node changed is not known; more --rounds would tell": not (alone or known),
    }
    nodes = f"{quantity(len(slower), 'node')} slower by more than {by}: {some_names(slower)}"
    return nodes if slower else "", holding(undecided)


def _summary(verdict: FleetVerdict) -> str:
    names = list(dict.fromkeys(effect.node for effect in verdict.slow))
    if not names:
        return (
            f"no node is known to be slower than the others by more than {percent(verdict.beyond)}"
        )
    are = "is SLOW" if len(names) == 1 else "are SLOW"
    largest = max(slow_rows(verdict, 1), key=lambda row: row.effect or 0.0)
    most = "up to " if len(names) > 1 else ""
    by = f"by {most}{percent(largest.effect or 0.0)} in {largest.metric}"
    return f"{len(names)} of {len(verdict.nodes)} nodes {are}: {some_names(names)}, {by}"


def _what(verdict: FleetVerdict) -> str:
    rounds = max(node.rounds for node in verdict.nodes)
    words = [
        f"{len(verdict.nodes)} nodes",
        f"up to {rounds} rounds",
        f"{len({metric.metric for metric in verdict.metrics})} metrics",
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
        verdict: verdict on the fleet.
        most: maximum number of rows per node; None for all.
    """
    whole = verdict.metrics[-1].metric if verdict.metrics else ""
    return _by_node(verdict.slow, whole, most)


def _by_node(rows: Sequence[Row], whole: str, most: int | None) -> list[Row]:
    """Return rows node by node, that of all metrics together first.

    Args:
        rows: rows of nodes in metrics.
        whole: name of the row's metric that stands for all metrics together.
        most: maximum number of rows per node; None for all.
    """
    nodes = group_by(rows, lambda row: row.node).values()
    ordered = [sorted(own, key=lambda row: row.metric != whole) for own in nodes]
    return [row for own in ordered for row in own[:most]]


def _step(step: FleetStep) -> str:
    interval = ""
    if step.ci_low is not None and step.ci_high is not None:
        interval = f" (95 % {SIGNED(step.ci_low)} .. {SIGNED(step.ci_high)})"
    text = (
        f"{step.metric}: a synchronous step on {step.nodes} nodes waits for {step.slowest}: "
        f"{format_seconds(step.slowest_s)}, {SIGNED(step.loss)}{interval} over the others' "
        f"{format_seconds(step.median_s)}, without communication"
    )
    if step.without_slow is not None:
        text += f"; without the SLOW nodes {SIGNED(step.without_slow)}"
    return text


def _unclear(verdict: FleetVerdict) -> list[str]:
    rows = unclear_rows(verdict)
    lines = [
        f"unclear: {row.node} {SIGNED(row.effect)} in {row.metric} ({_certainty(row)}): more "
        "--rounds would tell"
        for row in rows[:_MAX_NODES]
    ]
    return lines + _and_more(len(rows))


def _certainty(effect: FleetEffect) -> str:
    return (
        "a single round"
        if effect.ci_low is None
        else f"95 % {SIGNED(effect.ci_low)} .. {SIGNED(effect.ci_high)}"
    )


def _and_more(count: int) -> list[str]:
    return [f"... and {count - _MAX_NODES} more"] if count > _MAX_NODES else []


def _failed(nodes: tuple[FleetNode, ...]) -> list[str]:
    failed = sorted((node for node in nodes if node.failed), key=lambda node: node.rounds > 0)
    lines = [
        f"{node.node}: {node.failed} of {node.rounds + node.failed} rounds are not whole: "
        f"{node.reason}"
        for node in failed[:_MAX_NODES]
    ]
    return lines + _and_more(len(failed))


def _more(verdict: FleetVerdict) -> list[str]:
    more = len(verdict.metrics) - _MAX_METRICS
    return [f"... and {more} more metrics: --json has them"] if more > 0 else []


# -----------------------------------------------------------------------------
# Two runs of a fleet.


def fleet_comparison(comparison: FleetComparison) -> list[Block]:
    """Return the report on two runs, the nodes that became slower first."""
    whole = comparison.changes[-1].metric if comparison.changes else ""
    shown = [
        change
        for verdict in ("SLOWER", "FASTER")
        for change in _by_node(comparison.with_verdict(verdict), whole, _MAX_NODE_METRICS)
    ]
    common = comparison.common[:_MAX_METRICS]
    return [
        Headline([_changed(comparison)]),
        Heading([_compared(comparison)], bold=0),
        TableBlock.from_rows(columns_of(shown, _CHANGES), shown),
        TableBlock.from_rows(columns_of(common, _COMMON), common),
        Lines([f"note: {note}" for note in comparison.notes]),
    ]


def _changed(comparison: FleetComparison) -> str:
    nodes = {
        verdict: list(dict.fromkeys(change.node for change in comparison.with_verdict(verdict)))
        for verdict in ("SLOWER", "FASTER")
    }
    parts = (
        f"{len(names)} {verdict} than before: {some_names(names)}"
        for verdict, names in nodes.items()
        if names
    )
    margin = percent(comparison.beyond)
    return "; ".join(parts) or f"no node is known to have changed against the others by {margin}"


def _compared(comparison: FleetComparison) -> str:
    gone, came = comparison.gone, comparison.came
    words = {
        f"{len(comparison.nodes)} nodes in both runs": True,
        f"margin {percent(comparison.beyond)}": True,
        f"{len(gone)} gone: {some_names(gone)}": gone,
        f"{len(came)} new: {some_names(came)}": came,
    }
    return ", ".join(holding(words))
