"""How the values of a record are named and printed: declared once, read by every format.

A :class:`Metric` has the place of a value in the JSON object, its column in CSV and Parquet, its
unit, and, where it stands in tables, its title, its text and when a table needs it. The metrics of
a measurement are declared beside it, in :mod:`pydlbench.records.measurement`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydlbench.units import number, percent, scientific, time_in, time_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydlbench.records.measurement import Measurement, TimeSummary


Row = TypeVar("Row")
Table = TypeVar("Table")


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


def _always(_: object) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Generic[Row, Table]):
    """A value of a row: of a measurement, or of whatever else stands in tables.

    Attributes:
        path: names in the JSON object, with dots between: ``time_s.median``.
        unit: ``s``, ``Hz``, ``FLOP``, ``B``...; empty of words and pure numbers.
        flat: whether CSV and Parquet have it, in the column that the path gives.
        title: of its column in tables; a function where it depends on them; empty where it is in
            none.
        text: of a row's cell.
        shown: whether a table needs the column.
        right: whether it is aligned to the right.
    """

    path: str
    unit: str = ""
    flat: bool = True
    title: str | Callable[[Table], str] = ""
    text: Callable[[Row, Table], str] | None = None
    shown: Callable[[Table], bool] = _always
    right: bool = True

    @property
    def column(self) -> str:
        """Its name in CSV and Parquet: ``time_s_median``."""
        return self.path.replace(".", "_")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: its title, the text of a row's cell, and whether it is aligned to the right."""

    title: str
    cell: Callable[[Row], str]
    right: bool = True


def columns_of(metrics: Iterable[Metric[Row, Table]], table: Table) -> list[Column[Row]]:
    """Return the columns that a table needs.

    Args:
        metrics: in the order of their columns; those without a text are in none.
        table: what titles, texts and the need of a column depend on.
    """
    found = []
    for metric in metrics:
        if metric.text is not None and metric.shown(table):
            title = metric.title if isinstance(metric.title, str) else metric.title(table)
            found.append(Column(title, partial(_cell, metric.text, table), metric.right))
    return found


def _cell(text: Callable[[Row, Table], str], table: Table, row: Row) -> str:
    return text(row, table)


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


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that is longer than that many characters."""
    return text if len(text) <= width else f"{text[: width - 3].rstrip(' ,{(')}..."


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
