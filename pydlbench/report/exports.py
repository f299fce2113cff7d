"""Results in the formats of other tools.

A format is a function that takes runs with their entries, and returns a file's text and notes on
entries that are not in it.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydlbench.calls.meaning import Value
from pydlbench.calls.seen.aten import TorchName, leaves, read_call
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.grouping import group_by
from pydlbench.records.run import RunRecord
from pydlbench.records.user_model import rate_unit
from pydlbench.report.csv import TIMES
from pydlbench.store.entry import Entry
from pydlbench.words import AS_BUILT

Runs = Sequence[tuple[RunRecord, Sequence[Entry]]]

# -----------------------------------------------------------------------------
# Times for services that plot them over commits: Bencher, and github-action-benchmark.
#
# Bencher's metric format: https://bencher.dev/docs/reference/bencher-metric-format;
# github-action-benchmark's tool ``customSmallerIsBetter``:
# https://github.com/benchmark-action/github-action-benchmark. Names identify a row, and
# do not change from run to run.

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


def write_bencher(runs: Runs) -> tuple[str, list[str]]:
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


def write_github(runs: Runs) -> tuple[str, list[str]]:
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


def _timed(runs: Runs) -> tuple[list[TimedRow], list[str]]:
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


# -----------------------------------------------------------------------------
# Breakdowns and steps as a trace in Chrome's format, which Perfetto and ``chrome://tracing`` open.
#
# A process per step has a track per level: ``limit``, ``native``, ``alone``, ``in context`` and
# ``step``. A track has its modules one after another, the longest first, and in each of them a
# slice per call with the call's time on that level; nothing is aligned between tracks.
#
# Format: "Trace Event Format", Google, 2016; complete events (``X``) in microseconds, and metadata
# (``M``) with the names of processes and threads.

#: Tracks in order, with the field of a call's seconds.
_TRACKS: Final = {
    "limit": "limit_s",
    "native": "native_s",
    "alone": "alone_s",
    "in context": "in_context_s",
}
_STEP: Final = "step"
_TABLES: Final = ("breakdown", "step")
_MICRO: Final = 1e6


def write_trace(runs: Runs) -> tuple[str, list[str]]:
    """Return the trace of all breakdowns and traced steps, and notes on other entries.

    Raises:
        UsageError: there are neither breakdowns nor traced steps.
    """
    events: list[dict[str, Any]] = []
    others = 0
    for run, entries in runs:
        for entry in entries:
            if entry.table in _TABLES and entry.document.get("calls"):
                pid = len({event["pid"] for event in events}) + 1
                events += _step(entry.document, pid, run.id)
            else:
                others += 1
    if not events:
        raise UsageError(
            f"{runs[0][0].id}: has neither breakdowns nor traced steps; nearest: --format long"
        )
    notes = [f"{others} entries without calls are not in it"] if others else []
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False)
    return f"{text}\n", notes


def _step(document: Mapping[str, Any], pid: int, run: str) -> Iterator[dict[str, Any]]:
    what = ("model", "batch", "phase", "precision", "framework", "mode")
    name = " ".join(str(document[key]) for key in what if document.get(key) is not None)
    yield _metadata(pid, "process_name", f"{name} ({run})")
    tracks = [*_TRACKS, _STEP]
    for tid, track in enumerate(tracks, start=1):
        yield _metadata(pid, "thread_name", track, tid)
        yield {**_metadata(pid, "thread_sort_index", "", tid), "args": {"sort_index": tid}}
    for tid, field in enumerate(_TRACKS.values(), start=1):
        yield from _level(document, pid, tid, field)
    yield from _whole(document, pid, len(tracks))


def _metadata(pid: int, what: str, name: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _level(document: Mapping[str, Any], pid: int, tid: int, field: str) -> Iterator[dict[str, Any]]:
    """Yield the slices of modules, each followed by those of its calls."""
    timed = (call for call in document["calls"] if call.get(field))
    modules = group_by(timed, lambda call: str(call["module"]))
    order = {row["module"]: place for place, row in enumerate(document.get("modules") or ())}
    begin = 0.0
    for module in sorted(modules, key=lambda name: order.get(name, len(order))):
        calls = modules[module]
        seconds = sum(call[field] for call in calls)
        yield _slice(module, "module", pid, tid, begin, seconds)
        for call in calls:
            yield _slice(call["operator"], "call", pid, tid, begin, call[field], **_facts(call))
            begin += call[field]


def _whole(document: Mapping[str, Any], pid: int, tid: int) -> Iterator[dict[str, Any]]:
    """Yield the slices of the step, of its calls together, and of the time between calls."""
    calls_s = sum(call["in_context_s"] for call in document["calls"])
    between_s = document.get("between_calls_s") or 0.0
    yield _slice("step", "step", pid, tid, 0.0, calls_s + between_s)
    yield _slice("calls in context", "step", pid, tid, 0.0, calls_s)
    yield _slice("between calls", "step", pid, tid, calls_s, between_s)


def _facts(call: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: call.get(name) for name in ("module", "direction", "count", "flops")}
    facts["share of step"] = call.get("share")
    if call.get("limit_s") is not None and call["in_context_s"] > 0:
        facts["share of limit"] = call["limit_s"] / call["in_context_s"]
    return {name: value for name, value in facts.items() if value is not None}


def _slice(
    name: str, category: str, pid: int, tid: int, begin_s: float, seconds: float, **args: Any
) -> dict[str, Any]:
    place = {"pid": pid, "tid": tid, "ts": _MICRO * begin_s, "dur": _MICRO * max(0.0, seconds)}
    return {"ph": "X", "name": name, "cat": category, **place, "args": args}


# -----------------------------------------------------------------------------
# Operator inputs as TritonBench reads them (``--input-loader FILE``): PyTorch's calls, counted.
#
# Each operator has a list of ``{"count": 2, "inputs": "((T([64, 128], f32), ...), {})"}``: texts
# that TritonBench evaluates to arguments and keywords; ``T(shape, type, strides)`` is a tensor.
# Format: ``tritonbench/operator_loader/aten/input_loader.py`` of meta-pytorch/tritonbench,
# the same as in PyTorch's ``benchmarks/dynamo/microbenchmarks/operator_inp_utils.py``.

_TYPES: Final = {
    "bfloat16": "bf16",
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bool": "b8",
    "complex64": "c64",
    "complex128": "c128",
    "uint8": "u8",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
}


def write_tritonbench(runs: Runs) -> tuple[str, list[str]]:
    """Return the operators that runs have timed for forecasts, and notes on other calls.

    Raises:
        UsageError: there are no calls of PyTorch.
    """
    calls = [
        (str(entry.document.get("signature", "")), 1)
        for _, entries in runs
        for entry in entries
        if entry.table == "operator"
    ]
    return write_calls(calls, runs[0][0].id)


def write_calls(calls: Iterable[tuple[str, int]], source: str) -> tuple[str, list[str]]:
    """Return calls with their counts as TritonBench's inputs, and notes on other calls.

    Args:
        calls: signatures (see :mod:`pydlbench.backends.torch.steps.signature`) with their counts.
        source: name of the run or file.

    Raises:
        UsageError: there is no call of PyTorch that it can read.
    """
    by_operator: dict[str, dict[str, int]] = {}
    unread: dict[str, int] = {}
    for signature, count in calls:
        name = signature.partition("(")[0]
        try:
            inputs = _inputs(signature)
        except UnsupportedError:
            unread[name[:60]] = unread.get(name[:60], 0) + count
            continue
        counts = by_operator.setdefault(name, {})
        counts[inputs] = counts.get(inputs, 0) + count
    if not by_operator:
        raise UsageError(
            f"{source}: has no calls of PyTorch's with their operands; nearest: a trace, "
            "pydlbench export @trace.json.gz --format tritonbench, or a run of forecast"
        )
    document: dict[str, Any] = {"metadata": {"source": f"pydlbench export {source}"}}
    for name, counts in by_operator.items():
        document[name] = [{"count": count, "inputs": text} for text, count in counts.items()]
    named = ", ".join(f"{name} x {count}" for name, count in unread.items())
    notes = [f"not in it, as TritonBench cannot read their operands: {named}"] if unread else []
    return f"{json.dumps(document, indent=1)}\n", notes


def _inputs(signature: str) -> str:
    """Return the arguments of a call.

    Raises:
        UnsupportedError: it is no call of PyTorch, or has operands that TritonBench cannot make.
    """
    if signature.partition("(")[0].count(".") != 2:
        raise UnsupportedError(f"{signature[:60]}: no call of PyTorch's")
    call = read_call(signature)
    if "embedding" in call.name or not call.values:
        raise UnsupportedError(f"{call.name}: operands that are values, or none")
    if any(math.isnan(number) for number in leaves(call.arguments, float)):
        raise UnsupportedError(f"{call.name}: not a number")
    arguments = "".join(f"{_text(argument)}, " for argument in call.arguments)
    keywords = ", ".join(f"{name!r}: {_text(value)}" for name, value in call.keywords.items())
    return f"(({arguments.rstrip()}), {{{keywords}}})"


def _text(value: Any) -> str:
    if isinstance(value, Value):
        if value.dtype not in _TYPES:
            raise UnsupportedError(f"{value.dtype}: a type that TritonBench does not know")
        dense = Value.dense(value.dtype, value.shape).strides == value.strides
        strides = "" if dense else f", {list(value.strides)}"
        return f"T({list(value.shape)}, {_TYPES[value.dtype]}{strides})"
    if isinstance(value, TorchName):
        if value.kind == "device":
            return repr(value.text)
        return _TYPES.get(value.text, f"torch.{value.text}")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


#: Formats by their name in ``export --format``.
EXPORTS: Final[Mapping[str, Callable[[Runs], tuple[str, list[str]]]]] = {
    "trace": write_trace,
    "bencher": write_bencher,
    "github-action-benchmark": write_github,
    "tritonbench": write_tritonbench,
}
