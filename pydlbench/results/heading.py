"""What stands above a table: everything that its rows share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from pydlbench.results.axes import axis_values, common_model, varying
from pydlbench.results.layouts import short_layout
from pydlbench.units import format_bytes, format_flops, format_hz

if TYPE_CHECKING:
    from pydlbench.results.records import Measurement, RunRecord

__all__ = ["device_name", "heading"]

_TIMINGS = {"events": "CUDA events", "cuda-graph": "CUDA graph", "host-sync": "host clock"}


def heading(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    """Return the lines above a table of ``rows``; two spaces part the items of a line."""
    if not rows:
        return [device_name(run.device)]
    lines = ["  ".join(_what(rows)), "  ".join(_where(run, rows))]
    layouts = {row.layout for row in rows if row.layout}
    if len(layouts) > 1:  # they may differ in what no column shows
        layouts = {short_layout(row) for row in rows}
    if len(layouts) == 1:
        lines.append(f"layout {layouts.pop()}")
    return lines


def device_name(device: Mapping[str, Any]) -> str:
    """Return the product name of the processor, as far as it is known."""
    for holder in (device, device.get("facts"), device.get("cpu")):
        if isinstance(holder, Mapping):
            for key in ("name", "brand"):
                if isinstance(holder.get(key), str) and holder[key].strip():
                    return " ".join(holder[key].split())
    return "unknown processor"


def _what(rows: Sequence[Measurement]) -> list[str]:
    first = rows[0]
    differ = varying(rows)
    items: list[str] = []
    problems = {row.problem for row in rows}
    if "layer" in differ:
        items += filter(None, [common_model(rows)])
        items.append(f"{len(axis_values(rows, 'layer'))} layers")
        if "batch" not in differ:
            items.append(f"batch {first.batch}")
    elif len(problems) == 1:
        items += dict.fromkeys([first.layer, first.problem])
    else:
        items.append(first.layer)
    if "pass" not in differ:
        items.append(first.pass_)
        if "propagation" not in differ and first.propagation == "training":
            items[-1] += " (training)" if first.pass_ == "forward" else ""
    if "fuse" not in differ and first.fuse != "none":
        items.append(f"with {first.fuse}")
    if "precision" not in differ:
        items.append(first.precision)
    if len(problems) == 1 and len({(row.flops, row.flops_executed) for row in rows}) == 1:
        flops = _flops(first.flops, first.flops_executed)
        items.append(flops)
    if len({(row.problem, row.bytes) for row in rows}) == 1:
        items.append(format_bytes(first.bytes))
    return items


def _where(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    differ = varying(rows)
    device = device_name(run.device)
    threads = {row.threads for row in rows if row.threads}
    # With SMT, or fewer CPUs than cores, these are two numbers.
    cores = run.device_for(next(iter(threads))).get("cores") if len(threads) == 1 else None
    clocks = [row.clock_hz for row in rows if row.clock_hz]
    if clocks:
        clock = f"{format_hz(median(clocks))} (measured)"
        device += f", {_count(cores, 'core')} at {clock}" if cores else f", {clock}"
    elif cores:
        device += f", {_count(cores, 'core')}"
    items = [device]
    if len(threads) == 1:
        items.append(_count(next(iter(threads)), "thread"))
    if "cache" not in differ:
        items.append(f"{rows[0].cache} cache".replace("-cold cache", " cold"))
    items += filter(None, [_timing(rows, differ)])
    items += sorted({row.library for row in rows if row.library})
    if "backend" not in differ and "layer" in differ:
        items.append(f"{rows[0].backend} backend")
    if "layout" not in differ and rows[0].layout_request != "best":
        items.append(f"{rows[0].layout_request} layout")
    return items


def _timing(rows: Sequence[Measurement], differ: Sequence[str]) -> str:
    """How samples were taken on a GPU; where that follows from the cache state, for each of them.

    Nothing where a column says it, and for CPUs, which know one way only.
    """
    if "timing" in differ:
        return ""
    ways = {row.cache: _TIMINGS[row.timing] for row in rows if row.timing in _TIMINGS}
    if len(set(ways.values())) == 1:
        return next(iter(ways.values()))
    return ", ".join(f"{cache}: {way}" for cache, way in ways.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _flops(algorithmic: int, executed: int) -> str:
    text = format_flops(algorithmic)
    if executed == algorithmic:
        return text
    short, unit = format_flops(executed).split()
    same_unit = text.endswith(f" {unit}")
    return f"{text} ({short if same_unit else f'{short} {unit}'} executed)"
