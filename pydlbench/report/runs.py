"""The list of runs as a table."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

from pydlbench.report.text import plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.run import RunInfo

__all__ = ["command_text", "render_runs"]

_WIDE = 60


def render_runs(runs: Sequence[RunInfo]) -> str:
    """Return the table, in the order given; times are local ones."""
    titles = ["run", "when", "command", "machine", "rows", "status", "tags"]
    rows = [
        [
            run.id,
            _when(run.created_utc),
            _cut(command_text(run.command)) or run.kind,
            run.machine or "-",
            str(run.measurements),
            run.status,
            " ".join(run.tags) or "-",
        ]
        for run in runs
    ]
    return plain_table(titles, rows, [title == "rows" for title in titles])


def command_text(command: Sequence[str]) -> str:
    """Return a command line without its program, as a shell would take it."""
    words = list(command)
    if words and PurePath(words[0]).name in ("pydlbench", "__main__.py"):
        words = words[1:]
    return shlex.join(words)


def _when(created_utc: str) -> str:
    try:
        moment = dt.datetime.fromisoformat(created_utc)
    except ValueError:
        return created_utc
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."
