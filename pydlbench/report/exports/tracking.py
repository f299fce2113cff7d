"""Times for services that plot them over commits: Bencher, and github-action-benchmark.

Bencher's metric format: https://bencher.dev/docs/reference/bencher-metric-format;
github-action-benchmark's tool ``customSmallerIsBetter``:
https://github.com/benchmark-action/github-action-benchmark. Names identify a row, and do not change
from run to run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.records.run import RunRecord
from pydlbench.records.user_model import rate_unit
from pydlbench.report.csv import TIMES
from pydlbench.store.entry import Entry
from pydlbench.words import AS_BUILT

#: Fields of a row's name in order, and defaults that are left out.
_IDENTITY: Final = (
    *("layer", "model", "batch", "pass", "propagation", "phase", "precision", "cast", "backend"),
    *("framework", "mode", "cache", "layout_request", "layout", "fuse", "feed", "device"),
    "threads",
)
_DEFAULTS: Final = {
    "propagation": "inference",
    "cast": "mixed",
    "cache": "hot",
    "layout_request": "best",
    "layout": AS_BUILT,
    "fuse": "none",
    "feed": "resident",
    "device": "cpu",
}
#: Units per second of Bencher's latencies, and of github-action-benchmark's times.
_NANO: Final = 1e9
_MILLI: Final = 1e3
_MAX_NAME_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A row with a time in seconds.

    Attributes:
        name: name of the row.
        median: median time.
        low: lower end of the time's interval; None if there is none.
        high: upper end of the interval.
        n: number of samples.
        per_s: rates by Bencher's names.
    """

    name: str
    median: float
    low: float | None
    high: float | None
    n: int
    per_s: Mapping[str, float]


def write_bencher(runs: Sequence[tuple[RunRecord, Sequence[Entry]]]) -> tuple[str, list[str]]:
    """Return latencies in nanoseconds, with intervals, and rates; and notes on other entries.

    Raises:
        UsageError: nothing was timed.
    """
    rows, notes = _timed(runs)
    metrics = {
        row.name: {
            "latency": _measure(row),
            **{name: {"value": rate} for name, rate in row.per_s.items()},
        }
        for row in rows
    }
    return f"{json.dumps(metrics, indent=1, allow_nan=False)}\n", notes


def _measure(row: TimedRow) -> dict[str, float]:
    values = {"value": row.median, "lower_value": row.low, "upper_value": row.high}
    return {name: _NANO * value for name, value in values.items() if value is not None}


def write_github(runs: Sequence[tuple[RunRecord, Sequence[Entry]]]) -> tuple[str, list[str]]:
    """Return times in milliseconds; and notes on other entries.

    Raises:
        UsageError: nothing was timed.
    """
    rows, notes = _timed(runs)
    values = []
    for row in rows:
        entry: dict[str, Any] = {"name": row.name, "unit": "ms", "value": _MILLI * row.median}
        if row.low is not None and row.high is not None:
            entry["range"] = f"± {_MILLI * (row.high - row.low) / 2:.4g}"
        values.append({**entry, "extra": f"n {row.n}"})
    return f"{json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)}\n", notes


def _timed(runs: Sequence[tuple[RunRecord, Sequence[Entry]]]) -> tuple[list[TimedRow], list[str]]:
    """Return the last timed row of each name; and notes on other entries."""
    rows: dict[str, TimedRow] = {}
    untimed = repeated = 0
    for _, entries in runs:
        for entry in entries:
            row = _row(entry)
            if row is None:
                untimed += 1
                continue
            repeated += row.name in rows
            rows[row.name] = row
    if not rows:
        raise UsageError(
            f"{runs[0][0].id}: has no timed layers, steps or breakdowns; nearest: --format long"
        )
    notes = [f"{untimed} entries without a time are not in it"] if untimed else []
    notes += [f"{repeated} earlier times of the same rows are not in it"] if repeated else []
    return list(rows.values()), notes


def _row(entry: Entry) -> TimedRow | None:
    document = entry.document
    time = document.get(TIMES.get(entry.table, ""))
    if not time or document.get("status", "ok") != "ok":
        return None
    counted = rate_unit(document.get("own")).removesuffix("/s")
    rates = {
        "flops-per-second": document.get("tflops"),
        f"{counted}-per-second": document.get("images_per_s"),
    }
    per_s = {name: value for name, value in rates.items() if isinstance(value, float)}
    if "flops-per-second" in per_s:
        per_s["flops-per-second"] *= 1e12
    return TimedRow(
        name=" ".join(_words(document))[:_MAX_NAME_LENGTH],
        median=time["median"],
        low=time.get("ci_low"),
        high=time.get("ci_high"),
        n=time.get("n") or 1,
        per_s=per_s,
    )


def _words(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a row's name; ``layout`` is a setting of steps, but a result of layers."""
    for name in _IDENTITY:
        value = document.get(name)
        if (
            value is None
            or value == _DEFAULTS.get(name)
            or (name == "layout" and "layer" in document)
        ):
            continue
        yield {"batch": f"batch {value}", "threads": f"{value} threads"}.get(name, str(value))
