"""CSV and Parquet: a line per measurement, nested values flattened, each with its run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pydlbench.records.breakdown import LEVELS
from pydlbench.records.fields import flat_names
from pydlbench.records.measurement import Measurement
from pydlbench.records.step import StepRow
from pydlbench.report.text import csv_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydlbench.records.run import RunRecord
    from pydlbench.store.entry import Entry


# -----------------------------------------------------------------------------
# Layers in CSV: one line per measurement, nested values flattened, every line with its run.

#: Of layers; those of steps are :data:`pydlbench.report.step.CSV_COLUMNS`.
CSV_COLUMNS: Final = ("run_id", "created_utc", *flat_names(Measurement))


def to_csv(run: RunRecord, measurements: Sequence[Measurement]) -> str:
    """Return the header and one line per measurement.

    What is unknown is an empty cell. ``reorder_s`` is the sum over the operands; raw samples and
    candidates are in JSON only.
    """
    documents = (measurement.to_dict() for measurement in measurements)
    return csv_text(CSV_COLUMNS, flat_lines(run, "layer", CSV_COLUMNS, documents))


def flat_lines(
    run: RunRecord, table: str, columns: Sequence[str], documents: Iterable[Mapping[str, Any]]
) -> Iterator[list[Any]]:
    """Yield the values of a document's line: texts, numbers and booleans; None where unknown.

    Args:
        run: that they are of.
        table: of the store that they belong to.
        columns: names of the line's values.
        documents: JSON objects of layers or steps.
    """
    head = {"run_id": run.id, "created_utc": run.created_utc}
    for document in documents:
        row = flat_row(table, document) | head
        yield [row.get(name) for name in columns]


# -----------------------------------------------------------------------------
# Everything in long form: a line per measurement, and one per sample of it behind that.
#
# For data frames, of layers, steps and checks alike. A line of a measurement has no sample and all
# that is known; those of its samples have what tells it from others, so that thousands of samples
# do not repeat a hundred columns each.

_RUN: Final = ("run_id", "created_utc")
_STEP: Final = (
    *("model", "phase", "framework", "cast", "feed", "option", "images_per_s", "samples_per_s"),
    *("faults", "busy"),
    *("checks", "estimate_low_s", "estimate_high_s"),
    *("additivity_error", "forecast_s", "forecast_error", "unexplained"),
    *(f"{level}_s" for level in LEVELS),
    *("protocol", "number", "value", "unit"),
)
# What the lines of samples have as well.
_IDENTITY: Final = (
    *("layer", "kind", "problem", "batch", "pass", "propagation", "precision", "device", "threads"),
    *("backend", "mode", "cache", "timing", "fuse", "layout_request", "model", "phase"),
    *("framework", "cast", "layout", "feed", "option", "protocol", "number"),
)
#: ``table`` is ``layer``, ``step``, ``breakdown``, ``estimate`` or ``protocol``; ``sample`` counts
#: from 0 and is empty in the line of the measurement. Of a protocol, each number that its script
#: prints has lines of its own.
LONG_COLUMNS: Final = tuple(
    dict.fromkeys(
        (*_RUN, "table", "sample", "sample_s", *CSV_COLUMNS, *flat_names(StepRow), *_STEP)
    )
)
_TIMES: Final = {"layer": "time_s", "step": "time_s", "breakdown": "measured_s"}


def to_long(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> str:
    """Return the heading and the lines; what is unknown is an empty cell."""
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
    """Yield what an entry measured, with its samples; sentences are no measurements."""
    if entry.table in ("findings", "agreement"):
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
    return {name: row.get(name) for name in LONG_COLUMNS}


def _scalar(value: Any) -> Any:
    """Return a list as text: sentences after each other, anything else as JSON."""
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
# The six columns in which deep-learning-benchmark's results are passed on.
#
# =========== ==========================================================================
# Timestamp   when the run began
# Framework   ``pytorch`` or ``tensorflow``; behind a dash the mode, if it is not the default
# Algorithm   the model
# BenchStage  ``eval`` (forward), ``train`` (forward-backward, what that benchmark calls so) or
#             ``training`` (with loss and optimizer, which it has not)
# Precision   ``fp32``, ``fp16``...
# Result      median of a step in milliseconds; where that benchmark's own protocol was played
#             it is the mean, as there
# =========== ==========================================================================
#
# The batch has no column there. Format: the wrapper around u39kun/deep-learning-benchmark.

DLB_COLUMNS: Final = ("Timestamp", "Framework", "Algorithm", "BenchStage", "Precision", "Result")
_FRAMEWORKS: Final = {"torch": "pytorch"}
_STAGES: Final = {"forward": "eval", "forward-backward": "train"}
_DEFAULT_MODES: Final = ("eager", "graph", None)
_PROTOCOL: Final = "deep-learning-benchmark"
_DLB_TIMES: Final = {"step": "time_s", "breakdown": "measured_s"}


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
    """Yield stage and milliseconds of what an entry timed."""
    document: Mapping[str, Any] = entry.document
    if entry.table == "protocol":
        if document.get("protocol") == _PROTOCOL:
            for number in document["numbers"]:  # "vgg16 eval"
                yield number["name"].rpartition(" ")[2], number["value"]
        return
    time = document.get(_DLB_TIMES.get(entry.table, ""))
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
    types = {"text": pa.string(), "float": pa.float64()}
    types |= {"int": pa.int64(), "bool": pa.bool_()}
    table = pa.table(
        {name: pa.array(values, type=types[kind]) for name, (kind, values) in columns.items()}
    )
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _column(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the narrowest kind that holds all values, and the values in it."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds or str in kinds:
        return "text", [None if value is None else str(value) for value in values]
    if kinds == {bool}:
        return "bool", list(values)
    if kinds == {int} and all(abs(value) < 1 << 63 for value in values if value is not None):
        return "int", list(values)
    return "float", [None if value is None else float(value) for value in values]
