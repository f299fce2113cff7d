"""Kinds of lines by the format strings that print them, and whether an output has that form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FIELD = re.compile(r"%(?P<left>-?)(?P<width>\d*)(?:\.(?P<digits>\d+))?(?P<kind>[sdif%])")
# The longest word that a field of a fixed width is tried with.
_LONGEST = 40


@dataclass(frozen=True)
class Form:
    """A kind of line.

    Attributes:
        letter: stands for it in a document's order.
        text: the script's format string, in the manner of printf.
        words: regular expressions of its ``%s``, in their order.
    """

    letter: str
    text: str
    words: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What every line of this kind matches, and no other text does."""
        return re.compile(pattern(self.text, self.words))


def pattern(text: str, words: Sequence[str] = ()) -> str:
    """Return the regular expression of what a format string prints.

    Args:
        text: with ``%s``, ``%d`` or ``%i``, ``%.3f``, ``%%``, and widths: ``%-30s``, ``%10.2f``;
            words of a width have no spaces in them, and one behind them.
        words: regular expressions of the ``%s``, in their order.

    Raises:
        ValueError: another number of words than of ``%s``.
    """
    left = list(words)
    parts, end = [], 0
    for field in _FIELD.finditer(text):
        parts.append(_literal(text[end : field.start()]))
        end = field.end()
        if field["kind"] == "s" and not left:
            raise ValueError(f"{text!r}: more %s than words")
        parts.append(_field(field, left))
    if left:
        raise ValueError(f"{text!r}: {len(left)} words too many")
    return "".join([*parts, _literal(text[end:])])


def _literal(text: str) -> str:
    """Return what text outside of fields matches; a page that shows a tab may have spaces."""
    return "[\\t ]+".join(map(re.escape, text.split("\t")))


def _field(field: re.Match[str], words: list[str]) -> str:
    width = int(field["width"] or 0)
    if field["kind"] == "%":
        return "%"
    if field["kind"] == "s":
        word = words.pop(0)
        if not width:
            return f"(?:{word})"
        return _padded(lambda count: rf"(?=\S{{{count}}}(?!\S))(?:{word})", width, field["left"])
    digits = int(field["digits"] or 6)
    if field["kind"] in "di":
        return r"-?\d+" if not width else _padded(lambda n: rf"\d{{{n}}}", width, field["left"])
    if not width:
        return rf"-?\d+\.\d{{{digits}}}"
    behind = digits + 1
    return _padded(
        lambda n: rf"\d{{{n - behind}}}\.\d{{{digits}}}", width, field["left"], behind + 1
    )


def _padded(of_length: Callable[[int], str], width: int, left: str, least: int = 1) -> str:
    """Return all lengths that a field of a width can have, each with the spaces it gets."""
    found = []
    for count in range(least, max(width, _LONGEST) + 1):
        spaces = " " * max(0, width - count)
        found.append(of_length(count) + spaces if left else spaces + of_length(count))
    return f"(?:{'|'.join(found)})"


def kinds(forms: Sequence[Form], lines: Sequence[str]) -> str:
    """Return the letter of each line's form; ``?`` for a line that no script prints."""
    return "".join(
        next((form.letter for form in forms if form.pattern.fullmatch(line.rstrip())), "?")
        for line in lines
    )


def differences(forms: Sequence[Form], order: str, lines: Sequence[str]) -> list[str]:
    """Return how an output differs from the form of the script's; nothing where it does not.

    Args:
        forms: every kind of line.
        order: a regular expression of their letters.
        lines: the output.
    """
    found = kinds(forms, lines)
    wrong = [
        f"line {number}: no script prints {line!r}"
        for number, (letter, line) in enumerate(zip(found, lines, strict=True), start=1)
        if letter == "?"
    ]
    if not wrong and not re.fullmatch(order, found):
        wrong.append(f"lines come in the order {found}, not in {order}")
    return wrong
