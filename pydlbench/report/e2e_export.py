"""Steps as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from pydlbench.report.e2e_table import heading, refused, table
from pydlbench.results.export_json import dump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.report.e2e_rows import StepRow
    from pydlbench.results import RunRecord

__all__ = ["CSV_COLUMNS", "to_csv", "to_json", "to_markdown"]

CSV_COLUMNS = (
    *("run_id", "created_utc", "model", "batch", "phase", "framework", "mode", "precision"),
    *("cast", "layout", "device", "threads", "feed", "library", "status", "reason"),
    *("time_s_median", "time_s_ci_low", "time_s_ci_high", "time_s_min", "time_s_n"),
    *("images_per_s", "flops", "tflops", "faults", "busy", "setup_s", "checks", "contended"),
    "stop_reason",
)


def to_json(
    run: RunRecord,
    rows: Sequence[StepRow],
    agreements: Sequence[Mapping[str, Any]],
    conclusion: Sequence[str],
    *,
    interrupted: bool,
) -> str:
    """Return one object with the run, its steps and what came of comparing frameworks."""
    return dump(
        {
            "interrupted": interrupted,
            "run": run.to_dict(),
            "model": rows[0].record.case.model if rows else None,
            "steps": [row.to_dict() for row in rows],
            "agreements": [dict(one) for one in agreements],
            "conclusion": list(conclusion),
        }
    )


def to_csv(run: RunRecord, rows: Sequence[StepRow]) -> str:
    """Return the header and one line per step; what is unknown is an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells: dict[str, Any] = {"run_id": run.id, "created_utc": run.created_utc}
        cells |= row.to_dict()
        cells |= {f"time_s_{key}": value for key, value in (cells["time_s"] or {}).items()}
        cells["checks"] = "; ".join(f"{one.name} {one.status}" for one in row.record.checks)
        writer.writerow({name: _cell(cells.get(name)) for name in CSV_COLUMNS})
    return buffer.getvalue()


def to_markdown(run: RunRecord, rows: Sequence[StepRow], conclusion: Sequence[str]) -> str:
    """Return a section that can be pasted into a page."""
    blocks = ["  \n".join(_escape(line) for line in heading(run, rows))]
    titles, cells, right = table(rows)
    if cells:
        lines = [titles, ["---:" if flag else ":---" for flag in right]]
        lines += [[_escape(cell) for cell in row] for row in cells]
        blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    rest = [line for group in refused(rows).values() for line in group]
    if rest:
        blocks.append("\n".join(f"- {_escape(line)}" for line in rest))
    blocks += [_escape(line) for line in conclusion]
    return "\n\n".join(blocks) + "\n"


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return ("true" if value else "false") if isinstance(value, bool) else value


def _escape(text: str) -> str:
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return text
