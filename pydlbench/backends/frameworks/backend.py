"""The backend of a framework: variants of a case are tried, verified, and the fastest is timed."""

from __future__ import annotations

import abc
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from pydlbench.backends.base import KernelFacts, Preparation
from pydlbench.backends.frameworks.failures import translated
from pydlbench.backends.frameworks.kernel import HostClock
from pydlbench.backends.frameworks.verdicts import fused_inputs, judge
from pydlbench.backends.native import search
from pydlbench.backends.reference import Verdict, make_inputs
from pydlbench.errors import DeviceLostError, PrimitiveError, PydlbenchError, UnsupportedError
from pydlbench.layers import Pointwise
from pydlbench.layers.pointwise_ops import OPERATIONS
from pydlbench.timing.chunk import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.case import Case
    from pydlbench.backends.frameworks.operator import Operator, Variant
    from pydlbench.timing.chunk import Chunk

__all__ = ["FrameworkBackend", "FrameworkKernel"]


class FrameworkKernel:
    """A framework's operator, ready to be timed."""

    def __init__(self, clock: HostClock, facts: KernelFacts) -> None:
        self._clock = clock
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""
        with translated(self.facts.algorithm):
            return self._clock.sample(request)


class _Tried:
    """A variant on its way through trial and race."""

    def __init__(
        self, clock: HostClock, operator: Operator, setup_s: float, algorithm: str
    ) -> None:
        self.clock = clock
        self.operator = operator
        self.setup_s = setup_s
        self._algorithm = algorithm

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Run ``samples`` times, after ``untimed`` times, and return the times in seconds."""
        with translated(self._algorithm):
            return self.clock.sample(Request(samples=samples, untimed=untimed)).seconds

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return what it wrote; see ``Operator``."""
        with translated(self._algorithm):
            return self.operator.outputs()


class FrameworkBackend(abc.ABC):
    """One framework on one device; lives in a worker process of its own.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.
    """

    name: str
    library: str  # name and version
    effort = search.CPU_EFFORT

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        self.device = device
        self.cpus = tuple(cpus)
        self._empty: dict[str | None, HostClock] = {}

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return version, threads and settings; ``name`` and ``version`` at least."""

    @abc.abstractmethod
    def variants(self, case: Case) -> list[Variant]:
        """List the ways to run a case.

        Raises:
            UnsupportedError: the framework has no such operator, mode or precision here; says why.
        """

    @abc.abstractmethod
    def empty(self, mode: str | None) -> Operator:
        """Return an operator that does as good as nothing, called the way this mode calls."""

    def clock(self, operator: Operator) -> HostClock:
        """Return what times an operator on this device."""
        return HostClock(operator, self.cpus)

    def prepare(self, case: Case, preparation: Preparation) -> FrameworkKernel:
        """Find the fastest right variant of a case; see ``pydlbench.backends.base.Backend``."""
        if case.pass_ not in case.layer.passes:
            raise UnsupportedError(f"{case.layer.kind} has no {case.pass_} pass")
        if case.cache != "hot":
            raise UnsupportedError(f"{self.name} is timed with hot caches only")
        wanted = _wanted(case)
        found = [
            one
            for one in self.variants(case)
            if (wanted is None or one.variant == wanted)
            and preparation.variant in (None, one.variant, _name(one))
        ]
        if not found:
            raise UnsupportedError(f"{self.name} has no operator with --layout {case.layout}")
        inputs = make_inputs(
            case.layer, case.pass_, case.precision, preparation.seed, propagation=case.propagation
        ) | fused_inputs(case, preparation.seed)
        tried: dict[int, _Tried] = {}
        verdicts: dict[int, Verdict] = {}

        def enter(entrant: search.Entrant) -> _Tried:
            if id(entrant) not in tried:
                start = time.perf_counter()
                with translated(entrant.candidate.algorithm):
                    operator: Operator = entrant.candidate.build(inputs)
                setup_s = time.perf_counter() - start
                clock, name = self.clock(operator), entrant.candidate.algorithm
                tried[id(entrant)] = _Tried(clock, operator, setup_s, name)
            return tried[id(entrant)]

        def check(entrant: search.Entrant) -> str | None:
            variant: Variant = entrant.candidate
            contender = enter(entrant)
            verdict = judge(
                case,
                inputs,
                contender.outputs(),
                seed=preparation.seed,
                accumulate=variant.accumulate,
                bias_accumulate=variant.bias_accumulate,
                algorithm=variant.algorithm,
                again=contender.outputs() if _is_random(case) else None,
            )
            verdicts[id(entrant)] = verdict
            return None if verdict.status == "ok" else verdict.detail

        entrants = [search.Entrant(variant) for variant in found]
        refused = _trials(
            entrants, enter, check if preparation.all_candidates else None, self.effort
        )
        winner = search.race(entrants, enter, check, None, self.effort)
        if winner is None:
            if refused and len(refused) == len(entrants):
                raise refused[0]  # nothing went wrong: the framework has no such thing
            reasons = "; ".join(dict.fromkeys(entrant.reason or "" for entrant in entrants))
            raise PrimitiveError(f"{self.name}: {reasons}")
        variant, chosen = winner.candidate, tried[id(winner)]
        facts = KernelFacts(
            algorithm=variant.algorithm,
            layout=variant.layout,
            library=self.library,
            accumulate=variant.accumulate,
            workspace_bytes=0,
            reorder_s={},
            setup_s=chosen.setup_s,
            correct=dataclasses.asdict(verdicts[id(winner)]),
            candidates=[
                _entry(entrant, verdicts.get(id(entrant)), chosen=entrant is winner)
                for entrant in search.ranking(entrants)
            ],
            timing="steady",
            notes=list(variant.notes),
        )
        facts = self.completed(facts, chosen.operator, case)
        facts.evidence["variant"] = _name(variant)
        return FrameworkKernel(chosen.clock, facts)

    def completed(self, facts: KernelFacts, operator: Operator, case: Case) -> KernelFacts:
        """Return the facts with what only the chosen variant's operator tells.

        Args:
            facts: of the chosen variant.
            operator: its operator, built and run.
            case: what it computes.
        """
        del operator, case
        return facts

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a probe: ``empty_call`` gives the cost of a call that does nothing.

        Args:
            name: of the probe.
            arguments: ``mode``; ``samples`` of ``inner`` calls each. What is called is built once.

        Raises:
            UnsupportedError: no such probe.
        """
        if name != "empty_call":
            raise UnsupportedError(f"no such probe: {name}; there is: empty_call")
        mode = arguments.get("mode")
        if mode not in self._empty:
            self._empty[mode] = self.clock(self.empty(mode))
        inner = arguments.get("inner", 100)
        samples = arguments.get("samples", 30)
        chunk = self._empty[mode].sample(Request(samples=samples, inner=inner, untimed=inner))
        ranked = sorted(chunk.seconds)
        return {"seconds": ranked[len(ranked) // 2], "least_s": ranked[0]}


def _trials(
    entrants: Sequence[search.Entrant],
    enter: Callable[[search.Entrant], _Tried],
    check: Callable[[search.Entrant], str | None] | None,
    effort: search.Effort,
) -> list[UnsupportedError]:
    """Try all; return the refusals of those that the framework does not have."""
    best = float("inf")
    refused: list[UnsupportedError] = []
    for entrant in entrants:
        try:
            contender = enter(entrant)
            search.trial(entrant, contender, best, thorough=check is not None, effort=effort)
            if check is not None and (wrong := check(entrant)):
                entrant.disqualify(wrong)
        except DeviceLostError:
            raise
        except PydlbenchError as error:
            entrant.disqualify(error)
            if isinstance(error, UnsupportedError):
                refused.append(error)
        if entrant.status == "ok":
            best = min(best, entrant.time)
    return refused


def _name(variant: Variant) -> str:
    """What tells a variant from the others of its case."""
    return f"{variant.algorithm}, {variant.layout}"


def _wanted(case: Case) -> str | None:
    """The variant that ``--layout`` asks for; None is any."""
    if case.layout in ("best", "any"):
        return None
    layer = case.layer
    # Rows of logits and weight tensors have one layout, whatever that of the images around them.
    flat = isinstance(layer, Pointwise) and OPERATIONS[layer.op].flat
    # Matrices know their weights as they are and transposed.
    return "plain" if flat or layer.kind == "gemm" else case.layout


def _is_random(case: Case) -> bool:
    """Whether a call draws random numbers of the framework's own."""
    layer = case.layer
    return isinstance(layer, Pointwise) and (layer.op, case.pass_) == ("dropout", "forward")


def _entry(entrant: search.Entrant, verdict: Verdict | None, chosen: bool) -> dict[str, Any]:
    variant: Variant = entrant.candidate
    return {
        "algorithm": variant.algorithm,
        "layout": variant.layout,
        "status": entrant.status,
        "reason": entrant.reason,
        "seconds": list(entrant.times),
        "chosen": chosen,
        "workspace_bytes": None,
        "correct": dataclasses.asdict(verdict) if verdict else None,
        "reorder_s": None,
    }
