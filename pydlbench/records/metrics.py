"""How the values of a record are named and printed: declared once, read by every format.

A :class:`Metric` has the place of a value in the JSON object, its column in CSV and Parquet, its
unit, and, where it stands in tables, its title, its text and when a table needs it. The metrics of
a measurement are declared in :mod:`pydlbench.records.measurement_metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Row = TypeVar("Row")
Table = TypeVar("Table")


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
    """One column.

    Attributes:
        title: above it.
        cell: the text of a row's cell.
        right: whether it is aligned to the right.
        value: what a page sorts a row by, where that is not its text.
    """

    title: str
    cell: Callable[[Row], str]
    right: bool = True
    value: Callable[[Row], float | None] | None = None


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


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that is longer than that many characters."""
    return text if len(text) <= width else f"{text[: width - 3].rstrip(' ,{(')}..."
