"""Breakdowns and steps as a trace in Chrome's format, which Perfetto and ``chrome://tracing`` open.

A process per step, and in it a track per level: ``limit``, ``native``, ``alone``, ``in context``
and ``step``. A track has its modules one behind another, the longest first, and in each of them a
slice per call, as long as its calls take on that level; nothing is aligned between tracks.

Format: "Trace Event Format", Google, 2016; complete events (``X``) in microseconds, and metadata
(``M``) with the names of processes and threads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.records.run import RunRecord
    from pydlbench.store.entry import Entry

#: Tracks in their order, and which of a call's fields has its seconds there.
_LEVELS: Final = {
    "limit": "limit_s",
    "native": "native_s",
    "alone": "alone_s",
    "in context": "in_context_s",
}
_STEP: Final = "step"
_TABLES: Final = ("breakdown", "step")
_MICRO: Final = 1e6


def write(runs: Sequence[tuple[RunRecord, Sequence[Entry]]]) -> tuple[str, list[str]]:
    """Return the trace of all breakdowns and traced steps, and notes on what is not in it.

    Raises:
        UsageError: there is none.
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
    yield _named(pid, "process_name", f"{name} ({run})")
    tracks = [*_LEVELS, _STEP]
    for tid, track in enumerate(tracks, start=1):
        yield _named(pid, "thread_name", track, tid)
        yield {**_named(pid, "thread_sort_index", "", tid), "args": {"sort_index": tid}}
    for tid, field in enumerate(_LEVELS.values(), start=1):
        yield from _level(document, pid, tid, field)
    yield from _whole(document, pid, len(tracks))


def _named(pid: int, what: str, name: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _level(document: Mapping[str, Any], pid: int, tid: int, field: str) -> Iterator[dict[str, Any]]:
    """Yield a module's slice and its calls' inside it, module by module."""
    modules: dict[str, list[Mapping[str, Any]]] = {}
    for call in document["calls"]:
        if call.get(field):
            modules.setdefault(call["module"], []).append(call)
    order = [module["module"] for module in document.get("modules") or ()]
    begin = 0.0
    for module in sorted(
        modules, key=lambda name: order.index(name) if name in order else len(order)
    ):
        calls = modules[module]
        seconds = sum(call[field] for call in calls)
        yield _slice(module, "module", pid, tid, begin, seconds)
        for call in calls:
            yield _slice(call["operator"], "call", pid, tid, begin, call[field], **_facts(call))
            begin += call[field]


def _whole(document: Mapping[str, Any], pid: int, tid: int) -> Iterator[dict[str, Any]]:
    """Yield the step, and in it its calls together and what is between them."""
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
