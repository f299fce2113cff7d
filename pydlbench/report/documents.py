"""Short tables of what a run holds besides layers: estimates, steps, checks and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.records.fields import Column
from pydlbench.records.measurement import MATERIAL
from pydlbench.records.step import framework_text, options_text
from pydlbench.report.blocks import Lines, Table, Title
from pydlbench.units import format_seconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.report.blocks import Block


def document_tables(entries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Block]:
    """Return a title and a table for each table of the store that has documents.

    Args:
        entries: documents by table: ``estimate``, ``step``, ``check``, ``findings``.
    """
    blocks: list[Block] = []
    for table, (title, columns) in _TABLES.items():
        documents = entries.get(table) or ()
        timed = [one for one in documents if one.get("status", "ok") == "ok"]
        rest = [one for one in documents if one.get("status", "ok") != "ok"]
        if timed:
            blocks += [Title(title), Table.of(columns, timed)]
        blocks.append(Lines([_refused(one) for one in rest], listed=True))
    return blocks


def _what(document: Mapping[str, Any]) -> str:
    return f"{document.get('model')} {options_text(document.get('options') or {})}".rstrip()


def _seconds(value: Any) -> str:
    return format_seconds(value) if isinstance(value, (int, float)) else "-"


def time_text(time: Mapping[str, Any] | None) -> str:
    """Return a time with its spread and n, without which none is shown; a dash without one."""
    if not time:
        return "-"
    low, high = time.get("ci_low"), time.get("ci_high")
    width = None if low is None or high is None else (high - low) / 2 / time["median"]
    spread = "no interval" if width is None else f"+-{percent(width)}"
    return f"{format_seconds(time['median'])} {spread} (n {time['n']})"


def _signed(value: Any) -> str:
    return percent(value, signed=True) if isinstance(value, (int, float)) else "-"


def _numbers(document: Mapping[str, Any]) -> str:
    found = document.get("numbers") or ()
    return "; ".join(f"{one['name']} {number(one['value'])} {one['unit']}" for one in found) or "-"


def _first(document: Mapping[str, Any]) -> str:
    for one in document.get("findings") or ():
        return f"{one['problem']}: {_seconds(one['saving']['seconds'])}"
    return "-"


def _text(title: str, cell: Callable[[Mapping[str, Any]], str]) -> Column[Mapping[str, Any]]:
    return Column(title, cell, right=False)


_STEP: Final[tuple[Column[Mapping[str, Any]], ...]] = (
    _text("model", _what),
    _text("batch", lambda one: str(one.get("batch"))),
    _text("phase", lambda one: str(one.get("phase"))),
    _text("precision", lambda one: str(one.get("precision"))),
)
_WHO: Final[tuple[Column[Mapping[str, Any]], ...]] = (_text("framework", framework_text),)
_THREADS: Final[tuple[Column[Mapping[str, Any]], ...]] = (
    _text("threads", lambda one: str(one.get("threads") or "-")),
)


def dominant(document: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return what dominates an estimate, and how many layers that is.

    None where there is nothing, and where other work disturbed it: see ``disturbed_share``.
    """
    group = document.get("dominant_group") or {}
    name = group.get("layer") or document.get("dominant")
    if not name or _disturbed(document):
        return None
    return str(name), group.get("layers") or 1


def _dominant(document: Mapping[str, Any]) -> str:
    if (found := dominant(document)) is None:
        return "contended" if _disturbed(document) else "-"
    name, count = found
    rivals = document.get("dominant_rivals") or ()
    group = f"{name} x{count}" if count > 1 else name
    return " or ".join([group, *rivals[:1]]) + (" ..." if len(rivals) > 1 else "")


def _disturbed(document: Mapping[str, Any]) -> bool:
    """Whether other work disturbed what dominates a sum, or so much of it that it tells nothing."""
    return (document.get("disturbed_share") or 0.0) > MATERIAL or _first_is_disturbed(document)


def _first_is_disturbed(document: Mapping[str, Any]) -> bool:
    name = (document.get("dominant_group") or {}).get("layer") or document.get("dominant")
    return any(
        one.get("contended") and name in (one.get("name"), one.get("like"))
        for one in document.get("layers") or ()
    )


_TABLES: Final[Mapping[str, tuple[str, tuple[Column[Mapping[str, Any]], ...]]]] = {
    "estimate": (
        "Estimates",
        (
            *_STEP,
            *_THREADS,
            _text("hot .. cold", lambda one: _range(one["estimate"], "low", "high")),
            _text("images/s", lambda one: number(one["estimate"].get("images_per_s"))),
            _text("dominant", _dominant),
            _text("missing", lambda one: str(len(one.get("missing") or ()))),
        ),
    ),
    "step": (
        "Steps",
        (
            *_STEP,
            *_WHO,
            *_THREADS,
            _text("median", lambda one: time_text(one.get("time_s"))),
            _text("images/s", lambda one: number(one.get("images_per_s"))),
            _text("note", lambda one: "contended" if one.get("contended") else ""),
        ),
    ),
    "check": (
        "Checks",
        (
            *_STEP,
            *_WHO,
            *_THREADS,
            _text("measured", lambda one: time_text(one.get("measured_s"))),
            _text("forecast", lambda one: _seconds(one.get("forecast_s"))),
            _text("error", lambda one: _signed(one.get("forecast_error"))),
            _text("additivity", lambda one: _signed(one.get("additivity_error"))),
            _text("unexplained", lambda one: _signed(one.get("unexplained"))),
        ),
    ),
    "breakdown": (
        "Breakdowns",
        (
            *_STEP,
            *_WHO,
            *_THREADS,
            _text("measured", lambda one: time_text(one.get("measured_s"))),
            _text("additivity", lambda one: _signed(one.get("additivity_error"))),
            _text("unexplained", lambda one: _signed(one.get("unexplained"))),
        ),
    ),
    "protocol": (
        "Published protocols",
        (
            _text("protocol", lambda one: str(one.get("protocol"))),
            _text("model", _what),
            _text("precision", lambda one: str(one.get("precision"))),
            *_WHO,
            _text("numbers", _numbers),
        ),
    ),
    "agreement": (
        "Agreement of the frameworks",
        (
            _text("batch", lambda one: str(one.get("batch"))),
            _text("phase", lambda one: str(one.get("phase"))),
            _text("found", lambda one: str(one.get("detail") or "-")),
        ),
    ),
    "findings": (
        "Findings",
        (
            *_STEP,
            *_WHO,
            _text("findings", lambda one: str(len(one.get("findings") or ()))),
            _text("saves most", _first),
        ),
    ),
}


def _range(found: Mapping[str, Any], low: str, high: str) -> str:
    return f"{_seconds(found.get(low))} .. {_seconds(found.get(high))}"


def _refused(document: Mapping[str, Any]) -> str:
    words = [_what(document), f"batch {document.get('batch')}", str(document.get("phase"))]
    words.append(framework_text(document))
    name = " ".join(filter(None, words))
    return f"{document['status']}: {name}: {document.get('reason') or 'no reason recorded'}"
