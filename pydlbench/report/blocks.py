"""The blocks of reports, which printers turn into text, Markdown and a page.

A command's report is a list of blocks and nothing else. Figures and folded details are on pages
only; in text and Markdown, tables and sentences have their contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from pydlbench.records.record import Column
    from pydlbench.records.run import RunRecord

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Heading:
    """The measured subject with its settings, and the machine.

    Attributes:
        lines: lines of text; the items of a line are separated by two blanks.
        bold: number of emphasised lines, from the first.
    """

    lines: Sequence[str]
    bold: int = 1


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, notes or reasons.

    Attributes:
        lines: lines of text; long ones are wrapped. The text after ``next:`` or ``try:`` is a
            command.
        bold: number of emphasised lines, from the first.
        alarm: whether the lines report errors.
        listed: whether the lines are items of a list.
        title: title of the list; empty if there is none.
    """

    lines: Sequence[str]
    bold: int = 0
    alarm: bool = False
    listed: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Headline(Lines):
    """The finding of a report, above its tables: where time goes, how much, and what to do next.

    The first line is a sentence, the last one usually the command to run: ``next: COMMAND``.
    """

    bold: int = 1


class LostTime(NamedTuple):
    """A part of a time that may be saved, as a candidate for a headline.

    Attributes:
        seconds: size of the part.
        low: lower end of its interval; None if there is no interval.
        text: what it is, and how much.
        command: command line to run next.
        doubtful: the same in words for a loss that is not beyond doubt.
    """

    seconds: float
    low: float | None
    text: str
    command: str
    doubtful: str = ""

    @property
    def supported_s(self) -> float:
        """The part of it that its interval supports; all of it where there is no interval."""
        return self.seconds if self.low is None else self.low


def largest_loss(losses: Sequence[LostTime]) -> LostTime | None:
    """Return the loss of which the intervals support most; None if they support none."""
    best = max(losses, key=lambda loss: loss.supported_s, default=None)
    return best if best is not None and best.supported_s > 0 else None


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled texts.

    Attributes:
        facts: label and text; the same label as above is not repeated. The text of ``next`` is a
            command.
        title: title of the facts; empty if there is none.
    """

    facts: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table of text.

    Attributes:
        titles: titles of the columns; one with an empty title is drawn, and only in text.
        cells: texts by row.
        right: whether each column is aligned to the right.
        values: sort keys of the cells on a page, by row; None sorts by the text. May be empty.
        above: lines above rows, by the number of the row.
        alarms: numbers of rows that report errors.
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
        kind: name of the figure's file, to which a number is added: ``roofline``.
        title: title above the figure.
        text: contents of the figure in words, with the important numbers.
        caption: explanation below the figure, and what it leaves out.
        spec: Vega-Lite specification (https://vega.github.io/vega-lite/docs/spec.html) with its
            data; :mod:`pydlbench.report.drawing` draws it.
    """

    kind: str
    title: str
    text: str
    caption: str
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks of a page that are folded until their summary is clicked.

    Attributes:
        summary: text that stays visible.
        blocks: folded blocks.
        span: start and length of the bar behind the summary, as shares of the page's width; None
            draws no bar. Bars of parts lie below that of the whole.
    """

    summary: str
    blocks: Sequence[Block]
    span: tuple[float, float] | None = None


Block = Heading | Lines | Facts | TableBlock | Figure | Details


def run_lines(run: RunRecord) -> Lines:
    """Return the line with a run's name below its results; empty if it has no name."""
    return Lines([f"Run {run.id}, {run.created_utc}."] if run.id else [])
