"""The metrics of a measurement: how its values are named and printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pydlbench.records.measurement import is_uncertain
from pydlbench.records.metrics import Metric, cut
from pydlbench.units import number, percent, scientific, si, time_in, time_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.measurement import Measurement, TimeSummary


@dataclass(frozen=True)
class TableOf:
    """The rows of a table: what its columns depend on besides the single row.

    Attributes:
        rows: of the table.
    """

    rows: Sequence[Measurement]

    @cached_property
    def layers(self) -> bool:
        """Whether it has several layers."""
        return len({row.layer for row in self.rows}) > 1

    @cached_property
    def beside(self) -> bool:
        """Whether backends stand beside each other, with their ratios: a wide table."""
        return any(row.ratio for row in self.rows)

    @cached_property
    def bounds(self) -> set[str]:
        """What bounds its rows, as far as known."""
        return {row.roofline.bound for row in self.rows if row.roofline is not None}

    @cached_property
    def unit(self) -> tuple[float, str]:
        """Of its times; see :func:`pydlbench.units.time_unit`."""
        return time_unit([row.time.median for row in self.rows if row.time is not None])

    @cached_property
    def interval(self) -> str:
        """What its intervals are called: ``95 % CI``."""
        levels = {row.time.confidence for row in self.rows if row.time is not None}
        return f"{100 * levels.pop():g} % CI" if len(levels) == 1 else "CI"

    def seconds(self, value: float | None) -> str:
        """Return a time in the table's unit."""
        return time_in(self.unit, value) if value is not None else "-"

    def some(self, name: str) -> bool:
        """Whether some row has a value of this name."""
        return any(getattr(row, name) for row in self.rows)


# Texts of cells that are more than a number.

_ROLE = re.compile(r"(src|weights|dst) ([^,]+)")
# The kernel behind a framework's function says more than the function.
_BEHIND = re.compile(r"\S+ \((.+)\)")


def short_layout(row: Measurement, _: Any = None) -> str:
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


def algorithm_within(row: Measurement, width: int) -> str:
    """Return a row's algorithm in that many characters: the kernel behind a function, if known."""
    text = row.algorithm or "-"
    if kernel := _BEHIND.fullmatch(text):
        text = kernel.group(1)
    if len(text) > width and ": " in text:  # "Pad, Conv2D: _MklNativeFusedConv2D"
        text = text.partition(": ")[2]
    return cut(text, width)


def spread(time: TimeSummary) -> str:
    """Format the interval's half width, or what there is where the samples allow no interval."""
    if time.half_width is not None:
        return percent(time.half_width)
    return "no spread" if time.iqr is None else f"IQR {percent(time.iqr)}"


def ratio_text(row: Measurement, _: Any = None) -> str:
    """Format the time over the fastest backend's, with the half width of its interval."""
    ratio = row.ratio
    if not ratio:
        return "-"
    low, high = ratio["ci_low"], ratio["ci_high"]
    text = f"{number(ratio['median'], 3)}x"
    if low is None or high is None or low == high:
        return text
    return f"{text} +-{percent((high - low) / 2 / ratio['median'])}"


def checked_text(row: Measurement, _: Any = None) -> str:
    """Format the verdict of the verification: ``ok 2e-7``."""
    verdict = row.correct
    if verdict.rel_error is None or verdict.status == "unchecked":
        return verdict.status
    error = verdict.rel_error
    return f"{verdict.status} {scientific(error)}" if error else verdict.status


# -----------------------------------------------------------------------------
# The metrics of a row, in the order of the columns of CSV and Parquet files, which files of
# different runs share whatever their rows hold. Rates are algorithmic, percentages come from the
# executed FLOPs.

# Of an algorithm's name in a table of several layers; and where backends stand beside each other.
_WIDE_COLUMN, _NARROW_COLUMN = 32, 25


def _algorithm(row: Measurement, table: TableOf) -> str:
    """An engine with ten knobs would leave no place for its time; JSON and CSV have them all."""
    if table.beside:
        return algorithm_within(row, _NARROW_COLUMN)
    return cut(row.algorithm or "-", _WIDE_COLUMN) if table.layers else row.algorithm or "-"


def _note(row: Measurement, _: TableOf | None = None) -> str:
    words = ["contended"] * row.contended + ["ratio uncertain"] * is_uncertain(row)
    words += ["interrupted"] * (not row.complete)
    if row.fewer_flops:
        words.append(f"{row.fewer_flops}: % of direct FLOPs")
    return ", ".join(words)


def _moves(table: TableOf) -> bool:
    """Whether the time of some rows is not that of their arithmetic."""
    return bool(table.bounds - {"compute"})


def _tail(which: str) -> Metric[Measurement, TableOf]:
    """Return the metric of a percentile, which stands in tables of rows with their samples."""
    return Metric(
        path=f"time_s.{which}",
        unit="s",
        title=which,
        text=lambda row, table: table.seconds(getattr(row.time, which, None)),
        shown=lambda table: any(
            row.samples_s and getattr(row.time, which, None) for row in table.rows
        ),
    )


def _visited(table: TableOf) -> bool:
    """Whether a row was visited several times: its interval is that of its visits then."""
    return any(row.time is not None and row.time.repetitions > 1 for row in table.rows)


def _of_peak(which: str) -> Metric[Measurement, TableOf]:
    """Return the metric of the executed rate over one of the compute peaks."""
    return Metric(
        path=f"of_peak.{which}",
        flat=False,
        title=which,
        text=lambda row, _: percent(row.fraction_of_peak(which)),
    )


METRICS: Final[tuple[Metric[Measurement, TableOf], ...]] = (
    *(Metric(path=name) for name in ("layer", "kind", "problem", "batch", "pass", "propagation")),
    *(Metric(path=name) for name in ("precision", "accumulate", "device", "threads", "backend")),
    *(Metric(path=name) for name in ("mode", "library")),
    Metric(path="algorithm", title="algorithm", text=_algorithm, right=False),
    Metric(
        path="layout",
        title="layout",
        text=short_layout,
        # One that all share stands in the heading.
        shown=lambda table: len({short_layout(row) for row in table.rows}) > 1,
        right=False,
    ),
    *(Metric(path=name) for name in ("layout_request", "cache", "timing", "status", "reason")),
    Metric(
        path="time_s.median",
        unit="s",
        title="median",
        text=lambda row, table: table.seconds(row.time.median) if row.time else "-",
    ),
    Metric(path="time_s.ci_low", unit="s"),
    Metric(path="time_s.ci_high", unit="s"),
    Metric(path="time_s.confidence"),
    Metric(
        path="time_s.spread",
        flat=False,
        title=lambda table: table.interval,
        text=lambda row, _: spread(row.time) if row.time else "-",
    ),
    *(Metric(path=f"time_s.{name}", unit="s") for name in ("q1", "q3", "min")),
    Metric(
        path="time_s.n",
        title="n",
        text=lambda row, _: str(row.time.n) if row.time else "-",
        # There it would be too wide, and the ratio's interval is made of rounds.
        shown=lambda table: not table.beside,
    ),
    Metric(
        path="flops",
        unit="FLOP",
        title="GFLOP",
        text=lambda row, _: number(row.flops / 1e9),
        shown=lambda table: table.layers,
    ),
    Metric(path="flops_executed", unit="FLOP"),
    Metric(path="bytes", unit="B"),
    Metric(
        path="tflops",
        unit="TFLOP/s",
        title="TFLOP/s",
        text=lambda row, _: number(row.tflops),
    ),
    Metric(
        path="gbps",
        unit="GB/s",
        title="GB/s",
        text=lambda row, _: number(row.gbps),
        shown=_moves,
    ),
    Metric(path="arithmetic_intensity", unit="FLOP/B"),
    Metric(path="clock_hz", unit="Hz"),
    *(Metric(path=f"peak_tflops.{name}", unit="TFLOP/s") for name in ("theoretical", "measured")),
    *map(_of_peak, ("theoretical", "measured")),
    Metric(
        path="roofline.bound",
        title="bound",
        text=lambda row, _: row.roofline.bound if row.roofline else "-",
        shown=lambda table: not table.beside or len(table.bounds) > 1,
        right=False,
    ),
    Metric(path="roofline.time_s", unit="s"),
    Metric(
        path="roofline.efficiency",
        title="of roof",
        text=lambda row, _: percent(row.roofline.efficiency if row.roofline else None),
        # Of two peaks a memory-bound kernel can reach neither; its own roof says what is left.
        shown=_moves,
    ),
    Metric(path="roofline.bandwidth"),
    Metric(
        path="correct.status",
        title="checked",
        text=checked_text,
        right=False,
    ),
    *(Metric(path=f"correct.{name}") for name in ("rel_error", "tolerance", "detail")),
    Metric(
        path="contended",
        title="note",
        text=_note,
        shown=lambda table: any(map(_note, table.rows)),
        right=False,
    ),
    *(Metric(path=name) for name in ("contention_reason", "stop_reason")),
    Metric(path="workspace_bytes", unit="B"),
    *(Metric(path=name, unit="s") for name in ("reorder_s", "setup_s")),
    *(Metric(path=name) for name in ("warnings", "stop_rule", "inner", "cycles")),
    *(Metric(path=name) for name in ("fuse", "tensor_cores", "notes")),
    *(Metric(path=f"launch_s.{name}", unit="s") for name in ("event", "graph", "host", "enqueue")),
    Metric(path="kernels"),
    Metric(
        path="energy_j",
        unit="J",
        title="energy",
        text=lambda row, _: si(row.energy_j, "J") if row.energy_j else "-",
        shown=lambda table: table.some("energy_j"),
    ),
    Metric(path="power_w", unit="W"),
    Metric(
        path="gflops_per_watt",
        unit="GFLOP/J",
        title="GFLOP/s/W",
        text=lambda row, _: number(row.gflops_per_watt),
        shown=lambda table: table.some("energy_j"),
    ),
    *(Metric(path=f"gpu.{name}_hz", unit="Hz") for name in ("sm_clock", "memory_clock")),
    Metric(path="gpu.power_w", unit="W"),
    Metric(path="gpu.temperature_c", unit="degrees Celsius"),
    *(Metric(path=f"gpu.{name}") for name in ("reasons", "others", "readings")),
    Metric(path="ratio.to"),
    Metric(
        path="ratio.median",
        title="to best",
        text=ratio_text,
        shown=lambda table: table.beside,
    ),
    *(Metric(path=f"ratio.{name}") for name in ("ci_low", "ci_high", "rounds")),
    Metric(
        path="warm_s",
        unit="s",
        title="pages kept",
        text=lambda row, table: table.seconds(row.warm_s or None),
        shown=lambda table: table.some("warm_s"),
    ),
    *(Metric(path=f"faults.{name}") for name in ("default", "warm")),
    Metric(path="empty_call_s", unit="s"),
    *(Metric(path=name) for name in ("causes", "clock_from")),
    Metric(path="roofline.bandwidth_gbps", unit="GB/s"),
    *map(_tail, ("p90", "p99")),
    Metric(
        path="of_bandwidth",
        title="of bandwidth",
        text=lambda row, _: percent(
            row.of_bandwidth if row.roofline and row.roofline.bound == "memory" else None
        ),
        # It says something of rows whose time is that of their traffic.
        shown=lambda table: "memory" in table.bounds and table.some("of_bandwidth"),
    ),
    Metric(
        path="time_s.repetitions",
        title="repetitions",
        text=lambda row, _: str(row.time.repetitions) if row.time else "-",
        shown=_visited,
    ),
    Metric(path="time_s.processes"),
    Metric(path="roofline.bandwidth_low_gbps", unit="GB/s"),
    Metric(path="fewer_flops"),
)

#: The same by their paths.
METRIC: Final[Mapping[str, Metric[Measurement, TableOf]]] = {one.path: one for one in METRICS}
#: Those of tables, in the order of their columns.
TABLE_METRICS: Final = tuple(
    METRIC[path]
    for path in (
        *("algorithm", "layout", "flops", "time_s.median", "time_s.spread", "time_s.n"),
        *("time_s.repetitions", "time_s.p90", "time_s.p99"),
        *("tflops", "gbps", "of_peak.theoretical", "of_peak.measured", "roofline.efficiency"),
        *("of_bandwidth", "roofline.bound", "energy_j", "gflops_per_watt", "ratio.median"),
        *("warm_s", "correct.status", "contended"),
    )
)
