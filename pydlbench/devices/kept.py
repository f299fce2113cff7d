"""What earlier processes probed on this machine: kept in a file, and confirmed before use.

A run of one layer would spend a quarter of its time on the same readings again. So they are kept by
machine, CPUs and library, and a run believes the bandwidths of a level once one short reading of
that level has agreed with them, and a compute peak once a try has; where it does not, and after a
day, it is probed anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydlbench.devices.findings import Bandwidth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.devices.cpu.facts import CpuFacts

#: Environment variable that names the file, or ``none``.
VARIABLE: Final = "PYDLBENCH_PROBES"
#: A reading agrees with a kept one from this share of it on, up to the reciprocal. Readings of a
#: quiet machine agree within some per cent, those of a shared one within twenty.
AGREES: Final = 0.8
_VERSION: Final = 2
# Seconds: what a disturbed day has left behind is not believed on the next one.
_AGE_S: Final = 24 * 3600.0
# Of a machine, some hundred bytes each; those that were kept last.
_MOST_KERNELS: Final = 5000


def kept_path() -> Path | None:
    """Return the file: ``$PYDLBENCH_PROBES``, or one in the user's cache folder; None for none."""
    named = os.environ.get(VARIABLE)
    if named:
        return None if named == "none" else Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("pydlbench", appauthor=False) / "probes.json"


def machine_key(facts: CpuFacts, cpus: Sequence[int], library: Mapping[str, Any]) -> str:
    """Return what has to be the same for a reading to be taken over, as a short hash.

    Args:
        facts: of the CPU.
        cpus: that the probes run on.
        library: what the native worker says of its library and version.
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
class KeptKernel:
    """The fastest kernel of a problem that a search has found and verified.

    Attributes:
        variant: its name, see ``Preparation.variant``.
        rival: the name of the one that was nearly as fast; None without one.
        seconds: of an execution.
        scatter: standard deviation of its repetitions, relative; None if unknown.
    """

    variant: str
    rival: str | None
    seconds: float
    scatter: float | None


class Kept:
    """The file of what is kept, by machine.

    Args:
        path: of the file; None keeps nothing.
        key: of :func:`machine_key`.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._path = path
        self._key = key

    def read(self) -> tuple[Bandwidth, ...]:
        """Return what is kept of this machine since a day; nothing where that is damaged."""
        kept = self._document()["machines"].get(self._key)
        try:
            if not 0 <= time.time() - kept["taken"] < _AGE_S:
                return ()
            read = tuple(
                Bandwidth(**{**item, "windows": tuple(item["windows"])})
                for item in kept["bandwidths"]
            )
            usable = all(
                0 < rate < math.inf
                for item in read
                for rate in (item.bytes_per_s, item.median_bytes_per_s, *item.windows)
            )
        except (KeyError, TypeError):  # of another version, or damaged: probed anew
            return ()
        return read if usable else ()

    def write(self, bandwidths: Sequence[Bandwidth]) -> None:
        """Keep bandwidths of this machine in place of those of the same level and pattern.

        A folder that cannot be written costs the next run its probes, and nothing else.
        """
        if self._path is None:
            return
        earlier = {(item.level, item.pattern): item for item in self.read()}
        taken = {(item.level, item.pattern): item for item in bandwidths}
        # All of them are probed anew a day after the oldest.
        oldest = earlier.keys() - taken
        self._replace(
            self._document()["machines"][self._key]["taken"] if oldest else time.time(),
            bandwidths=[dataclasses.asdict(item) for item in (earlier | taken).values()],
            peaks=self.read_peaks(),
        )

    def read_peaks(self) -> dict[str, float]:
        """Return FLOP per cycle by precision, kept since a day; empty where that is damaged."""
        kept = self._document()["machines"].get(self._key)
        try:
            if not 0 <= time.time() - kept["taken"] < _AGE_S:
                return {}
            return {str(name): float(rate) for name, rate in kept["peaks"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):  # as for bandwidths
            return {}

    def write_peak(self, precision: str, per_cycle: float) -> None:
        """Keep a peak of this machine in place of an earlier one.

        Args:
            precision: of the peak.
            per_cycle: FLOP per core cycle.
        """
        if self._path is None:
            return
        peaks = {**self.read_peaks(), precision: per_cycle}
        known = self.read()
        taken = self._document()["machines"][self._key]["taken"] if known else time.time()
        self._replace(
            taken,
            bandwidths=[dataclasses.asdict(item) for item in known],
            peaks=peaks,
        )

    def read_burst(self) -> float:
        """Return what a burst of the canary has done at the most, in FLOP per cycle; 0 if unknown.

        Kept by the key of the machine and the CPUs alone, see :meth:`write_burst`.
        """
        kept = self._document()["machines"].get(self._key)
        try:
            fresh = 0 <= time.time() - kept["taken"] < _AGE_S
            best = float(kept["burst"])
        except (KeyError, TypeError, ValueError):  # of another version, or damaged: seen anew
            return 0.0
        return best if fresh and 0 < best < math.inf else 0.0

    def write_burst(self, per_cycle: float) -> None:
        """Keep what a burst has done, in FLOP per cycle, as the most that there is."""
        if self._path is not None:
            self._replace(time.time(), burst=per_cycle)

    def read_kernel(self, problem: str) -> KeptKernel | None:
        """Return the kernel of a problem that an earlier run has found; None where there is none.

        Args:
            problem: everything that it depends on besides the machine, as a key.
        """
        kernel = self._document().get("kernels", {}).get(self._key, {}).get(problem)
        try:
            return None if kernel is None else KeptKernel(**kernel)
        except TypeError:  # of another version: found anew
            return None

    def write_kernel(self, problem: str, kernel: KeptKernel | None) -> None:
        """Keep the kernel of a problem, or forget it.

        Args:
            problem: see :meth:`read_kernel`.
            kernel: None where what is kept is not believed any more.
        """
        if self._path is None:
            return
        document = self._document()
        known = document.setdefault("kernels", {}).setdefault(self._key, {})
        known.pop(problem, None)
        if kernel is not None:
            known[problem] = dataclasses.asdict(kernel)
        for oldest in list(known)[:-_MOST_KERNELS]:
            del known[oldest]
        self._write(document)

    def _replace(self, taken: float, **readings: Any) -> None:
        """Write the file anew, with what was found on this machine at a time."""
        assert self._path is not None, "nothing is kept"
        document = self._document()
        document["machines"][self._key] = {"taken": taken, **readings}
        self._write(document)

    def _write(self, document: Mapping[str, Any]) -> None:
        assert self._path is not None, "nothing is kept"
        text = json.dumps(document)
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._path.parent) as folder:
                new = Path(folder) / self._path.name
                new.write_text(text, encoding="utf-8")
                new.replace(self._path)

    def _document(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"version": _VERSION, "machines": {}}
        if self._path is None:
            return empty
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return empty
        usable = isinstance(document, dict) and document.get("version") == _VERSION
        return document if usable and isinstance(document.get("machines"), dict) else empty
