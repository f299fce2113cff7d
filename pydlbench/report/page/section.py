"""What sections are made of, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydlbench.report.page.figures.canvas import inline_svg
from pydlbench.report.page.html import Html, el, join, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.report.page.figures.canvas import Chart

__all__ = ["UNREADABLE", "Section", "absent", "capped", "chart", "collected", "paragraphs"]

#: Figures of one kind: a page of many runs stays readable.
MOST_FIGURES = 6
#: What comes of documents that hold something else than they should.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page.

    Attributes:
        ident: what links point to.
        title: its heading.
        body: below it.
        charts: its figures, which can also become files.
    """

    ident: str
    title: str
    body: Html
    charts: list[Chart] = field(default_factory=list)

    def html(self) -> Html:
        """Return the element."""
        heading = el("h2", self.title, id=f"{self.ident}-heading")
        return el(
            "section", heading, self.body, id=self.ident, aria_labelledby=f"{self.ident}-heading"
        )


def chart(one: Chart) -> Html:
    """Return a figure with its heading and caption."""
    scroll = el(
        "div", inline_svg(one), class_="chart", tabindex=0, role="region", aria_label=one.title
    )
    heading = el("h3", one.title, id=f"{one.name}-heading")
    return el("figure", heading, scroll, el("figcaption", one.caption), id=one.name)


def absent(what: str, command: str) -> Html:
    """Return the line that stands in the place of a figure that there is no data for."""
    return el("p", f"{what} This gives it: ", el("code", command), class_="absent")


def collected(make: Callable[[], Iterable[Any]], what: str) -> tuple[list[Any], Html]:
    """Return what can be made, and a line where a document's values are in the way."""
    found: list[Any] = []
    try:
        found.extend(make())
    except UNREADABLE as error:
        why = f"{type(error).__name__}: {plain(error, 120)}"
        return found, el(
            "p", f"{what} cannot be shown: a run holds unusable values ({why}).", class_="alarm"
        )
    return found, Html("")


def capped(
    make: Callable[[], Iterator[Any]], what: str, most: int = MOST_FIGURES
) -> tuple[list[Any], Html]:
    """Return the first figures, and a line if there would be more or one cannot be drawn."""
    found, trouble = collected(lambda: islice(make(), most + 1), what)
    if len(found) <= most:
        return found, trouble
    text = f"{what}: only the first {most} figures are drawn; a report of fewer runs shows more."
    return found[:most], join([el("p", text, class_="absent"), trouble])


def paragraphs(lines: Sequence[Any]) -> Html:
    """Return sentences, each a paragraph; a command to run next stands in its own type."""
    return join(el("p", _command(line)) for line in lines if line)


def _command(line: Any) -> Any:
    if isinstance(line, Html):
        return line
    for word in ("next: ", "try: "):
        if line.startswith(word):
            return join([word, el("code", line.removeprefix(word))])
    return line
