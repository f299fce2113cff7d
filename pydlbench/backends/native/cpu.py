"""The native CPU backend: oneDNN, and loops of our own, through ``pydlbench._cpu``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

import pydlbench._cpu as _cpu
from pydlbench import __version__
from pydlbench.backends.base import KernelFacts, Preparation
from pydlbench.backends.case import CPU_PRECISIONS, Case
from pydlbench.backends.native import search
from pydlbench.backends.native.cpu_search import CpuSearch
from pydlbench.backends.native.problems import candidates, without_narrower_code
from pydlbench.backends.own_cpus import own_cpus
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.layers import Pointwise
from pydlbench.timing.chunk import Chunk, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CpuBackend", "CpuKernel", "create"]

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
