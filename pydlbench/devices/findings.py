"""What probes find on a device: compute peaks and bandwidths, as every kind of device has them."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydlbench.devices.roofline import Level
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.units import si

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A warning that helps.

    Attributes:
        symptom: what is wrong and what it does to timings.
        remedy: what to do about it.
    """

    symptom: str
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlopRate:
    """Floating-point operations per clock of a core or a multiprocessor.

    Attributes:
        flop_per_clock: operations, a multiply-add counted as two.
        derivation: how the number comes about, for people.
        assumed: the device is not in the table; the number is what its instruction sets or its
            name suggest.
    """

    flop_per_clock: int
    derivation: str
    assumed: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TheoreticalPeak:
    """A theoretical compute peak; what it is made of is told by the kinds of devices.

    Attributes:
        flops_per_s: of all arithmetic units together.
        hz: at which clock.
        derivation: the factors, for people.
        assumed: the device is not in the table.
    """

    flops_per_s: float
    hz: float
    derivation: str
    assumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the peak for JSON: FLOP/s and Hz."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a native probe returns; rates in FLOP/s or B/s, clocks in Hz.

    Attributes:
        per_second: the best round's rate.
        median_per_second: the median round's rate.
        clock_hz: the core clock at the best round.
        rounds: how many rounds were timed.
        kernel: what ran.
        disturbance: what was seen beside it that speaks against it (somebody else on the cores, a
            GPU that was too hot), in words.
        clocks_hz: the core clock of each CPU, all of them busy, right after it; empty where only
            the one of ``clock_hz`` was read.
    """

    per_second: float
    median_per_second: float
    clock_hz: float
    rounds: int
    kernel: str
    disturbance: str | None = None
    clocks_hz: Sequence[float] = ()

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Self:
        """Read a worker's reply; what else is in it is left out."""
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: reply[name] for name in names if name in reply})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPeak:
    """Compute peaks in one precision.

    Attributes:
        precision: one of ``pydlbench.words.PRECISIONS``.
        measured: FLOP/s of the probe's best round; None if it could not run.
        measured_median: FLOP/s of its median round.
        kernel: the probe's instruction, or the product that a GPU's library computed.
        clock_hz: the core clock during the probe.
        theoretical: the limit at that clock.
        nominal: the limit at the nominal clock; at a GPU's rated one.
        reason: why there is no measured peak.
        tries: FLOP per core cycle of all tries' best rounds, in order of time; ``measured`` is the
            best one at its clock.
        impossible: tries beyond the theory, which count for nothing.
        clocks_hz: the core clock of each CPU, all of them busy, right after the best try.
    """

    precision: str
    measured: float | None = None
    measured_median: float | None = None
    kernel: str | None = None
    clock_hz: float | None = None
    theoretical: TheoreticalPeak | None = None
    nominal: TheoreticalPeak | None = None
    reason: str | None = None
    tries: tuple[float, ...] = ()
    impossible: int = 0
    clocks_hz: tuple[float, ...] = ()

    @property
    def low(self) -> float | None:
        """FLOP/s of the slowest try, at the clock of the best; None where there was only one."""
        if len(self.tries) < 2 or self.clock_hz is None:
            return None
        return min(self.tries) * self.clock_hz

    def to_dict(self) -> dict[str, Any]:
        """Return the peaks for JSON: FLOP/s and Hz."""
        return {
            "precision": self.precision,
            "measured_flops_per_s": self.measured,
            "median_flops_per_s": self.measured_median,
            "low_flops_per_s": self.low,
            "tries_flop_per_cycle": list(self.tries),
            "impossible_tries": self.impossible,
            "clocks_hz": list(self.clocks_hz),
            "kernel": self.kernel,
            "clock_hz": self.clock_hz,
            "theoretical": self.theoretical.to_dict() if self.theoretical else None,
            "nominal": self.nominal.to_dict() if self.nominal else None,
            "reason": self.reason,
        }


# Of readings that are kept for a day, the latest say how far they spread.
_WINDOWS = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """A measured bandwidth. Bytes are those the pattern names; what stores read first is not.

    Attributes:
        level: ``memory``, ``llc`` or ``l2`` (a GPU's last one).
        pattern: ``read``, ``write``, ``copy`` or ``triad``.
        bytes_per_s: of the best round of all windows.
        median_bytes_per_s: the median round of the window in which that was highest.
        working_set_bytes: over all threads and arrays.
        kernel: vectors and kind of stores.
        windows: the best round of each window that counts, in B/s and in order of time; the latest
            so many of them.
        disturbed: windows that do not count, because something was seen beside them.
        disturbance: what; None unless no window was undisturbed, so that ``bytes_per_s`` is one
            of theirs, and too low to be believed.
    """

    level: str
    pattern: str
    bytes_per_s: float
    median_bytes_per_s: float
    working_set_bytes: int
    kernel: str
    windows: tuple[float, ...] = ()
    disturbed: int = 0
    disturbance: str | None = None

    @property
    def low_bytes_per_s(self) -> float | None:
        """What the slowest window reached; None where there was only one."""
        return min(self.windows) if len(self.windows) > 1 else None

    @classmethod
    def from_reading(
        cls, level: str, pattern: str, working_set_bytes: int, reading: Reading
    ) -> Bandwidth:
        """Take over the reading of a window."""
        return cls(
            level=level,
            pattern=pattern,
            bytes_per_s=reading.per_second,
            median_bytes_per_s=reading.median_per_second,
            working_set_bytes=working_set_bytes,
            kernel=reading.kernel,
            windows=(reading.per_second,) if reading.disturbance is None else (),
            disturbed=int(reading.disturbance is not None),
            disturbance=reading.disturbance,
        )

    def joined(self, later: Bandwidth) -> Bandwidth:
        """Return this bandwidth with further windows of the same level and pattern.

        A disturbed one counts only while there is no other.
        """
        disturbed = self.disturbed + later.disturbed
        if self.disturbance is not None and later.disturbance is None:
            return dataclasses.replace(later, disturbed=disturbed)
        if self.disturbance is None and later.disturbance is not None:
            return dataclasses.replace(self, disturbed=disturbed)
        best = max(self, later, key=lambda item: item.bytes_per_s)
        return dataclasses.replace(
            best,
            median_bytes_per_s=max(self.median_bytes_per_s, later.median_bytes_per_s),
            windows=(*self.windows, *later.windows)[-_WINDOWS:],
            disturbed=disturbed,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Compute limits at one clock, in FLOP/s.

    Attributes:
        theoretical: from the arithmetic units; None if they are not known.
        measured: of the probe, scaled to the clock.
    """

    theoretical: float | None
    measured: float


# -----------------------------------------------------------------------------
# A device with what probes found on it: what the records of CPUs and of GPUs share.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevice(abc.ABC):
    """What was found on a device; its kinds add what they are made of.

    Attributes:
        kind: of device: ``cpu``, ``cuda``.
        clock_hz: the core clock under load (fp32 FMA), or None if it was not read.
        peaks: compute peaks, one per precision.
        bandwidths: of the memory and of caches.
        bandwidth_reason: why there are no bandwidths.
        libraries: name to version, of what the kernels come from.
        warnings: what makes timings unreliable here.
    """

    kind: ClassVar[str]

    clock_hz: float | None = None
    peaks: tuple[PrecisionPeak, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    bandwidth_reason: str | None = None
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[Advice, ...] = ()

    @abc.abstractmethod
    def caches(self) -> Mapping[str, int | None]:
        """Return the bytes of each cache that keeps operands, from the nearest to the farthest.

        None stands for one that the device lacks. Not all of them have a probe.
        """

    def levels(self, names: Collection[str] | None = None) -> tuple[Level, ...]:
        """Return the levels of the memory hierarchy, from the nearest to the memory.

        A cache without a probe has no bandwidth that could be charged, but holds what it holds.

        Args:
            names: whose bandwidths count; None is all that were probed. The memory's always does.

        Raises:
            UnsupportedError: The memory's bandwidth was not probed.
        """

        def level(name: str, capacity: float) -> Level:
            counts = names is None or name in names or name == "memory"
            bandwidth = self.bandwidth(name) if counts else None
            return Level(
                name=name,
                capacity=capacity,
                bytes_per_s=math.inf if bandwidth is None else bandwidth.bytes_per_s,
                low_bytes_per_s=None if bandwidth is None else bandwidth.low_bytes_per_s,
                disturbance=None if bandwidth is None else bandwidth.disturbance,
            )

        self.best_bandwidth("memory")  # says why there is none
        near = [level(name, size) for name, size in self.caches().items() if size is not None]
        return (*near, level("memory", math.inf))

    def lacking(self, precisions: Iterable[str]) -> list[str]:
        """Return those of some precisions, each once, whose peaks were not probed yet."""
        return [name for name in dict.fromkeys(precisions) if self.peak(name) is None]

    def extended(
        self, peaks: Sequence[PrecisionPeak], warnings: Iterable[Advice | None], **changes: Any
    ) -> Self:
        """Return the record with further peaks and warnings.

        Args:
            peaks: that were probed now.
            warnings: about them; a warning that is there already is not repeated, None is dropped.
            changes: further fields with their new values.
        """
        every = (*self.peaks, *peaks)
        clocks = {peak.precision: peak.clock_hz for peak in every if peak.clock_hz}
        added = [advice for advice in warnings if advice is not None]
        return dataclasses.replace(
            self,
            clock_hz=clocks.get("fp32") or next(iter(clocks.values()), None),
            peaks=every,
            warnings=tuple(dict.fromkeys((*self.warnings, *added))),
            **changes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what all kinds have for JSON: FLOP/s, B/s and Hz."""
        return {
            "kind": self.kind,
            "clock_hz": self.clock_hz,
            "peaks": [peak.to_dict() for peak in self.peaks],
            "bandwidths": [
                {**dataclasses.asdict(item), "low_bytes_per_s": item.low_bytes_per_s}
                for item in self.bandwidths
            ],
            "bandwidth_reason": self.bandwidth_reason,
            "libraries": dict(self.libraries),
            "warnings": [dataclasses.asdict(item) for item in self.warnings],
        }

    def peak(self, precision: str) -> PrecisionPeak | None:
        """Return the peaks in ``precision``, if probed."""
        return next((peak for peak in self.peaks if peak.precision == precision), None)

    def bandwidth(self, level: str, pattern: str | None = None) -> Bandwidth | None:
        """Return the bandwidth of ``level`` for ``pattern``, or the highest of all patterns."""
        readings = [
            item
            for item in self.bandwidths
            if item.level == level and pattern in (None, item.pattern)
        ]
        return max(readings, key=lambda item: item.bytes_per_s, default=None)

    def limits(self, precision: str, clock_hz: float | None = None) -> Limits:
        """Return the compute limits in ``precision``, scaled to a clock: arithmetic follows it.

        Args:
            precision: one that was probed.
            clock_hz: core clock in Hz; the probe's own by default.

        Raises:
            UnsupportedError: There is no measured peak in this precision; says why.
        """
        peak = self.peak(precision)
        if peak is None or peak.measured is None or not peak.clock_hz:
            reason = peak.reason if peak is not None else None
            raise UnsupportedError(reason or f"{precision}: its compute peak was not probed")
        ratio = 1.0 if clock_hz is None else clock_hz / peak.clock_hz
        theory = peak.theoretical
        return Limits(
            theoretical=None if theory is None else theory.flops_per_s * ratio,
            measured=peak.measured * ratio,
        )

    def best_bandwidth(self, level: str) -> float:
        """Return the highest bandwidth of ``memory`` or of a cache, in B/s.

        Without a cache probe the memory's stands for both.

        Raises:
            UnsupportedError: The memory's bandwidth was not probed.
        """
        bandwidth = self.bandwidth(level) or self.bandwidth("memory")
        if bandwidth is None:
            raise UnsupportedError(
                self.bandwidth_reason or f"{level}: its bandwidth was not probed"
            )
        return bandwidth.bytes_per_s


# -----------------------------------------------------------------------------
# The test of a measured compute peak against the theoretical one.

# A measured peak may lie this factor above the theoretical one: the clock is read beside the load,
# not during it, and wanders a little.
TOLERANCE = 1.03


class ImpossiblePeakError(PydlbenchError, AssertionError):
    """A probe measured more than the hardware can do: the table or the probe is wrong."""


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


def peak_beside_theory(
    precision: str,
    reading: Reading | str,
    nominal: TheoreticalPeak | None,
    theoretical_at: Callable[[float], TheoreticalPeak | None],
    entry: str = "this CPU's entry in the table of FMA pipes",
) -> PrecisionPeak:
    """Set a probe's reading beside the theory.

    A theory that is only assumed, because the device is not in the table, is dropped where the
    reading exceeds it.

    Args:
        precision: one of ``pydlbench.words.PRECISIONS``.
        reading: the probe's, or why there is none.
        nominal: the limit at the nominal clock.
        theoretical_at: returns the limit at a clock in Hz.
        entry: what else may be wrong where a measured peak is impossible.

    Raises:
        ImpossiblePeakError: The probe measured more than 1.03 x the theoretical peak of a known
            device at the clock it ran at.
    """
    if isinstance(reading, str):
        return PrecisionPeak(precision=precision, nominal=nominal, reason=reading)
    theoretical = theoretical_at(reading.clock_hz)
    if theoretical is not None:
        try:
            check_peak(precision, reading.per_second, theoretical, entry)
        except ImpossiblePeakError:
            if not theoretical.assumed:
                raise
            theoretical = nominal = None
    return PrecisionPeak(
        precision=precision,
        measured=reading.per_second,
        measured_median=reading.median_per_second,
        kernel=reading.kernel,
        clock_hz=reading.clock_hz,
        clocks_hz=tuple(reading.clocks_hz),
        theoretical=theoretical,
        nominal=nominal,
    )
