"""Bandwidths of the levels of the memory, probed until the readings can be believed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydlbench.devices.cpu.working_set import (
    cache_working_set,
    memory_working_set,
    private_working_set,
)
from pydlbench.devices.findings import Advice, Bandwidth, ProbedDevice, Reading
from pydlbench.devices.kept import AGREES
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.devices.cpu.record import DeviceRecord

__all__ = [
    "LEVELS",
    "PATTERNS",
    "Probe",
    "extend_bandwidths",
    "probe_bandwidths",
    "probe_levels",
]


#: Runs a native probe: ``probe("fma_peak", precision=..., cpus=..., seconds=...)``.
Probe = Callable[..., Mapping[str, Any]]


_Device = TypeVar("_Device", bound=ProbedDevice)

PATTERNS = ("read", "write", "copy", "triad")
#: From the farthest to the nearest.
LEVELS = ("memory", "llc", "l2")

# Every run that times layers pays for these, so they are short; the best round counts.
_SECONDS = 0.03
# Rounds of a quiet machine agree within a few per cent: one that is so much faster than most of
# its window was taken in a disturbed one, and may have been disturbed itself.
_DISTURBED = 1.25
_REPEATS = 2


class _Prober:
    """Probes bandwidths and counts how often each was repeated."""

    def __init__(
        self,
        known: Sequence[Bandwidth],
        sizes: Mapping[str, int | None],
        ask: Callable[[str, str, int], Mapping[str, Any]],
        kept: Sequence[Bandwidth],
    ) -> None:
        self._sizes = sizes
        self._kept = {(item.level, item.pattern): item for item in kept}
        self._agrees: dict[str, bool] = {}
        self._ask = ask
        self._repeats: dict[tuple[str, str], int] = {}
        self.known = {(item.level, item.pattern): item for item in known}
        self.new: set[tuple[str, str]] = set()

    def extend(self, level: str, pattern: str) -> None:
        """Probe what is not known yet; again while its window looks disturbed."""
        if (level, pattern) in self.known or self._sizes.get(level) is None:
            return
        self.new.add((level, pattern))
        kept = self._kept.get((level, pattern))
        if kept is not None and self._agree(kept):
            self.known[level, pattern] = self._kept[level, pattern]
            return
        latest = self._take(level, pattern)
        while latest.bytes_per_s > _DISTURBED * latest.median_bytes_per_s:
            again = self.repeat(level, pattern)
            if again is None:
                return
            latest = again

    def _agree(self, kept: Bandwidth) -> bool:
        """Whether one reading of a level, taken now, agrees with what is kept of it."""
        if kept.level not in self._agrees:
            size = self._sizes.get(kept.level)
            agrees = size == kept.working_set_bytes
            if agrees:
                reply = self._ask(kept.level, kept.pattern, kept.working_set_bytes)
                reading = Reading.of(reply)
                ratio = reading.per_second / kept.bytes_per_s
                agrees = AGREES <= ratio <= 1 / AGREES
                if agrees and ratio > 1:  # the best is kept
                    now = Bandwidth.of(kept.level, kept.pattern, kept.working_set_bytes, reading)
                    self._kept[kept.level, kept.pattern] = now
            self._agrees[kept.level] = agrees
        return self._agrees[kept.level]

    def repeat(self, level: str, pattern: str) -> Bandwidth | None:
        """Probe again, unless that was done often enough; the best of all is kept."""
        count = self._repeats.get((level, pattern), 0)
        if count >= _REPEATS:
            return None
        self._repeats[level, pattern] = count + 1
        return self._take(level, pattern)

    def _take(self, level: str, pattern: str) -> Bandwidth:
        size = self._sizes.get(level)
        if size is None:
            raise ValueError(f"{level}: no such level")
        reply = self._ask(level, pattern, size)
        found = Bandwidth.of(level, pattern, size, Reading.of(reply))
        best = self.known.get((level, pattern))
        if best is None or found.bytes_per_s > best.bytes_per_s:
            self.known[level, pattern] = found
        return found

    def mistaken(self) -> Iterator[tuple[Bandwidth, Bandwidth]]:
        """Yield the readings that are slower than one of a farther level, with that one."""
        for pattern in dict.fromkeys(pattern for _, pattern in self.known):
            items = (self.known.get((level, pattern)) for level in self._sizes)
            for far, near in itertools.combinations([item for item in items if item], 2):
                fresh = {(far.level, pattern), (near.level, pattern)} & self.new
                if fresh and near.bytes_per_s < far.bytes_per_s:
                    yield near, far


def probe_bandwidths(
    record: DeviceRecord,
    patterns: Sequence[str],
    levels: Sequence[str],
    probe: Probe,
    kept: Sequence[Bandwidth] = (),
) -> tuple[tuple[Bandwidth, ...], tuple[Advice, ...]]:
    """Return all bandwidths of a CPU's record and those it lacks; see :func:`probe_levels`.

    Args:
        record: what is known so far.
        patterns: which bandwidths are needed.
        levels: of which levels; one that the machine lacks is left out.
        probe: runs a native probe.
        kept: what an earlier run has probed; believed where one reading of the level agrees.

    Raises:
        UnsupportedError: the probe cannot run on this machine.
    """
    facts, cpus = record.facts, record.cpus
    sizes = {
        "memory": memory_working_set(facts, cpus),
        "llc": cache_working_set(facts, cpus),
        "l2": private_working_set(facts, cpus),
    }

    def ask(level: str, pattern: str, size: int) -> Mapping[str, Any]:
        return probe(
            "bandwidth",
            kind=pattern,
            bytes=size,
            cpus=list(cpus),
            seconds=_SECONDS,
            # Non-temporal stores would send to memory what is to stay in the cache.
            streaming=level == "memory",
        )

    return probe_levels(record.bandwidths, sizes, patterns, levels, ask, kept)


def probe_levels(
    known: Sequence[Bandwidth],
    sizes: Mapping[str, int | None],
    patterns: Sequence[str],
    levels: Sequence[str],
    ask: Callable[[str, str, int], Mapping[str, Any]],
    kept: Sequence[Bandwidth] = (),
) -> tuple[tuple[Bandwidth, ...], tuple[Advice, ...]]:
    """Return what is known with what was lacking, and warnings about the new ones.

    One window of some milliseconds would decide every roof, so a reading is taken again, at most
    twice, where its best round is far above its median, and where a level reads slower than one
    that is farther away; the best reading is kept.

    Args:
        known: the bandwidths known so far.
        sizes: the device's levels, from the farthest to the nearest, each with the bytes that a
            probe of it moves; None where the device lacks the level.
        patterns: which bandwidths are needed.
        levels: of which levels; one that the device lacks is left out.
        ask: runs a native probe of a level, a pattern and so many bytes.
        kept: what an earlier run has probed; believed where one reading of the level agrees.
    """
    prober = _Prober(known, sizes, ask, kept)
    for level in levels:
        for pattern in patterns:
            prober.extend(level, pattern)
    for _ in range(_REPEATS):
        for near in dict.fromkeys(near for near, _ in prober.mistaken()):
            prober.repeat(near.level, near.pattern)
    advice = tuple(
        Advice(
            symptom=f"the {near.pattern} probe of {near.level} reached "
            f"{near.bytes_per_s / 1e9:.1f} GB/s, that of {far.level} {far.bytes_per_s / 1e9:.1f}: "
            "a nearer level cannot be slower, so roofs that count on it are too low to believe",
            remedy="stop other load and measure again",
        )
        for near, far in prober.mistaken()
    )
    return tuple(prober.known.values()), advice


def extend_bandwidths(
    record: _Device,
    probe: Callable[[], tuple[tuple[Bandwidth, ...], tuple[Advice, ...]]],
) -> tuple[_Device, tuple[Advice, ...]]:
    """Return the record with its bandwidths, or with the reason why it has none; and new warnings.

    Args:
        record: what is known so far.
        probe: returns all bandwidths and what is remarkable about them.
    """
    if record.bandwidth_reason is not None:
        return record, ()
    try:
        found, advice = probe()
    except UnsupportedError as error:
        missing = Advice(
            symptom=f"no bandwidth was probed: {error}",
            remedy="times and rates are measured all the same; there is no roof to hold them "
            "against",
        )
        return dataclasses.replace(record, bandwidth_reason=str(error)), (missing,)
    return dataclasses.replace(record, bandwidths=found), advice
