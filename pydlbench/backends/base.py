"""The interface of all backends: ``prepare(spec) -> kernel`` and ``kernel.sample(n)``."""

import dataclasses
from collections.abc import Collection
from typing import Any, Protocol

from pydlbench.errors import InsufficientMemoryError, UnsupportedError
from pydlbench.ops.fused import NOTHING_FUSED
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import Correctness, KernelSpec
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.words import CPU_LAYER_PRECISIONS, GPU_LAYER_PRECISIONS, MIXED_TYPES

#: Default limit of a convolution's workspace in frameworks, in bytes.
DEFAULT_WORKSPACE = 1 << 33


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Options of the preparation of a kernel.

    Attributes:
        seed: seed of the random inputs.
        cold_bytes: total size of the rotating copies of a cold cache state: at least three times
            the last-level cache.
        memory_bytes: limit of the memory of the preparation.
        all_candidates: time and verify every candidate, not only those that may win.
        brief: find a fast kernel soon rather than the fastest one: finals are short, and probes on
            a CPU, too; reorders are not timed, and launches are timed once. Native kernels only.
        workspace_bytes: limit of a candidate's workspace; GPUs only.
        energy: also measure the energy of an execution if the device has a counter.
        variant: the only candidate: ``variant`` in the ``evidence`` of an earlier kernel, or a
            layout (``nhwc``, ``transposed``); for native kernels algorithm and layout, with all
            candidates if none matches. None lets all compete.
        verified: the variant has won a search in this run and was verified with these inputs: it is
            run only once, and its verdict is ``unchecked``.
        finals: compare the fastest candidates thoroughly; otherwise the fastest probe wins, and the
            caller times the next one beside it. Native kernels on a CPU only.
        kept: the variant is from an earlier run.
        described: the evidence of a framework's operator is known and is not collected again.
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
    """Properties of a prepared kernel besides its time. Sizes in bytes, times in seconds.

    Attributes:
        algorithm: the library's name of the implementation.
        layout: the layout of each tensor.
        library: name and version of the library.
        accumulate: data type of the accumulator.
        workspace_bytes: size of scratchpad and workspace together.
        reorder_s: per tensor, the time to convert it from the plain layout (or back to it).
        setup_s: time to create the primitive, including generated code.
        correct: verdict of the verification.
        candidates: all candidates that were tried, fastest first, in JSON form.
        timing: how the samples are timed: ``steady`` (the monotonic clock of the host), ``events``,
            ``cuda-graph``.
        tensor_cores: whether the kernel uses tensor cores, according to the library; None if
            unknown.
        notes: the library's numerical and behaviour notes.
        launch_s: seconds per execution by three clocks: ``event`` (between two events), ``graph``
            (in a graph of many) and ``host`` (launched one by one until the last has ended); and
            ``enqueue``, the host's time to launch one execution.
        energy_j: energy of one execution in joules.
        power_w: mean power during the measurement of ``energy_j``, in watts.
        sustained_s: seconds per execution when the kernel runs for a second without pauses.
        sustained_hz: the multiprocessors' clock during that second.
        kernels: GPU kernels of one execution, from the driver: dicts with ``name``, ``grid`` and
            ``block`` (three numbers each), ``shared_bytes`` per block and ``registers`` per thread;
            empty if unknown.
        evidence: measurements inside a framework's operator: ``kernel`` (the library's name),
            ``kernel_s`` and ``reorder_s`` (from the library's log), and ``call_s``, the time of
            the logged call, which includes the other two.
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
        """Properties of the kernel besides its time."""

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested samples, after the executions that are not timed."""


class Backend(Protocol):
    """A library that computes layers, in a worker process."""

    name: str

    def describe(self) -> dict[str, Any]:
        """Return version, threads and instruction set of its libraries."""

    def prepare(self, spec: KernelSpec, preparation: Preparation) -> Kernel:
        """Prepare and verify a kernel.

        Raises:
            UnsupportedError: the backend or the hardware does not support this spec.
            PrimitiveError: the library refused or failed.
            InsufficientMemoryError: it does not fit into memory.
        """

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run one of the device probes and return its readings."""


def prepare(backend: Backend, spec: dict[str, Any], preparation: dict[str, Any]) -> Kernel:
    """Prepare a layer's kernel in its worker; called by ``Worker.prepare``.

    Args:
        backend: backend of the process.
        spec: a ``pydlbench.records.measurement.KernelSpec`` as JSON.
        preparation: a :class:`Preparation` as JSON.
    """
    return backend.prepare(KernelSpec.from_dict(spec), Preparation(**preparation))


# -----------------------------------------------------------------------------
# Checks that are common to all backends.

#: Instruction sets by precision. A CPU that has none of them only emulates the precision, so that
#: its time would be meaningless.
INSTRUCTION_SETS = {
    "bf16": ("avx512_bf16", "amx_bf16"),
    "fp16": ("avx512_fp16", "amx_fp16"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8"),
}


def check_precision(precision: str, on_gpu: bool) -> None:
    """Refuse a precision of the other kind of device.

    Raises:
        UnsupportedError: this kind of device does not have the precision.
    """
    here, other, supported = (
        ("GPU", "CPU", GPU_LAYER_PRECISIONS) if on_gpu else ("CPU", "GPU", CPU_LAYER_PRECISIONS)
    )
    if precision not in supported:
        raise UnsupportedError(
            f"{precision} is a {other} mode; on a {here} there is: {', '.join(supported)}"
        )


def check_case(spec: KernelSpec) -> None:
    """Refuse a spec that no backend supports.

    Raises:
        UnsupportedError: a precision of the other kind of device, a clock of GPUs on a CPU, or a
            pass that the layer does not have.
    """
    check_precision(spec.precision, spec.on_gpu)
    if not spec.on_gpu and spec.timing != "auto":
        raise UnsupportedError(f"--timing {spec.timing} is for GPUs; CPUs have one clock")
    if spec.pass_ not in spec.layer.passes:
        raise UnsupportedError(f"{spec.layer.kind} has no {spec.pass_} pass")
    fused = not spec.on_gpu and spec.fuse not in (NOTHING_FUSED, "bias")
    if (spec.precision in MIXED_TYPES or fused) and spec.pass_ != "forward":
        what = f"--fuse {spec.fuse}" if fused else spec.precision
        raise UnsupportedError(f"{what} is for the forward pass")
    if fused and spec.layer.entry.kind not in FUSED_KINDS:
        raise UnsupportedError(
            f"--fuse {spec.fuse}: {spec.layer.kind} has no fused operations; nearest: "
            "convolutions and products"
        )
    if spec.precision in MIXED_TYPES and spec.layer.entry.kind not in _MIXED_KINDS:
        raise UnsupportedError(
            f"{spec.precision}: {spec.layer.kind} has no such types; nearest: convolutions, "
            "products and poolings"
        )


#: Kinds of layers with fused operations on CPUs.
FUSED_KINDS = ("conv", "deconv", "gemm")
# Kinds of layers whose tensors may have different types, or integers.
_MIXED_KINDS = (*FUSED_KINDS, "pool")


def check_all_is_read(layer: Layer) -> None:
    """Refuse windows that end before the images do, which only oneDNN supports.

    Raises:
        UnsupportedError: padding after the images is negative.
    """
    if min(layer.fields.get("pad_after", (0,))) < 0:
        raise UnsupportedError("negative padding is there in oneDNN only")


def check_not_emulated(precision: str, isa: Collection[str]) -> None:
    """Refuse a precision that a CPU would only emulate.

    Args:
        precision: precision of storage and arithmetic.
        isa: the CPU's instruction sets, by the names that the Linux kernel uses.

    Raises:
        UnsupportedError: the CPU has none of its instruction sets.
    """
    needed = INSTRUCTION_SETS.get(precision, ())
    if needed and not any(name in isa for name in needed):
        raise UnsupportedError(f"this CPU has no {precision}: it lacks {' and '.join(needed)}")


# -----------------------------------------------------------------------------
# Out-of-memory errors of all frameworks, converted to one exception with advice.

# PyTorch and TensorFlow; CuPy's is a subclass of MemoryError.
_OUT_OF_MEMORY_CLASSES = ("OutOfMemoryError", "ResourceExhaustedError")
# PyTorch's CPU allocator raises a RuntimeError; Numba raises a driver error that contains CUDA's
# error name.
_OUT_OF_MEMORY_TEXTS = (
    *("can't allocate memory", "cannot allocate memory", "failed to allocate memory"),
    *("bad_alloc", "out_of_memory"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of any library means that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ in _OUT_OF_MEMORY_CLASSES:
        return True
    text = str(error).lower()
    return any(words in text for words in _OUT_OF_MEMORY_TEXTS)


def insufficient_memory(error: BaseException) -> InsufficientMemoryError:
    """Convert an out-of-memory exception of any library."""
    text = " ".join(str(error).split())[:300]
    detail = f": {text}" if text else ""
    return InsufficientMemoryError(f"out of memory{detail}; try a smaller --batch")
