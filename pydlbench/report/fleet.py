"""The report on a fleet: which nodes are slow and why, what a step loses, how the fleet spreads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.records.metrics import Column, cut
from pydlbench.report.text import Heading, Lines, Table, some_names
from pydlbench.units import format_seconds, percent

if TYPE_CHECKING:
    from pydlbench.records.fleet import (
        FleetEffect,
        FleetMetric,
        FleetNode,
        FleetStep,
        FleetVerdict,
    )
    from pydlbench.report.text import Block

__all__ = ["fleet_report"]

# Metrics of a slow node, metrics of the fleet, and nodes with failed rounds that are shown.
_OF_NODE: Final = 4
_METRICS: Final = 24
_FAILED: Final = 12
_WIDE: Final = 48


def fleet_report(verdict: FleetVerdict) -> list[Block]:
    """Return the report, the slow nodes first."""
    shown = _shown(verdict)
    commands = {one.node: one.command for one in reversed(shown) if one.command}
    blocks: list[Block] = [
        Heading([_summary(verdict), _what(verdict)], bold=1),
        Table.of(_SLOW, shown),
        Lines([f"try: {command}  # on {node}" for node, command in reversed(commands.items())]),
        Lines([_step(one) for one in verdict.steps]),
        Table.of(_SPREAD, verdict.metrics[:_METRICS]),
        Lines(_more(verdict)),
        Lines(_failed(verdict.nodes), alarm=True),
        Lines([f"note: {one}" for one in verdict.notes]),
    ]
    return [one for one in blocks if not isinstance(one, Table) or one.cells]


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


def _shown(verdict: FleetVerdict) -> list[FleetEffect]:
    """Return the slow nodes' slowest metrics, node by node; all metrics together come first."""
    whole = verdict.metrics[-1].metric if verdict.metrics else ""
    by_node: dict[str, list[FleetEffect]] = {}
    for one in verdict.slow:
        by_node.setdefault(one.node, []).append(one)
    ordered = [sorted(own, key=lambda one: one.metric != whole) for own in by_node.values()]
    return [one for own in ordered for one in own[:_OF_NODE]]


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


def _failed(nodes: tuple[FleetNode, ...]) -> list[str]:
    failed = [one for one in nodes if one.failed]
    lines = [
        f"{one.node}: {one.failed} of {one.rounds + one.failed} rounds are not whole: {one.reason}"
        for one in failed[:_FAILED]
    ]
    return lines + ([f"... and {len(failed) - _FAILED} more"] if len(failed) > _FAILED else [])


def _more(verdict: FleetVerdict) -> list[str]:
    left = len(verdict.metrics) - _METRICS
    return [f"... and {left} more metrics: --json has them"] if left > 0 else []


def _signed(fraction: float | None) -> str:
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
    Column("median", lambda one: "-" if one.median_s is None else format_seconds(one.median_s)),
    Column("spread", lambda one: percent(one.spread)),
    Column("fastest .. slowest", _ends),
    Column("found from", lambda one: percent(one.resolution)),
)
