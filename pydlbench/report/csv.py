"""CSV and Parquet: a line per measurement with its run, nested values flattened."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydlbench.records.breakdown import LEVELS
from pydlbench.records.measurement import Measurement
from pydlbench.records.record import flat_names
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepRow
from pydlbench.report.text import csv_text
from pydlbench.store.entry import Entry

# -----------------------------------------------------------------------------
# Layers in CSV.

#: Columns of layers; those of steps are :data:`pydlbench.report.step.CSV_COLUMNS`.
CSV_COLUMNS: Final = ("run_id", "created_utc", *flat_names(Measurement))


def to_csv(run: RunRecord, measurements: Sequence[Measurement]) -> str:
    """Return the header and one line per measurement.

    Unknown values are empty cells. ``reorder_s`` is the sum over the operands; raw samples and
    candidates are in JSON only.
    """
    documents = (measurement.to_dict() for measurement in measurements)
    return csv_text(CSV_COLUMNS, flat_lines(run, "layer", CSV_COLUMNS, documents))


def flat_lines(
    run: RunRecord, table: str, columns: Sequence[str], documents: Iterable[Mapping[str, Any]]
) -> Iterator[list[Any]]:
    """Yield the values of each document's line: texts, numbers and booleans; None if unknown.

    Args:
        run: run of the documents.
        table: table of the store that has the documents.
        columns: names of the line's values.
        documents: JSON objects of layers or steps.
    """
    head = {"run_id": run.id, "created_utc": run.created_utc}
    for document in documents:
        row = flat_row(table, document) | head
        yield [row.get(name) for name in columns]


# -----------------------------------------------------------------------------
# The long form for data frames: a line per measurement, followed by a line per sample of it.
#
# The line of a measurement has all its values and no sample. Those of its samples have only the
# columns that identify it, so that thousands of samples do not repeat a hundred columns each.

_RUN: Final = ("run_id", "created_utc")
_STEP: Final = (
    *("model", "phase", "framework", "cast", "feed", "option", "images_per_s", "samples_per_s"),
    *("faults", "busy"),
    *("checks", "estimate_low_s", "estimate_high_s"),
    *("additivity_error", "forecast_s", "forecast_error", "unexplained"),
    *(f"{level}_s" for level in LEVELS),
    *("protocol", "number", "value", "unit"),
)
# Columns that identify a measurement in the lines of its samples.
_IDENTITY: Final = (
    *("layer", "kind", "problem", "batch", "pass", "propagation", "precision", "device", "threads"),
    *("backend", "mode", "cache", "timing", "fuse", "layout_request", "model", "phase"),
    *("framework", "cast", "layout", "feed", "option", "protocol", "number"),
)
#: ``table`` is ``layer``, ``step``, ``breakdown``, ``estimate`` or ``protocol``; ``sample`` counts
#: from 0 and is empty in the line of the measurement. Each number that a protocol's script prints
#: has its own lines.
LONG_COLUMNS: Final = tuple(
    dict.fromkeys(
        (*_RUN, "table", "sample", "sample_s", *CSV_COLUMNS, *flat_names(StepRow), *_STEP)
    )
)
TIMES: Final = {"layer": "time_s", "step": "time_s", "breakdown": "measured_s"}


def to_long(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> str:
    """Return the heading and the lines; unknown values are empty cells."""
    return csv_text(
        LONG_COLUMNS, ([row.get(name) for name in LONG_COLUMNS] for row in long_rows(runs))
    )


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
    """Yield the measurements of an entry with their samples; findings and agreements have none."""
    if entry.table in ("findings", "agreement", "trace"):
        return
    row = flat_row(entry.table, entry.document)
    if entry.table != "protocol":
        yield row, _samples(entry)
        return
    for number in entry.document["numbers"]:
        named = {"number": number["name"], "value": number["value"], "unit": number["unit"]}
        yield {**row, **named}, list(number.get("times") or ())


def _samples(entry: Entry) -> list[float]:
    if entry.samples is not None:
        return list(entry.samples)
    return list(entry.document.get("samples_s") or ())


def flat_row(table: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by column; the name of a nested value begins with its parent's name."""
    row: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            parent = "time_s" if name == TIMES.get(table) else name
            for key, item in value.items():
                row[f"{parent}_{key}"] = _scalar(item)
        else:
            row[name] = _scalar(value)
    if table == "estimate":
        estimate = document.get("estimate") or {}
        row |= {
            "time_s_median": estimate.get("time_s"),
            "estimate_low_s": estimate.get("low"),
            "estimate_high_s": estimate.get("high"),
            "images_per_s": estimate.get("images_per_s"),
        }
    if document.get("own") is not None:
        row["samples_per_s"] = row.pop("images_per_s", None)
    if table == "breakdown":
        levels = document.get("levels") or {}
        row |= {f"{name}_s": (levels.get(name) or {}).get("median") for name in LEVELS}
    options = document.get("options")
    if options:
        row["option"] = " ".join(f"{name}={value}" for name, value in sorted(options.items()))
    reorders = document.get("reorder_s")
    if isinstance(reorders, dict):
        row["reorder_s"] = sum(reorders.values()) if reorders else None
    # The long form has no lines for calls of traces.
    return {name: row.get(name) for name in (row if table == "trace" else LONG_COLUMNS)}


def _scalar(value: Any) -> Any:
    """Return a list as text: sentences separated by semicolons, anything else as JSON."""
    if not isinstance(value, (list, tuple)):
        return value if value is None or isinstance(value, (str, int, float)) else str(value)
    if all(isinstance(item, str) for item in value):
        return "; ".join(value)
    if value and all(
        isinstance(item, dict) and "name" in item and "status" in item for item in value
    ):
        return "; ".join(f"{item['name']} {item['status']}" for item in value)
    if value and all(isinstance(item, dict) and "cause" in item for item in value):
        return "; ".join(f"{item['cause']} {item['share']:.0%}" for item in value)
    return json.dumps(value)


# -----------------------------------------------------------------------------
# The six columns of deep-learning-benchmark's results.
#
# =========== ==========================================================================
# Timestamp   start of the run
# Framework   ``pytorch`` or ``tensorflow``; ``-MODE`` follows if it is not the default
# Algorithm   the model
# BenchStage  ``eval`` (forward), ``train`` (forward-backward, that benchmark's name) or
#             ``training`` (with loss and optimizer, which that benchmark does not have)
# Precision   ``fp32``, ``fp16``...
# Result      median of a step in milliseconds; for that benchmark's own protocol the mean,
#             as in the benchmark
# =========== ==========================================================================
#
# There is no column for the batch. Format: the wrapper around u39kun/deep-learning-benchmark.

DLB_COLUMNS: Final = ("Timestamp", "Framework", "Algorithm", "BenchStage", "Precision", "Result")
_FRAMEWORKS: Final = {"torch": "pytorch"}
_STAGES: Final = {"forward": "eval", "forward-backward": "train"}
_DEFAULT_MODES: Final = ("eager", "graph", None)
_PROTOCOL: Final = "deep-learning-benchmark"


def to_dlb(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> str:
    """Return the heading and a line for each step that was timed."""
    return csv_text(DLB_COLUMNS, _dlb_rows(runs))


def _dlb_rows(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> Iterator[list[str]]:
    for run, entries in runs:
        for entry in entries:
            for stage, milliseconds in _results(entry):
                document = entry.document
                framework = str(document["framework"])
                name = _FRAMEWORKS.get(framework, framework)
                mode = document.get("mode")
                yield [
                    run.created_utc,
                    name if mode in _DEFAULT_MODES else f"{name}-{mode}",
                    document["model"],
                    stage,
                    document["precision"],
                    # No exponent, however long the step.
                    f"{milliseconds:.4g}" if milliseconds < 9999.5 else f"{milliseconds:.0f}",
                ]


def batches(entries: Iterable[Entry]) -> set[int | None]:
    """Return the batches of the steps that :func:`to_dlb` writes; None is a script's own."""
    return {entry.document.get("batch") for entry in entries if any(_results(entry))}


def _results(entry: Entry) -> Iterator[tuple[str, float]]:
    """Yield stage and milliseconds of an entry's times."""
    document: Mapping[str, Any] = entry.document
    if entry.table == "protocol":
        if document.get("protocol") == _PROTOCOL:
            for number in document["numbers"]:  # "vgg16 eval"
                yield number["name"].rpartition(" ")[2], number["value"]
        return
    time = document.get(TIMES.get(entry.table, "")) if entry.table != "layer" else None
    if time and document.get("status", "ok") == "ok":
        phase = str(document["phase"])
        yield _STAGES.get(phase, phase), 1e3 * time["median"]


# -----------------------------------------------------------------------------
# Parquet: the long form as a typed table.


def to_parquet(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> bytes:
    """Return the file's bytes; columns are float64, int64, bool or text, and null where unknown.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow as pa
    from pyarrow import parquet

    rows = list(long_rows(runs))
    columns = {name: _column([row.get(name) for row in rows]) for name in LONG_COLUMNS}
    types = {"text": pa.string(), "float": pa.float64(), "int": pa.int64(), "bool": pa.bool_()}
    table = pa.table(
        {name: pa.array(values, type=types[kind]) for name, (kind, values) in columns.items()}
    )
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _column(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the narrowest type of all values, and the values converted to it."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds or str in kinds:
        return "text", [None if value is None else str(value) for value in values]
    if kinds == {bool}:
        return "bool", list(values)
    if kinds == {int} and all(abs(value) < 1 << 63 for value in values if value is not None):
        return "int", list(values)
    return "float", [None if value is None else float(value) for value in values]
