"""The record of a run: when, where, with what."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Final

import msgspec

from pydlbench.records.fields import shown
from pydlbench.records.record import Record, one_of
from pydlbench.units import cut

#: What a run can be. ``killed`` is never stored: it is a ``running`` one whose process is gone.
STATUSES: Final = ("running", "done", "interrupted", "failed", "killed")
_PROGRAM: Final = "pydlbench"
# Characters of a command that a list shows.
_WIDE: Final = 60
_words = partial(shown, right=False)


def command_line() -> tuple[str, ...]:
    """Return this process's command line, without the folder that the program is in."""
    program, *words = sys.argv or [""]
    return (_PROGRAM if _is_own(program) else program, *words)


def command_text(command: Sequence[str]) -> str:
    """Return a command line without its program, as a shell would take it."""
    words = tuple(command)
    return shlex.join(words[1:] if words and _is_own(words[0]) else words)


def _is_own(program: str) -> bool:
    path = PurePath(program)
    return path.name == _PROGRAM or path.parts[-2:] == (_PROGRAM, "__main__.py")


def _local(created_utc: str) -> str:
    try:
        moment = dt.datetime.fromisoformat(created_utc)
    except ValueError:
        return created_utc
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"


class RunRecord(Record, frozen=True, kw_only=True):
    """One run of a command: when, where, and with which libraries.

    Attributes:
        id: Unique name of the run.
        created_utc: ISO 8601 time of its start, in UTC.
        command: The command line.
        device: Facts, peaks, bandwidths and warnings of the device, as used with the most threads;
            where several numbers of threads were asked for, ``by_threads`` holds one such object
            for each.
        environment: Python, system, package versions, environment variables that matter.
    """

    id: str
    created_utc: str
    command: tuple[str, ...] = ()
    device: Mapping[str, Any] = msgspec.field(default_factory=dict)
    environment: Mapping[str, Any] = msgspec.field(default_factory=dict)

    promised = ("command", "device", "environment")

    def devices(self) -> dict[str, Mapping[str, Any]]:
        """Return the device by number of threads; empty where there was only one number."""
        by_threads = self.device.get("by_threads")
        return dict(by_threads) if isinstance(by_threads, Mapping) else {}

    def device_for(self, threads: int | None) -> Mapping[str, Any]:
        """Return the device as it was used with ``threads``, else that with the most threads."""
        return self.devices().get(str(threads), self.device)


class RunInfo(Record, frozen=True, kw_only=True):
    """A run as a list shows it.

    Attributes:
        id: its name, unique in a store.
        created_utc: ISO 8601 time of its start, in UTC.
        kind: the command: ``layers``, ``estimate``, ``step``, ``check``, ``diagnose`` or ``sweep``.
        status: one of :data:`STATUSES`.
        command: the command line.
        machine: short name of the CPU or GPU.
        tags: in alphabetical order.
        measurements: how many entries were measured: all but estimates and agreements.
    """

    id: Annotated[str, _words("run")]
    created_utc: Annotated[str, _words("when", _local)]
    kind: str
    status: Annotated[str, one_of(*STATUSES), _words("status")]
    machine: Annotated[str, _words("machine", lambda name: name or "-")]
    measurements: Annotated[int, shown("rows")] = 0
    tags: Annotated[tuple[str, ...], _words("tags", lambda tags: " ".join(tags) or "-")] = ()
    command: tuple[str, ...]

    #: Of a list of runs, in the order of its columns.
    columns: ClassVar[str] = "id created_utc line machine measurements status tags"
    promised = ("measurements",)

    @property
    def line(self) -> Annotated[str, _words("command")]:
        """The beginning of its command line."""
        return cut(command_text(self.command), _WIDE) or self.kind

    @property
    def early(self) -> bool:
        """Whether more was asked for than is here; whatever the rows say that are."""
        return self.status != "done"
