"""What slowed a GPU down while it was sampled, and whether that counts against the samples.

Large matrix products sit at the power cap by nature: a cap is recorded, but never held against a
sample. Heat and other processes are: they would not be there the next time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HARMFUL", "REASONS", "GpuReadings", "combine", "disturbance", "reasons_of"]

#: Bits of NVML's clock event reasons (``nvmlClocksEventReason*``), by a short name.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
#: Those that are no property of the kernel. "Hardware slowdown" is heat or an external brake.
HARMFUL = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "power brake",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """What NVML told about a GPU during a chunk of samples; None is what it did not tell.

    Attributes:
        sm_clock_hz: median SM clock.
        memory_clock_hz: median memory clock.
        power_w: mean power.
        temperature_c: highest temperature of the GPU.
        reasons: what held the clock down, by the names of ``REASONS``.
        others: process ids of others that computed on this GPU.
        readings: how many readings these are of.
    """

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    readings: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers for the wire or JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "reasons": list(self.reasons), "others": list(self.others)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what ``to_dict`` wrote; unknown names are ignored."""
        values = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        for name in ("reasons", "others"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


def reasons_of(bits: int) -> tuple[str, ...]:
    """Return the names of NVML's reason bits; unknown ones as numbers."""
    known = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return (*known, f"reason 0x{rest:x}") if rest else tuple(known)


def disturbance(readings: GpuReadings | None) -> str | None:
    """Return what speaks against the samples of a chunk, in words, or None."""
    if readings is None:
        return None
    found = [name for name in readings.reasons if name in HARMFUL]
    if found:
        heat = readings.temperature_c
        at = "" if heat is None else f" at {heat:.0f} degrees C"
        return f"{' and '.join(found)}{at}"
    if readings.others:
        pids = ", ".join(map(str, readings.others))
        return f"another process computed on the GPU (process {pids})"
    return None


def combine(readings: Iterable[GpuReadings]) -> GpuReadings | None:
    """Return one account of several: means weighted by their readings, maxima, unions."""
    found = [one for one in readings if one.readings]
    if not found:
        return None

    def mean(name: str) -> float | None:
        known = [(getattr(one, name), one.readings) for one in found]
        known = [(value, weight) for value, weight in known if value is not None]
        weights = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / weights if weights else None

    heats = [one.temperature_c for one in found if one.temperature_c is not None]
    return GpuReadings(
        sm_clock_hz=mean("sm_clock_hz"),
        memory_clock_hz=mean("memory_clock_hz"),
        power_w=mean("power_w"),
        temperature_c=max(heats, default=None),
        reasons=tuple(dict.fromkeys(name for one in found for name in one.reasons)),
        others=tuple(dict.fromkeys(pid for one in found for pid in one.others)),
        readings=sum(one.readings for one in found),
    )
