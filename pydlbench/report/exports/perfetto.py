"""Breakdowns and steps as a trace in Chrome's format, which Perfetto and ``chrome://tracing`` open.

A process per step has a track per level: ``limit``, ``native``, ``alone``, ``in context`` and
``step``. A track has its modules one after another, the longest first, and in each of them a slice
per call with the call's time on that level; nothing is aligned between tracks.

Format: "Trace Event Format", Google, 2016; complete events (``X``) in microseconds, and metadata
(``M``) with the names of processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError
from pydlbench.grouping import group_by

if TYPE_CHECKING:
    from pydlbench.records.run import RunRecord
    from pydlbench.store.entry import Entry

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


def write(runs: Sequence[tuple[RunRecord, Sequence[Entry]]]) -> tuple[str, list[str]]:
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
