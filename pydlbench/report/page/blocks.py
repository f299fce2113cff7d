"""What a page is made of: sections of blocks, which the template ``page.html.j2`` turns into HTML.

Blocks hold texts and numbers only. The template escapes every text, so nothing that a run holds can
become markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pydlbench.report.page.plain import UNREADABLE, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.report.page.figures.canvas import Chart

#: Figures of one kind: a page of many runs stays readable.
MOST_FIGURES: Final = 6
#: Rows that a page shows; the rest is counted. More make a browser slow.
MOST_ROWS: Final = 3000
# Of a cell's text: longer ones are cut, with the whole in a tooltip.
_LONG: Final = 60


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph: text, then perhaps a command in its own type; ``css`` is one of the page's."""

    kind: ClassVar[str] = "text"
    text: str
    css: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading below that of the section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values; pairs without a value are left out. Those in ``code`` are commands."""

    kind: ClassVar[str] = "facts"
    pairs: Iterable[tuple[str, Any]]
    code: frozenset[str] = frozenset()

    def shown(self) -> list[tuple[str, str]]:
        """Return the pairs that have a value."""
        return [(name, plain(value)) for name, value in self.pairs if value not in (None, "")]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its heading and caption, and the blocks that belong below it."""

    kind: ClassVar[str] = "figure"
    chart: Chart
    below: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are folded until their summary is clicked."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that belong together, in a box of the page's class ``css``."""

    kind: ClassVar[str] = "group"
    css: str
    blocks: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: its heading.
        cell: the content of a row's cell: its text, or the share that a ``bar`` stands for.
        value: what it is sorted by, where the text is not enough; None sorts last.
        right: aligned to the right: numbers.
        note: what the heading means, shown when it is pointed at.
        style: ``plain``, cut where it is long; ``wrap``, whole and over several lines; ``code``;
            or ``bar``.
    """

    title: str
    cell: Callable[[Any], Any]
    value: Callable[[Any], float | None] | None = None
    right: bool = False
    note: str | None = None
    style: str = "plain"


def number_column(
    title: str, value: Callable[[Any], Any], text: Callable[[Any], Any] = str
) -> Column:
    """Return a column of numbers, which is sorted by what it shows.

    Args:
        title: its heading.
        value: of a row.
        text: of a value.
    """
    return Column(title, lambda row: text(value(row)), value, right=True)


class Cell(NamedTuple):
    """A cell: its text, the number that it is sorted by, and its whole text where it was cut."""

    text: str
    value: str | None
    title: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose headings sort it; without scripts it is just a table.

    Attributes:
        caption: above it.
        columns: at least one; the first one heads its rows.
        rows: anything that the columns understand.
        ident: unique on the page.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    ident: str

    def heading(self) -> str:
        """Return the caption, with how many rows are left out."""
        if len(self.rows) <= MOST_ROWS:
            return plain(self.caption)
        more = f"The first {MOST_ROWS} rows of {len(self.rows)}; an export has all of them."
        return f"{plain(self.caption)} {more}"

    def cells(self) -> Iterator[list[Cell]]:
        """Yield the rows that are shown."""
        for row in self.rows[:MOST_ROWS]:
            yield [_cell(column, row) for column in self.columns]


def _cell(column: Column, row: Any) -> Cell:
    number = None if column.value is None else column.value(row)
    value = None if number is None else repr(number)
    given = column.cell(row)
    if column.style == "bar":
        width = round(100 * min(1.0, abs(given)), 1)
        return Cell(f"{width}%", value, "less" if given < 0 else None)
    whole = plain(given)
    cut = plain(whole, _LONG) if column.style == "plain" else whole
    return Cell(cut, value, None if cut == whole else whole)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page.

    Attributes:
        ident: what links point to.
        title: its heading.
        blocks: below it; a section without any is not on the page.
        command: what would fill the section where it is empty.
    """

    ident: str
    title: str
    blocks: Sequence[Any]
    command: str = ""

    @property
    def charts(self) -> list[Chart]:
        """Its figures, which can also become files."""
        return [one.chart for one in self.blocks if isinstance(one, Figure)]


def sentence(line: str, css: str | None = None) -> Text:
    """Return a sentence; a command to run next stands in its own type."""
    for word in ("next:", "try:"):
        if line.startswith(f"{word} "):
            return Text(word, css, line.removeprefix(f"{word} "))
    return Text(line, css)


def blocks_of(make: Callable[[], Iterable[Any]], what: str) -> list[Any]:
    """Return what can be made, and a line where a document's values are in the way.

    Args:
        make: makes the blocks.
        what: they show, for the line.
    """
    found: list[Any] = []
    try:
        found.extend(make())
    except UNREADABLE as error:
        why = f"{type(error).__name__}: {plain(error, 120)}"
        found.append(Text(f"{what} cannot be shown: a run holds unusable values ({why}).", "alarm"))
    return found


def figures_of(make: Callable[[], Iterable[Figure]], what: str) -> list[Any]:
    """Return the first figures of a kind, and a line if there are more or one cannot be drawn.

    Args:
        make: draws them one by one.
        what: they show, for the line.
    """
    found = blocks_of(lambda: islice(make(), MOST_FIGURES + 1), what)
    if sum(isinstance(one, Figure) for one in found) <= MOST_FIGURES:
        return found
    first = f"only the first {MOST_FIGURES} figures are drawn"
    return [
        *found[:MOST_FIGURES],
        Text(f"{what}: {first}; a report of fewer runs shows more.", "absent"),
    ]
