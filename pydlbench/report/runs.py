"""The list of runs as a table."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from pydlbench.records.fields import Column, cut
from pydlbench.report.blocks import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.run import RunInfo

# Characters of a command that are shown.
_WIDE: Final = 60


def runs_table(runs: Sequence[RunInfo]) -> Table:
    """Return the table, in the order given; times are local ones."""
    return Table.of(_COLUMNS, runs)


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


_COLUMNS: Final[tuple[Column[RunInfo], ...]] = (
    Column("run", lambda run: run.id, right=False),
    Column("when", lambda run: _when(run.created_utc), right=False),
    Column("command", lambda run: cut(command_text(run.command), _WIDE) or run.kind, right=False),
    Column("machine", lambda run: run.machine or "-", right=False),
    Column("rows", lambda run: str(run.measurements)),
    Column("status", lambda run: run.status, right=False),
    Column("tags", lambda run: " ".join(run.tags) or "-", right=False),
)
