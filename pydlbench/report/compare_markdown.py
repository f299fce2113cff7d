"""A comparison as Markdown, for a pull request or a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.check_markdown import markdown_table
from pydlbench.report.compare_conclusion import conclude
from pydlbench.report.compare_table import table
from pydlbench.report.compare_words import left_over, legend, side_lines, unclear_reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.compare import Comparison

__all__ = ["comparison_markdown"]


def comparison_markdown(found: Comparison) -> str:
    """Return the conclusion in bold, the sides, warnings, all rows, and what has no partner."""
    first, *rest = conclude(found)
    blocks = [" ".join([f"**{_escape(first)}**", *map(_escape, rest)]), _lines(side_lines(found))]
    blocks += [_list([f"warning: {one.text}" for one in found.differences])]
    titles, cells, _ = table(found, found.rows)
    blocks.append(markdown_table([title or "layer" for title in titles], cells))
    others = [*left_over(found), *unclear_reasons(found), *found.notes]
    blocks += [_list(others), _lines(legend(found))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _lines(lines: Sequence[str]) -> str:
    return "  \n".join(map(_escape, lines))


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _escape(text: str) -> str:
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
