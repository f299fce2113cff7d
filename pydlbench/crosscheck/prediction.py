"""From the times of parts to a step: sums, and nothing of the step itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.crosscheck.pieces import Piece

__all__ = ["Calibration", "by_piece", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What calls cost, in seconds.

    Attributes:
        once_s: seconds of starting a call, which parts have taken off and a step has once.
        dispatch_s: what an operator costs that computes nothing.
        how: how these were measured.
    """

    once_s: float
    dispatch_s: float
    how: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Calibration:
        """Read it from what a worker says of its parts."""
        return cls(
            once_s=facts["once_s"],
            dispatch_s=facts["dispatch_s"],
            how=facts["how"],
        )


def by_piece(seconds: Sequence[float], found: Sequence[Piece]) -> dict[str, float]:
    """Return the seconds of each part; the median over the rounds.

    Args:
        seconds: of a chunk: all parts of the first round, all of the second and so on.
        found: the parts, in the same order.

    Raises:
        ValueError: the times do not divide into rounds.
    """
    count = len(found)
    if not seconds or len(seconds) % count:
        raise ValueError(f"{len(seconds)} times of {count} parts")
    return {one.name: median(seconds[i::count]) for i, one in enumerate(found)}


def predict(times: Mapping[str, float], found: Sequence[Piece], calibration: Calibration) -> float:
    """Return the seconds of a step without page faults: each part as often as it occurs."""
    return sum(one.count * times[one.name] for one in found) + calibration.once_s
