"""Everything in long form: a line per measurement, and one per sample of it behind that.

For data frames, of layers, steps and checks alike. A line of a measurement has no sample and all
that is known; those of its samples have what tells it from others, so that thousands of samples do
not repeat a hundred columns each.
"""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.results.export_csv import CSV_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydlbench.results.records import RunRecord
    from pydlbench.results.store import Entry

__all__ = ["LONG_COLUMNS", "long_rows", "to_long"]

_RUN: Final = ("run_id", "created_utc")
_STEP: Final = (
    *("model", "phase", "framework", "cast", "feed", "option", "images_per_s", "faults", "busy"),
    *("checks", "estimate_s", "estimate_low_s", "estimate_high_s", "error", "unexplained"),
    *("protocol", "number", "value", "unit"),
)
# What the lines of samples have as well.
_IDENTITY: Final = (
    *("layer", "kind", "problem", "batch", "pass", "propagation", "precision", "device", "threads"),
    *("backend", "mode", "cache", "timing", "fuse", "layout_request", "model", "phase"),
    *("framework", "cast", "layout", "feed", "option", "protocol", "number"),
)
#: ``table`` is ``layer``, ``step``, ``check``, ``estimate`` or ``protocol``; ``sample`` counts from
#: 0 and is empty in the line of the measurement. Of a protocol, each number that its script prints
#: has lines of its own.
LONG_COLUMNS: Final = (
    *(*_RUN, "table", "sample", "sample_s"),
    *(name for name in CSV_COLUMNS if name not in (*_RUN, "faults_default", "faults_warm")),
    *("faults_default", "faults_warm", *_STEP),
)
_TIMES: Final = {"layer": "time_s", "step": "time_s", "check": "measured_s"}


def to_long(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> str:
    """Return the heading and the lines; what is unknown is an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, LONG_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in long_rows(runs):
        writer.writerow({name: _cell(row.get(name)) for name in LONG_COLUMNS})
    return buffer.getvalue()


def long_rows(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> Iterator[dict[str, Any]]:
    """Yield a flat dict for each measurement, then for each of its samples.

    Values are texts, numbers, booleans or None; the names are those of :data:`LONG_COLUMNS`.
    """
    for run, entries in runs:
        for entry in entries:
            head = {"run_id": run.id, "created_utc": run.created_utc, "table": entry.table}
            for row, samples in _measured(entry):
                yield {**row, **head, "sample": None, "sample_s": None}
                named = head | {name: row.get(name) for name in _IDENTITY}
                for index, seconds in enumerate(samples):
                    yield {**named, "sample": index, "sample_s": seconds}


def _measured(entry: Entry) -> Iterator[tuple[dict[str, Any], list[float]]]:
    """Yield what an entry measured, with its samples; sentences are no measurements."""
    if entry.table in ("findings", "agreement"):
        return
    row = _flat(entry.table, entry.document)
    if entry.table != "protocol":
        yield row, _samples(entry)
        return
    for number in entry.document["numbers"]:
        named = {"number": number["name"], "value": number["value"], "unit": number["unit"]}
        yield {**row, **named}, list(number.get("times") or ())


def _samples(entry: Entry) -> list[float]:
    if entry.table == "check":
        return [one["measured_s"] for one in entry.document.get("rounds") or ()]
    if entry.samples is not None:
        return list(entry.samples)
    return list(entry.document.get("samples_s") or ())


def _flat(table: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document's values by column, nested ones behind their parent's name."""
    row: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            parent = "time_s" if name == _TIMES.get(table) else name
            for key, item in value.items():
                row[f"{parent}_{key}"] = _scalar(item)
        else:
            row[name] = _scalar(value)
    if table == "estimate":
        found = document.get("estimate") or {}
        row |= {
            "time_s_median": found.get("time_s"),
            "estimate_low_s": found.get("low"),
            "estimate_high_s": found.get("high"),
            "images_per_s": found.get("images_per_s"),
        }
    if table == "check":
        row |= {
            "estimate_low_s": document.get("native_low_s"),
            "estimate_high_s": document.get("native_high_s"),
        }
    options = document.get("options")
    if options:
        row["option"] = " ".join(f"{name}={value}" for name, value in sorted(options.items()))
    reorders = document.get("reorder_s")
    if isinstance(reorders, dict):
        row["reorder_s"] = sum(reorders.values()) if reorders else None
    return {name: row.get(name) for name in LONG_COLUMNS}


def _scalar(value: Any) -> Any:
    """Return a list as text: sentences after each other, anything else as JSON."""
    if not isinstance(value, (list, tuple)):
        return value if value is None or isinstance(value, (str, int, float)) else str(value)
    if all(isinstance(one, str) for one in value):
        return "; ".join(value)
    if value and all(isinstance(one, dict) and "name" in one and "status" in one for one in value):
        return "; ".join(f"{one['name']} {one['status']}" for one in value)
    if value and all(isinstance(one, dict) and "cause" in one for one in value):
        return "; ".join(f"{one['cause']} {one['share']:.0%}" for one in value)
    return json.dumps(value)


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return ("true" if value else "false") if isinstance(value, bool) else value
