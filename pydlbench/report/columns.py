"""The columns of a table of measurements, and what stands above them because all rows share it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from pydlbench.records.measurement import is_uncertain
from pydlbench.units import format_bytes, format_flops, format_hz, si

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.records.measurement import Measurement, TimeSummary
    from pydlbench.records.run import RunRecord

__all__ = [
    "AXES",
    "Column",
    "algorithm_within",
    "axis_values",
    "checked_text",
    "columns",
    "common_model",
    "device_name",
    "heading",
    "label",
    "number",
    "percent",
    "ratio_text",
    "scientific",
    "short_layout",
    "spread",
    "time_in",
    "time_unit",
    "varying",
]


# -----------------------------------------------------------------------------
# What tells the rows of a table apart, and what they share and is said once above it.


def _propagation(row: Measurement) -> str:
    # Only a forward pass knows two kinds; "forward" alone means inference.
    return "training" if row.pass_ == "forward" and row.propagation == "training" else ""


AXES: dict[str, Callable[[Measurement], str]] = {
    "layer": lambda row: row.layer,
    "batch": lambda row: str(row.batch),
    "pass": lambda row: row.pass_,
    "propagation": _propagation,
    "precision": lambda row: row.precision,
    "accumulate": lambda row: row.accumulate or "",
    "device": lambda row: row.device,
    "threads": lambda row: "" if row.threads is None else str(row.threads),
    "cache": lambda row: row.cache,
    "timing": lambda row: row.timing if row.ok else "",
    "fuse": lambda row: row.fuse,
    "layout": lambda row: row.layout_request,
    "backend": lambda row: row.backend,
    "mode": lambda row: row.mode or "",
}

# These follow from others, or are empty in a row that was never run: no difference by themselves.
_BLANK_IS_NO_VALUE = {"threads", "accumulate", "timing"}
# One that follows from another says nothing more: bf16 beside fp32 differs in the accumulator too,
# and cold caches on a GPU are timed otherwise than hot ones.
_FOLLOWS = {"accumulate": "precision", "timing": "cache"}


def axis_values(rows: Sequence[Measurement], axis: str) -> list[str]:
    """Return the distinct values of one axis, in order of appearance."""
    if axis == "propagation":
        rows = [row for row in rows if row.pass_ == "forward"]
    values = dict.fromkeys(AXES[axis](row) for row in rows)
    if axis in _BLANK_IS_NO_VALUE and len(values) > 1:
        values.pop("", None)
    return list(values)


def varying(rows: Sequence[Measurement]) -> list[str]:
    """Return the axes along which ``rows`` differ, in the order of their columns."""
    found = [axis for axis in AXES if len(axis_values(rows, axis)) > 1]
    for axis, leader in _FOLLOWS.items():
        if axis in found and leader in found:
            pairs = {(AXES[leader](row), AXES[axis](row)) for row in rows if AXES[axis](row)}
            if len(pairs) == len({value for value, _ in pairs}):
                found.remove(axis)
    return found


def common_model(rows: Sequence[Measurement]) -> str:
    """Return the model that all of several layers belong to, or nothing: ``vgg16``."""
    models = {row.layer.rpartition("/")[0] for row in rows}
    return models.pop() if len(models) == 1 and len(axis_values(rows, "layer")) > 1 else ""


def label(row: Measurement, axes: Sequence[str]) -> str:
    """Name one row by its layer and what tells it apart: ``alexnet/conv3 backward-data bf16``."""
    words = [row.layer]
    for axis in axes:
        value = AXES[axis](row)
        if axis == "layer" or not value:
            continue
        threads = "1 thread" if value == "1" else f"{value} threads"
        words.append({"batch": f"batch {value}", "threads": threads}.get(axis, value))
    return " ".join(words)


# -----------------------------------------------------------------------------
# Memory formats in a few characters, for a column of a table.

_ROLE = re.compile(r"(src|weights|dst) ([^,]+)")


def short_layout(row: Measurement) -> str:
    """Return what matters of ``row.layout``, or all of it where it has another form.

    Images: the format of source and destination (``nhwc``), or both where they differ
    (``nchw>nChw16c``). Matrix products: whether the weights are ``packed`` (blocked), ``plain``
    (``kn``) or in which other order.
    """
    if not row.layout:
        return "-"
    formats = {role: text.strip() for role, text in _ROLE.findall(row.layout)}
    weights = formats.get("weights")
    if row.kind == "gemm" and weights is not None:
        if weights in {"kn", "gkn"}:
            return "plain"
        return "packed" if re.search(r"\d", weights) else weights
    ends = dict.fromkeys(formats[role] for role in ("src", "dst") if role in formats)
    return ">".join(ends) or row.layout


# -----------------------------------------------------------------------------
# The columns of a table of measurements, as text; terminal and Markdown tables share them.

# What was asked for, beside the layout that the kernel really used.
_TITLES = {"layout": "asked for"}
# Of an algorithm's name in a table of several layers.
_WIDE_COLUMN = 32
# And where backends stand side by side, with their modes and ratios.
_NARROW = 25
# The kernel behind a framework's function says more than the function.
_BEHIND = re.compile(r"\S+ \((.+)\)")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, the text of a row's cell, and whether it is aligned to the right."""

    title: str
    cell: Callable[[Measurement], str]
    right: bool = True


def columns(rows: Sequence[Measurement]) -> list[Column]:
    """Return the columns that ``rows`` need; what they all share belongs into the heading.

    ``rows`` are ``ok`` ones. Rates are algorithmic, percentages come from the executed FLOPs.
    """
    axes = varying(rows)
    alike = len(rows) > 1 and not axes
    if not {"layer", "backend"} & set(axes):
        axes.append("backend")
    if alike:
        axes.append("layer")
    model = common_model(rows)
    found = [
        Column(_TITLES.get(axis, axis), _cell_of(axis, model), right=axis in {"batch", "threads"})
        for axis in sorted(axes, key=list(AXES).index)
    ]
    unit = time_unit([row.time.median for row in rows if row.time is not None])
    levels = {row.time.confidence for row in rows if row.time is not None}
    interval = f"{100 * levels.pop():g} % CI" if len(levels) == 1 else "CI"
    several = len(axis_values(rows, "layer")) > 1
    bounds = {row.roofline.bound for row in rows if row.roofline is not None}
    contest = any(row.ratio for row in rows)
    wide = _NARROW if contest else _WIDE_COLUMN if several else None
    found.append(Column("algorithm", _algorithm(wide), right=False))
    if len({short_layout(row) for row in rows}) > 1:  # one that all share stands in the heading
        found.append(Column("layout", short_layout, right=False))
    if several:
        found.append(Column("GFLOP", lambda row: number(row.flops / 1e9)))
    found += [
        Column("median", lambda row: time_in(unit, row.time.median) if row.time else "-"),
        Column(interval, lambda row: spread(row.time) if row.time else "-"),
    ]
    if not contest:  # there it would be too wide, and the ratio's interval is made of rounds
        found.append(Column("n", lambda row: str(row.time.n) if row.time else "-"))
    found.append(Column("TFLOP/s", lambda row: number(row.tflops)))
    if bounds - {"compute"}:
        found.append(Column("GB/s", lambda row: number(row.gbps)))
    found += [
        Column("theoretical", lambda row: percent(row.fraction_of_peak("theoretical"))),
        Column("measured", lambda row: percent(row.fraction_of_peak("measured"))),
    ]
    if bounds - {"compute"}:
        # Of two peaks a memory-bound kernel can reach neither; its own roof says what is left.
        found.append(Column("of roof", lambda row: percent(_efficiency(row))))
    if not contest or len(bounds) > 1:
        found.append(
            Column("bound", lambda row: row.roofline.bound if row.roofline else "-", right=False)
        )
    found.append(Column("checked", checked_text, right=False))
    found[-1:-1] = _of_some(rows, unit)
    if any(map(_note, rows)):
        found.append(Column("note", _note, right=False))
    return found


def _of_some(rows: Sequence[Measurement], unit: tuple[float, str]) -> list[Column]:
    """The columns of what only some runs measure."""
    found = []
    if any(row.energy_j for row in rows):
        found += [
            Column("energy", lambda row: si(row.energy_j, "J") if row.energy_j else "-"),
            Column("GFLOP/s/W", lambda row: number(row.gflops_per_watt)),
        ]
    if any(row.ratio for row in rows):
        found.append(Column("to best", ratio_text))
    if any(row.warm_s for row in rows):
        found.append(
            Column("pages kept", lambda row: time_in(unit, row.warm_s) if row.warm_s else "-")
        )
    return found


def number(value: float | None, digits: int = 3) -> str:
    """Format with three significant digits and no exponent: ``0.561``, ``51.2``, ``512``."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9999 is 1.00, not 1.000
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)) + 1e-9))
    return f"{value:.{min(decimals, 6)}f}"


def scientific(value: float) -> str:
    """Format an error with one digit: ``2e-7``."""
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(fraction: float | None) -> str:
    """Format a fraction: ``93 %``, ``0.3 %``, ``<0.1 %``."""
    if fraction is None or not math.isfinite(fraction):
        return "-"
    value = 100 * fraction
    if 0 < value < 0.05:
        return "<0.1 %"
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def spread(time: TimeSummary) -> str:
    """Format the interval's half width, or what there is where the samples allow no interval."""
    if time.half_width is not None:
        return percent(time.half_width)
    return "no spread" if time.iqr is None else f"IQR {percent(time.iqr)}"


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """Choose one unit for a whole column, so that its numbers can be compared at a glance.

    It is the one that fits most of them, or a larger one where the longest would have five digits.
    """
    logs = [math.log10(value) for value in seconds if value > 0 and math.isfinite(value)]
    middle = max(sum(logs) / len(logs), max(logs) - 1) if logs else 0.0
    for exponent, name in ((0, "s"), (-3, "ms"), (-6, "us")):
        if middle >= exponent:
            return 10.0**-exponent, name
    return 1e9, "ns"


def time_in(unit: tuple[float, str], seconds: float) -> str:
    """Format ``seconds`` in a unit of ``time_unit``."""
    return f"{number(seconds * unit[0])} {unit[1]}"


def _cell_of(axis: str, model: str) -> Callable[[Measurement], str]:
    if axis == "layer" and model:
        # The heading names the model.
        return lambda row: row.layer.removeprefix(f"{model}/")
    return AXES[axis]


def _algorithm(wide: int | None) -> Callable[[Measurement], str]:
    """An engine with ten knobs would leave no place for its time; JSON and CSV have them all."""

    def cell(row: Measurement) -> str:
        text = row.algorithm or "-"
        if wide == _NARROW:
            return algorithm_within(row, wide)
        return text if wide is None else _cut(text, wide)

    return cell


def algorithm_within(row: Measurement, width: int) -> str:
    """Return a row's algorithm in that many characters: the kernel behind a function, if known."""
    text = row.algorithm or "-"
    if kernel := _BEHIND.fullmatch(text):
        text = kernel.group(1)
    if len(text) > width and ": " in text:  # "Pad, Conv2D: _MklNativeFusedConv2D"
        text = text.partition(": ")[2]
    return _cut(text, width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3].rstrip(' ,{(')}..."


def _note(row: Measurement) -> str:
    words = ["contended"] * row.contended + ["ratio uncertain"] * is_uncertain(row)
    return ", ".join(words)


def _efficiency(row: Measurement) -> float | None:
    return row.roofline.efficiency if row.roofline else None


def ratio_text(row: Measurement) -> str:
    """Format the time over the fastest backend's, with the half width of its interval."""
    ratio = row.ratio
    if not ratio:
        return "-"
    low, high = ratio["ci_low"], ratio["ci_high"]
    text = f"{number(ratio['median'], 3)}x"
    if low is None or high is None or low == high:
        return text
    return f"{text} +-{percent((high - low) / 2 / ratio['median'])}"


def checked_text(row: Measurement) -> str:
    """Format the verdict of the verification: ``ok 2e-7``."""
    verdict = row.correct
    if verdict.rel_error is None or verdict.status == "unchecked":
        return verdict.status
    error = verdict.rel_error
    return f"{verdict.status} {scientific(error)}" if error else verdict.status


# -----------------------------------------------------------------------------
# What stands above a table: everything that its rows share.

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
