"""The page's section on fleets: every node at a glance, what a step loses, nodes over the runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydlbench.report.fleet import (
    SLOW_COLUMNS,
    SPREAD_COLUMNS,
    signed,
    slow_rows,
    whole_of,
)
from pydlbench.report.page.blocks import (
    Column,
    Figure,
    Section,
    Table,
    blocks_of,
    figures_of,
    number_column,
)
from pydlbench.report.page.figures.fleets import FLEETS_NEED, histories, strips
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.records.fleet import FleetEffect, FleetNode, FleetStep, FleetVerdict
    from pydlbench.report.page.runs import PageRun

__all__ = ["fleets"]

# Metrics of a slow node.
_OF_NODE: Final = 4
_ORDER: Final = ("SLOW", "FAST", "UNCLEAR", "SAME")


def fleets(runs: Sequence[PageRun]) -> Section:
    """Return the fleets' nodes: at a glance, as tables, and over the runs."""
    blocks = [
        *figures_of(lambda: map(Figure, strips(runs)), "A fleet at a glance"),
        *blocks_of(lambda: _tables(runs), "A fleet's table"),
        *figures_of(lambda: map(Figure, histories(runs)), "The nodes over the runs"),
        *blocks_of(lambda: _history(runs), "The nodes over the runs"),
    ]
    return Section("fleets", "Nodes", blocks, FLEETS_NEED)


def _tables(runs: Sequence[PageRun]) -> Iterator[Table]:
    for run in runs:
        if run.fleet is not None:
            yield from _of_fleet(run.fleet, f"-{run.number}", run.within(len(runs)))


def _of_fleet(fleet: FleetVerdict, ident: str, which: str) -> Iterator[Table]:
    if fleet.slow:
        found = [
            Column(
                one.title,
                one.cell,
                _effect if one.title == "slower by" else None,
                right=one.right,
                style="plain" if one.right else "wrap",
            )
            for one in SLOW_COLUMNS
        ]
        found.append(Column("shows it again on the node", lambda one: one.command, style="code"))
        rows = slow_rows(fleet, _OF_NODE)
        left = len(fleet.slow) - len(rows)
        more = f". {left} more metrics of these nodes are SLOW, too" if left else ""
        yield Table(f"What is SLOW, and why{which}{more}", found, rows, f"slow{ident}")
    if fleet.steps:
        yield Table(
            f"What a synchronous step loses to its slowest node, communication apart{which}",
            _STEPS,
            fleet.steps,
            f"steps{ident}",
        )
    spread = [Column(one.title, one.cell, right=one.right) for one in SPREAD_COLUMNS]
    yield Table(f"Metrics over the nodes{which}", spread, fleet.metrics, f"metrics{ident}")
    whole = {one.node: one for one in whole_of(fleet)}
    nodes = sorted(fleet.nodes, key=lambda one: (_ORDER.index(one.verdict), -_of(whole, one)))
    yield Table(f"Nodes{which}", _node_columns(fleet, whole), nodes, f"nodes{ident}")


def _effect(one: FleetEffect) -> float | None:
    return one.effect


def _of(whole: dict[str, FleetEffect], node: FleetNode) -> float:
    found = whole.get(node.node)
    return 0.0 if found is None or found.effect is None else found.effect


def _step_interval(one: FleetStep) -> str:
    return f"{signed(one.ci_low)} .. {signed(one.ci_high)}"


_STEPS: Final = (
    Column("step", lambda one: one.metric, style="wrap"),
    number_column("nodes", lambda one: one.nodes),
    Column("waits for", lambda one: one.slowest),
    number_column("its time", lambda one: one.slowest_s, format_seconds),
    number_column("the others' median", lambda one: one.median_s, format_seconds),
    number_column("loses", lambda one: one.loss, signed),
    Column("95 % CI", _step_interval, right=True),
    number_column(
        "without the SLOW ones",
        lambda one: one.without_slow,
        lambda one: signed(one) if one else "-",
    ),
)


def _node_columns(fleet: FleetVerdict, whole: dict[str, FleetEffect]) -> list[Column]:
    """Return the columns of a table of nodes; what is the same of all has none."""

    def effect(one: FleetNode) -> float | None:
        found = whole.get(one.node)
        return None if found is None else found.effect

    def ends(one: FleetNode) -> str:
        found = whole.get(one.node)
        known = found is not None and found.ci_low is not None
        return f"{signed(found.ci_low)} .. {signed(found.ci_high)}" if found and known else "-"

    columns = [
        Column("node", lambda one: one.node),
        Column("verdict", lambda one: one.verdict),
        number_column("slower by", effect, lambda one: "-" if one is None else signed(one)),
        Column("95 % CI", ends, right=True),
        number_column("rounds", lambda one: one.rounds),
    ]
    if any(one.failed for one in fleet.nodes):
        columns.append(number_column("not whole", lambda one: one.failed))
        columns.append(Column("why not", lambda one: one.reason or ""))
    if len({one.group for one in fleet.nodes}) > 1:
        columns.append(
            number_column("kind", lambda one: None if one.group is None else one.group + 1)
        )
    if len({one.machine for one in fleet.nodes}) > 1:
        columns.append(Column("machine", lambda one: one.machine))
    return columns


def _history(runs: Sequence[PageRun]) -> Iterator[Table]:
    """All nodes over the runs: matched by name and by CPU or card."""
    found = [(run, run.fleet) for run in runs if run.fleet is not None]
    if len(found) < 2:
        return
    every: list[dict[tuple[str, str], FleetEffect]] = []
    for _, fleet in found:
        machines = {one.node: one.machine for one in fleet.nodes}
        every.append({(one.node, machines[one.node]): one for one in whole_of(fleet)})
    keys = list(dict.fromkeys(key for one in every for key in one))

    def worst(key: tuple[str, str]) -> float:
        return max((abs(one[key].effect or 0.0) for one in every if key in one), default=0.0)

    def cell(effects: dict[tuple[str, str], FleetEffect]) -> Callable[[Any], str]:
        def text(key: tuple[str, str]) -> str:
            one = effects.get(key)
            if one is None or one.effect is None:
                return "-"
            return signed(one.effect) + ("" if one.verdict == "SAME" else f" {one.verdict}")

        return text

    def value(effects: dict[tuple[str, str], FleetEffect], key: tuple[str, str]) -> float | None:
        one = effects.get(key)
        return None if one is None else one.effect

    columns = [Column("node", lambda key: key[0]), Column("machine", lambda key: key[1])]
    columns += [
        Column(f"run {run.number}", cell(effects), partial(value, effects), right=True)
        for (run, _), effects in zip(found, every, strict=True)
    ]
    rows = sorted(keys, key=worst, reverse=True)
    yield Table("Slower by, in all metrics together", columns, rows, "fleet-history-table")
