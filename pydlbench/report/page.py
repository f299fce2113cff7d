"""A page of one or several runs: their reports, their machines, their differences."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydlbench.compare.rows import match, side_of
from pydlbench.compare.stored import compare
from pydlbench.errors import UsageError
from pydlbench.records.fleet import FleetVerdict
from pydlbench.report.blocks import Block, Details, Facts, Headline, Lines, TableBlock
from pydlbench.report.columns import device_name
from pydlbench.report.compare import comparison_report
from pydlbench.report.figures.nodes import node_history
from pydlbench.report.html import page
from pydlbench.store.documents import Loaded
from pydlbench.units import format_bytes, format_hz, format_seconds, number, si

# Formats of values by the end of their names; the first one that fits is used.
_UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "flops_per_s": lambda value: si(value, "FLOP/s"),
    "bytes_per_s": lambda value: si(value, "B/s"),
    "_bytes": format_bytes,
    "_hz": format_hz,
    "_s": format_seconds,
}


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run on a page.

    Attributes:
        loaded: the run, from a store or a file.
        blocks: the report of the run's command; empty if there is no result.
        fleet: the verdict on its nodes, for a run of a fleet.
    """

    loaded: Loaded
    blocks: Sequence[Block]
    fleet: FleetVerdict | None = None

    @property
    def command(self) -> str:
        """The command line, in which the program's path is replaced by ``pydlbench``."""
        _, *words = self.loaded.record.command or ("",)
        return shlex.join(["pydlbench", *words])

    @property
    def subject(self) -> str:
        """The command with its model or file: ``step mnist``; ``layers`` has no such word."""
        words = [word for word in self.loaded.record.command[2:3] if not word.startswith("-")]
        return " ".join([self.loaded.info.kind, *words])

    @property
    def machine(self) -> str:
        """The processor's product name."""
        return device_name(self.loaded.record.device)


def runs_page(runs: Sequence[PageRun], title: str | None = None) -> str:
    """Return the page of one or several runs as HTML.

    Args:
        runs: the runs, at least one.
        title: title of the page; None is commands and machines.

    Raises:
        PydlbenchError: vl-convert, which draws figures, cannot be imported.
    """
    dates = sorted(str(run.loaded.info.created_utc) for run in runs)
    which = f"{len(runs)} runs" if len(runs) > 1 else f"run {runs[0].loaded.info.id}"
    subtitle = f"{which}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
    names = [f"run {at}: {run.subject}" for at, run in enumerate(runs, start=1)]
    sections: list[tuple[str, list[Block]]] = []
    if len(runs) > 1:
        sections.append(("Summary", list(_summary(names, runs))))
        sections.append(("Comparison", _comparison(runs)))
        verdicts = {name: run.fleet for name, run in zip(names, runs, strict=True) if run.fleet}
        sections.append(("Nodes over the runs", list(node_history(verdicts))))
    for name, run in zip(names, runs, strict=True):
        where = [Details("Where and how it was measured", list(_surroundings(run)))]
        command = Lines([f"run: {run.command}"])
        sections.append((name if len(runs) > 1 else "Result", [*_run(run), command, *where]))
    if len(runs) > 1:
        sections.append(("What differs between the runs", _differences(runs)))
    machines = ", ".join(dict.fromkeys(run.machine for run in runs))
    kinds = ", ".join(dict.fromkeys(run.loaded.info.kind for run in runs))
    shown = [section for section in sections if section[1]]
    verb = "read on" if kinds == "trace" else "on"  # a recorded step ran elsewhere
    return page(title or f"{kinds} {verb} {machines}", subtitle, shown)


def _summary(names: Sequence[str], runs: Sequence[PageRun]) -> Iterator[Block]:
    """Yield the first lines of the runs' headlines."""
    for name, run in zip(names, runs, strict=True):
        found = [
            block.lines[0] for block in run.blocks if isinstance(block, Headline) and block.lines
        ]
        yield from [Lines(found, listed=True, title=f"{name}:")] if found else []


def _run(run: PageRun) -> Iterator[Block]:
    info = run.loaded.info
    if info.early:
        yield Lines([f"this run is {info.status}: it is incomplete."], alarm=True)
    yield from run.blocks or [Lines(["nothing was measured in this run."], alarm=True)]


def _differences(runs: Sequence[PageRun]) -> list[Block]:
    facts = [dict(_facts_of(run)) for run in runs]
    names = dict.fromkeys(name for fact in facts for name in fact)
    cells = [[name, *(fact.get(name, "-") for fact in facts)] for name in names]
    differing = [row for row in cells if len(set(row[1:])) > 1]
    titles = ["what", *(f"run {at}" for at in range(1, len(runs) + 1))]
    return [
        TableBlock(titles, differing, [False] * len(titles)),
        Lines(["Everything else is the same."]),
    ]


def _comparison(runs: Sequence[PageRun]) -> list[Block]:
    """Return the comparison of two runs; empty for three, or if they have no common row."""
    if len(runs) != 2:
        return []
    a, b = (side_of(f"run {at}", run.loaded) for at, run in enumerate(runs, start=1))
    try:
        comparison = compare(a, b, match(a, b))
    except UsageError:
        return []
    return comparison_report(comparison) if comparison.rows else []


def _surroundings(run: PageRun) -> Iterator[Block]:
    yield Facts([("command", run.command), *_facts_of(run)])
    device = run.loaded.record.device
    warnings = [": ".join(map(str, warning.values())) for warning in device.get("warnings") or ()]
    yield Lines(warnings, listed=True, title="warnings of the machine" if warnings else "")
    for name in ("peaks", "bandwidths"):
        yield _objects(device.get(name) or ())


def _facts_of(run: PageRun) -> Iterator[tuple[str, str]]:
    record, info = run.loaded.record, run.loaded.info
    yield from (("run", info.id), ("status", info.status))
    yield from [("tags", ", ".join(info.tags))] if info.tags else []
    yield from _flat(record.device)
    yield from _flat(record.environment)


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each value; a nested object is one text."""
    for name, value in values.items():
        inner = value.values() if isinstance(value, Mapping) else _listed(value)
        if name == "facts" and isinstance(value, Mapping):
            yield from _flat(value)
        elif value in (None, "", [], {}) or any(isinstance(item, Mapping) for item in inner):
            continue  # empty, or printed as a table
        elif isinstance(value, Mapping):
            yield _name(name), ", ".join(f"{key} {_text(key, item)}" for key, item in value.items())
        else:
            yield _name(name), _text(name, value)


def _objects(objects: Sequence[Mapping[str, Any]]) -> TableBlock:
    """Return a table of objects with a column for each name, also those of nested objects."""
    rows = [dict(_cells(row)) for row in objects]
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "-") for name in names] for row in rows]
    right = [name.endswith(("_s", "bytes")) for name in names]
    return TableBlock(list(map(_name, names)), cells, right)


def _cells(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _cells(value, f"{before}{name} ")
        elif isinstance(value, (list, tuple)):
            yield f"{before}{name}", str(len(value) or "-")
        elif value is not None:
            yield f"{before}{name}", _text(name, value)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _name(name: str) -> str:
    """Return a name as words, without the unit at its end."""
    return re.sub(r"(_per_s|_bytes|_hz|_s)$", "", name).replace("_", " ")


def _text(name: str, value: Any) -> str:
    """Return a value in the unit at the end of its name."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    known = next((text for end, text in _UNITS.items() if f"_{name}".endswith(end)), None)
    if known is None or not isinstance(value, (int, float)):
        return number(value, 6) if isinstance(value, float) else str(value)
    return known(value)
