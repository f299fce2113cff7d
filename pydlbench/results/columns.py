"""The columns of a table of measurements, as text; terminal and Markdown tables share them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.results.axes import AXES, axis_values, common_model, varying
from pydlbench.results.layouts import short_layout
from pydlbench.results.ratios import is_uncertain
from pydlbench.units import si

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.results.parts import TimeSummary
    from pydlbench.results.records import Measurement

__all__ = [
    "Column",
    "algorithm_within",
    "checked_text",
    "columns",
    "number",
    "percent",
    "ratio_text",
    "scientific",
    "spread",
    "time_in",
    "time_unit",
]


# What was asked for, beside the layout that the kernel really used.
_TITLES = {"layout": "asked for"}
# Of an algorithm's name in a table of several layers.
_WIDE = 32
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
    wide = _NARROW if contest else _WIDE if several else None
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
    """Choose one unit for a whole column, so that its numbers can be compared at a glance."""
    logs = [math.log10(value) for value in seconds if value > 0 and math.isfinite(value)]
    middle = sum(logs) / len(logs) if logs else 0.0
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
