"""The report of ``estimate``: the step's estimate, its layers, and which of them matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.records.fields import Column
from pydlbench.records.measurement import fewer_flops
from pydlbench.report.blocks import Facts, Heading, Lines, Table, some_names
from pydlbench.report.columns import device_name
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.report.figures.roofline import roofline
from pydlbench.report.verdicts import disturbance, dominates, share_text, sum_is_disturbed
from pydlbench.units import format_bytes, format_seconds, percent, si

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.analysis.estimate import Estimate, LayerShare, Plan
    from pydlbench.records.estimate import Recorded
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.report.blocks import Block

_PASSES: Final = {
    "forward": "forward",
    "backward-data": "bwd data",
    "backward-weights": "bwd weights",
    "l2": "L2 terms",
    "update": "update",
}


def model_report(
    run: RunRecord,
    plan: Plan,
    estimate: Estimate,
    memory: Mapping[str, int],
    rows: Sequence[Measurement] = (),
    *,
    top: int | None = 20,
) -> list[Block]:
    """Return heading, table of layers, sums and conclusion.

    Args:
        run: for the device's name.
        plan: what was measured.
        estimate: what came of it.
        memory: bytes by what they are for; empty where nobody has counted them.
        rows: the kernels that are summed.
        top: how many layers to show, by time, those that run the same kernels in one line; None
            is all of them, each for itself and in the model's order.
    """
    threads = run.device.get("threads")
    # A file of the user's own computes in its own types.
    types = plan.recorded.types if plan.recorded is not None else ""
    what = [plan.name, f"batch {plan.batch}", plan.phase, types or plan.precision, plan.title]
    where = [device_name(run.device)]
    where += [f"{threads} thread{'' if threads == 1 else 's'}"] if threads else []
    where += sorted({row.library for row in rows if row.library})
    where.append("native backend, every layer alone")
    blocks: list[Block] = [Heading(["  ".join(what), "  ".join(where)])]
    if estimate.layers:
        blocks.append(_table(estimate, top))
        blocks += bars("layers", "Where the estimate goes", list(map(_bar, estimate.groups)))
        blocks += roofline(run, rows)
        blocks.append(Facts(_sums(estimate, memory, rows)))
        blocks.append(Lines(model_conclusion(estimate, rows)))
    missing: dict[str, list[str]] = {}
    for name, pass_, reason in estimate.missing:
        missing.setdefault(reason, []).append(f"{name} {pass_}")
    lines = [f"not in the sum: {some_names(who)}: {why}" for why, who in missing.items()]
    if plan.recorded is not None:
        blocks.append(Lines(list(_recorded(plan.recorded)), listed=True))
    return [*blocks, Lines(lines, alarm=True)]


def _recorded(found: Recorded) -> Iterator[str]:
    """Say how much of a recorded step the sum stands for, what it lacks, and notes."""
    calls, size = percent(found.native_calls), percent(found.native_bytes)
    yield f"kinds of layers stand for {calls} of the calls, {size} of their bytes, timed or not"
    reasons: dict[str, list[str]] = {}
    for name, why in found.unmapped.items():
        reasons.setdefault(why.removeprefix(f"{name.rpartition('.')[2]}: "), []).append(name)
    for why, names in reasons.items():
        yield f"not in the sum: {some_names(names)}{f': {why}' if why else ''}"
    yield from (f"note: {one}" for one in found.notes)


def _table(estimate: Estimate, top: int | None) -> Table:
    shown, others = list(estimate.layers), []
    if top is not None and len(shown) > top:
        groups = sorted(estimate.groups, key=lambda layer: -layer.time.middle)
        shown, others = groups[:top], groups[top:]
    columns = _columns(estimate)
    cells = [[column.cell(layer) for column in columns] for layer in shown]
    if others:
        rest = {
            "layer": f"{sum(layer.count for layer in others)} others",
            "hot": format_seconds(sum(one.time.hot for one in others)),
            "cold": format_seconds(sum(one.time.cold for one in others)),
            "share": percent(sum(one.share for one in others)),
        }
        cells.append([rest.get(column.title, "") for column in columns])
    return Table([one.title for one in columns], cells, [one.right for one in columns])


def _bar(layer: LayerShare) -> Bar:
    ends = (layer.time.low, layer.time.high)
    return Bar(_alike(layer), layer.time.middle, {"limit": layer.roof_s}, ends)


# As in tables of rows.
_NOTE: Final[Column[Any]] = Column(
    "note", lambda one: "contended" if one.contended else "", right=False
)


def _columns(estimate: Estimate) -> list[Column[LayerShare]]:
    def name(one: LayerShare) -> str:
        return one.name if one.count == 1 else f"{one.name} x{one.count}"

    def of_pass(which: str) -> Column[LayerShare]:
        def seconds(one: LayerShare) -> str:
            time = one.by_pass.get(which)
            return "-" if time is None else format_seconds(time.middle)

        return Column(_PASSES[which], seconds)

    passes = [one for one in _PASSES if any(one in layer.by_pass for layer in estimate.layers)]
    return [
        Column("layer", name, right=False),
        Column("kind", lambda one: one.kind, right=False),
        *map(of_pass, passes if len(passes) > 1 else ()),
        Column("hot", lambda one: format_seconds(one.time.hot)),
        Column("cold", lambda one: format_seconds(one.time.cold)),
        Column("share", lambda one: percent(one.share)),
        Column("", lambda one: "#" * round(20 * one.share), right=False),
        Column("bound", lambda one: one.bound or "-", right=False),
        Column("of roof", lambda one: percent(one.efficiency)),
        *([_NOTE] if any(layer.contended for layer in estimate.layers) else []),
    ]


def _sums(
    estimate: Estimate, memory: Mapping[str, int], rows: Sequence[Measurement]
) -> list[tuple[str, str]]:
    hot, cold = format_seconds(estimate.time.hot), format_seconds(estimate.time.cold)
    width = format_seconds(estimate.half_width_s)
    rate = si(estimate.images_per_s, "images/s")
    middle = format_seconds(estimate.time.middle)
    kernels = f"{estimate.measured} distinct kernels stand for {estimate.occurrences}"
    alone, why = estimate.hot_only
    kinds = ", ".join(
        f"{kind} {percent(seconds / estimate.time.middle)}"
        for kind, seconds in list(estimate.kinds.items())[:5]
    )
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.items())
    doubt = f"{alone} of them without cold caches, hot stands for both: {why}"
    return [
        ("estimate", f"{middle}  {hot} (hot caches) to {cold} (cold)  sampling +-{width}  {rate}"),
        ("estimate", f"{kernels}; all at their measured roof: {format_seconds(estimate.roof_s)}"),
        *([("estimate", doubt)] if alone else []),
        *_visits(rows),
        ("by kind", kinds),
        *_fewer_flops(estimate),
        *([("memory", sizes)] if sizes else []),
    ]


def _visits(rows: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Say how often rows were visited, where that was more than once."""
    visits = [row.time.repetitions for row in rows if row.time is not None]
    if max(visits, default=1) == 1:
        return []
    few = sum(one < max(visits) for one in visits)
    less = f", {few} of {len(visits)} rows, which hardly move the sum, fewer" if few else ""
    return [("repetitions", f"{max(visits)}{less}")]


def _fewer_flops(estimate: Estimate) -> list[tuple[str, str]]:
    """Say which layers run an algorithm that needs fewer FLOPs than their roofs count."""
    found: dict[str, list[str]] = {}
    for layer in estimate.layers:
        for pass_, algorithm in layer.algorithms.items():
            if (name := fewer_flops(algorithm)) is not None:
                found.setdefault(name, []).append(f"{layer.name} {pass_}")
    return [
        ("of roof", f"{some_names(names)}: {name}: roofs count a direct kernel's FLOPs")
        for name, names in found.items()
    ]


def model_conclusion(estimate: Estimate, rows: Sequence[Measurement] = ()) -> list[str]:
    """Return which layer and kind dominate, and what the step would be without their excess.

    Where other work disturbed kernels that is said first, and nothing else where these are a large
    part of the sum. No layer is named that was disturbed.

    Args:
        estimate: of the step.
        rows: the kernels that it sums.
    """
    lines = disturbance(rows)
    dominant = estimate.dominant
    # The rows decide, too: a document may have none of what is told of the sum.
    if dominant is None or not estimate.tells or sum_is_disturbed(rows):
        return lines
    total = estimate.time.middle
    if not dominant.contended:
        kind, seconds = next(iter(estimate.kinds.items()))
        share = percent(seconds / total)
        lines.append(f"{_leads(estimate, dominant)}; {kind} layers take {share}.")
    best = estimate.ranked()[0]
    if best.contended:
        return lines
    gain = total - estimate.at_roof_s(best)
    if gain > 0.005 * total:
        reached = best.efficiency
        one = best.count == 1
        who = "it reaches" if one else "they reach"
        where = "" if reached is None else f", {who} {percent(reached)} of it"
        lines.append(
            f"If {_alike(best)} ran at {'its' if one else 'their'} roof{where}, the step would "
            f"take {format_seconds(estimate.at_roof_s(best))} "
            f"({percent(gain / total)} less): the most that "
            f"{'a single layer' if one else 'one kind of layer'} can give."
        )
    else:
        lines.append(
            "No layer, with all like it, is worth more than 0.5 % of the step at its roof."
        )
    return lines


def _leads(estimate: Estimate, dominant: LayerShare) -> str:
    """Say what dominates, with the interval of its share, or what cannot be told apart."""
    found = estimate.leads
    if found is None:
        return f"{dominates(dominant.name, dominant.count)}: {percent(dominant.share)} of the step"
    who = dominates(dominant.name, dominant.count, found.rivals)
    if found.clear:
        return f"{who}: {share_text(found)} of the step"
    return f"{who}: {share_text(found)} of the step, which their intervals cannot tell apart"


def _alike(layer: LayerShare) -> str:
    """Name a layer, and how many are like it."""
    return layer.name if layer.count == 1 else f"{layer.name} and {layer.count - 1} like it"


# -----------------------------------------------------------------------------
# The report of ``model --summary``: what a model is made of, counted and not timed.

_NODES: Final[tuple[Column[Mapping[str, Any]], ...]] = (
    Column("layer", lambda one: one["name"], right=False),
    Column("operation", lambda one: one["op"], right=False),
    Column("output", lambda one: "x".join(map(str, one["shape"])), right=False),
    Column("problem", lambda one: one["problem"] or "-", right=False),
    Column("parameters", lambda one: _count(one["parameters"])),
    Column("multiply-adds", lambda one: _count(one["macs_forward"])),
)


def summary_report(found: Mapping[str, Any]) -> list[Block]:
    """Return the table of nodes and the totals.

    Args:
        found: What ``pydlbench.models.counts.summary`` returns.
    """
    head = f"{found['model']}  {found['title']}  batch {found['batch']}  from {found['source']}"
    totals = [
        ("parameters", f"{found['parameters']:,}"),
        ("multiply-adds forward", f"{found['macs_forward']:,}"),
        ("multiply-adds training", f"{found['macs_training']:,}"),
    ]
    note = "multiply-adds are those of one image; one is two FLOP"
    table = Table.of(_NODES, found["layers"])
    return [Heading([head], bold=0), table, Facts(totals), Lines([note])]


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"
