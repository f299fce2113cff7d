"""HTML that is either escaped or marked as safe, and tables that sort by exact values."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Column", "Html", "dotted", "el", "facts", "join", "plain", "table"]


# -----------------------------------------------------------------------------
# HTML as text that is either escaped or marked as safe; nothing else gets onto the page.

# Control characters are no text in HTML and make XML ill-formed; half of a surrogate pair cannot
# be written as UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"meta", "br", "hr"})


class Html(str):
    """Markup that is safe as it stands."""

    __slots__ = ()


def plain(value: Any, limit: int | None = None) -> str:
    """Return a value as text on one line that XML and HTML can hold; long ones are cut.

    Args:
        value: anything; None is a dash.
        limit: characters at the most.
    """
    words = "-" if value is None else str(value)
    if not (words.isascii() and words.isprintable()):
        words = _UNPRINTABLE.sub("\ufffd", words)
    words = " ".join(words.split())
    if limit is not None and len(words) > limit:
        return f"{words[: limit - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
    return words


def dotted(line: str) -> str:
    """Return a line of a terminal's heading, whose items two blanks part, with dots instead."""
    items = [item.strip() for item in line.split("  ") if item.strip()]
    return " \N{MIDDLE DOT} ".join(items)


def text(value: Any) -> Html:
    """Escape a value, unless it is markup already."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(plain(value)))


def join(parts: Any, between: str = "") -> Html:
    """Put pieces of markup and texts behind each other."""
    return Html(between.join(text(one) for one in parts if one is not None and one != ""))


def el(tag: str, *children: Any, **attributes: Any) -> Html:
    """Build an element.

    Args:
        tag: its name.
        children: texts, which are escaped, and markup; None and empty ones are left out.
        attributes: ``class_`` is ``class`` and ``aria_sort`` is ``aria-sort``; None leaves an
            attribute out, True has no value.
    """
    shown = []
    for name, value in attributes.items():
        key = name.rstrip("_").replace("_", "-")
        if value is True:
            shown.append(f" {key}")
        elif value is not None and value is not False:
            shown.append(f' {key}="{html.escape(plain(value))}"')
    opening = f"<{tag}{''.join(shown)}>"
    return Html(opening if tag in _VOID else f"{opening}{join(children)}</{tag}>")


# -----------------------------------------------------------------------------
# Tables that sort: every cell knows its exact value, whatever the text rounds it to.

#: Rows that a page shows; the rest is counted. More make a browser slow.
MOST_ROWS: Final = 3000
# Of a cell's text: longer ones are cut, with the whole in a tooltip.
_LONG = 60


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: its heading.
        cell: the text of a row's cell.
        value: what it is sorted by, where the text is not enough; None sorts last.
        right: aligned to the right: numbers.
        note: what the heading means, shown when it is pointed at.
    """

    title: str
    cell: Callable[[Any], Any]
    value: Callable[[Any], float | None] | None = None
    right: bool = False
    note: str | None = None


def table(caption: str, columns: Sequence[Column], rows: Sequence[Any], ident: str) -> Html:
    """Return a table whose headings are buttons that sort it; without scripts it is just a table.

    Args:
        caption: above it.
        columns: at least one; the first one heads its rows.
        rows: anything that the columns understand.
        ident: unique on the page.
    """
    shown = rows[:MOST_ROWS]
    head = el("tr", *(_heading(one) for one in columns))
    # Put together by hand: thousands of cells.
    body = Html("".join(f"<tr>{''.join(_cells(columns, row))}</tr>\n" for row in shown))
    left = len(rows) - len(shown)
    more = f" The first {len(shown)} rows of {len(rows)}; an export has all of them."
    full = el(
        "table",
        el("caption", plain(caption) + (more if left else ""), id=f"{ident}-caption"),
        el("thead", head),
        el("tbody", body),
        class_="sortable",
    )
    return el(
        "div", full, class_="scroll", role="region", tabindex=0, aria_labelledby=f"{ident}-caption"
    )


def facts(pairs: Iterable[tuple[str, Any]]) -> Html:
    """Return a list of names and values; pairs without a value are left out."""
    shown = [
        join([el("dt", name), el("dd", value)]) for name, value in pairs if value not in (None, "")
    ]
    return el("dl", *shown, class_="facts") if shown else Html("")


def _heading(column: Column) -> Html:
    button = el("button", column.title, type="button", title=column.note)
    return el("th", button, scope="col", class_="num" if column.right else None)


def _cells(columns: Sequence[Column], row: Any) -> Iterable[str]:
    for index, column in enumerate(columns):
        given = column.cell(row)
        title = ""
        if isinstance(given, Html):
            shown: str = given
        else:
            shown = plain(given)
            if len(shown) > _LONG:
                title = f' title="{html.escape(shown)}"'
                shown = plain(shown, _LONG)
            shown = html.escape(shown)
        number = None if column.value is None else column.value(row)
        value = "" if number is None else f' data-v="{number!r}"'
        css = ' class="num"' if column.right else ""
        tag, scope = ("th", ' scope="row"') if index == 0 else ("td", "")
        yield f"<{tag}{scope}{css}{value}{title}>{shown}</{tag}>"
