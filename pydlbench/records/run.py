"""The record of a run: when, where, with what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.record import Record, one_of

#: What a run can be. ``killed`` is never stored: it is a ``running`` one whose process is gone.
STATUSES: Final = ("running", "done", "interrupted", "failed", "killed")


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
        found = self.device.get("by_threads")
        return dict(found) if isinstance(found, Mapping) else {}

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

    id: str
    created_utc: str
    kind: str
    status: Annotated[str, one_of(*STATUSES)]
    machine: str
    measurements: int = 0
    tags: tuple[str, ...] = ()
    command: tuple[str, ...]

    promised = ("measurements",)

    @property
    def early(self) -> bool:
        """Whether more was asked for than is here; whatever the rows say that are."""
        return self.status != "done"
