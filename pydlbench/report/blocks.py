"""What every report is made of: blocks, which the printers turn into text, Markdown and a page.

A command's report is a list of blocks and nothing else. Figures and what can be unfolded are drawn
on a page only; text and Markdown leave them out, and say what they show in tables and sentences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from pydlbench.records.fields import Column
    from pydlbench.records.run import RunRecord

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Title:
    """The title of what follows in a report of several parts."""

    text: str


@dataclass(frozen=True, slots=True)
class Heading:
    """What was measured, and where.

    Attributes:
        lines: of text; two blanks part the items of a line.
        bold: how many of them are to be read first.
    """

    lines: Sequence[str]
    bold: int = 1


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, notes or reasons.

    Attributes:
        lines: of text; one that is too wide is broken between words. What follows ``next:`` or
            ``try:`` is a command.
        bold: how many of them are to be read first.
        alarm: whether they say that something went wrong.
        listed: whether they are items of a list.
        title: of such a list; empty without one.
    """

    lines: Sequence[str]
    bold: int = 0
    alarm: bool = False
    listed: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled texts.

    Attributes:
        facts: label and text; where the label is that of the fact above, it is not repeated. What
            is to be done ``next`` is a command.
        title: of all of them; empty without one.
    """

    facts: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Attributes:
        titles: of the columns; what stands under an empty one is drawn, and only a terminal has it.
        cells: by row.
        right: whether each column is aligned to the right.
        values: by row, what each cell is sorted by on a page; None is its text. Empty is no values.
        above: lines that stand above rows, by the number of the row.
        alarms: numbers of rows that say that something went wrong.
    """

    titles: Sequence[str]
    cells: Sequence[Sequence[str]]
    right: Sequence[bool]
    values: Sequence[Sequence[float | None]] = ()
    above: Mapping[int, str] = field(default_factory=dict)
    alarms: Set[int] = frozenset()

    @classmethod
    def from_rows(cls, columns: Sequence[Column[Row]], rows: Sequence[Row], **more: Any) -> Self:
        """Return the table of some rows under declared columns."""
        cells = [[column.cell(row) for column in columns] for row in rows]
        values = [[column.value and column.value(row) for column in columns] for row in rows]
        titles, right = [column.title for column in columns], [column.right for column in columns]
        return cls(titles, cells, right, values, **more)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the page.

    Attributes:
        kind: what its file is called, with a number behind it: ``roofline``.
        title: above it.
        text: what it shows in words, with the numbers that matter.
        caption: below it: how to read it, and what was left out.
        spec: as Vega-Lite takes it (https://vega.github.io/vega-lite/docs/spec.html), its data in
            it; :mod:`pydlbench.report.drawing` draws it.
    """

    kind: str
    title: str
    text: str
    caption: str
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks of the page that are folded until their summary is clicked."""

    summary: str
    blocks: Sequence[Block]


Block = Title | Heading | Lines | Facts | Table | Figure | Details


def run_lines(run: RunRecord) -> Lines:
    """Return the line that names a run below its results; nothing where it has no name."""
    return Lines([f"Run {run.id}, {run.created_utc}."] if run.id else [])
