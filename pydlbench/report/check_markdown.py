"""Markdown of ``check``: the ladder, each ledger, and the conclusions, to paste into a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.check_conclusion import check_conclusion
from pydlbench.report.check_ladder import TITLES, ladder_cells
from pydlbench.report.check_numbers import Scale, signed_percent
from pydlbench.report.check_table import errors_line, faults_line, ledger_rows, summary_parts
from pydlbench.results.heading import device_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.report.check_ladder import Limits
    from pydlbench.report.check_result import CheckResult
    from pydlbench.results import RunRecord

__all__ = ["checks_markdown", "markdown_table"]


def checks_markdown(
    run: RunRecord, results: Sequence[CheckResult], limits: Limits, *, diagnose: bool = False
) -> str:
    """Return a section, ending in a newline.

    Args:
        run: where and when.
        results: checks of the same step.
        limits: the step's two lowest rungs.
        diagnose: whether there is a command of that name to point to.
    """
    records = [one.record for one in results if one.record is not None]
    blocks = [_escape(device_name(run.device))]
    if records:
        blocks.append(_ladder(records, limits))
    for one in results:
        if one.record is None:
            blocks.append(f"- {one.status}: {one.who}: {_escape(str(one.reason))}")
        else:
            blocks += _section(one.record, diagnose)
    if run.id:
        blocks.append(f"Run {_escape(run.id)}, {_escape(run.created_utc)}.")
    return "\n\n".join(blocks) + "\n"


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table whose first columns are aligned to the left, the others to the right."""
    ruler = [":---" if number < left else "---:" for number in range(len(titles))]
    cells = [titles, ruler, *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(one)} |" for one in cells)


def _ladder(records: Sequence[CheckRecord], limits: Limits) -> str:
    scale = Scale.of(max(one.measured.median for one in records))
    rows = [
        [
            f"{one.framework} {one.mode}",
            *ladder_cells(one, limits, scale),
            signed_percent(one.error),
            signed_percent(one.error_native),
            signed_percent(one.unexplained),
        ]
        for one in records
    ]
    return markdown_table(["step", *TITLES, "error", "native", "unexplained"], rows)


def _section(record: CheckRecord, diagnose: bool) -> list[str]:
    rows = [[term, time, share, detail] for term, time, share, _, detail in ledger_rows(record)]
    notes = [errors_line(record), faults_line(record), *(f"note: {one}" for one in record.notes)]
    sentences = check_conclusion(record, diagnose=diagnose)
    return [
        "  \n".join(_escape(part) for part in summary_parts(record)),
        markdown_table(["term", "time", "share", "what stands out"], rows),
        "  \n".join(_escape(line) for line in [*notes, *sentences]),
    ]


def _escape(text: str) -> str:
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
