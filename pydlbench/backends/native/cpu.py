"""The native CPU backend: oneDNN and our own loops, through ``pydlbench._cpu``."""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import pydlbench._cpu as _cpu
from pydlbench.backends import autotune
from pydlbench.backends.base import (
    FUSED_KINDS,
    KernelFacts,
    Preparation,
    check_case,
    check_not_emulated,
)
from pydlbench.backends.native.inputs import RecentInputs
from pydlbench.devices.cpu.affinity import physical_cores, process_cpus
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.devices.cpu.peaks import flop_rate
from pydlbench.devices.cpu.working_set import last_level_bytes
from pydlbench.devices.probe_cache import ProbeCache, machine_key, probe_cache_path
from pydlbench.errors import UnsupportedError
from pydlbench.ops.fused import NOTHING_FUSED, fused_ops
from pydlbench.ops.op import Layer
from pydlbench.ops.table import tensor_types
from pydlbench.records.measurement import Correctness, KernelSpec
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.guards import slow_bursts
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median
from pydlbench.verification.inputs import made
from pydlbench.verification.verify import Verdict, verify
from pydlbench.version import __version__
from pydlbench.words import arithmetic

# -----------------------------------------------------------------------------
# The choice among the candidates of one spec.

_CACHES = {
    "hot": _cpu.CacheState.hot,
    "weights-cold": _cpu.CacheState.weights_cold,
    "all-cold": _cpu.CacheState.all_cold,
}
# Attempts to take samples without waiting for a CPU.
_MAX_ATTEMPTS = 3
_POLICY = Policy()
# A cold kernel holds many copies of its tensors.
COLD_FINALISTS = 2


class _UndisturbedKernel:
    """A kernel for probe and finals, which repeats samples that had to wait for a CPU."""

    def __init__(self, kernel: _cpu.Kernel) -> None:
        self._kernel = kernel

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return times; samples that had to wait for a CPU are repeated twice at most."""
        seconds: list[float] = []
        for _ in range(_MAX_ATTEMPTS):
            raw = self._kernel.sample(samples, 1, untimed)
            seconds = raw["seconds"].tolist()
            limit = max(_POLICY.chunk_wait_floor_s, _POLICY.chunk_wait_fraction * raw["wall_s"])
            if raw["run_delay_s"] <= limit:
                break
        return seconds


class CpuAutotuner(autotune.Autotuner):
    """The choice among oneDNN's implementations and our own loops.

    Args:
        listed: candidates that the native module listed.
        spec: the spec to prepare.
        preparation: options of the preparation.
        cpus: CPU of each thread.
        inputs: inputs by role.
    """

    def __init__(
        self,
        listed: Sequence[_cpu.Candidate],
        spec: KernelSpec,
        preparation: Preparation,
        cpus: list[int],
        inputs: dict[str, NDArray[Any]],
    ) -> None:
        effort = autotune.CPU_BRIEF_EFFORT if preparation.brief else autotune.CPU_EFFORT
        if spec.cache != "hot":  # making a kernel's many copies again takes longer than its probe
            effort = dataclasses.replace(effort, stages=effort.stages[-1:])
        super().__init__(
            [_candidate(item) for item in listed],
            effort,
            thorough=preparation.all_candidates,
            finalists=None if spec.cache == "hot" else COLD_FINALISTS,
            finals=preparation.finals,
        )
        self._spec, self.precision = spec, spec.precision
        self._preparation = preparation
        self._cpus = cpus
        self._inputs = inputs
        self.arena = _cpu.Arena(self._inputs)

    def kernel(self, candidate: autotune.KernelCandidate) -> _cpu.Kernel:
        """Return the candidate's kernel, and make it if needed."""
        if candidate.kernel is None:
            candidate.kernel = _cpu.Kernel(
                candidate.source,
                self.arena,
                _CACHES[self._spec.cache],
                self._preparation.cold_bytes,
                self._cpus,
            )
        kernel: _cpu.Kernel = candidate.kernel
        return kernel

    def runnable(self, candidate: autotune.KernelCandidate) -> _UndisturbedKernel:
        """Make a candidate runnable."""
        return _UndisturbedKernel(self.kernel(candidate))

    def release_probed(self, candidate: autotune.KernelCandidate, best: float) -> None:  # noqa: ARG002 - of all
        """Free the kernels that are not in the next stage if ``best`` is the fastest.

        Hot kernels of the next stage are kept, because making one again takes as long as its probe;
        cold ones hold many copies.
        """
        if len(self.candidates) > 1:
            kept = self.near(best) if self._spec.cache == "hot" else []
            for other in self.candidates:
                if other not in kept:
                    other.kernel = None
        if self.arena.bytes > self._preparation.memory_bytes // 4:
            for other in self.candidates:
                other.kernel = None
            self.arena.clear()

    def take(self) -> autotune.KernelCandidate:
        """Return the first candidate with a kernel that has not run; samples will load its data."""
        self.kernel(self.candidates[0])
        return self.candidates[0]

    def verify(self, candidate: autotune.KernelCandidate) -> Verdict:
        """Run a candidate on outputs filled with NaN and compare; may time reorders, too."""
        kernel = self.kernel(candidate)
        if self.thorough and "reorder_s" not in candidate.details:
            candidate.details["reorder_s"] = kernel.reorder_seconds()
        kernel.run_poisoned()
        layer = self._spec.layer
        # Primitives have other dimensions for some tensors: channels, grouped weights.
        shapes = layer.shapes()
        results = {role: array.reshape(shapes[role]) for role, array in kernel.outputs().items()}
        return verify(
            layer,
            self._spec.pass_,
            self._spec.precision,
            self._inputs,
            results[layer.result(self._spec.pass_)],
            seed=self._preparation.seed,
            algorithm=candidate.algorithm,
            extra=results,
            propagation=self._spec.propagation,
            fuse=self._spec.fuse,
        )


def _candidate(candidate: _cpu.Candidate) -> autotune.KernelCandidate:
    return autotune.KernelCandidate(
        candidate,
        algorithm=candidate.implementation,
        layout=candidate.layout,
        details={
            "variant": candidate.variant,
            "workspace_bytes": candidate.scratchpad_bytes + candidate.workspace_bytes,
        },
    )


# -----------------------------------------------------------------------------
# The list of candidates.

# Instruction sets in names of implementations: ``jit:avx2``, ``brg_fwd:avx2+brgconv:avx2``.
_INSTRUCTION_SET = re.compile(r":\w+")
# Code for matrix units counts as code of the same width: neither kind is always faster.
_VECTOR_BITS: Final = {"avx512": 512, "avx2": 256, "avx": 256, "sse41": 128}


def native_pass(spec: KernelSpec) -> _cpu.Pass:
    """Return the native module's name of a pass."""
    if spec.pass_ == "forward":
        training = spec.propagation == "training"
        return _cpu.Pass.forward_training if training else _cpu.Pass.forward_inference
    return _cpu.Pass[spec.pass_.replace("-", "_")]


def candidates(spec: KernelSpec, thorough: bool = False) -> list[_cpu.Candidate]:
    """List all combinations of implementation and layout for ``spec``.

    Args:
        spec: the spec.
        thorough: list our own loops for all instruction sets of this CPU.

    Raises:
        UnsupportedError: there is no candidate.
        PrimitiveError: the library refused the problem.
    """
    layer, fields = spec.layer, spec.layer.problem_fields()
    precision = _cpu.Precision[arithmetic(spec.precision)]
    if types := tensor_types(layer, spec.precision):
        fields["types"] = [types["src"], types.get("weights", types["src"]), types["dst"]]
    if spec.fuse != NOTHING_FUSED:
        fields["fused"] = [op.native for op in fused_ops(spec.fuse)]
    return _cpu.candidates(layer.kind, native_pass(spec), precision, fields, thorough)


def without_narrower_code(listed: Sequence[_cpu.Candidate]) -> list[_cpu.Candidate]:
    """Leave out code for narrower vectors if there is code of the same kind for wider ones."""

    def kind(candidate: _cpu.Candidate) -> tuple[str, str]:
        return _INSTRUCTION_SET.sub("", candidate.implementation), candidate.variant

    widest: dict[tuple[str, str], int] = {}
    for item in listed:
        widest[kind(item)] = max(widest.get(kind(item), 0), _vector_bits(item.implementation))
    return [item for item in listed if _vector_bits(item.implementation) == widest[kind(item)]]


def _vector_bits(implementation: str) -> int:
    """Return the vector width in the name of an implementation; 0 if it has none."""
    return next((bits for name, bits in _VECTOR_BITS.items() if name in implementation), 0)


_FASTEST_HOT_NOTE = "the kernel that was fastest with hot caches; no other was tried"
_KEPT_NOTE = "the fastest kernel that an earlier run has found; --fresh searches again"
_BRIEF_NOTE = "found by the short search of an estimate; its reorders were not timed"


class FmaBursts:
    """Rate of the cores' FMA units in a burst, as a share of the undisturbed rate.

    Other processes on a core, also outside the virtual machine, take a share of its FMA units,
    whatever is being timed. The undisturbed rate per cycle follows from the core's design. For an
    unknown design, it is the second highest rate of a burst in all processes on this machine, so
    that all processes of a session have the same reference; the highest may be an error of the
    clock.

    Args:
        cpus: CPUs that the process is pinned to.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        facts = read_cpu_facts()
        rate = flop_rate(facts, "fp32")
        self._cpus = list(cpus)
        self._per_cycle = 0.0
        self._kept: ProbeCache | None = None
        self._best: list[float] = []
        if rate is not None and not rate.assumed:
            self._per_cycle = rate.flop_per_clock * physical_cores(facts, cpus)
        else:
            self._kept = ProbeCache(probe_cache_path(), machine_key(facts, cpus, {}))

    @classmethod
    def on_cpus(cls, cpus: Sequence[int]) -> FmaBursts | None:
        """Create bursts, or return None if the processor does not support them."""
        try:
            _cpu.fma_burst(cpus)
            _cpu.clock_hz()
        except UnsupportedError:
            return None
        return cls(cpus)

    def reading(self) -> dict[str, float]:
        """Run a burst on its own threads, while all others of this process sleep.

        Returns:
            Its rate (``share``), and the core clock (``clock_hz``).
        """
        rate, clock_hz = _cpu.fma_burst(self._cpus), _cpu.clock_hz()
        return {"share": self.shares([rate], clock_hz)[0], "clock_hz": clock_hz}

    def shares(self, flops_per_s: Sequence[float], clock_hz: float) -> tuple[float, ...]:
        """Convert the rates of bursts to shares.

        Args:
            flops_per_s: rate of each burst, over all threads.
            clock_hz: clock of the cores during the bursts.
        """
        per_cycle = [rate / clock_hz for rate in flops_per_s]
        if self._kept is not None:
            self._best = sorted([*self._best, *per_cycle])[-2:]
            known = self._kept.read_burst()
            second = self._best[0] if len(self._best) > 1 else 0.0
            self._per_cycle = max(self._per_cycle, second, known)
            if self._per_cycle > known:
                self._kept.write_burst(self._per_cycle)
        reference = self._per_cycle or max(per_cycle)
        return tuple(rate / reference for rate in per_cycle)


class ReadBursts:
    """Short reads of two buffers by one thread, which detect other use of the cache and memory bus.

    Bursts of FMAs do not detect other processes that share only the last-level cache or the memory.

    Args:
        cpus: CPUs that the process is pinned to.
    """

    # Half of the cache, because its other half holds the data of the kernel; reading it must take
    # less than 1 ms.
    _MAX_CACHED_BYTES, _READ_BYTES = 8 << 20, 2 << 20
    # Largest buffer in memory, which has to be three times as large as the cache.
    _MAX_MEMORY_BYTES = 192 << 20

    def __init__(self, cpus: Sequence[int]) -> None:
        llc = last_level_bytes(read_cpu_facts(), tuple(cpus))
        self._near = np.ones(min(llc // 2, self._MAX_CACHED_BYTES) // 4 or 1, np.float32)
        size = 3 * llc
        self._far = np.ones(size // 4, np.float32) if 0 < size <= self._MAX_MEMORY_BYTES else None
        self._next = 0

    def rates(self) -> dict[str, float | None]:
        """Return bytes per second read from the cache (``llc``) and from memory (``memory``).

        ``memory`` is None if the cache is so large that filling a larger buffer takes too long.
        """
        self._rate(self._near)  # load it into the cache
        return {"llc": self._rate(self._near), "memory": self._far_rate()}

    def _far_rate(self) -> float | None:
        if self._far is None:
            return None
        count = self._READ_BYTES // 4
        if self._next + count > len(self._far):
            self._next = 0
        part = self._far[self._next : self._next + count]
        self._next += count
        # First touch each page: in some virtual machines the first access to a page after a minute
        # takes some 5 us, which is not due to other use of the memory bus.
        part[:: mmap.PAGESIZE // part.itemsize].sum()
        return self._rate(part)

    @staticmethod
    def _rate(values: NDArray[np.float32]) -> float:
        begin = time.perf_counter()
        np.dot(values, values)
        return values.nbytes / (time.perf_counter() - begin)


class CpuKernel:
    """A native kernel, ready to be timed."""

    def __init__(
        self, kernel: _cpu.Kernel, facts: KernelFacts, threads: int, bursts: FmaBursts | None
    ) -> None:
        self._kernel = kernel
        self._threads = threads
        self._bursts = bursts
        self.facts = facts

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested samples; the GIL is released meanwhile."""
        untimed = request.untimed
        if request.touch:
            self._kernel.touch()
            untimed = 0
        before = resource.getrusage(resource.RUSAGE_SELF)
        raw = self._kernel.sample(
            request.samples, request.inner, untimed, bursts=self._bursts is not None
        )
        after = resource.getrusage(resource.RUSAGE_SELF)
        clocks: tuple[float, ...] = tuple(raw["clock_hz"].tolist())
        bursts: tuple[float, ...] = ()
        if self._bursts is not None and clocks:
            bursts = self._bursts.shares(raw["bursts"].tolist(), median(clocks))
        return Chunk(
            seconds=tuple(raw["seconds"].tolist()),
            clock_hz=clocks,
            bursts=bursts,
            run_delay_s=max(0.0, raw["run_delay_s"]),
            steal_s=max(0.0, raw["steal_s"]),
            wall_s=raw["wall_s"],
            threads=self._threads,
            faults=(after.ru_minflt - before.ru_minflt)
            / (untimed + request.samples * request.inner),
            voluntary=after.ru_nvcsw - before.ru_nvcsw,
            involuntary=after.ru_nivcsw - before.ru_nivcsw,
        )


class CpuBackend:
    """oneDNN and our own loops on this process's CPUs and threads."""

    name = "native"

    def __init__(self, cpus: Sequence[int]) -> None:
        self.cpus = list(cpus)
        self._isa = frozenset(_cpu.isa())
        self._bursts = FmaBursts.on_cpus(cpus)
        self._reads: ReadBursts | None = None
        self._inputs = RecentInputs()

    def describe(self) -> dict[str, Any]:
        """Return version, run time, instruction set and threads of oneDNN."""
        return {**_cpu.library(), "numpy": np.__version__}

    def prepare(self, spec: KernelSpec, preparation: Preparation) -> CpuKernel:
        """Find the fastest correct candidate; see :class:`~pydlbench.backends.base.Backend`."""
        self._check_support(spec)
        listed = [c for c in candidates(spec) if _has_layout(c, spec)]
        if not listed:
            raise UnsupportedError(f"there is no implementation with --layout {spec.layout}")
        variant = [c for c in listed if _name(c) == preparation.variant]
        tried = variant or _without_slow(listed, preparation)
        inputs = made(self._inputs.inputs(spec, preparation.seed))
        search = CpuAutotuner(tried, spec, preparation, self.cpus, inputs)
        known = bool(variant) and preparation.verified
        chosen = search.take() if known else search.tune()
        kernel = self._finish(search, chosen, reorders=not (known or preparation.brief))
        variant_note = _KEPT_NOTE if preparation.kept else _FASTEST_HOT_NOTE
        if note := variant_note if variant else _BRIEF_NOTE if preparation.brief else "":
            kernel.facts = dataclasses.replace(kernel.facts, notes=[*kernel.facts.notes, note])
        return kernel

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a CPU probe by name; see ``pydlbench._cpu``."""
        if name == "launch":
            return {"seconds": _cpu.launch_seconds()}
        if name == "burst":
            return self._bursts.reading() if self._bursts else {"share": None, "clock_hz": None}
        if name == "reads":
            self._reads = self._reads or ReadBursts(self.cpus)
            return self._reads.rates()
        more: dict[str, Any] = {}
        before = None if self._bursts is None else self._bursts.reading()["share"]
        if name == "fma_peak":
            result = _cpu.fma_peak(**arguments)
            more["clocks_hz"] = _clocks(arguments["cpus"])
        elif name == "bandwidth":
            result = _cpu.bandwidth(**arguments)
        else:
            raise UnsupportedError(
                f"no such probe: {name}; there is: burst, reads, launch, fma_peak, bandwidth"
            )
        if self._bursts is not None and before is not None:
            more["disturbance"] = slow_bursts((before, self._bursts.reading()["share"]), Policy())
        return more | {
            field: getattr(result, field)
            for field in (
                "per_second",
                "median_per_second",
                "clock_hz",
                "median_clock_hz",
                "seconds",
                "rounds",
                "kernel",
            )
        }

    def _check_support(self, spec: KernelSpec) -> None:
        check_case(spec)
        check_not_emulated(arithmetic(spec.precision), self._isa)
        has_bias = spec.pass_ == "forward" and spec.layer.entry.kind in FUSED_KINDS
        if spec.fuse == "bias" and not has_bias:
            raise UnsupportedError(
                "--fuse bias: natively on a CPU for the forward pass of convolutions and products"
            )
        if spec.cache == "weights-cold" and not spec.layer.weight_elements:
            raise UnsupportedError(f"{spec.layer.kind} has no weights to keep out of the cache")

    def _finish(
        self, search: CpuAutotuner, chosen: autotune.KernelCandidate, *, reorders: bool
    ) -> CpuKernel:
        kernel = search.kernel(chosen)
        library = _cpu.library()
        search.arena.clear()
        facts = KernelFacts(
            algorithm=chosen.algorithm,
            layout=chosen.layout,
            library=(
                f"pydlbench {__version__}"
                if chosen.algorithm.startswith("own:")
                else f"{library['name']} {library['version']}"
            ),
            accumulate="int32" if arithmetic(search.precision) == "int8" else "float32",
            workspace_bytes=chosen.details["workspace_bytes"],
            reorder_s=kernel.reorder_seconds() if reorders else {},
            setup_s=kernel.setup_seconds,
            correct=chosen.verdict or Correctness(status="unchecked"),
            candidates=search.listing(chosen),
        )
        return CpuKernel(kernel, facts, library["threads"] or len(self.cpus), self._bursts)


def _clocks(cpus: Sequence[int]) -> list[float]:
    """Read the core clocks of all CPUs at the same time, in Hz; empty if they cannot be read."""

    def read(cpu: int) -> float:
        os.sched_setaffinity(0, {cpu})  # 0 is the calling thread
        return _cpu.clock_hz()

    try:
        with ThreadPoolExecutor(len(cpus)) as threads:
            return list(threads.map(read, cpus))
    except (UnsupportedError, OSError):
        return []


def _without_slow(listed: list[_cpu.Candidate], preparation: Preparation) -> list[_cpu.Candidate]:
    """Leave out candidates that cannot win."""
    # The unoptimised fallback takes minutes where others take milliseconds.
    listed = [c for c in listed if not c.is_reference] or listed
    if preparation.all_candidates:
        return listed
    # Code for narrower vectors of the same kind is never the fastest, and slow to probe.
    listed = [c for c in listed if "sse41" not in c.implementation] or listed
    return without_narrower_code(listed)


def _name(candidate: _cpu.Candidate) -> str:
    """Return a candidate's name in ``Preparation.variant``."""
    return f"{candidate.implementation} {candidate.layout}"


def _has_layout(candidate: _cpu.Candidate, spec: KernelSpec) -> bool:
    """Whether a candidate has a layout that the spec allows."""
    if candidate.variant == "plain" and spec.layer.op != "gemm":
        return spec.layout != "blocked"
    if spec.layer.kind == "pointwise":
        return _has_pointwise_layout(candidate, spec.layer, spec.layout)
    if spec.layer.op == "gemm" and spec.layer.variant is not None:
        return True  # all candidates have the layer's layout
    if spec.layout == "best":
        return True
    if spec.layer.op == "gemm":
        # Weights are plain or packed (the layout that the library chooses).
        plain = spec.layout in ("nchw", "nhwc")
        return candidate.variant == ("plain" if plain else "any")
    if spec.layer.op == "pool" and spec.layout == "any":
        return True  # pooling has no preferred layout
    return candidate.variant == spec.layout


def _has_pointwise_layout(candidate: _cpu.Candidate, layer: Layer, layout: str) -> bool:
    """Like :func:`_has_layout`, but list only one of two equivalent layouts."""
    if layout not in ("best", "any"):
        return candidate.variant == layout
    same = layer.entry.elementwise or layer.height * layer.width == 1
    return candidate.variant == "nchw" or not same


def create(device: str = "cpu") -> CpuBackend:
    """Create the backend for the CPUs that this process may use.

    Args:
        device: ``cpu``, the only one.
    """
    if device != "cpu":
        raise UnsupportedError(f"{device}: the CPU backend serves the device cpu only")
    return CpuBackend(process_cpus())
