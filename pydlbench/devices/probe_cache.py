"""Probe results of earlier runs on this machine, kept in a file and confirmed before use.

Without them a run of one layer would spend a quarter of its time on probes. They are kept by
machine, CPUs and library. A run uses the bandwidths of a level if one short reading of that level
agrees with them, and a compute peak if one try agrees. Otherwise, and after a day, it probes again.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from pydlbench.devices.cpu.facts import CpuFacts
from pydlbench.devices.findings import Bandwidth

#: Environment variable with the path of the file, or ``none``.
VARIABLE: Final = "PYDLBENCH_PROBES"
#: Minimum ratio of two readings that agree; the maximum is its reciprocal. Readings of an idle
#: machine agree within a few per cent, readings of a shared machine within twenty per cent.
AGREES: Final = 0.8
_VERSION: Final = 2
# Seconds. Results of a disturbed day are not used on the next one.
_AGE_S: Final = 24 * 3600.0
# Per machine, the most recent ones; some hundred bytes each.
_MOST_KERNELS: Final = 5000


def probe_cache_path() -> Path | None:
    """Return ``$PYDLBENCH_PROBES``, or a file in the user's cache folder; None to keep nothing."""
    named = os.environ.get(VARIABLE)
    if named:
        return None if named == "none" else Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("pydlbench", appauthor=False) / "probes.json"


def machine_key(facts: CpuFacts, cpus: Sequence[int], library: Mapping[str, Any]) -> str:
    """Return a short hash of everything that must be equal for a reading to be reused.

    Args:
        facts: facts of the CPU.
        cpus: CPUs that the probes run on.
        library: properties of the native worker's library, such as name and version.
    """
    same = {
        "cpu": [facts.vendor, facts.family, facts.model, facts.stepping, facts.brand, facts.isa],
        "caches": [dataclasses.asdict(cache) for cache in facts.caches],
        "power": [facts.governor, facts.turbo, facts.max_hz],
        "guest": [facts.virtualised, facts.hypervisor],
        "memory": facts.memory_total_bytes,
        "cpus": list(cpus),
        "library": {name: str(value) for name, value in library.items()},
    }
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedKernel:
    """The fastest verified kernel of a problem.

    Attributes:
        variant: name of the kernel, see ``Preparation.variant``.
        rival: name of a kernel that was nearly as fast in a run with too few repetitions to choose
            between the two; else None.
        seconds: time of an execution.
        scatter: relative standard deviation of the repetitions; None if unknown.
    """

    variant: str
    rival: str | None
    seconds: float
    scatter: float | None


class ProbeCache:
    """The file of kept results of one machine.

    Args:
        path: path of the file; None to keep nothing.
        key: key of this machine, from :func:`machine_key`.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._path = path
        self._key = key
        # The content is parsed only if the file changed: hundreds of kernels take milliseconds.
        self._version: tuple[int, ...] = ()
        self._content: dict[str, Any] = {}

    def read(self) -> tuple[Bandwidth, ...]:
        """Return the bandwidths kept within the last day; none if the file is damaged."""
        try:
            kept = msgspec.convert(self._fresh().get("bandwidths", []), tuple[Bandwidth, ...])
        except msgspec.ValidationError:
            return ()
        rates = [
            rate
            for item in kept
            for rate in (item.bytes_per_s, item.median_bytes_per_s, *item.windows)
        ]
        return kept if all(0 < rate < math.inf for rate in rates) else ()

    def write(self, bandwidths: Sequence[Bandwidth]) -> None:
        """Keep bandwidths of this machine in place of those of the same level and pattern.

        If the folder cannot be written, the next run probes again.
        """
        earlier = {(item.level, item.pattern): item for item in self.read()}
        new = {(item.level, item.pattern): item for item in bandwidths}
        # All of them expire a day after the oldest.
        self._update(
            renewed=not earlier.keys() - new,
            bandwidths=[dataclasses.asdict(item) for item in (earlier | new).values()],
        )

    def read_peaks(self) -> dict[str, float]:
        """Return FLOP per cycle by precision, kept within the last day; empty if damaged."""
        try:
            return msgspec.convert(self._fresh().get("peaks", {}), dict[str, float])
        except msgspec.ValidationError:
            return {}

    def write_peak(self, precision: str, per_cycle: float) -> None:
        """Keep a peak of this machine in place of an earlier one.

        Args:
            precision: precision of the peak.
            per_cycle: peak in FLOP per core cycle.
        """
        self._update(peaks={**self.read_peaks(), precision: per_cycle})

    def read_burst(self) -> float:
        """Return the highest throughput of an FMA burst, in FLOP per cycle; 0 if unknown.

        Its key is that of the machine and the CPUs alone, see :meth:`write_burst`.
        """
        best = self._fresh().get("burst", 0.0)
        return best if isinstance(best, float) and 0 < best < math.inf else 0.0

    def write_burst(self, per_cycle: float) -> None:
        """Keep the highest throughput of an FMA burst, in FLOP per cycle."""
        self._update(renewed=True, burst=per_cycle)

    def read_kernel(self, problem: str) -> CachedKernel | None:
        """Return the kernel of a problem that an earlier run selected, or None.

        Args:
            problem: key of everything that the choice depends on, except the machine.
        """
        kernel = self._read().get("kernels", {}).get(self._key, {}).get(problem)
        try:
            return msgspec.convert(kernel, CachedKernel | None)
        except msgspec.ValidationError:  # written by another version
            return None

    def write_kernel(self, problem: str, kernel: CachedKernel | None) -> None:
        """Keep the kernel of a problem, or remove it.

        Args:
            problem: key of the problem, see :meth:`read_kernel`.
            kernel: kernel to keep; None to remove the kept one.
        """
        document = self._document()
        known = document.setdefault("kernels", {}).setdefault(self._key, {})
        known.pop(problem, None)
        if kernel is not None:
            known[problem] = dataclasses.asdict(kernel)
        for oldest in list(known)[:-_MOST_KERNELS]:
            del known[oldest]
        self._write(document)

    def _fresh(self) -> dict[str, Any]:
        """Return the readings of this machine if they are less than a day old, else none."""
        kept = self._read()["machines"].get(self._key)
        taken = kept.get("taken") if isinstance(kept, dict) else None
        fresh = isinstance(taken, float) and 0 <= time.time() - taken < _AGE_S
        return kept if fresh else {}

    def _update(self, *, renewed: bool = False, **readings: Any) -> None:
        kept = self._fresh()
        taken = time.time() if renewed or not kept else kept["taken"]
        document = self._document()
        document["machines"][self._key] = {**kept, **readings, "taken": taken}
        self._write(document)

    def _write(self, document: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        text = msgspec.json.encode(document)
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._path.parent) as folder:
                new = Path(folder) / self._path.name
                new.write_bytes(text)
                new.replace(self._path)

    def _read(self) -> dict[str, Any]:
        """Return the file's content; parse it again only if the file has changed."""
        try:
            state = self._path.stat() if self._path else None
        except OSError:
            state = None
        version = () if state is None else (state.st_mtime_ns, state.st_ino, state.st_size)
        if not self._content or version != self._version:
            self._version, self._content = version, self._document()
        return self._content

    def _document(self) -> dict[str, Any]:
        """Return the file's content, which may be changed."""
        empty: dict[str, Any] = {"version": _VERSION, "machines": {}}
        if self._path is None:
            return empty
        try:
            document = msgspec.json.decode(self._path.read_bytes())
        except (OSError, ValueError):
            return empty
        usable = isinstance(document, dict) and document.get("version") == _VERSION
        return document if usable and isinstance(document.get("machines"), dict) else empty
