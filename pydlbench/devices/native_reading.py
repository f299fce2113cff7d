"""What a native probe answers, after its way over the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

__all__ = ["NativeReading", "Probe"]

#: Runs a native probe: ``probe("fma_peak", precision=..., cpus=..., seconds=...)``.
Probe = Callable[..., Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NativeReading:
    """A probe's result; rates in FLOP/s or B/s, clocks in Hz (see ``devices.record.Reading``)."""

    per_second: float
    median_per_second: float
    clock_hz: float
    rounds: int
    kernel: str

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """Read a reply; what else is in it is left out."""
        return cls(**{field.name: reply[field.name] for field in dataclasses.fields(cls)})
