"""HTML as text that is either escaped or marked as safe; nothing else gets onto the page."""

from __future__ import annotations

import html
import re
from typing import Any

__all__ = ["Html", "dotted", "el", "join", "plain", "text"]

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
