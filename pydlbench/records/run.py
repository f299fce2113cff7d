"""The record of a run: when, where, with what. Frozen and versioned as its rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

__all__ = ["RunRecord", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
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
    device: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def devices(self) -> dict[str, Mapping[str, Any]]:
        """Return the device by number of threads; empty where there was only one number."""
        found = self.device.get("by_threads")
        return dict(found) if isinstance(found, Mapping) else {}

    def device_for(self, threads: int | None) -> Mapping[str, Any]:
        """Return the device as it was used with ``threads``, else that with the most threads."""
        return self.devices().get(str(threads), self.device)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {item.name: plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read ``to_dict``'s output back; unknown names are ignored."""
        values = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        values["command"] = tuple(values.get("command", ()))
        return cls(**values)


def plain(value: Any) -> Any:
    """Turn records, tuples and mappings into the types that JSON has."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value
