"""Markdown: the heading, one table, and the rows without a time with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.results.axes import label, varying
from pydlbench.results.columns import columns
from pydlbench.results.heading import heading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.results.records import Measurement, RunRecord

__all__ = ["to_markdown"]


def to_markdown(
    run: RunRecord, measurements: Sequence[Measurement], notes: Sequence[str] = ()
) -> str:
    """Return a section that can be pasted into a page.

    Args:
        run: The run.
        measurements: Its rows.
        notes: Sentences below the table.
    """
    timed = [row for row in measurements if row.ok]
    axes = varying(measurements)
    blocks = ["  \n".join(_escape(line) for line in heading(run, timed or measurements))]
    if timed:
        found = columns(timed)
        table = [
            _line([column.title for column in found]),
            _line(["---:" if column.right else ":---" for column in found]),
        ]
        table += [_line([_escape(column.cell(row)) for column in found]) for row in timed]
        blocks.append("\n".join(table))
    rest = [row for row in measurements if not row.ok]
    if rest:
        blocks.append(
            "\n".join(
                f"- {row.status}: {_escape(label(row, axes))}: "
                f"{_escape(row.reason or 'no reason recorded')}"
                for row in rest
            )
        )
    blocks += [_escape(note) for note in notes]
    if run.id:
        blocks.append(f"Run {_escape(run.id)}, {_escape(run.created_utc)}.")
    return "\n\n".join(blocks) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    # A descriptor may hold n"*_x*"; a reason may hold anything.
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
