"""The printer of pages: blocks as one HTML file that loads nothing.

The page is a tree of elements whose texts and attributes are escaped on output, so that no text of
a run can become markup.
"""

import base64
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from itertools import zip_longest
from typing import Any, Final
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from pydlbench.report.blocks import (
    Block,
    Details,
    Facts,
    Figure,
    Heading,
    Headline,
    Lines,
    TableBlock,
)
from pydlbench.report.drawing import DARK, LIGHT, svg
from pydlbench.version import __version__

#: Maximum number of rows of a table, and of figures of a kind, on a page; more make a browser slow.
MAX_ROWS: Final = 3000
MAX_FIGURES: Final = 6
# Control characters are invalid in HTML; single surrogates have no UTF-8.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_COMMAND: Final = re.compile(r"(next: |try: |run: )(.*)")
_MAX_CELL_WIDTH: Final = 60  # longer texts of cells are wrapped
_SEEN: Final = (TableBlock, Figure)
_MAX_BESIDE: Final = 6  # columns of a table beside another one or a figure
_MAX_SCALE: Final = 1.25  # of a figure on a wide screen
_NAMESPACES: Final = re.compile(r' xmlns(:xlink)?="[^"]*"')
_INLINE: Final = frozenset(("a", "button", "code", "dt", "span", "td", "th"))


def page(title: str, subtitle: str, sections: Sequence[tuple[str, Sequence[Block]]]) -> str:
    """Return a page, ending in a newline.

    Args:
        title: title of the page.
        subtitle: the runs that it shows.
        sections: title and blocks of each section; several have links to them.

    Raises:
        PydlbenchError: vl-convert, which draws figures, cannot be imported.
    """
    script = f"\n{_data('page.js')}"
    # The policy allows no loading and no other script, so that a name cannot inject one.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    printer = _Printer()
    named = [(f"section-{at}", name, blocks) for at, (name, blocks) in enumerate(sections, start=1)]
    links = [_tag("li", _tag("a", name, href=f"#{ident}")) for ident, name, _ in named]
    head = _tag(
        "head",
        _tag("meta", charset="utf-8"),
        _tag("meta", http_equiv="Content-Security-Policy", content=policy),
        _tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _tag("meta", name="color-scheme", content="light dark"),
        _tag("title", title),
        _raw("style", _colors() + _data("page.css")),
    )
    body = _tag(
        "body",
        _tag("a", "to the content", href="#section-1", class_="skip"),
        _tag("header", _tag("h1", title), _tag("p", subtitle, class_="subtitle")),
        *([_tag("nav", _tag("ul", *links), aria_label="sections")] if len(links) > 1 else []),
        _tag(
            "main",
            *(
                _tag("section", _tag("h2", name), *printer.elements(blocks), id=ident)
                for ident, name, blocks in named
            ),
        ),
        _tag("footer", _tag("p", f"made by pydlbench {__version__}; this file loads nothing else")),
        _raw("script", script),
    )
    whole = ET.tostring(_tag("html", head, body, lang="en"), "unicode", method="html")
    return f"<!DOCTYPE html>\n{whole}"


def fragment(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML to embed in another page, such as a notebook."""
    whole = _tag("div", *_Printer().elements(blocks))
    return ET.tostring(whole, "unicode", method="html")


class _Printer:
    """Prints the blocks of one page; counts its figures."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()

    def elements(self, blocks: Iterable[Block]) -> Iterator[Element]:
        """Yield the elements of blocks, without empty ones.

        Tables and figures that follow one another stand side by side on a wide screen.
        """
        for seen, some in itertools.groupby(blocks, lambda block: isinstance(block, _SEEN)):
            elements = self._elements(some)
            yield from [_tag("div", *elements, class_="beside")] if seen else elements

    def _elements(self, blocks: Iterable[Block]) -> Iterator[Element]:
        for block in blocks:
            match block:
                case Heading(lines=lines, bold=bold):
                    parts = [" \N{MIDDLE DOT} ".join(_items(line)) for line in lines]
                    yield from map(_heading_line, parts, range(-bold, len(parts)))
                case Lines(lines=lines) if lines:
                    css = "lines headline" if isinstance(block, Headline) else "lines"
                    yield _tag("div", *_lines(block), class_=css)
                case Facts(title=title, facts=facts) if facts:
                    yield from [_tag("h3", title)] if title else []
                    yield _tag("dl", *_facts(facts), class_="facts")
                case TableBlock(cells=cells) if cells:
                    yield from _table(block)
                case Figure():
                    yield self._figure(block)
                case Details(summary=summary, blocks=below, span=span):
                    heading = _tag("summary", summary, style=_bar(span), class_=span and "part")
                    yield _tag("details", heading, *self.elements(below))

    def _figure(self, figure: Figure) -> Element:
        self._kinds[figure.kind] += 1
        count, title = self._kinds[figure.kind], figure.title
        if count > MAX_FIGURES:
            return _tag("p", f"{title}: only the first {MAX_FIGURES} figures are drawn")
        charts = []
        for narrow in (False, True):
            text = _NAMESPACES.sub("", svg(figure, themed=True, narrow=narrow))
            # The converter's output is well-formed and has no entities.
            drawn = ET.fromstring(text)  # noqa: S314 - ours
            drawn.attrib.pop("height")
            drawn.set("style", f"max-width:{_MAX_SCALE * float(drawn.attrib.pop('width')):.0f}px")
            drawn.set("role", "img")
            drawn.set("aria-label", _plain(figure.text))
            for mark in drawn.iter("path"):
                if (label := mark.get("aria-label")) is not None:  # shown as a tooltip
                    mark.append(_tag("title", label))
            css = f"chart {'narrow' if narrow else 'wide'}"
            charts.append(
                _tag("div", drawn, class_=css, tabindex="0", role="region", aria_label=title)
            )
        return _tag(
            "figure",
            _tag("h3", title),
            *charts,
            _tag("figcaption", figure.caption),
            id=f"{figure.kind}-{count}",
        )


def _tag(name: str, /, *children: Element | str, **attributes: str | None) -> Element:
    """Return an element; ``class_`` is ``class``, ``aria_label`` is ``aria-label``."""
    named = {
        key.rstrip("_").replace("_", "-"): _plain(value)
        for key, value in attributes.items()
        if value is not None
    }
    element = ET.Element(name, named)
    for child in children:
        if not isinstance(child, str):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + _plain(child)
        else:
            element.text = (element.text or "") + _plain(child)
    element.tail = None if name in _INLINE else "\n"
    return element


def _raw(name: str, text: str) -> Element:
    """Return an element with one of our style sheets or scripts, which is not escaped."""
    element = ET.Element(name)
    element.text = text
    return element


def _plain(text: Any) -> str:
    return " ".join(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text)).split(" "))


def _bar(span: tuple[float, float] | None) -> str | None:
    """Return the place of the bar behind a summary, as a style."""
    if span is None:
        return None
    start, length = span
    # A background's position is a share of the room beside it.
    place = start / (1 - length) if length < 1 else 0.0
    return f"background-size:{100 * length:.3f}% 100%;background-position:{100 * place:.3f}% 0"


def _items(line: str) -> list[str]:
    return [item.strip() for item in line.split("  ") if item.strip()]


def _heading_line(text: str, place: int) -> Element:
    return _tag("p", text, class_="first" if place < 0 else "setting")


def _lines(block: Lines) -> Iterator[Element]:
    if block.title:
        yield _tag("p", block.title)
    css = "alarm" if block.alarm else None
    if block.listed:
        yield _tag("ul", *(_tag("li", *_words(line), class_=css) for line in block.lines))
        return
    for at, line in enumerate(block.lines):
        yield _tag("p", *_words(line), class_="first" if at < block.bold else css)


def _words(line: str) -> list[Element | str]:
    """Return a line, with a command in it as code."""
    if command := _COMMAND.fullmatch(line):
        return [command[1], _tag("code", command[2])]
    return [" ".join(line.split())]


def _facts(facts: Iterable[tuple[str, str]]) -> Iterator[Element]:
    before = None
    for label, text in facts:
        if label != before:
            yield _tag("dt", label)
        before = label
        yield _tag("dd", _tag("code", text) if label in ("next", "command") else text)


def _table(table: TableBlock) -> Iterator[Element]:
    # Columns without a title are drawings for terminals.
    titled = [at for at, title in enumerate(table.titles) if title]
    css = [("num" if table.right[at] else None) for at in range(len(table.titles))]
    heads = [
        _tag("th", _tag("button", table.titles[at], type="button"), scope="col", class_=css[at])
        for at in titled
    ]
    rows: list[Element] = []
    shown = zip_longest(table.cells[:MAX_ROWS], table.values[:MAX_ROWS], fillvalue=())
    for number, (cells, values) in enumerate(shown):
        if number in table.above:
            across = _tag("th", table.above[number], colspan=str(len(titled)), scope="rowgroup")
            rows.append(_tag("tr", across))
        row = _tag("tr", class_="alarm" if number in table.alarms else None)
        for at in titled:
            value = values[at] if values else None
            exact = None if value is None else repr(value)
            text = cells[at]
            inner = _tag("span", text) if len(text) > _MAX_CELL_WIDTH else text
            name, scope = ("th", "row") if at == titled[0] else ("td", None)
            row.append(_tag(name, inner, scope=scope, class_=css[at], data_v=exact))
        rows.append(row)
    whole = _tag(
        "table",
        _tag("thead", _tag("tr", *heads)),
        _tag("tbody", *rows),
        class_=None if table.above else "sortable",
    )
    label = f"table by {table.titles[titled[0]]}"
    wide = "scroll across" if len(titled) > _MAX_BESIDE else "scroll"
    yield _tag("div", whole, class_=wide, role="region", tabindex="0", aria_label=label)
    if len(table.cells) > MAX_ROWS:
        total = len(table.cells)
        yield _tag("p", f"The first {MAX_ROWS} rows of {total}; an export has all of them.")


def _colors() -> str:
    """Return the style sheet's colours: the light theme, and the dark one for dark screens."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in theme.items()) for theme in (LIGHT, DARK)
    )
    # The dark theme is for screens only, not for print.
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
    )


def _data(name: str) -> str:
    return resources.files("pydlbench.report").joinpath(name).read_text(encoding="utf-8")
