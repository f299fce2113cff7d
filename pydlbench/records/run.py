"""The record of a run: time, machine, libraries."""

import datetime as dt
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Final

import msgspec

from pydlbench.records.record import Record, one_of, shown
from pydlbench.units import cut

#: States of a run. Two are never stored: ``killed`` is a ``running`` one whose process is gone, and
#: of a ``damaged`` one the command line or the process that wrote it cannot be read.
STATUSES: Final = ("running", "done", "interrupted", "failed", "killed", "damaged")
_PROGRAM: Final = "pydlbench"
_COMMAND_WIDTH: Final = 60  # characters of a command in lists
_words = partial(shown, right=False)


def command_line() -> tuple[str, ...]:
    """Return this process's command line, without the program's folder."""
    program, *words = sys.argv or [""]
    return (_PROGRAM if _is_pydlbench(program) else program, *words)


def command_text(command: Sequence[str]) -> str:
    """Return a command line without its program, quoted for a shell."""
    words = tuple(command)
    return shlex.join(words[1:] if words and _is_pydlbench(words[0]) else words)


def _is_pydlbench(program: str) -> bool:
    path = PurePath(program)
    return path.name == _PROGRAM or path.parts[-2:] == (_PROGRAM, "__main__.py")


#: Maximum number of stored runs that are searched for replicates of a run.
MAX_SEARCHED_RUNS: Final = 200
#: Minimum time between independent runs: runs close to each other have the same conditions.
OCCASION_DISTANCE: Final = dt.timedelta(minutes=30)


def start_time(created_utc: str) -> dt.datetime | None:
    """Return the start of a run; None if a foreign document has another format."""
    try:
        moment = dt.datetime.fromisoformat(created_utc)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def local_time(created_utc: str) -> str:
    """Return a moment in ISO 8601 as local time, to the minute."""
    moment = start_time(created_utc)
    return created_utc if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


class RunRecord(Record, frozen=True, kw_only=True):
    """One run of a command: when, where, and with which libraries.

    Attributes:
        id: Unique name of the run.
        created_utc: ISO 8601 time of its start, in UTC.
        command: The command line.
        device: Facts, peaks, bandwidths and warnings of the device, with the largest number of
            threads; for several numbers of threads, ``by_threads`` holds one such object each.
        environment: Python, system, package versions, relevant environment variables.
    """

    id: str
    created_utc: str
    command: tuple[str, ...] = ()
    device: Mapping[str, Any] = msgspec.field(default_factory=dict)
    environment: Mapping[str, Any] = msgspec.field(default_factory=dict)

    promised = ("command", "device", "environment")

    @property
    def threads(self) -> int | None:
        """The largest number of threads; None where a document has no such number."""
        threads = self.device.get("threads")
        return threads if isinstance(threads, int) else None

    def devices(self) -> dict[str, Mapping[str, Any]]:
        """Return the device by number of threads; empty if there was only one number."""
        by_threads = self.device.get("by_threads")
        return dict(by_threads) if isinstance(by_threads, Mapping) else {}

    def device_for(self, threads: int | None) -> Mapping[str, Any]:
        """Return the device with a number of threads, else that with the most threads."""
        return self.devices().get(str(threads), self.device)


class RunInfo(Record, frozen=True, kw_only=True):
    """A run as a list shows it.

    Attributes:
        id: name of the run, unique in a store.
        created_utc: ISO 8601 time of its start, in UTC.
        kind: the command: ``layers``, ``estimate``, ``step``, ``check``, ``diagnose`` or ``sweep``.
        status: one of :data:`STATUSES`.
        command: the command line.
        machine: short name of the CPU or GPU.
        tags: tags in alphabetical order.
        measurements: number of measured entries: all but estimates and agreements.
    """

    id: Annotated[str, _words("run")]
    created_utc: Annotated[str, _words("when", local_time)]
    kind: str
    status: Annotated[str, one_of(*STATUSES), _words("status")]
    machine: Annotated[str, _words("machine", lambda name: name or "-")]
    measurements: Annotated[int, shown("rows")] = 0
    tags: Annotated[tuple[str, ...], _words("tags", lambda tags: " ".join(tags) or "-")] = ()
    command: tuple[str, ...]

    #: Columns of a list of runs.
    columns: ClassVar[str] = "id created_utc line machine measurements status tags"
    promised = ("measurements",)

    @property
    def line(self) -> Annotated[str, _words("command")]:
        """The beginning of its command line."""
        return cut(command_text(self.command), _COMMAND_WIDTH) or self.kind

    @property
    def early(self) -> bool:
        """Whether the run ended before it had measured everything that was requested."""
        return self.status != "done"
