"""Theoretical compute peaks of CPUs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.devices.cpu.microarch import flop_rate
from pydlbench.devices.peak_check import TOLERANCE, ImpossiblePeakError, check_peak
from pydlbench.units import format_hz

if TYPE_CHECKING:
    from pydlbench.devices.cpu.facts import CpuFacts

__all__ = ["TOLERANCE", "ImpossiblePeakError", "Peak", "check_peak", "theoretical_peak"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A theoretical compute peak.

    Attributes:
        flops_per_s: of all cores together.
        flop_per_cycle_per_core: an FMA counts as two.
        cores: how many physical cores.
        hz: at which clock.
        derivation: the factors, for people.
        assumed: the core is not in the table.
    """

    flops_per_s: float
    flop_per_cycle_per_core: int
    cores: int
    hz: float
    derivation: str
    assumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the peak for JSON: FLOP/s and Hz."""
        return dataclasses.asdict(self)


def theoretical_peak(facts: CpuFacts, precision: str, cores: int, hz: float) -> Peak | None:
    """Return what ``cores`` cores can do at most at a clock, or None if the CPU cannot do it.

    Args:
        facts: of the CPU.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        cores: physical cores; second threads of a core add nothing.
        hz: core clock in Hz.
    """
    rate = flop_rate(facts, precision)
    if rate is None:
        return None
    count = f"{cores} core{'s' if cores != 1 else ''}"
    return Peak(
        flops_per_s=rate.flop_per_cycle * cores * hz,
        flop_per_cycle_per_core=rate.flop_per_cycle,
        cores=cores,
        hz=hz,
        derivation=f"{rate.flop_per_cycle} FLOP/cycle x {count} x {format_hz(hz)} "
        f"({rate.derivation})",
        assumed=rate.assumed,
    )
