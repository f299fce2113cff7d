"""The native CPU backend: oneDNN, and loops of our own, through ``pydlbench._cpu``."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import pydlbench._cpu as _cpu
from pydlbench import __version__
from pydlbench.backends import autotune as search
from pydlbench.backends.base import KernelFacts, Preparation
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.backends.verification.verify import Verdict, verify
from pydlbench.devices.cpu.affinity import own_cpus
from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.records.specs import CPU_PRECISIONS, Case
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.layers.pool import Pool2d

__all__ = ["CpuSearch", "candidates", "create", "native_pass", "without_narrower_code"]


# -----------------------------------------------------------------------------
# The candidates of one case on a CPU: made, tried, verified, and given back.

_CACHES = {
    "hot": _cpu.CacheState.hot,
    "weights-cold": _cpu.CacheState.weights_cold,
    "all-cold": _cpu.CacheState.all_cold,
}
_TRIES = 3
_WAIT = Policy()


class _Contender:
    def __init__(self, kernel: _cpu.Kernel) -> None:
        self.kernel = kernel

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return times; those of a moment in which others had the CPUs are taken again, twice."""
        seconds: list[float] = []
        for _ in range(_TRIES):
            raw = self.kernel.sample(samples, 1, untimed)
            seconds = raw["seconds"].tolist()
            waited = max(_WAIT.chunk_wait_floor_s, _WAIT.chunk_wait_fraction * raw["wall_s"])
            if raw["run_delay_s"] <= waited:
                break
        return seconds


class CpuSearch:
    """The candidates of one case on their way to the choice of one."""

    def __init__(
        self, case: Case, preparation: Preparation, cpus: list[int], effort: search.Effort
    ) -> None:
        self.case = case
        self.preparation = preparation
        self.cpus = cpus
        self.effort = effort
        self.inputs = make_inputs(
            case.layer, case.pass_, case.precision, preparation.seed, propagation=case.propagation
        )
        self.arena = _cpu.Arena(self.inputs)
        self.kernels: dict[int, _cpu.Kernel] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.reorders: dict[int, dict[str, float]] = {}

    def kernel(self, entrant: search.Entrant) -> _cpu.Kernel:
        """Return the candidate's kernel, made when first asked for."""
        key = id(entrant)
        if key not in self.kernels:
            self.kernels[key] = _cpu.Kernel(
                entrant.candidate,
                self.arena,
                _CACHES[self.case.cache],
                self.preparation.cold_bytes,
                self.cpus,
            )
        return self.kernels[key]

    def drop(self, entrant: search.Entrant) -> None:
        """Give back a candidate's kernel."""
        self.kernels.pop(id(entrant), None)

    def tidy(self) -> None:
        """Give back the shared tensors if they have grown too large, and what holds them."""
        if self.arena.bytes > self.preparation.memory_bytes // 4:
            self.kernels.clear()
            self.arena.clear()

    def try_all(self, entrants: Sequence[search.Entrant], *, thorough: bool) -> int:
        """Give each entrant a trial; return how many cannot be tried at all."""
        best = float("inf")
        refused = 0
        effort = self.effort
        if len(entrants) == 1 and not thorough:
            # It needs no time to be chosen by: that it runs is enough.
            effort = dataclasses.replace(effort, trial_s=0.0)
        for entrant in entrants:
            try:
                search.trial(
                    entrant, self.contender(entrant), best, thorough=thorough, effort=effort
                )
                if thorough:
                    self.reorders[id(entrant)] = self.kernel(entrant).reorder_seconds()
                    if wrong := self.verify(entrant):
                        entrant.disqualify(wrong)
            except PydlbenchError as error:
                entrant.disqualify(error)
                refused += isinstance(error, UnsupportedError)
            if entrant.status == "ok":
                best = min(best, entrant.time)
            self._keep_finalists(entrants, best)
            self.tidy()
        return refused

    def _keep_finalists(self, entrants: Sequence[search.Entrant], best: float) -> None:
        """Give back the kernels that will not race, if nobody is faster than ``best``.

        Making a kernel again takes as long as its trial. But a cold one holds many copies.
        """
        if len(entrants) == 1:
            return
        hot = self.case.cache == "hot"
        racing = [one for one in entrants if hot and search.may_win(one, best, self.effort)]
        kept = {id(one) for one in search.ranking(racing)[: self.effort.finalists]}
        for entrant in entrants:
            if id(entrant) not in kept:
                self.drop(entrant)

    def contender(self, entrant: search.Entrant) -> _Contender:
        """Make a candidate runnable."""
        return _Contender(self.kernel(entrant))

    def verify(self, entrant: search.Entrant) -> str | None:
        """Run a candidate on poisoned outputs and compare; returns what is wrong with it."""
        kernel = self.kernel(entrant)
        kernel.run_poisoned()
        layer = self.case.layer
        extra = None
        if isinstance(layer, Pointwise):
            # What belongs to channels has as many dimensions as a primitive likes.
            written = kernel.outputs()
            extra = {role: array.reshape(layer.dims(role)) for role, array in written.items()}
            output = extra.pop(layer.writes(self.case.pass_, self.case.propagation)[0])
        else:
            output = kernel.output()
        verdict = verify(
            layer,
            self.case.pass_,
            self.case.precision,
            self.inputs,
            output,
            seed=self.preparation.seed,
            algorithm=entrant.candidate.implementation,
            extra=extra,
            propagation=self.case.propagation,
        )
        self.verdicts[id(entrant)] = verdict
        return None if verdict.status == "ok" else verdict.detail


# -----------------------------------------------------------------------------
# From a layer to the native module's problem: names and passes translated.

# What follows the colon in ``jit:avx2`` and in each half of ``brg_fwd:avx2+brgconv:avx2``.
_CODE_FOR = re.compile(r":\w+")
# Matrix units are another kind of code of the same width: neither is always the faster one.
_VECTORS: Final = {"avx512": 512, "avx2": 256, "avx": 256, "sse41": 128}


def native_pass(case: Case) -> _cpu.Pass:
    """Return the propagation kind of a case."""
    if case.pass_ == "forward":
        training = case.propagation == "training"
        return _cpu.Pass.forward_training if training else _cpu.Pass.forward_inference
    return _cpu.Pass[case.pass_.replace("-", "_")]


def candidates(case: Case, thorough: bool = False) -> list[_cpu.Candidate]:
    """List every implementation x layout that there is for ``case``.

    Args:
        case: what is to be computed.
        thorough: of our own loops those for all instruction sets that this CPU has, too.

    Raises:
        UnsupportedError: there is none.
        PrimitiveError: the library refused the problem.
    """
    pass_ = native_pass(case)
    precision = _cpu.Precision[case.precision]
    layer = case.layer
    if isinstance(layer, Conv2d):
        return _cpu.conv2d_candidates(
            pass_,
            precision,
            batch=layer.batch,
            groups=layer.groups,
            in_channels=layer.in_channels,
            in_height=layer.in_height,
            in_width=layer.in_width,
            out_channels=layer.out_channels,
            out_height=layer.out_height,
            out_width=layer.out_width,
            kernel_height=layer.kernel_height,
            kernel_width=layer.kernel_width,
            stride_height=layer.stride_height,
            stride_width=layer.stride_width,
            pad_top=layer.pad_top,
            pad_left=layer.pad_left,
            pad_bottom=layer.pad_bottom,
            pad_right=layer.pad_right,
            dilation_height=layer.dilation_height,
            dilation_width=layer.dilation_width,
        )
    if isinstance(layer, Gemm):
        return _cpu.gemm_candidates(
            pass_, precision, batch_count=layer.batch_count, m=layer.m, k=layer.k, n=layer.n
        )
    if isinstance(layer, Pointwise):
        return _cpu.pointwise_candidates(
            pass_,
            precision,
            layer.op,
            batch=layer.batch,
            channels=layer.channels,
            height=layer.height,
            width=layer.width,
            thorough=thorough,
            **layer.parameters,
        )
    return _cpu.pool2d_candidates(
        pass_,
        precision,
        _pool_mode(layer),
        batch=layer.batch,
        channels=layer.channels,
        in_height=layer.in_height,
        in_width=layer.in_width,
        out_height=layer.out_height,
        out_width=layer.out_width,
        kernel_height=layer.kernel_height,
        kernel_width=layer.kernel_width,
        stride_height=layer.stride_height,
        stride_width=layer.stride_width,
        pad_top=layer.pad_top,
        pad_left=layer.pad_left,
        pad_bottom=layer.pad_bottom,
        pad_right=layer.pad_right,
    )


def _pool_mode(layer: Pool2d) -> _cpu.PoolMode:
    if layer.mode == "max":
        return _cpu.PoolMode.max
    if layer.count_include_pad:
        return _cpu.PoolMode.avg_include_padding
    return _cpu.PoolMode.avg_exclude_padding


def without_narrower_code(found: Sequence[_cpu.Candidate]) -> list[_cpu.Candidate]:
    """Leave out code for narrower vectors where there is some of the same kind for wider ones.

    Args:
        found: candidates in any order.
    """

    def kind(candidate: _cpu.Candidate) -> tuple[str, str]:
        return _CODE_FOR.sub("", candidate.implementation), candidate.variant

    widest: dict[tuple[str, str], int] = {}
    for one in found:
        widest[kind(one)] = max(widest.get(kind(one), 0), _vector_bits(one.implementation))
    return [one for one in found if _vector_bits(one.implementation) == widest[kind(one)]]


def _vector_bits(implementation: str) -> int:
    """Return the width of the vectors that an implementation is named for; 0 without a name."""
    return next((bits for name, bits in _VECTORS.items() if name in implementation), 0)


COLD_FINALISTS = 2
_ASKED = "the kernel that was fastest with hot caches; no other was tried"
_BRIEF = "found by the short search of an estimate; its reorders were not timed"
# Instruction sets without which a data type is only emulated, so that its time would mean nothing.
_NEEDS = {"bf16": ("avx512_bf16", "amx_bf16"), "fp16": ("avx512_fp16", "amx_fp16")}


class CpuKernel:
    """A native kernel ready to be timed."""

    def __init__(self, kernel: _cpu.Kernel, facts: KernelFacts, threads: int) -> None:
        self._kernel = kernel
        self._threads = threads
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples; the GIL is released meanwhile."""
        raw = self._kernel.sample(request.samples, request.inner, request.untimed)
        return Chunk(
            seconds=tuple(raw["seconds"].tolist()),
            involuntary=tuple(raw["involuntary"].tolist()),
            clock_hz=tuple(raw["clock_hz"].tolist()),
            run_delay_s=max(0.0, raw["run_delay_s"]),
            steal_s=max(0.0, raw["steal_s"]),
            wall_s=raw["wall_s"],
            threads=self._threads,
        )


class CpuBackend:
    """oneDNN and our own loops on this process's CPUs and threads."""

    name = "native"

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = list(cpus)
        self._isa = frozenset(_cpu.isa())

    def describe(self) -> dict[str, Any]:
        """Return version, run time, instruction set and threads of oneDNN."""
        return {**_cpu.library(), "numpy": np.__version__}

    def prepare(self, case: Case, preparation: Preparation) -> CpuKernel:
        """Find the fastest right candidate of a case; see :class:`Backend`."""
        self._check_support(case)
        found = [c for c in candidates(case) if _wanted(c, case)]
        if not found:
            raise UnsupportedError(f"there is no implementation with --layout {case.layout}")
        asked = [c for c in found if _name(c) == preparation.variant]
        effort = search.CPU_BRIEF_EFFORT if preparation.brief else search.CPU_EFFORT
        state = CpuSearch(case, preparation, self._cpus, effort)
        entrants = [search.Entrant(one) for one in asked or _worth_trying(found, preparation)]
        refused = state.try_all(entrants, thorough=preparation.all_candidates)
        # A cold kernel holds many copies of its tensors.
        finalists = None if case.cache == "hot" else COLD_FINALISTS
        winner = search.race(entrants, state.contender, state.verify, finalists, effort)
        if winner is None:
            reasons = "; ".join(dict.fromkeys(e.reason or "" for e in entrants))
            if refused == len(entrants):  # nothing is wrong with any of them
                raise UnsupportedError(reasons)
            raise PrimitiveError(f"no candidate gives a right result: {reasons}")
        kernel = self._finish(state, entrants, winner)
        if note := _ASKED if asked else _BRIEF if preparation.brief else "":
            kernel.facts = dataclasses.replace(kernel.facts, notes=[*kernel.facts.notes, note])
        return kernel

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a CPU probe by name; see ``pydlbench._cpu``."""
        if name == "launch":
            return {"seconds": _cpu.launch_seconds()}
        if name == "fma_peak":
            result = _cpu.fma_peak(**arguments)
        elif name == "bandwidth":
            result = _cpu.bandwidth(**arguments)
        else:
            raise UnsupportedError(f"no such probe: {name}; there is: launch, fma_peak, bandwidth")
        return {
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

    def _check_support(self, case: Case) -> None:
        if case.precision not in CPU_PRECISIONS:
            raise UnsupportedError(
                f"{case.precision} is a GPU mode; on a CPU there is: {', '.join(CPU_PRECISIONS)}"
            )
        needs = _NEEDS.get(case.precision)
        if needs and not self._isa.intersection(needs):
            raise UnsupportedError(
                f"this CPU has no {case.precision}: it lacks {' and '.join(needs)}"
            )
        if case.timing != "auto":
            raise UnsupportedError(f"--timing {case.timing} is for GPUs; CPUs have one clock")
        if case.fuse != "none":
            raise UnsupportedError(f"--fuse {case.fuse} is for GPUs so far")
        if case.pass_ not in case.layer.passes:
            raise UnsupportedError(f"{case.layer.kind} has no {case.pass_} pass")
        if case.cache == "weights-cold" and not case.layer.weight_elements:
            raise UnsupportedError(f"{case.layer.kind} has no weights to keep out of the cache")

    def _finish(
        self, state: CpuSearch, entrants: list[search.Entrant], winner: search.Entrant
    ) -> CpuKernel:
        kernel = state.kernel(winner)
        library = _cpu.library()
        listed = [
            _entry(entrant, state, chosen=entrant is winner) for entrant in search.ranking(entrants)
        ]
        state.arena.clear()
        facts = KernelFacts(
            algorithm=winner.candidate.implementation,
            layout=winner.candidate.layout,
            library=(
                f"pydlbench {__version__}"
                if winner.candidate.implementation.startswith("own:")
                else f"{library['name']} {library['version']}"
            ),
            accumulate="float32",
            workspace_bytes=winner.candidate.scratchpad_bytes + winner.candidate.workspace_bytes,
            reorder_s={} if state.preparation.brief else kernel.reorder_seconds(),
            setup_s=kernel.setup_seconds,
            correct=dataclasses.asdict(state.verdicts[id(winner)]),
            candidates=listed,
        )
        return CpuKernel(kernel, facts, library["threads"] or len(self._cpus))


def _worth_trying(found: list[_cpu.Candidate], preparation: Preparation) -> list[_cpu.Candidate]:
    """Leave out what cannot win, or is unlikely to where the search is to be short."""
    # The unoptimised fallback takes minutes where others take milliseconds.
    found = [c for c in found if not c.is_reference] or found
    if preparation.all_candidates:
        return found
    # Code for a quarter of the vector width: never the fastest, and slow to find that out.
    found = [c for c in found if "sse41" not in c.implementation] or found
    return without_narrower_code(found) if preparation.brief else found


def _name(candidate: _cpu.Candidate) -> str:
    """Return what a preparation asks for a candidate by."""
    return f"{candidate.implementation} {candidate.layout}"


def _wanted(candidate: _cpu.Candidate, case: Case) -> bool:
    """Whether a candidate's layout is among those that the case allows."""
    if isinstance(case.layer, Pointwise):
        return _wanted_order(candidate, case.layer, case.layout)
    if case.layout == "best":
        return True
    if case.layer.kind == "gemm":
        # Matrices know packed weights (what the library likes best) and plain ones.
        plain = case.layout in ("nchw", "nhwc")
        return candidate.variant == ("plain" if plain else "any")
    if case.layer.kind == "pool2d" and case.layout == "any":
        return True  # pooling takes the layout it is given
    return candidate.variant == case.layout


def _wanted_order(candidate: _cpu.Candidate, layer: Pointwise, layout: str) -> bool:
    """The same for layers some of which do not tell one order of elements from another."""
    if candidate.variant == "plain":
        return layout != "blocked"
    if layout not in ("best", "any"):
        return candidate.variant == layout
    same = layer.op in ("relu", "add") or layer.height * layer.width == 1
    return candidate.variant == "nchw" or not same


def _entry(entrant: search.Entrant, state: CpuSearch, chosen: bool) -> dict[str, Any]:
    candidate = entrant.candidate
    verdict = state.verdicts.get(id(entrant))
    return {
        "algorithm": candidate.implementation,
        "layout": candidate.layout,
        "variant": candidate.variant,
        "status": entrant.status,
        "reason": entrant.reason,
        "seconds": list(entrant.times),
        "chosen": chosen,
        "workspace_bytes": candidate.scratchpad_bytes + candidate.workspace_bytes,
        "correct": dataclasses.asdict(verdict) if verdict else None,
        "reorder_s": state.reorders.get(id(entrant)),
    }


def create(device: str = "cpu") -> CpuBackend:
    """Create the backend for the CPUs that this process may use.

    Args:
        device: ``cpu``, the only one.
    """
    if device != "cpu":
        raise UnsupportedError(f"{device}: the CPU backend serves the device cpu only")
    return CpuBackend(own_cpus())
