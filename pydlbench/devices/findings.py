"""Results of the probes of a device: compute peaks and bandwidths, common to CPUs and GPUs."""

import abc
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydlbench.devices.roofline import MemoryLevel
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.units import si


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAdvice:
    """A warning with a remedy.

    Attributes:
        symptom: problem, and its effect on timings.
        remedy: how to solve the problem.
    """

    symptom: str
    remedy: str


def advice_where(*rows: tuple[object, str, str]) -> tuple[DeviceAdvice, ...]:
    """Return symptom and remedy of each row ``(condition, symptom, remedy)`` that holds."""
    return tuple(
        DeviceAdvice(symptom=symptom, remedy=remedy) for holds, symptom, remedy in rows if holds
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlopRate:
    """Floating-point operations per clock of a core or a multiprocessor.

    Attributes:
        flop_per_clock: number of operations per clock; a multiply-add counts as two.
        derivation: factors of the number, as text.
        assumed: whether the device is missing in the table; the number then follows from its
            instruction sets or its name.
    """

    flop_per_clock: int
    derivation: str
    assumed: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TheoreticalPeak:
    """A theoretical compute peak.

    Attributes:
        flops_per_s: peak of all units together.
        hz: clock of the units.
        derivation: factors of the number, as text.
        flop_per_clock: number of operations of one unit per clock; a multiply-add counts as two.
        units: number of physical cores, or of a GPU's multiprocessors.
        accumulate: accumulator of a GPU, ``float32`` or ``float16``; None on a CPU.
        assumed: whether the peak is only assumed, because the device is not in the table.
    """

    flops_per_s: float
    hz: float
    derivation: str
    flop_per_clock: int
    units: int
    accumulate: str | None = None
    assumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the peak for JSON: FLOP/s and Hz."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The reading of a native probe; rates in FLOP/s or B/s, clocks in Hz.

    Attributes:
        per_second: rate of the best round.
        median_per_second: rate of the median round.
        clock_hz: core clock of the best round.
        rounds: number of timed rounds.
        kernel: instruction or kernel that ran.
        disturbance: why the reading is unreliable (another process used the cores, the GPU was too
            hot); None if it is not.
        clocks_hz: core clock of each CPU under load, right after the rounds; empty if only
            ``clock_hz`` was read.
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
        """Return the reading in a worker's reply; further fields are ignored."""
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: reply[name] for name in names if name in reply})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPeak:
    """Compute peaks in one precision.

    Attributes:
        precision: one of ``pydlbench.words.PRECISIONS``.
        measured: FLOP/s of the probe's best round; None if the probe could not run.
        measured_median: FLOP/s of the median round.
        kernel: instruction of the probe, or the matrix product that a GPU's library computed.
        clock_hz: core clock during the probe.
        theoretical: theoretical peak at the clock of the probe.
        nominal: theoretical peak at the nominal clock of a CPU, or at the rated clock of a GPU.
        reason: why there is no measured peak.
        tries: FLOP per core cycle of the best round of each try, in order; ``measured`` is the
            highest of them at its clock.
        impossible: number of tries above the theoretical peak, which are discarded.
        clocks_hz: core clock of each CPU under load, right after the best try.
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
        """FLOP/s of the slowest try, at the clock of the best; None with a single try."""
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


# Readings are kept for a day; the latest windows give their spread.
_WINDOWS = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """A measured bandwidth. Bytes are those of the pattern, without reads for ownership.

    Attributes:
        level: ``memory``, ``llc`` or ``l2`` (a GPU's last one); ``l2 x 2`` and the like are working
            sets of a GPU between the two.
        pattern: ``read``, ``write``, ``copy`` or ``triad``.
        bytes_per_s: best round of all windows.
        median_bytes_per_s: highest median round of a window.
        working_set_bytes: size of all arrays of all threads.
        kernel: width of the vectors, and kind of stores.
        windows: best round of each undisturbed window, in B/s and in order; the latest ones only.
        disturbed: number of windows that were discarded because of interference.
        disturbance: interference, if all windows were disturbed, so that ``bytes_per_s`` is too
            low; None otherwise.
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
        """Best round of the slowest window; None with a single window."""
        return min(self.windows) if len(self.windows) > 1 else None

    @classmethod
    def from_reading(
        cls, level: str, pattern: str, working_set_bytes: int, reading: Reading
    ) -> Self:
        """Return the bandwidth of a single window."""
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

    def merge(self, later: Self) -> Self:
        """Return this bandwidth with further windows of the same level and pattern.

        A disturbed window counts only as long as there is no other.
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
        theoretical: theoretical limit of the arithmetic units; None if the units are unknown.
        measured: limit measured by the probe, scaled to the clock.
    """

    theoretical: float | None
    measured: float


# -----------------------------------------------------------------------------
# A device with the results of its probes: common part of the records of CPUs and GPUs.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevice(abc.ABC):
    """A device with the results of its probes.

    Attributes:
        kind: kind of device, ``cpu`` or ``cuda``.
        clock_hz: core clock under load (fp32 FMA), or None if it was not read.
        peaks: compute peaks, one per precision.
        bandwidths: bandwidths of the memory and of caches.
        bandwidth_reason: why there are no bandwidths.
        libraries: versions of the libraries that run the kernels, by name of the library.
        warnings: why timings may be unreliable here.
    """

    kind: ClassVar[str]

    clock_hz: float | None = None
    peaks: tuple[PrecisionPeak, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    bandwidth_reason: str | None = None
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[DeviceAdvice, ...] = ()

    @abc.abstractmethod
    def caches(self) -> Mapping[str, int | None]:
        """Return the bytes of each data cache, from the nearest to the farthest.

        None stands for a cache that the device lacks. Not every cache has a probe.
        """

    def levels(self, names: Collection[str] | None = None) -> tuple[MemoryLevel, ...]:
        """Return the levels of the memory hierarchy, from the nearest to the memory.

        A cache without a probe has infinite bandwidth, but its capacity counts.

        Args:
            names: levels whose bandwidths count; None for all levels that were probed. Without the
                memory all bytes must fit into the caches.

        Raises:
            UnsupportedError: the bandwidth of the memory counts, and was not probed.
        """

        def level(name: str, capacity: float) -> MemoryLevel:
            counts = names is None or name in names
            bandwidth = self.bandwidth(name) if counts else None
            return MemoryLevel(
                name=name,
                capacity=capacity,
                bytes_per_s=math.inf if bandwidth is None else bandwidth.bytes_per_s,
                low_bytes_per_s=None if bandwidth is None else bandwidth.low_bytes_per_s,
                disturbance=None if bandwidth is None else bandwidth.disturbance,
            )

        if names is None or "memory" in names:
            self.best_bandwidth("memory")  # raises if there is none
        near = [level(name, size) for name, size in self.caches().items() if size is not None]
        return (*near, level("memory", math.inf))

    def lacking(self, precisions: Iterable[str]) -> list[str]:
        """Return the precisions, without duplicates, whose peaks were not probed yet."""
        return [name for name in dict.fromkeys(precisions) if self.peak(name) is None]

    def extend(
        self,
        peaks: Sequence[PrecisionPeak],
        warnings: Iterable[DeviceAdvice | None],
        **changes: Any,
    ) -> Self:
        """Return the record with further peaks and warnings.

        Args:
            peaks: newly probed peaks.
            warnings: new warnings; duplicates and None are dropped.
            changes: new values of further fields.
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
        """Return the common fields for JSON: FLOP/s, B/s and Hz."""
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
        """Return the peaks in ``precision``, or None if not probed."""
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
            precision: a probed precision.
            clock_hz: core clock in Hz; by default the clock of the probe.

        Raises:
            UnsupportedError: there is no measured peak in this precision, with the reason.
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

        If the cache was not probed, it is the bandwidth of the memory.

        Raises:
            UnsupportedError: the bandwidth of the memory was not probed.
        """
        bandwidth = self.bandwidth(level) or self.bandwidth("memory")
        if bandwidth is None:
            raise UnsupportedError(
                self.bandwidth_reason or f"{level}: its bandwidth was not probed"
            )
        return bandwidth.bytes_per_s


# -----------------------------------------------------------------------------
# Check of measured compute peaks against theoretical ones.

# A measured peak may exceed the theoretical one by this factor: the clock is read right after the
# load, not during it, and varies a little.
TOLERANCE = 1.03


class ImpossiblePeakError(PydlbenchError, AssertionError):
    """A probe exceeded the theoretical peak: the table or the probe is wrong."""


def check_peak(
    precision: str,
    measured: float,
    peak: TheoreticalPeak,
    entry: str = "this CPU's entry in the table of FMA pipes",
) -> None:
    """Check that a measured peak is possible.

    Args:
        precision: precision, for the message.
        measured: measured peak in FLOP/s.
        peak: theoretical peak at the clock of the measurement.
        entry: name of the table entry that may be wrong, for the message.

    Raises:
        ImpossiblePeakError: the measured peak is more than 1.03 x the theoretical one.
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
    """Combine the reading of a probe with the theoretical peak.

    An assumed peak, of a device that is not in the table, is dropped if the reading exceeds it.

    Args:
        precision: one of ``pydlbench.words.PRECISIONS``.
        reading: reading of the probe, or the reason why there is no reading.
        nominal: theoretical peak at the nominal clock.
        theoretical_at: returns the theoretical peak at a clock in Hz.
        entry: name of the table entry that may be wrong if the measured peak is impossible.

    Raises:
        ImpossiblePeakError: the reading is more than 1.03 x the theoretical peak of a known device
            at its clock.
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
