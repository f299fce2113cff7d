"""The results of an acceptance run as Markdown: verdicts first, then every table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acceptance.journal import Journal
from acceptance.verdicts import verdicts
from pydlbench.records.measurement import Measurement
from pydlbench.records.metrics import spread
from pydlbench.records.record import SCHEMA_VERSION
from pydlbench.report.text import markdown_table
from pydlbench.units import format_seconds, number, percent, si

__all__ = ["document", "markdown"]


def document(journal: Journal, about: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return everything for JSON: the machine, the verdicts, and each finished task's entry.

    Args:
        journal: what was measured.
        about: hardware, driver, libraries, date.
        names: of all tasks.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "about": dict(about),
        "verdicts": [dataclasses.asdict(one) for one in verdicts(journal)],
        "open": [name for name in names if name not in journal],
        "tasks": journal.entries(),
    }


def markdown(journal: Journal, about: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the report; what is not finished is said at the top.

    Args:
        journal: what was measured.
        about: hardware, driver, libraries, date.
        names: of all tasks.
    """
    finished = sum(name in journal for name in names)
    lines = [f"# {about.get('name', 'a GPU')}", ""]
    lines += [f"- {key}: {value}" for key, value in about.items() if key != "name"]
    lines += ["", f"{finished} of {len(names)} tasks are finished.", "", "## Targets", ""]
    met = {True: "yes", False: "NO", None: "open"}
    targets = [(one.target, met[one.met], one.found) for one in verdicts(journal)]
    lines.append(_table(("target", "met", "found"), targets))
    for prefix, title in (
        ("gemm ", "Matrix products"),
        ("layers ", "Layers"),
        ("repeat ", "Layers, second run"),
    ):
        rows = [
            (task.removeprefix(prefix), Measurement.from_dict(entry["measurement"]))
            for task, entry in journal.entries(prefix).items()
            if "measurement" in entry
        ]
        if rows:
            lines += ["", f"## {title}", "", _measurements(rows)]
    torch = list(_torch(journal))
    if torch:
        lines += ["", "## Native and PyTorch, interleaved", ""]
        titles = ("layer", "native", "torch", "format", "native/torch", "95 % CI", "algorithm")
        lines.append(_table(titles, torch))
    wrong = [
        (task, entry["error"]) for task, entry in journal.entries().items() if "error" in entry
    ]
    if wrong:
        lines += ["", "## Tasks that failed", "", _table(("task", "reason"), wrong)]
    return "\n".join(lines) + "\n"


def _measurements(rows: list[tuple[str, Measurement]]) -> str:
    titles = (
        *("row", "median", "CI", "n", "TFLOP/s", "theoretical", "measured", "of roof", "bound"),
        *("clock", "checked", "algorithm"),
    )
    return _table(titles, [_row(name, row) for name, row in rows])


def _row(name: str, row: Measurement) -> tuple[str, ...]:
    if row.time is None:
        return (name, row.status, *[""] * 9, row.reason or "")
    roof = row.roofline
    return (
        name,
        format_seconds(row.time.median),
        spread(row.time),
        str(row.time.n),
        number(row.tflops),
        percent(row.fraction_of_peak("theoretical")),
        percent(row.fraction_of_peak("measured")),
        percent(roof.efficiency if roof else None),
        roof.bound if roof else "-",
        si(row.clock_hz, "Hz") if row.clock_hz else "-",
        f"{row.correct.status} {row.correct.rel_error or 0:.0e}",
        row.algorithm or "-",
    )


def _torch(journal: Journal) -> Iterator[tuple[str, ...]]:
    for task, entry in journal.entries("torch ").items():
        name = task.removeprefix("torch ")
        if entry.get("status") != "ok":
            yield (name, entry.get("status", "failed"), *[""] * 4, entry.get("reason", ""))
            continue
        low, high = entry["low"], entry["high"]
        yield (
            name,
            format_seconds(entry["native_s"]),
            format_seconds(entry["torch_s"]),
            entry["torch_format"],
            f"{entry['ratio']:.3f}",
            "-" if low is None or high is None else f"{low:.3f} to {high:.3f}",
            entry["algorithm"],
        )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(titles, rows, [False] * len(titles))
