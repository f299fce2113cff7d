"""The report of ``model``: the step's estimate, its layers, and which of them matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.report.columns import device_name
from pydlbench.report.text import PLAIN, Style, plain_table
from pydlbench.units import format_bytes, format_percent, format_seconds, si

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.ladder.estimate import Estimate, LayerShare, Plan, Range
    from pydlbench.records.run import RunRecord

__all__ = ["model_conclusion", "render_model", "render_summary"]

_SHORT = {
    "forward": "forward",
    "backward-data": "bwd data",
    "backward-weights": "bwd weights",
    "l2": "L2 terms",
    "update": "update",
}


def render_model(
    run: RunRecord,
    plan: Plan,
    estimate: Estimate,
    memory: Mapping[str, int],
    *,
    top: int | None = 20,
    libraries: Sequence[str] = (),
    style: Style = PLAIN,
) -> str:
    """Return heading, table of layers, sums and conclusion; no newline at the end.

    Args:
        run: for the device's name.
        plan: what was measured.
        estimate: what came of it.
        memory: bytes by what they are for.
        top: how many layers to show, by time, those that run the same kernels in one line; None
            is all of them, each for itself and in the model's order.
        libraries: names and versions.
        style: colours.
    """
    blocks = ["\n".join([style.bold(_what(plan)), _where(run, libraries)])]
    if estimate.layers:
        blocks.append(_table(estimate, top))
        blocks.append("\n".join(_sums(estimate, memory)))
        blocks.append("\n".join(model_conclusion(estimate)))
    if estimate.missing:
        blocks.append("\n".join(map(style.alarm, _missing(estimate))))
    return "\n\n".join(blocks)


def _what(plan: Plan) -> str:
    model = plan.model
    return "  ".join([model.name, f"batch {model.batch}", plan.phase, plan.precision, model.title])


def _where(run: RunRecord, libraries: Sequence[str]) -> str:
    device = run.device
    items = [device_name(device)]
    threads = device.get("threads")
    if threads:
        items.append(f"{threads} thread{'' if threads == 1 else 's'}")
    return "  ".join([*items, *libraries, "native backend, every layer alone"])


def _table(estimate: Estimate, top: int | None) -> str:
    passes = [name for name in _SHORT if any(name in layer.by_pass for layer in estimate.layers)]
    several = len(passes) > 1
    titles = ["layer", "kind", *([_SHORT[one] for one in passes] if several else [])]
    titles += ["hot", "cold", "share", "", "bound", "of roof"]
    shown, others = list(estimate.layers), []
    if top is not None and len(shown) > top:
        groups = sorted(estimate.groups, key=lambda layer: -layer.time.middle)
        shown, others = groups[:top], groups[top:]
    cells = [_row(layer, passes if several else []) for layer in shown]
    if others:
        rest = sum(layer.count for layer in others)
        cells.append(_filler(f"{rest} others", others, len(titles)))
    left = {"layer", "kind", "", "bound"}
    return plain_table(titles, cells, [title not in left for title in titles])


def _row(layer: LayerShare, passes: Sequence[str]) -> list[str]:
    efficiency = layer.efficiency
    return [
        layer.name if layer.count == 1 else f"{layer.name} x{layer.count}",
        layer.kind,
        *(_seconds(layer.by_pass.get(one)) for one in passes),
        format_seconds(layer.time.hot),
        format_seconds(layer.time.cold),
        format_percent(layer.share),
        "#" * round(20 * layer.share),
        layer.bound or "-",
        "-" if efficiency is None else format_percent(efficiency),
    ]


def _filler(label: str, others: Sequence[LayerShare], width: int) -> list[str]:
    row = [label, *[""] * (width - 1)]
    row[-6] = format_seconds(sum(one.time.hot for one in others))
    row[-5] = format_seconds(sum(one.time.cold for one in others))
    row[-4] = format_percent(sum(one.share for one in others))
    return row


def _seconds(time: Range | None) -> str:
    return "-" if time is None else format_seconds(time.middle)


def _sums(estimate: Estimate, memory: Mapping[str, int]) -> list[str]:
    hot, cold = format_seconds(estimate.time.hot), format_seconds(estimate.time.cold)
    width = format_seconds(estimate.half_width_s)
    kernels = f"{estimate.measured} distinct kernels stand for {estimate.occurrences}"
    kinds = ", ".join(
        f"{kind} {format_percent(seconds / estimate.time.middle)}"
        for kind, seconds in list(estimate.kinds.items())[:5]
    )
    rate = si(estimate.images_per_s, "images/s")
    middle = format_seconds(estimate.time.middle)
    alone, why = estimate.hot_only
    doubt = [f"          {alone} of them without cold caches, hot stands for both: {why}"]
    return [
        f"estimate  {middle}  {hot} (hot caches) to {cold} (cold)  sampling +-{width}  {rate}",
        f"          {kernels}; all at their measured roof: {format_seconds(estimate.roof_s)}",
        *(doubt if alone else []),
        f"by kind   {kinds}",
        "memory    " + ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.items()),
    ]


def model_conclusion(estimate: Estimate) -> list[str]:
    """Return which layer and kind dominate, and what the step would be without their excess."""
    dominant = estimate.dominant
    if dominant is None:
        return []
    total = estimate.time.middle
    kind, seconds = next(iter(estimate.kinds.items()))
    share = format_percent(seconds / total)
    part = format_percent(dominant.share)
    verb = "dominates" if dominant.count == 1 else "dominate"
    lines = [f"{_alike(dominant)} {verb}: {part} of the step; {kind} layers take {share}."]
    best = estimate.ranked()[0]
    gain = total - estimate.at_roof_s(best)
    if gain > 0.005 * total:
        reached = best.efficiency
        one = best.count == 1
        who = "it reaches" if one else "they reach"
        where = "" if reached is None else f", {who} {format_percent(reached)} of it"
        lines.append(
            f"If {_alike(best)} ran at {'its' if one else 'their'} roof{where}, the step would "
            f"take {format_seconds(estimate.at_roof_s(best))} "
            f"({format_percent(gain / total)} less): the most that "
            f"{'a single layer' if one else 'one kind of layer'} can give."
        )
    else:
        lines.append(
            "No layer, with all like it, is worth more than 0.5 % of the step at its roof."
        )
    return lines


def _alike(layer: LayerShare) -> str:
    """Name a layer, and how many are like it."""
    return layer.name if layer.count == 1 else f"{layer.name} and {layer.count - 1} like it"


def _missing(estimate: Estimate) -> list[str]:
    found: dict[str, list[str]] = {}
    for name, pass_, reason in estimate.missing:
        found.setdefault(reason, []).append(f"{name} {pass_}")
    return [
        f"not in the sum: {', '.join(names[:4])}"
        + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        + f": {reason}"
        for reason, names in found.items()
    ]


# -----------------------------------------------------------------------------
# The report of ``model --summary``: what a model is made of, counted and not timed.


def render_summary(found: Mapping[str, Any]) -> str:
    """Return the table of nodes and the totals; no newline at the end.

    Args:
        found: What ``pydlbench.models.counts.summary`` returns.
    """
    rows = [
        [
            layer["name"],
            layer["op"],
            _shape(layer["shape"]),
            layer["problem"] or "-",
            _count(layer["parameters"]),
            _count(layer["macs_forward"]),
        ]
        for layer in found["layers"]
    ]
    table = plain_table(
        ["layer", "operation", "output", "problem", "parameters", "multiply-adds"],
        rows,
        [False, False, False, False, True, True],
    )
    totals = [
        f"parameters              {found['parameters']:,}",
        f"multiply-adds forward   {found['macs_forward']:,}",
        f"multiply-adds training  {found['macs_training']:,}",
        "multiply-adds are those of one image; one is two FLOP",
    ]
    head = f"{found['model']}  {found['title']}  batch {found['batch']}  from {found['source']}"
    return "\n\n".join([head, table, "\n".join(totals)])


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"
