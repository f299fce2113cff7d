"""The fastest native kernels of earlier runs, which are prepared again without a search."""

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydlbench.devices.probe_cache import CachedKernel
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.machine import Devices
from pydlbench.runner.options import RunnerOptions
from pydlbench.study.estimate import estimate
from pydlbench.study.plan import planned_repetitions, relative_deviation
from pydlbench.study.table import Series

# A stored kernel that has become slower by this factor is deleted: machines differ by less from one
# hour to another.
_SLOWER: Final = 1.15


class StoredKernels:
    """Kernels that earlier runs have stored for this machine, and that this run stores.

    Args:
        options: settings of the session.
        devices: devices of the session; they know the file.
    """

    def __init__(self, options: RunnerOptions, devices: Devices) -> None:
        self._options, self._devices = options, devices
        self._known: dict[KernelSpec, CachedKernel | None] = {}  # by nameless spec

    def covers(self, spec: KernelSpec) -> bool:
        """Whether kernels of a spec are stored: native ones on a CPU, of which one is chosen."""
        return spec.backend == "native" and not spec.on_gpu and not self._options.algorithms

    def read(self, spec: KernelSpec) -> CachedKernel | None:
        """Return the kernel that an earlier run chose for a spec, if any."""
        if not self.covers(spec):
            return None
        nameless = spec.nameless
        if nameless not in self._known:
            self._known[nameless] = (
                self._devices.kept().read_kernel(_key(nameless))
                if self._options.keep_probes
                else None
            )
        return self._known[nameless]

    def write(
        self, spec: KernelSpec, variant: str | None, rival: str | None, samples: Series
    ) -> str | None:
        """Store the fastest kernel for later runs; return a warning, or None.

        A stored kernel that has become slower may not be the fastest any more: it is deleted, so
        that the next run searches again. A disturbed kernel is not stored, and a scatter only of
        undisturbed repetitions: more repetitions do not help against neighbours.

        Args:
            spec: what was computed.
            variant: name of the kernel.
            rival: name of a kernel that later runs sample beside it; None if there is none.
            samples: samples of the kernel.
        """
        estimated = estimate(samples)
        if variant is None or not self.covers(spec) or estimated.contended:
            return None
        key, seconds = _key(spec.nameless), samples.median
        known = self._known.get(spec.nameless)
        if known is not None and known.variant != variant:
            known = None
        if known is not None and seconds > _SLOWER * known.seconds:
            self._devices.kept().write_kernel(key, None)
            return (
                f"the kernel kept from an earlier run takes {seconds / known.seconds:.2f} times as "
                "long as then: the next run searches again, and so does --fresh"
            )
        scattered = None if known is None else known.scatter
        if not estimated.disturbed:
            scattered = relative_deviation(samples.preparations_s())
        kernel = CachedKernel(variant=variant, rival=rival, seconds=seconds, scatter=scattered)
        self._devices.kept().write_kernel(key, kernel)
        return None

    def repetitions(self, specs: Sequence[KernelSpec]) -> int:
        """Return the number of repetitions that specs need, from the scatter in earlier runs.

        Args:
            specs: specs that are repeated together.
        """
        scatters = [stored.scatter for spec in specs if (stored := self.read(spec)) is not None]
        return planned_repetitions(scatters, self._options.width)


def _key(spec: KernelSpec) -> str:
    """Return a digest of everything that a stored kernel depends on: spec and native module."""
    module = importlib.util.find_spec("pydlbench._cpu")
    file = Path(module.origin).stat() if module is not None and module.origin else None
    build = None if file is None else [file.st_size, file.st_mtime_ns]
    text = json.dumps([spec.to_dict(), build], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
