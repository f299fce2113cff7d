"""The test of a measured compute peak against the theoretical one."""

from __future__ import annotations

from typing import Any, Protocol

from pydlbench.errors import PydlbenchError
from pydlbench.units import si

__all__ = ["TOLERANCE", "ImpossiblePeakError", "TheoreticalPeak", "check_peak"]

# A measured peak may lie this factor above the theoretical one: the clock is read beside the load,
# not during it, and wanders a little.
TOLERANCE = 1.03


class ImpossiblePeakError(PydlbenchError, AssertionError):
    """A probe measured more than the hardware can do: the table or the probe is wrong."""


class TheoreticalPeak(Protocol):
    """What the theoretical peaks of all kinds of devices tell."""

    @property
    def flops_per_s(self) -> float:
        """Of all arithmetic units together."""

    @property
    def derivation(self) -> str:
        """The factors, for people."""

    @property
    def assumed(self) -> bool:
        """The device is not in the table."""

    def to_dict(self) -> dict[str, Any]:
        """Return the peak for JSON: FLOP/s and Hz."""


def check_peak(
    precision: str,
    measured: float,
    peak: TheoreticalPeak,
    entry: str = "this CPU's entry in the table of FMA pipes",
) -> None:
    """Make sure that a measured peak is possible.

    Args:
        precision: for the message.
        measured: FLOP/s.
        peak: the theoretical peak at the clock at which ``measured`` ran.
        entry: what else may be wrong, for the message.

    Raises:
        ImpossiblePeakError: It is more than 1.03 x the theoretical one.
    """
    if measured > TOLERANCE * peak.flops_per_s:
        raise ImpossiblePeakError(
            f"{precision}: the probe measured {si(measured, 'FLOP/s')}, "
            f"{measured / peak.flops_per_s:.2f} x the theoretical {si(peak.flops_per_s, 'FLOP/s')} "
            f"= {peak.derivation}: either {entry} or the probe is wrong; please report it with the "
            "output of pydlbench device --json -"
        )
