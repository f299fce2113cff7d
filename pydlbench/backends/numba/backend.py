"""The Numba backend: layers in compiled parallel loops."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

from pydlbench.backends.base import KernelFacts
from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant, entry_of
from pydlbench.backends.host_clock import Operator
from pydlbench.backends.numba.build import VARIANTS, HostOperator
from pydlbench.backends.numba.kernels import parallel
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError, refuse
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.timing.statistics import median

# -----------------------------------------------------------------------------
# Machine code of a kernel: the width of its vectors, and operands from memory.

_numba: Any = numba  # partly without types

# Packed arithmetic in single precision; fused multiply-adds are described first.
_PACKED = {
    "packed multiply-adds": r"vfn?m(?:add|sub)\d+ps",
    "packed instructions": r"v(?:add|sub|mul|max|min|cmp\w+)ps",
}
_OPERANDS = r"\s+(.*?%([xyz])mm\d.*)"
_BITS = {"z": 512, "y": 256, "x": 128}


def compiled_code(kernel: Any, arguments: Sequence[Any]) -> str:
    """Return the assembly of a compiled function.

    Args:
        kernel: a result of ``numba.njit`` that was called with arguments of these types.
        arguments: arguments of the call.

    Returns:
        The assembly; empty if the function was not compiled for these arguments.
    """
    types = tuple(_numba.typeof(argument) for argument in arguments)
    if not kernel.stats.cache_path:
        return str(kernel.inspect_asm().get(types, ""))
    # Numba's cache has no assembly, which is therefore stored next to it, by source and types.
    source = Path(kernel.py_func.__code__.co_filename)
    key = hashlib.sha256(f"{source.stat().st_mtime_ns} {types}".encode()).hexdigest()[:16]
    kept = Path(kernel.stats.cache_path) / f"{kernel.py_func.__name__}-{key}.s"
    if types in kernel.stats.cache_hits:
        return kept.read_text(encoding="utf-8") if kept.exists() else ""
    code = str(kernel.inspect_asm().get(types, ""))
    if code:
        kept.write_text(code, encoding="utf-8")
    return code


def describe_code(code: str) -> str | None:
    """Describe the width of a kernel's vectors, and how many operands come from memory.

    Args:
        code: assembly, in AT&T syntax.

    Returns:
        The description; None if there is no packed arithmetic in single precision.
    """
    for what, instruction in _PACKED.items():
        packed = re.findall(rf"\s{instruction}{_OPERANDS}", code)
        if packed:
            widest = max((register for _, register in packed), key=_BITS.__getitem__)
            operands = [text for text, register in packed if register == widest]
            loading = sum("(" in text for text in operands)
            return (
                f"{len(operands)} of the {len(packed)} {what} in its machine code are "
                f"{_BITS[widest]} bits wide, {loading} of these take an operand from memory"
            )
    return None


# -----------------------------------------------------------------------------
# The backend.

_llvm = importlib.import_module("llvmlite.binding")
# Timing of the kernel alone: maximum number of samples, minimum length of a sample, and maximum
# total time.
_MAX_SAMPLES = 7
_MIN_SAMPLE_S = 1e-3
_TOTAL_S = 0.5


@parallel
def _touch(y: NDArray[np.float32]) -> None:
    """Write one element on each thread."""
    for i in prange(y.size):
        y[i] = 0


class NumbaBackend(FrameworkBackend):
    """Numba on this process's CPUs.

    Args:
        cpus: logical CPUs that the process is pinned to; as many threads are used.

    Raises:
        UnsupportedError: ``NUMBA_NUM_THREADS`` allows fewer threads.
    """

    name = "numba"

    def __init__(self, cpus: Sequence[int]) -> None:
        super().__init__("cpu", cpus)
        self.library = f"Numba {numba.__version__}"
        allowed = int(_numba.config.NUMBA_NUM_THREADS)
        if allowed < len(self.cpus):
            raise UnsupportedError(
                f"NUMBA_NUM_THREADS={allowed} is fewer than the {len(self.cpus)} CPUs: unset it"
            )
        # OpenMP is preferred, as its threads are pinned by the worker's environment.
        _numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
        _numba.set_num_threads(len(self.cpus))
        _touch(np.empty(len(self.cpus), np.float32))  # starts the threads

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and their layer, and LLVM's name of the CPU."""
        return {
            "name": "Numba",
            "version": numba.__version__,
            "llvm": ".".join(str(part) for part in _llvm.llvm_version_info),
            "numpy": np.__version__,
            "threads": _numba.get_num_threads(),
            "threading_layer": _numba.threading_layer(),
            "isa": _llvm.get_host_cpu_name(),
            "settings": {"fastmath": True, "parallel": True},
        }

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see the base class."""
        refuse(
            (spec.precision == "bf16", "Numba has no bf16 on the CPU"),
            (spec.precision == "fp16", "Numba has no fp16 arithmetic on the CPU"),
            (spec.mode, f"numba has no mode {spec.mode}: its functions are always compiled"),
            (spec.fuse != "none", f"numba has no kernel for --fuse {spec.fuse}"),
        )
        return [entry_of("numba", VARIANTS, spec.layer, sides=(2,))(spec)]

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with the time of the kernel alone, and a description of its code."""
        facts = super().complete_facts(facts, operator, spec)
        assert isinstance(operator, HostOperator)
        alone = operator.with_reused_results()
        clock, whole = self.clock(alone), self.clock(operator)
        (first,) = clock.sample(ChunkRequest(samples=1)).seconds
        # Alternating, as clocks may change meanwhile.
        request = ChunkRequest(samples=1, inner=max(1, round(_MIN_SAMPLE_S / first)), untimed=1)
        pairs = [
            (clock.sample(request).seconds[0], whole.sample(request).seconds[0])
            for _ in range(max(1, min(_MAX_SAMPLES, int(_TOTAL_S / (4 * first)))))
        ]
        evidence: dict[str, Any] = {
            **facts.evidence,
            "kernel": facts.algorithm,
            "alone_s": median([kept for kept, _ in pairs]),
            "call_s": median([fresh for _, fresh in pairs]),
            "alone_by": "with its results allocated beforehand",
        }
        if code := describe_code(compiled_code(alone.kernel, alone.arguments)):
            evidence["detail"] = code
        return dataclasses.replace(facts, evidence=evidence)

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - there is one way to call
        """Return a parallel loop of one element per thread."""
        shape = (len(self.cpus),)
        return HostOperator(_touch, (), [(shape, np.float32)], "dst", lambda result: result)


def create(device: str) -> NumbaBackend:
    """Create the backend for the CPUs of this process.

    Raises:
        UnsupportedError: the device is a GPU, for which there are no kernels.
    """
    if device != "cpu":
        raise UnsupportedError(f"numba has no kernels for {device}; ask for --device cpu")
    return NumbaBackend(process_cpus())
