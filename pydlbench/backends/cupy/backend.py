"""CuPy as a backend: GPUs only."""

from __future__ import annotations

import dataclasses
import importlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import cupy
import numpy as np

from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.backends.cupy.kernels import SLEEP
from pydlbench.backends.frameworks.backend import FrameworkBackend, Operator, Variant
from pydlbench.backends.frameworks.events import EventClock, EventRuntime, Watcher
from pydlbench.backends.native.nvml import Monitor
from pydlbench.backends.verification.verify import TENSOR_ACCUMULATOR
from pydlbench.devices.cpu.affinity import own_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.layer import result_role
from pydlbench.layers.pool import Pool2d

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.frameworks.backend import HostClock
    from pydlbench.layers.layer import Layer
    from pydlbench.records.specs import Case

__all__ = ["CupyBackend", "CupyClock", "create"]


# -----------------------------------------------------------------------------
# CuPy's operators under CUDA events: launched one by one, or in a graph where they can be.


class GraphRuntime(EventRuntime, Protocol):
    """A runtime that can also capture."""

    def capture(self, call: Callable[[], Any], times: int) -> Callable[[], None]:
        """Capture calls and return what launches them all."""


class CupyTimed(Operator, Protocol):
    """An operator that says how it wants to be timed.

    Attributes:
        timing: ``events`` or ``cuda-graph``.
    """

    timing: str

    def settle(self) -> None:
        """Set what is global in CuPy as this operator needs it, before a chunk of samples."""

    def again(self) -> None:
        """Run it once into the results of an earlier call; allocates nothing."""


class CupyClock(EventClock):
    """Times an operator between events.

    Args:
        operator: what is timed; says whether in a graph.
        runtime: of CuPy.
        watcher: of the GPU; None where nobody watches.
    """

    def __init__(
        self, operator: CupyTimed, runtime: GraphRuntime, watcher: Watcher | None = None
    ) -> None:
        super().__init__(operator, runtime, watcher)
        self.timing = operator.timing
        self._timed = operator
        self._captures = runtime
        self._graphs: dict[int, Callable[[], None]] = {}

    def seconds(self, samples: int, inner: int, untimed: int) -> list[float]:
        """Return seconds per call, one for each sample of ``inner`` calls."""
        self._timed.settle()
        if self.timing != "cuda-graph":
            return super().seconds(samples, inner, untimed)
        if inner not in self._graphs:
            self._graphs.clear()
            self._graphs[inner] = self._captures.capture(self._timed.again, inner)
        launch = self._graphs[inner]
        for _ in range(1 + untimed // inner):
            launch()
        return self.spans(samples, inner, 0.0, launch)


if TYPE_CHECKING:
    Inputs = dict[str, NDArray[Any]]


class CupyBackend(FrameworkBackend):
    """CuPy on one GPU.

    Args:
        device: ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: CuPy cannot use the GPU.
    """

    name = "cupy"

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        # Only now: on a machine without a GPU the import may fail, and that is one sentence.
        try:
            import cupy

            count = int(cupy.cuda.runtime.getDeviceCount())
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise UnsupportedError(f"cupy needs an NVIDIA GPU; it says: {text}") from error
        index = int(device.partition(":")[2] or 0)
        if index >= count:
            raise UnsupportedError(f"cupy sees {count} GPUs, and {device} is not among them")

        cupy.cuda.Device(index).use()
        self.library = f"CuPy {cupy.__version__}"
        self._capability = int(cupy.cuda.Device(index).compute_capability)
        self._runtime = Runtime()
        facts = cupy.cuda.runtime.getDeviceProperties(index)
        self._monitor = Monitor(_uuid(bytes(facts["uuid"])))

    def describe(self) -> dict[str, Any]:
        """Return versions of CuPy and of what it stands on, and the GPU's capability."""
        import cupy

        cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
        return {
            "name": "CuPy",
            "version": cupy.__version__,
            "cuda": cupy.cuda.runtime.runtimeGetVersion(),
            "cublas": cublas.getVersion(cupy.cuda.get_cublas_handle()),
            "capability": f"{self._capability // 10}.{self._capability % 10}",
            "settings": {"tf32": "off unless the row says tf32, whatever CUPY_TF32 says"},
            "nvml": self._monitor.snapshot(),
        }

    def variants(self, case: Case) -> list[Variant]:
        """List the ways to run a case; see the base class."""
        if case.mode is not None:
            raise UnsupportedError(f"cupy has no mode {case.mode}: its calls are always eager")
        if case.fuse != "none":
            raise UnsupportedError(f"cupy has no kernel for --fuse {case.fuse}")
        if case.layer.kind == "pointwise":
            raise UnsupportedError("cupy: memory-bound layers come with whole models")
        check(case.layer, case.precision, self._capability)
        if case.timing == "cuda-graph" and not isinstance(case.layer, Pool2d):
            raise UnsupportedError("cupy refuses to capture cuBLAS: ask for --timing events")
        return _variants(case, element_type(case.precision))

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - there is one way to call
        """Return a fill of one element."""
        import cupy

        def fill(result: Any) -> Any:
            result = cupy.empty((1,), "float32") if result is None else result
            result.fill(0)
            return result

        return _operator(fill, (1,), "float32", "dst", lambda plain: plain, "fp32", "events")

    def clock(self, operator: Operator) -> HostClock:
        """Return what times an operator: events, around launches or around graphs."""
        assert isinstance(operator, CupyOperator)
        return CupyClock(operator, self._runtime, self._monitor)

    def completed(self, facts: KernelFacts, operator: Operator, case: Case) -> KernelFacts:
        """Return the facts with how its time is taken."""
        facts = super().completed(facts, operator, case)
        return dataclasses.replace(
            facts, timing=_timing(case), accumulate=facts.accumulate.removesuffix("-tensor")
        )


def _timing(case: Case) -> str:
    """Graphs where CuPy can capture: it refuses to while cuBLAS is called."""
    return "cuda-graph" if isinstance(case.layer, Pool2d) and case.timing != "events" else "events"


def _variants(case: Case, type_: str) -> list[Variant]:
    layer = case.layer
    sums = "float32" if case.precision in ("fp32", "fp16") else TENSOR_ACCUMULATOR
    if isinstance(layer, Pool2d):
        return [
            Variant(
                algorithm=f"RawKernel: {layer.mode} pooling",
                layout="src nchw, dst nchw",
                variant="nchw",
                build=partial(_build_pool, case, type_),
            )
        ]
    if isinstance(layer, Gemm):
        copies = layer.batch_count > 1
        return [
            Variant(
                algorithm="cupy.matmul: cuBLAS",
                layout=f"src mk, weights {matrix}, dst mn",
                variant=name,
                build=partial(_build_gemm, case, type_, name == "transposed"),
                accumulate=sums,
                notes=("CuPy copies transposed batches before each product",) if copies else (),
            )
            for name, matrix in (("plain", "kn"), ("transposed", "nk"))
        ]
    assert isinstance(layer, Conv2d)
    return [
        Variant(
            algorithm=f"im2col + cuBLAS, {words}",
            layout="src nchw, weights oihw, dst nchw",
            variant="nchw",
            build=partial(_build_conv, case, type_, together),
            # A chunk's part of the gradient is rounded to storage before it is added.
            accumulate="float16"
            if type_ == "float16" and case.pass_ == "backward-weights" and layer.batch > 1
            else sums,
            notes=("the historical baseline: columns are written to memory and read again",),
        )
        for together, words in _chunks(layer, 4 if type_ == "float32" else 2)
    ]


def _chunks(layer: Conv2d, itemsize: int) -> list[tuple[int, str]]:
    """Return how many images are lowered at a time: one, as Caffe did, and the whole batch."""
    taps = layer.kernel_height * layer.kernel_width
    columns = layer.in_channels * taps * layer.out_height * layer.out_width * itemsize
    found = [(1, "image by image")]
    if layer.batch > 1 and layer.batch * columns <= DEFAULT_WORKSPACE:
        found.append((layer.batch, "all images at once"))
    return found


def _build_conv(case: Case, type_: str, together: int, inputs: Inputs) -> CupyOperator:
    from pydlbench.backends.cupy import layers as conv

    assert isinstance(case.layer, Conv2d)
    compute = conv.build_conv(case.layer, case.pass_, type_, together, inputs)
    return _of_case(case, compute, type_)


def _build_pool(case: Case, type_: str, inputs: Inputs) -> CupyOperator:
    from pydlbench.backends.cupy import layers as pool

    assert isinstance(case.layer, Pool2d)
    compute = pool.build_pool(case.layer, case.pass_, case.propagation, type_, inputs)
    return _of_case(case, compute, type_)


def _build_gemm(case: Case, type_: str, transposed: bool, inputs: Inputs) -> CupyOperator:
    from pydlbench.backends.cupy import layers as gemm

    layer = case.layer
    assert isinstance(layer, Gemm)
    compute = gemm.build_gemm(layer, case.pass_, type_, transposed, inputs)
    role = result_role(layer, case.pass_)
    plain_shape = layer.shapes()[role]
    batch, rows, columns = plain_shape
    turned = transposed and role == "weights"
    stored = (columns, rows) if turned else (rows, columns)

    def plain(result: NDArray[Any]) -> NDArray[Any]:
        return (result.swapaxes(-1, -2) if turned else result).reshape(plain_shape)

    shape = stored if batch == 1 else (batch, *stored)
    return _operator(compute, shape, type_, role, plain, case.precision, _timing(case))


def _of_case(case: Case, compute: Callable[[Any], Any], type_: str) -> CupyOperator:
    role = result_role(case.layer, case.pass_)
    shape = case.layer.shapes()[role]
    return _operator(
        compute, shape, type_, role, lambda plain: plain, case.precision, _timing(case)
    )


def _operator(*arguments: Any) -> CupyOperator:

    return CupyOperator(*arguments)


def _uuid(raw: bytes) -> str:
    """Return a GPU's identity as NVML writes it."""
    digits = raw.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
    return "GPU-" + "-".join(parts)


def create(device: str) -> FrameworkBackend:
    """Create the backend for a GPU.

    Raises:
        UnsupportedError: on CPUs, or where CuPy cannot use the GPU.
    """
    if device == "cpu":
        raise UnsupportedError("cupy needs an NVIDIA GPU; ask for --device cuda:0")
    return CupyBackend(device, own_cpus())


# -----------------------------------------------------------------------------
# What arithmetic cuBLAS is allowed, through CuPy's switches, which are global.

linalg = importlib.import_module("cupy._core._routines_linalg")
cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
_PRODUCTS = ("fp32", "tf32", "fp16-tc")


def element_type(precision: str) -> str:
    """Return the type in which a precision is stored."""
    return "float32" if precision in ("fp32", "tf32") else "float16"


def check(layer: Layer, precision: str, capability: int) -> None:
    """Refuse a precision that CuPy does not have for a layer.

    Args:
        layer: what is computed.
        precision: storage and arithmetic.
        capability: of the GPU, ten times: 90.

    Raises:
        UnsupportedError: it has none; says why.
    """
    if not layer.weight_elements:
        if precision not in ("fp32", "fp16", "fp16-tc"):
            raise UnsupportedError(f"cupy: the pooling kernels know fp32 and fp16, not {precision}")
        return
    if precision == "fp16":
        raise UnsupportedError(
            "cupy: cuBLAS cannot be kept off tensor cores for float16; ask for fp16-tc"
        )
    if precision not in _PRODUCTS:
        known = ", ".join(_PRODUCTS)
        raise UnsupportedError(f"cupy has no products in {precision}; there is: {known}")
    if precision == "tf32" and capability < 80:
        raise UnsupportedError("tf32 needs compute capability 8.0")
    if precision == "fp16-tc" and capability < 70:
        raise UnsupportedError("fp16-tc needs compute capability 7.0")


def settle(precision: str) -> None:
    """Allow TF32 or forbid it, whatever ``CUPY_TF32`` says.

    Single products follow CuPy's compute type, batches of them the math mode of the handle.
    """
    allowed = precision == "tf32"
    linalg.set_compute_type(
        np.dtype(np.float32), linalg.COMPUTE_TYPE_TF32 if allowed else linalg.COMPUTE_TYPE_FP32
    )
    mode = cublas.CUBLAS_TF32_TENSOR_OP_MATH if allowed else cublas.CUBLAS_DEFAULT_MATH
    cublas.setMathMode(cupy.cuda.get_cublas_handle(), mode)


# -----------------------------------------------------------------------------
# CuPy's operators: each computes into a result, which a call allocates from CuPy's pool.

if TYPE_CHECKING:
    #: Allocates the result if it is given none, computes into it and returns it.
    Compute = Callable[[Any], Any]


class CupyOperator:
    """One line of CuPy, or a few.

    Args:
        compute: what is timed; takes a result to write into, or None.
        shape: of the result.
        type_: of its elements.
        role: what the result is.
        plain: turns the result into its plain layout.
        precision: what cuBLAS is allowed.
        timing: ``events`` or ``cuda-graph``.
    """

    def __init__(
        self,
        compute: Compute,
        shape: tuple[int, ...],
        type_: str,
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
        precision: str,
        timing: str,
    ) -> None:
        self._compute = compute
        self._shape = shape
        self._type = type_
        self._role = role
        self._plain = plain
        self._precision = precision
        self._result: Any = None
        self.timing = timing
        self.settle()
        self.call()  # compiles kernels and fills the pool
        self.wait()

    def settle(self) -> None:
        """Set what cuBLAS is allowed, for all calls until the next operator's."""
        settle(self._precision)

    def call(self) -> Any:
        """Run it once; the result comes from CuPy's pool."""
        return self._compute(None)

    def again(self) -> None:
        """Run it into a result that is kept: a graph needs memory that nobody else gets."""
        if self._result is None:
            self._result = cupy.empty(self._shape, self._type)
        self._compute(self._result)

    def wait(self) -> None:
        """Return when everything that was called is done."""
        cupy.cuda.get_current_stream().synchronize()

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once into a result full of NaN and return that one as float32."""
        self.settle()
        result = self._compute(cupy.full(self._shape, np.nan, self._type))
        return {self._role: self._plain(cupy.asnumpy(result).astype(np.float32))}


# -----------------------------------------------------------------------------
# What timing on a GPU needs of CuPy: events, a stream, a sleep in it, graphs.


class Runtime:
    """CuPy's CUDA runtime on one stream, which becomes this thread's current one.

    It must not be the default stream, which cannot be captured.
    """

    def __init__(self) -> None:
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._sleep = cupy.RawKernel(SLEEP, "sleep")

    def record(self) -> Any:
        """Put a new event into the stream and return it."""
        event = cupy.cuda.Event()
        event.record(self._stream)
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def wait(self) -> None:
        """Return when the stream is empty."""
        self._stream.synchronize()

    def sleep(self, seconds: float) -> None:
        """Keep the stream busy for about so long; the host goes on at once."""
        self._sleep((1,), (1,), (cupy.uint64(int(seconds * 1e9)),))

    def now(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()

    def capture(self, call: Callable[[], Any], times: int) -> Callable[[], None]:
        """Capture ``times`` calls, which must not allocate; return what launches them all."""
        call()  # what is compiled and loaded lazily
        self.wait()
        self._stream.begin_capture()
        try:
            for _ in range(times):
                call()
        finally:
            graph = self._stream.end_capture()
        return lambda: graph.launch(self._stream)
