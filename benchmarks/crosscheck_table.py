"""The cross-check's table: rows as they are finished, and what all of them say together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from acceptance.journal import Journal

from pydlbench.report.text import markdown_table
from pydlbench.units import Scale, percent

# Largest median error, largest error, largest median of what is unexplained.
TARGETS = (0.05, 0.12, 0.03)
TITLES = (
    *("model", "phase", "framework", "batch", "predicted", "measured", "error", "native sum"),
    "unexplained",
)
_WIDTHS = (22, 16, 11, 5, 10, 10, 8, 10, 11)

Row = dict[str, Any]


class Table:
    """Rows as they are finished, in a journal if there is one.

    Args:
        journal: None keeps them in memory only.
        wanted: names of all rows, in their order.
    """

    def __init__(self, journal: Journal | None, wanted: Sequence[str]) -> None:
        self._journal = journal
        self.wanted = list(wanted)
        self.rows: dict[str, Row] = {}
        for name in self.wanted:
            known = journal.get(name) if journal else None
            if known is not None and known["status"] == "ok":
                self.add(name, known, fresh=False)

    def add(self, name: str, row: Row, *, fresh: bool = True) -> None:
        """Take a row, write it down and print it."""
        self.rows[name] = row
        if fresh and self._journal is not None:
            self._journal.add(name, row)
        print(line(row), flush=True)

    def good(self) -> list[Row]:
        """Return the rows that have a result, in their order."""
        found = (self.rows.get(name) for name in self.wanted)
        return [row for row in found if row is not None and row["status"] == "ok"]


def cells(row: Row) -> list[str]:
    """Return a row under :data:`TITLES`; one without a result says why."""
    head = [row["model"], row["phase"], row["framework"], str(row["batch"])]
    if row["status"] != "ok":
        return [*head, f"{row['status']}: {row['reason']}", "", "", "", ""]
    scale = Scale.of(row["measured_s"]["median"])
    return [
        *head,
        scale.text(row["estimate_s"]),
        scale.text(row["measured_s"]["median"]),
        percent(row["error"], signed=True),
        percent(row["error_native"], signed=True) if has_native(row) else "-",
        percent(row["unexplained"], signed=True),
    ]


def has_native(row: Row) -> bool:
    """Whether native layers were measured for a row."""
    return bool(row["native_high_s"])


def line(row: Row) -> str:
    """Return a row as it is printed."""
    return aligned(cells(row))


def aligned(words: Sequence[str]) -> str:
    """Return words in columns; the first three to the left."""
    columns = enumerate(zip(words, _WIDTHS, strict=True))
    parts = [word.ljust(width) if i < 3 else word.rjust(width) for i, (word, width) in columns]
    return "  ".join(parts).rstrip()


def verdict(rows: Sequence[Row], wanted: int) -> tuple[list[str], bool]:
    """Return what all rows say together, and whether every target is met by a whole table."""
    if not rows:
        return [f"0 of {wanted} rows have a result"], False
    errors = [abs(row["error"]) for row in rows]
    worst = max(rows, key=lambda row: abs(row["error"]))
    name = f"{worst['model']} {worst['phase']} {worst['framework']}"
    natively = [abs(row["error_native"]) for row in rows if has_native(row)]
    found = (median(errors), max(errors), median(abs(row["unexplained"]) for row in rows))
    words = ("median error of the prediction", f"worst error ({name})", "median |unexplained|")
    lines = [f"{len(rows)} of {wanted} rows have a result"]
    for word, value, target in zip(words, found, TARGETS, strict=True):
        state = "met" if value <= target else "MISSED"
        lines.append(f"{word}: {100 * value:.1f} %, target {100 * target:.0f} %: {state}")
    if natively:
        rate = f"{100 * median(natively):.1f} % ({len(natively)} rows)"
        lines.append(f"median error of the native sum: {rate}")
    met = all(value <= target for value, target in zip(found, TARGETS, strict=True))
    return lines, met and len(rows) == wanted


def markdown(rows: Sequence[Row], lines: Sequence[str], processor: str) -> str:
    """Return the table and the verdict as Markdown."""
    table = markdown_table(TITLES, [cells(row) for row in rows], left=3)
    days = sorted({row["when"][:10] for row in rows})
    where = f"{processor}, {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else processor
    return "\n\n".join([where, table, "\n".join(f"- {one}" for one in lines)]) + "\n"
