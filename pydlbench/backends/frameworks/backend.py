"""The backend of a framework: variants of a case are tried, verified, and the fastest is timed."""

import abc
import contextlib
import ctypes
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from numpy.typing import NDArray

from pydlbench.backends import autotune
from pydlbench.backends.base import (
    KernelFacts,
    Preparation,
    check_all_is_read,
    check_case,
    insufficient_memory,
    is_out_of_memory,
)
from pydlbench.backends.frameworks.device_clock import DeviceClock, StepRuntime, is_device_lost
from pydlbench.backends.frameworks.verdicts import check_fused, fused_inputs, is_random, judge
from pydlbench.backends.host_clock import HostClock, Operator, Watcher
from pydlbench.backends.native.modules import check_single_cudnn
from pydlbench.errors import (
    DeviceLostError,
    InsufficientMemoryError,
    PrimitiveError,
    PydlbenchError,
    UnsupportedError,
)
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import Correctness, KernelSpec, kernel_name
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.verification.inputs import make_inputs
from pydlbench.verification.verify import Verdict

Entry = TypeVar("Entry")


# -----------------------------------------------------------------------------
# Variants: the ways in which a framework can run a case, each with its operands.


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way in which a framework can run a case; the fastest correct one becomes the row.

    Attributes:
        algorithm: the framework's name of the call, ``aten::convolution``, and of the kernel behind
            it if that is known.
        layout: layouts of the operands: ``src nhwc, weights ohwi, dst nhwc``.
        variant: ``nchw`` or ``nhwc`` for images, ``plain`` or ``transposed`` for weights of
            products; ``--layout`` selects by it.
        build: function that builds the operator from inputs by role (plain float32 arrays, already
            rounded to the storage precision). It compiles the operator and runs it once, which is
            set-up time.
        accumulate: format of the sums of products.
        bias_accumulate: format of the sums in the gradient of a fused bias.
        notes: notes for the reader, such as on an approximation or a fallback.
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
    """Return the entry of a framework's table for a layer.

    Args:
        backend: name of the framework.
        table: entries by :func:`op_of` a layer.
        layer: the layer to look up.
        sides: supported numbers of spatial dimensions.

    Raises:
        UnsupportedError: the framework has no such layers.
    """
    op = op_of(layer)
    if op not in table or layer.sides not in sides:
        what = op if layer.kind == "pointwise" else layer.kind
        raise UnsupportedError(f"{backend}: no {what} layers here")
    return table[op]


def op_of(layer: Layer) -> str:
    """Return the key of a layer in frameworks' tables: its operation, or its kind."""
    return layer.op if layer.kind == "pointwise" else layer.entry.kind


def resolve_mode(backend: str, modes: Sequence[str], mode: str | None) -> str:
    """Return the mode of a case: the requested one, or the backend's first.

    Raises:
        UnsupportedError: the backend has no such mode.
    """
    if mode is None:
        return modes[0]
    if mode not in modes:
        raise UnsupportedError(f"{backend} has no mode {mode}; it has {' and '.join(modes)}")
    return mode


def rename_algorithm(facts: KernelFacts, algorithm: str, **known: Any) -> KernelFacts:
    """Return facts with another name of the algorithm, also in the list of candidates.

    Args:
        facts: facts of the chosen variant.
        algorithm: new name of the algorithm, with the kernels behind the call.
        known: other fields of the facts to replace.
    """
    candidates = [
        {**entry, "algorithm": algorithm} if entry["chosen"] else entry
        for entry in facts.candidates
    ]
    return replace(facts, algorithm=algorithm, candidates=candidates, **known)


# -----------------------------------------------------------------------------
# The C library's allocator.

# Just below the largest block that raises the thresholds of glibc, which is 32 MiB.
_ADAPTING_BYTES = 31 << 20


@functools.cache
def adapt_allocator() -> None:
    """Free one large block, as a process that has run for a while has done before.

    With each larger block that is freed, up to 32 MiB, glibc raises the sizes from which it maps
    each block anew and returns freed pages to the system. Without this, the blocks that were freed
    earlier decide whether a call causes page faults: a depthwise convolution of 12 MB took 1.7 ms
    in one process and 13.5 ms in the next. Larger results still cause page faults in each call, as
    in any loop of a user.
    """
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    library.free(library.malloc(ctypes.c_size_t(_ADAPTING_BYTES)))


# -----------------------------------------------------------------------------
# Errors of a framework, translated: each rules out one variant, unless the device is lost.


@contextlib.contextmanager
def framework_errors(algorithm: str) -> Iterator[None]:
    """Translate errors of a framework into pydlbench's own, which workers can send to the host.

    Args:
        algorithm: name of the call, for the message.

    Raises:
        DeviceLostError: the GPU's context is unusable.
        InsufficientMemoryError: out of memory.
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
    """A framework's operator, ready to be timed.

    Attributes:
        clock: times the operator.
        facts: facts of the operator.
        operator: the operator with its operands.
    """

    def __init__(self, clock: HostClock, facts: KernelFacts, operator: Operator) -> None:
        self.clock, self.facts, self.operator = clock, facts, operator

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested samples."""
        with framework_errors(self.facts.algorithm):
            return self.clock.sample(request)


class _BuiltVariant:
    """The operator of a variant, and the clock that times it."""

    def __init__(
        self, clock: HostClock, operator: Operator, setup_s: float, algorithm: str
    ) -> None:
        self.clock = clock
        self.operator = operator
        self.setup_s = setup_s
        self._algorithm = algorithm

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return the seconds of ``samples`` executions, after ``untimed`` ones."""
        with framework_errors(self._algorithm):
            return self.clock.sample(ChunkRequest(samples=samples, untimed=untimed)).seconds

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run the operator once and return its results; see ``Operator``."""
        with framework_errors(self._algorithm):
            return self.operator.outputs()


class _FrameworkAutotuner(autotune.Autotuner):
    """The search for the fastest variant of a case.

    Args:
        variants: the candidates.
        spec: the case.
        preparation: seed of the inputs, and selection of the candidates to time.
        effort: time limits of the search.
        clock: function that returns the clock of an operator.
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
                autotune.KernelCandidate(item, algorithm=item.algorithm, layout=item.layout)
                for item in variants
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

    def runnable(self, candidate: autotune.KernelCandidate) -> _BuiltVariant:
        """Return the operator of a variant, built on first use."""
        if candidate.kernel is None:
            start = time.perf_counter()
            with framework_errors(candidate.algorithm):
                operator: Operator = candidate.source.build(self._inputs)
            setup_s = time.perf_counter() - start
            candidate.kernel = _BuiltVariant(
                self._clock(operator), operator, setup_s, candidate.algorithm
            )
        built: _BuiltVariant = candidate.kernel
        return built

    def verify(self, candidate: autotune.KernelCandidate) -> Verdict:
        """Run a variant and compare its results with the reference."""
        variant: Variant = candidate.source
        built = self.runnable(candidate)
        compare = functools.partial(
            judge,
            self._spec,
            self._inputs,
            built.outputs(),
            seed=self._seed,
            accumulate=variant.accumulate,
            bias_accumulate=variant.bias_accumulate,
            second=built.outputs() if is_random(self._spec) else None,
        )
        verdict = compare(algorithm=variant.algorithm)
        if verdict.status != "ok" and isinstance(built.clock, DeviceClock):
            # Winograd and FFT have larger tolerances; on a GPU kernel names identify them.
            names = map(kernel_name, built.clock.kernels())
            verdict = compare(algorithm=" ".join((variant.algorithm, *names)))
        return verdict


class FrameworkBackend(abc.ABC):
    """One framework on one device, in a worker process of its own.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.
    """

    name: str
    library: str  # name and version
    # There are two or three layouts; the native search has dozens of kernels.
    effort = replace(autotune.CPU_EFFORT, finals_s=0.15)
    watcher: Watcher | None = None  # of the GPU; None on a CPU
    #: Supported states of the cache before an execution.
    caches: tuple[str, ...] = ("hot",)
    #: Events and graphs of the framework; None if steps cannot be timed by them.
    runtime: StepRuntime | None = None

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        self.device = device
        self.cpus = tuple(cpus)
        self._empty: dict[str | None, HostClock] = {}

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return version, threads and settings; at least ``name`` and ``version``."""

    @abc.abstractmethod
    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case.

        Raises:
            UnsupportedError: the framework has no such operator, mode or precision; the message
                has the reason.
        """

    @abc.abstractmethod
    def empty(self, mode: str | None) -> Operator:
        """Return an operator that computes almost nothing, called as operators of a mode are."""

    def clock(self, operator: Operator, cache: str = "hot") -> HostClock:  # noqa: ARG002 - there is one
        """Return the clock of an operator on this device.

        Args:
            operator: the operator to time.
            cache: one of :attr:`caches`.
        """
        return HostClock(operator, self.cpus)

    def check_clock(self) -> None:  # noqa: B027 - the host's clock is always there
        """Check that rows can be timed on this device.

        Raises:
            UnsupportedError: rows cannot be timed; the message says how to get the missing part.
        """

    def prepare(self, spec: KernelSpec, preparation: Preparation) -> FrameworkKernel:
        """Find the fastest correct variant of a case; see ``pydlbench.backends.base.Backend``."""
        check_case(spec)
        check_fused(spec)
        check_all_is_read(spec.layer)
        self.check_clock()
        adapt_allocator()
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
            variant
            for variant in self.variants(spec)
            if (wanted is None or variant.variant == wanted)
            and preparation.variant in (None, variant.variant, _name(variant))
        ]
        if not candidates:
            order = getattr(spec.layer, "weights_tag", "any")
            what = f"--layout {spec.layout}" if order == "any" else f"weights as {order}"
            raise UnsupportedError(f"{self.name} has no operator with {what}")
        clock = functools.partial(self.clock, cache=spec.cache)
        search = _FrameworkAutotuner(candidates, spec, preparation, self.effort, clock)
        known = preparation.verified and len(candidates) == 1
        chosen = search.take() if known else search.tune()
        source: Variant = chosen.source
        built: _BuiltVariant = chosen.kernel
        facts = KernelFacts(
            algorithm=source.algorithm,
            layout=source.layout,
            library=self.library,
            accumulate=source.accumulate,
            workspace_bytes=0,
            reorder_s={},
            setup_s=built.setup_s,
            correct=chosen.verdict or Correctness(status="unchecked"),
            candidates=search.listing(chosen),
            timing="steady",
            notes=list(source.notes),
        )
        if not (known and preparation.described):
            facts = self.complete_facts(facts, built.operator, spec)
        if preparation.energy and not known and isinstance(built.clock, DeviceClock):
            with framework_errors(source.algorithm):
                facts = replace(facts, **built.clock.sustained()._asdict())
        facts.evidence["variant"] = _name(source)
        return FrameworkKernel(built.clock, facts, built.operator)

    def complete_facts(
        self,
        facts: KernelFacts,
        operator: Operator,  # noqa: ARG002 - as its base class
        spec: KernelSpec,  # noqa: ARG002 - as its base class
    ) -> KernelFacts:
        """Add the facts that can only be read from the chosen operator.

        Args:
            facts: facts of the chosen variant.
            operator: operator of the chosen variant, which has run.
            spec: the case.
        """
        return facts

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a probe: ``empty_call`` measures the cost of a call that computes nothing.

        Args:
            name: name of the probe.
            arguments: ``mode``, and numbers: ``samples``, and calls in each sample (``inner``).

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
        chunk = self._empty[mode].sample(ChunkRequest(samples=samples, inner=inner, untimed=inner))
        ranked = sorted(chunk.seconds)
        return {"seconds": ranked[len(ranked) // 2], "least_s": ranked[0]}


class HostTimedBackend(FrameworkBackend):
    """A framework that gives no access to its streams, so that the host's clock times its rows.

    Raises:
        UnsupportedError: the device is a GPU, and its libraries are damaged; see
            :func:`~pydlbench.backends.native.modules.check_single_cudnn`.
    """

    modes: tuple[str, ...]

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        if self.on_gpu:
            check_single_cudnn()

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    @property
    def timing(self) -> str:
        """The way in which rows are timed: ``host-sync`` on a GPU, ``steady`` on a CPU."""
        return "host-sync" if self.on_gpu else "steady"

    def check_timing(self, spec: KernelSpec) -> None:
        """Check that the case requests no other way of timing.

        Raises:
            UnsupportedError: the case requests another way.
        """
        if spec.timing != "auto":
            raise UnsupportedError(
                f"{self.name}: its runtime gives no access to its streams, so no --timing "
                f"{spec.timing}"
            )

    def tf32_notes(self, precision: str) -> list[str]:
        """Return the note on the switch for TF32, in precisions that it affects."""
        if self.on_gpu and precision in ("fp32", "tf32"):
            return [f"TF32 switched {'on' if precision == 'tf32' else 'off'}"]
        return []


def _name(variant: Variant) -> str:
    """Return a name that is unique among the variants of a case."""
    return f"{variant.algorithm}, {variant.layout}"


def wanted_variant(spec: KernelSpec) -> str | None:
    """Return the variant that the layer or ``--layout`` requests; None for any."""
    layer = spec.layer
    if layer.op == "gemm" and layer.variant is not None:
        return str(layer.variant)
    if spec.layout in ("best", "any"):
        return None
    # Rows and weight tensors have one layout, independent of the layout of images.
    flat = layer.kind == "pointwise" and layer.entry.in_one_order
    # Weights of products are plain or transposed; only the native backend packs them.
    plain = (flat or layer.kind == "gemm") and spec.layout != "blocked"
    return "plain" if plain else spec.layout
