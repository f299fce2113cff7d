"""What every backend offers: ``prepare(spec) -> kernel`` and ``kernel.sample(n)``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.errors import InsufficientMemoryError, UnsupportedError
from pydlbench.records.measurement import Correctness  # noqa: TC001 - read where facts arrive
from pydlbench.words import CPU_PRECISIONS, GPU_PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec
    from pydlbench.timing.chunk import Chunk, Request

#: What frameworks allow a convolution at the most, in bytes, if nobody says otherwise.
DEFAULT_WORKSPACE = 1 << 33


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How a kernel is to be prepared.

    Attributes:
        seed: of the random inputs.
        cold_bytes: how much memory the rotating copies of a cold cache state span together, in
            bytes: at least three times the last-level cache.
        memory_bytes: how much memory the preparation may take at most.
        all_candidates: time and verify every candidate, not only those that may win.
        brief: find a fast kernel soon rather than the fastest one: finals are short, on a CPU
            probes, too; reorders are not timed, and launches once. Native kernels only.
        workspace_bytes: scratch memory that a candidate may ask for at most; GPUs only.
        energy: measure the energy of an execution as well, where the device can tell.
        variant: the only way to run it, by the name that an earlier kernel's ``evidence`` gave
            (``variant``), or by its word (``nhwc``, ``transposed``); of a native kernel its
            algorithm and layout, with all competing where there is none such. None lets all
            compete.
        verified: the variant has won a search and was verified in this run, with these inputs: it
            is run once and no more, and its verdict is ``unchecked``.
        finals: settle which of the fastest candidates is the best one; else the fastest probe wins,
            and whoever asks times the next one beside it. Native kernels on a CPU only.
        kept: an earlier run has found the variant.
        described: what else there is to be told of it is known, too: a framework's operator is not
            looked at from below again.
    """

    seed: int = 0
    cold_bytes: int = 0
    memory_bytes: int = 0
    all_candidates: bool = False
    brief: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    variant: str | None = None
    verified: bool = False
    described: bool = False
    finals: bool = True
    kept: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What is known about a prepared kernel besides its time. Sizes in bytes, times in seconds.

    Attributes:
        algorithm: the implementation, by its library's name.
        layout: the layouts it works in, per tensor.
        library: name and version of the library.
        accumulate: data type of the accumulator.
        workspace_bytes: scratchpad and workspace together.
        reorder_s: per tensor, the time to convert it from the plain layout (or back to it).
        setup_s: creation of the primitive, including generated code.
        correct: verdict of the verification.
        candidates: all that were tried, fastest first, in JSON form.
        timing: how samples are taken: ``steady`` (the monotonic clock of the host), ``events``,
            ``cuda-graph``.
        tensor_cores: whether tensor cores did it, as the library says; None where it does not.
        notes: the library's numerical and behaviour notes.
        launch_s: seconds per execution by three clocks: ``event`` (between two events), ``graph``
            (in a graph of many) and ``host`` (on the host's clock, launched one by one, waiting for
            the last); and ``enqueue``, what the host needs to launch one.
        energy_j: energy of one execution in joules.
        power_w: mean power during that measurement, in watts.
        sustained_s: seconds of an execution among a second of them in a row.
        sustained_hz: the multiprocessors' clock meanwhile.
        kernels: that a GPU runs for one execution, by the driver's word: each a dict with ``name``,
            ``grid`` and ``block`` (three numbers each), ``shared_bytes`` of a block and
            ``registers`` of a thread; empty where nobody tells.
        evidence: of a framework's operator, what was seen from below: ``kernel`` (by the library's
            own name), ``kernel_s`` and ``reorder_s`` (by the library's own log), and ``call_s``,
            that call as a whole: what is known of a row are shares of it.
    """

    algorithm: str
    layout: str
    library: str
    accumulate: str
    workspace_bytes: int
    reorder_s: dict[str, float]
    setup_s: float
    correct: Correctness
    candidates: list[dict[str, Any]]
    timing: str = "steady"
    tensor_cores: bool | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    launch_s: dict[str, float] | None = None
    energy_j: float | None = None
    power_w: float | None = None
    sustained_s: float | None = None
    sustained_hz: float | None = None
    kernels: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    evidence: dict[str, Any] = dataclasses.field(default_factory=dict)


class Kernel(Protocol):
    """A kernel that is ready to be timed."""

    @property
    def facts(self) -> KernelFacts:
        """What is known about it."""

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples, after the executions that are not timed."""


class Backend(Protocol):
    """Something that can compute cases; lives in a worker process."""

    name: str

    def describe(self) -> dict[str, Any]:
        """Version, threads and instruction set of the libraries behind it."""

    def prepare(self, spec: KernelSpec, preparation: Preparation) -> Kernel:
        """Make a case ready to be timed, verified.

        Raises:
            UnsupportedError: the backend or the hardware cannot do this case.
            PrimitiveError: the library refused or failed.
            InsufficientMemoryError: it does not fit.
        """

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run one of the device probes and return its readings."""


# -----------------------------------------------------------------------------
# What no backend does: one sentence for each reason.

#: Instruction sets of which a CPU needs one: without, it only emulates the precision, so that its
#: time would mean nothing.
INSTRUCTION_SETS = {
    "bf16": ("avx512_bf16", "amx_bf16"),
    "fp16": ("avx512_fp16", "amx_fp16"),
}


def check_precision(precision: str, on_gpu: bool) -> None:
    """Refuse a precision of the other kind of device.

    Raises:
        UnsupportedError: this kind has none such.
    """
    here, other, known = (
        ("GPU", "CPU", GPU_PRECISIONS) if on_gpu else ("CPU", "GPU", CPU_PRECISIONS)
    )
    if precision not in known:
        raise UnsupportedError(
            f"{precision} is a {other} mode; on a {here} there is: {', '.join(known)}"
        )


def check_case(spec: KernelSpec) -> None:
    """Refuse what a kind of device has for no backend, or a layer for none.

    Raises:
        UnsupportedError: a precision of the other kind of device, a clock of GPUs on a CPU, or a
            pass that the layer does not have.
    """
    check_precision(spec.precision, spec.on_gpu)
    if not spec.on_gpu and spec.timing != "auto":
        raise UnsupportedError(f"--timing {spec.timing} is for GPUs; CPUs have one clock")
    if spec.pass_ not in spec.layer.passes:
        raise UnsupportedError(f"{spec.layer.kind} has no {spec.pass_} pass")


def check_all_is_read(layer: Layer) -> None:
    """Refuse windows that end before the images do, which oneDNN alone has.

    Raises:
        UnsupportedError: padding after the images is negative.
    """
    if min(layer.fields.get("pad_after", (0,))) < 0:
        raise UnsupportedError("negative padding is there in oneDNN only")


def check_not_emulated(precision: str, isa: Collection[str]) -> None:
    """Refuse a precision that a CPU would only emulate.

    Args:
        precision: storage and arithmetic.
        isa: the CPU's instruction sets, by the kernel's names.

    Raises:
        UnsupportedError: the CPU has none of the instruction sets that do it.
    """
    needed = INSTRUCTION_SETS.get(precision, ())
    if needed and not any(name in isa for name in needed):
        raise UnsupportedError(f"this CPU has no {precision}: it lacks {' and '.join(needed)}")


# -----------------------------------------------------------------------------
# Out of memory, in the words of every framework: one exception that says what to do.

# torch, TensorFlow; CuPy's is a MemoryError as well.
_NAMES = ("OutOfMemoryError", "ResourceExhaustedError")
# torch's allocator on CPUs raises a RuntimeError; Numba's driver an error with CUDA's own name.
_WORDS = (
    *("can't allocate memory", "cannot allocate memory", "failed to allocate memory"),
    *("bad_alloc", "out_of_memory"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of whatever library says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ in _NAMES:
        return True
    text = str(error).lower()
    return any(words in text for words in _WORDS)


def insufficient_memory(error: BaseException) -> InsufficientMemoryError:
    """Return the exception that stands for it in a row."""
    text = " ".join(str(error).split())[:300]
    detail = f": {text}" if text else ""
    return InsufficientMemoryError(f"out of memory{detail}; try a smaller --batch")
