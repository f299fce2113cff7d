"""The parts of a measurement: its time with the spread, its peaks, its roof, its verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Correctness", "Part", "Peaks", "Roofline", "TimeSummary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the parts have in common: their way to and from JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read ``to_dict``'s output back; unknown names are ignored."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSummary(Part):
    """Seconds per execution, and how far to trust them.

    Attributes:
        median: Median of the samples.
        ci_low: Lower end of the distribution-free confidence interval of the median; ``None``
            where there are too few samples for one (fewer than 6 at 95 %).
        ci_high: Upper end.
        q1: First quartile.
        q3: Third quartile.
        min: Fastest sample.
        n: Samples kept.
        confidence: Level of the interval.
    """

    median: float
    ci_low: float | None
    ci_high: float | None
    q1: float
    q3: float
    min: float
    n: int
    confidence: float = 0.95

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width relative to the median; ``None`` without an interval."""
        if self.ci_low is None or self.ci_high is None or not self.median > 0:
            return None
        return (self.ci_high - self.ci_low) / 2 / self.median

    @property
    def iqr(self) -> float | None:
        """Interquartile range relative to the median; ``None`` for a single sample."""
        if self.n < 2 or not self.median > 0:
            return None
        return (self.q3 - self.q1) / self.median


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks(Part):
    """Compute peaks in TFLOP/s, at the clock and number of threads of the measurement."""

    theoretical: float | None = None
    measured: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline(Part):
    """The measured limit of one kernel.

    Attributes:
        bound: ``compute``, ``memory`` or ``launch``: which limit is the highest.
        time_s: Least time under that limit, in seconds.
        efficiency: ``time_s`` over the measured median: 1 is the roof. Kernels that need fewer
            FLOPs than a direct one (Winograd, FFT) can exceed it.
        bandwidth: Which level takes most of the memory roof: ``memory``, ``llc`` or ``l2``.
    """

    bound: str
    time_s: float
    efficiency: float
    bandwidth: str = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness(Part):
    """Verdict of the verification.

    Attributes:
        status: ``ok``, ``failed`` or ``unchecked``.
        rel_error: Largest relative error found.
        tolerance: Largest one allowed.
        detail: What was checked, or where it went wrong.
    """

    status: str = "unchecked"
    rel_error: float | None = None
    tolerance: float | None = None
    detail: str | None = None
