"""CSV and Markdown of stored runs, as the commands that measured them write both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.e2e_rows import StepRow
    from pydlbench.results import Measurement, RunRecord
    from pydlbench.results.store import Entry, Loaded

__all__ = ["markdown", "run_markdown", "to_csv"]


def to_csv(loaded: Sequence[Loaded]) -> tuple[str, list[str]]:
    """Return the lines of all layers, or, where there is none, of all steps; and what is left out.

    Raises:
        UsageError: there is neither.
    """
    from pydlbench.report.e2e_export import to_csv as steps_csv
    from pydlbench.results.export_csv import to_csv as layers_csv

    texts = [layers_csv(one.record, rows) for one in loaded if (rows := _layers(one.entries))]
    written = "layer"
    if not texts:
        texts = [steps_csv(one.record, steps) for one in loaded if (steps := _steps(one.entries))]
        written = "step"
    if not texts:
        raise UsageError(
            f"{loaded[0].info.id}: has neither layers nor steps, and csv has columns for nothing "
            "else; nearest: --format long"
        )
    rest = sum(entry.table != written for one in loaded for entry in one.entries)
    notes = [f"{rest} entries of other kinds are not in it; --format json has all"] if rest else []
    # One heading, however many runs.
    return texts[0] + "".join(text.partition("\n")[2] for text in texts[1:]), notes


def markdown(one: Loaded) -> str:
    """Return a loaded run as a section that can be pasted into a page."""
    return run_markdown(one.record, one.entries)


def run_markdown(run: RunRecord, entries: Sequence[Entry]) -> str:
    """Return a run as a section that can be pasted into a page."""
    from pydlbench.report.conclusion import conclude
    from pydlbench.report.e2e_conclusion import conclude as conclude_steps
    from pydlbench.report.e2e_export import to_markdown as steps_markdown
    from pydlbench.report.e2e_rows import settings
    from pydlbench.report.peaks import measured_peaks
    from pydlbench.results.export_markdown import to_markdown
    from pydlbench.results.export_tables import document_tables

    blocks = []
    rows = _layers(entries)
    if rows:
        timed = [row for row in rows if row.ok]
        threads = timed[0].threads if timed else None
        notes = conclude(rows, measured_peaks(run.device_for(threads)))
        blocks.append(to_markdown(run, rows, notes).rstrip("\n"))
    steps = _steps(entries)
    others: dict[str, list[dict[str, object]]] = {}
    for entry in entries:
        others.setdefault(entry.table, []).append(entry.document)
    # Of several models or settings the full table has no common heading: the short one names each.
    if len(set(settings([row.record for row in steps]))) == 1:
        text = steps_markdown(run, steps, conclude_steps(steps))
        blocks.append(text.rstrip("\n"))
        del others["step"]
    blocks += document_tables(others)
    if not rows:
        blocks.append(f"Run {run.id}, {run.created_utc}.")
    return "\n\n".join(blocks) + "\n"


def _layers(entries: Sequence[Entry]) -> list[Measurement]:
    from pydlbench.results import Measurement

    found = [entry.document for entry in entries if entry.table == "layer"]
    return [Measurement.from_dict(document) for document in found]


def _steps(entries: Sequence[Entry]) -> list[StepRow]:
    from pydlbench.endtoend import StepRecord
    from pydlbench.models import build_model
    from pydlbench.report.e2e_rows import StepRow

    found = []
    for entry in entries:
        if entry.table == "step":
            record = StepRecord.from_dict(entry.document)
            case = record.case
            model = build_model(case.model, case.batch, **case.options)
            found.append(StepRow.of(record, [model]))
    return found
