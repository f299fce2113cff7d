"""The record of a run: when, where, with what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pydlbench.records.record import Record

__all__ = ["RunRecord"]


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

    def devices(self) -> dict[str, Mapping[str, Any]]:
        """Return the device by number of threads; empty where there was only one number."""
        found = self.device.get("by_threads")
        return dict(found) if isinstance(found, Mapping) else {}

    def device_for(self, threads: int | None) -> Mapping[str, Any]:
        """Return the device as it was used with ``threads``, else that with the most threads."""
        return self.devices().get(str(threads), self.device)
