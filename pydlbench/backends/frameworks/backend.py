"""The backend of a framework: variants of a case are tried, verified, and the fastest is timed."""

from __future__ import annotations

import abc
import contextlib
import functools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydlbench.backends import autotune
from pydlbench.backends.base import (
    KernelFacts,
    Preparation,
    check_all_is_read,
    check_case,
    insufficient_memory,
    is_out_of_memory,
)
from pydlbench.backends.frameworks.device_clock import DeviceClock, is_device_lost
from pydlbench.backends.frameworks.verdicts import check_fused, fused_inputs, judge
from pydlbench.backends.host_clock import HostClock, Operator
from pydlbench.errors import (
    DeviceLostError,
    InsufficientMemoryError,
    PrimitiveError,
    PydlbenchError,
    UnsupportedError,
)
from pydlbench.records.measurement import Correctness, kernel_name
from pydlbench.timing.chunk import Request
from pydlbench.verification.inputs import make_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.frameworks.device_clock import StepRuntime
    from pydlbench.backends.host_clock import Watcher
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec
    from pydlbench.timing.chunk import Chunk
    from pydlbench.verification.verify import Verdict


Entry = TypeVar("Entry")


# -----------------------------------------------------------------------------
# What a framework's backend gives for a case: ways to run it, each with its operands.


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way in which a framework can run a case; the fastest that is right becomes the row.

    Attributes:
        algorithm: what is called, in the framework's words: ``aten::convolution``; with the kernel
            behind it where that is known.
        layout: the layouts of its operands: ``src nhwc, weights ohwi, dst nhwc``.
        variant: ``nchw`` or ``nhwc`` for images, ``plain`` or ``transposed`` for weights of
            products; ``--layout`` chooses by it.
        build: makes the operator from inputs by role (plain float32 arrays, already rounded to the
            storage precision). Compiles and runs it once: what that takes is set-up time.
        accumulate: format of the sums of products.
        bias_accumulate: of the sums of a bias's gradient beside them.
        notes: what a reader has to know: an approximation, a fallback.
    """

    algorithm: str
    layout: str
    variant: str
    build: Callable[[dict[str, NDArray[Any]]], Operator]
    accumulate: str = "float32"
    bias_accumulate: str = "float32"
    notes: tuple[str, ...] = field(default=())


def entry_of(
    backend: str,
    table: Mapping[str, Entry],
    layer: Layer,
    *,
    sides: Sequence[int] = (1, 2, 3),
) -> Entry:
    """Return what a framework's table has for a layer.

    Args:
        backend: its name.
        table: by :func:`op_of` a layer.
        layer: that is looked up.
        sides: how many sides its windows may have.

    Raises:
        UnsupportedError: the framework has no such layers.
    """
    word = op_of(layer)
    if word not in table or layer.sides not in sides:
        what = word if layer.kind == "pointwise" else layer.kind
        raise UnsupportedError(f"{backend}: no {what} layers here")
    return table[word]


def op_of(layer: Layer) -> str:
    """Return the word for a layer in frameworks' tables: its operation, or its kind."""
    return layer.op if layer.kind == "pointwise" else layer.entry.kind


def resolve_mode(backend: str, modes: Sequence[str], mode: str | None) -> str:
    """Return the mode that a case runs in: its own, or a backend's first one.

    Raises:
        UnsupportedError: the backend has no such mode.
    """
    if mode is None:
        return modes[0]
    if mode not in modes:
        raise UnsupportedError(f"{backend} has no mode {mode}; it has {' and '.join(modes)}")
    return mode


def rename_algorithm(facts: KernelFacts, algorithm: str, **known: Any) -> KernelFacts:
    """Return facts by another name, in the list of candidates too.

    Args:
        facts: of the chosen variant.
        algorithm: its name, now that the kernels behind the call are known.
        known: other facts that were found out with it.
    """
    candidates = [
        {**entry, "algorithm": algorithm} if entry["chosen"] else entry
        for entry in facts.candidates
    ]
    return replace(facts, algorithm=algorithm, candidates=candidates, **known)


# -----------------------------------------------------------------------------
# What a framework raises, as errors of ours: each costs one variant, unless the device is lost.


@contextlib.contextmanager
def framework_errors(algorithm: str) -> Iterator[None]:
    """Turn whatever is raised within into an error that crosses the wire as itself.

    Args:
        algorithm: what was called, for the message.

    Raises:
        DeviceLostError: the GPU's context is beyond use.
        InsufficientMemoryError: it does not fit.
        PrimitiveError: anything else.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise InsufficientMemoryError(f"{algorithm}: {insufficient_memory(error)}") from error
        text = " ".join(str(error).split())
        kind = DeviceLostError if is_device_lost(error) else PrimitiveError
        raise kind(f"{algorithm}: {type(error).__name__}: {text[:300]}") from error


class FrameworkKernel:
    """A framework's operator, ready to be timed."""

    def __init__(self, clock: HostClock, facts: KernelFacts) -> None:
        self._clock = clock
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""
        with framework_errors(self.facts.algorithm):
            return self._clock.sample(request)


class _Built:
    """A variant's operator for probe and finals, under the clock of its device."""

    def __init__(
        self, clock: HostClock, operator: Operator, setup_s: float, algorithm: str
    ) -> None:
        self.clock = clock
        self.operator = operator
        self.setup_s = setup_s
        self._algorithm = algorithm

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Run ``samples`` times, after ``untimed`` times, and return the times in seconds."""
        with framework_errors(self._algorithm):
            return self.clock.sample(Request(samples=samples, untimed=untimed)).seconds

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return what it wrote; see ``Operator``."""
        with framework_errors(self._algorithm):
            return self.operator.outputs()


class _FrameworkAutotuner(autotune.Autotuner):
    """The choice among the variants of one case.

    Args:
        variants: the ways to run it.
        spec: what is computed.
        preparation: with what inputs, and how thoroughly.
        effort: how long to try.
        clock: makes what times an operator.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        spec: KernelSpec,
        preparation: Preparation,
        effort: autotune.Effort,
        clock: Callable[[Operator], HostClock],
    ) -> None:
        super().__init__(
            [
                autotune.KernelCandidate(each, algorithm=each.algorithm, layout=each.layout)
                for each in variants
            ],
            effort,
            thorough=preparation.all_candidates,
        )
        self._spec = spec
        self._seed = preparation.seed
        self._clock = clock
        self._inputs = make_inputs(
            spec.layer, spec.pass_, spec.precision, preparation.seed, propagation=spec.propagation
        ) | fused_inputs(spec, preparation.seed)

    def runnable(self, candidate: autotune.KernelCandidate) -> _Built:
        """Return a variant's operator, built when first asked for."""
        if candidate.kernel is None:
            start = time.perf_counter()
            with framework_errors(candidate.algorithm):
                operator: Operator = candidate.source.build(self._inputs)
            setup_s = time.perf_counter() - start
            candidate.kernel = _Built(self._clock(operator), operator, setup_s, candidate.algorithm)
        built: _Built = candidate.kernel
        return built

    def verify(self, candidate: autotune.KernelCandidate) -> Verdict:
        """Run a variant and compare what it returns."""
        variant: Variant = candidate.source
        built = self.runnable(candidate)
        judged = functools.partial(
            judge,
            self._spec,
            self._inputs,
            built.outputs(),
            seed=self._seed,
            accumulate=variant.accumulate,
            bias_accumulate=variant.bias_accumulate,
            again=built.outputs() if _is_random(self._spec) else None,
        )
        verdict = judged(algorithm=variant.algorithm)
        if verdict.status != "ok" and isinstance(built.clock, DeviceClock):
            # Winograd and FFT are allowed more: on a GPU their kernels' names tell them.
            names = map(kernel_name, built.clock.kernels())
            verdict = judged(algorithm=" ".join((variant.algorithm, *names)))
        return verdict


class FrameworkBackend(abc.ABC):
    """One framework on one device; lives in a worker process of its own.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.
    """

    name: str
    library: str  # name and version
    # Two or three layouts, where the native search has dozens of kernels.
    effort = replace(autotune.CPU_EFFORT, finals_s=0.15)
    watcher: Watcher | None = None  # of the GPU, where there is one
    #: The states of the cache that rows are timed with.
    caches: tuple[str, ...] = ("hot",)
    #: Its events and graphs, where steps can be timed by them.
    runtime: StepRuntime | None = None

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        self.device = device
        self.cpus = tuple(cpus)
        self._empty: dict[str | None, HostClock] = {}

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return version, threads and settings; ``name`` and ``version`` at least."""

    @abc.abstractmethod
    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case.

        Raises:
            UnsupportedError: the framework has no such operator, mode or precision here; says why.
        """

    @abc.abstractmethod
    def empty(self, mode: str | None) -> Operator:
        """Return an operator that does as good as nothing, called the way this mode calls."""

    def clock(self, operator: Operator, cache: str = "hot") -> HostClock:
        """Return what times an operator on this device.

        Args:
            operator: that is timed.
            cache: one of :attr:`caches`.
        """
        del cache  # there is one state
        return HostClock(operator, self.cpus)

    def check_clock(self) -> None:  # noqa: B027 - the host's clock is always there
        """Make sure that what times rows on this device is there.

        Raises:
            UnsupportedError: it is not; the message says how to get it.
        """

    def prepare(self, spec: KernelSpec, preparation: Preparation) -> FrameworkKernel:
        """Find the fastest right variant of a case; see ``pydlbench.backends.base.Backend``."""
        check_case(spec)
        check_fused(spec)
        check_all_is_read(spec.layer)
        self.check_clock()
        if spec.cache not in self.caches:
            raise UnsupportedError(
                f"{self.name}: --cache {spec.cache} is not timed on this device; there is: "
                f"{', '.join(self.caches)}"
            )
        if spec.cache != "hot" and spec.timing == "cuda-graph":
            raise UnsupportedError(
                f"{self.name}: in a CUDA graph all executions have the same operands, which are "
                "hot after the first; nearest: --timing events"
            )
        wanted = wanted_variant(spec)
        candidates = [
            each
            for each in self.variants(spec)
            if (wanted is None or each.variant == wanted)
            and preparation.variant in (None, each.variant, _name(each))
        ]
        if not candidates:
            order = getattr(spec.layer, "weights_tag", "any")
            what = f"--layout {spec.layout}" if order == "any" else f"weights as {order}"
            raise UnsupportedError(f"{self.name} has no operator with {what}")
        clock = functools.partial(self.clock, cache=spec.cache)
        search = _FrameworkAutotuner(candidates, spec, preparation, self.effort, clock)
        known = preparation.verified and len(candidates) == 1
        chosen = search.take() if known else search.tune()
        variant: Variant = chosen.source
        built: _Built = chosen.kernel
        facts = KernelFacts(
            algorithm=variant.algorithm,
            layout=variant.layout,
            library=self.library,
            accumulate=variant.accumulate,
            workspace_bytes=0,
            reorder_s={},
            setup_s=built.setup_s,
            correct=chosen.verdict or Correctness(status="unchecked"),
            candidates=search.listing(chosen),
            timing="steady",
            notes=list(variant.notes),
        )
        if not (known and preparation.described):
            facts = self.complete_facts(facts, built.operator, spec)
        if preparation.energy and not known and isinstance(built.clock, DeviceClock):
            with framework_errors(variant.algorithm):
                facts = replace(facts, **built.clock.sustained()._asdict())
        facts.evidence["variant"] = _name(variant)
        return FrameworkKernel(built.clock, facts)

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with what only the chosen variant's operator tells.

        Args:
            facts: of the chosen variant.
            operator: its operator, built and run.
            spec: what it computes.
        """
        del operator, spec
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


def _name(variant: Variant) -> str:
    """What tells a variant from the others of its case."""
    return f"{variant.algorithm}, {variant.layout}"


def wanted_variant(spec: KernelSpec) -> str | None:
    """Return the variant that the layer or ``--layout`` asks for; None is any."""
    layer = spec.layer
    if layer.op == "gemm" and layer.variant is not None:
        return str(layer.variant)
    if spec.layout in ("best", "any"):
        return None
    # Rows and weight tensors have one layout, whatever that of the images around them.
    flat = layer.kind == "pointwise" and layer.entry.in_one_order
    # Matrices know their weights as they are and transposed. Only the native backend packs.
    plain = (flat or layer.kind == "gemm") and spec.layout != "blocked"
    return "plain" if plain else spec.layout


def _is_random(spec: KernelSpec) -> bool:
    """Whether a call draws random numbers of the framework's own."""
    layer = spec.layer
    return layer.kind == "pointwise" and (layer.op, spec.pass_) == ("dropout", "forward")
