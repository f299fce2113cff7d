"""The CuPy backend: cuBLAS, convolutions lowered to products; GPUs only."""

from __future__ import annotations

import dataclasses
import importlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant, check_plain
from pydlbench.backends.frameworks.events import EventClock, EventRuntime
from pydlbench.backends.host_clock import Operator, Watcher
from pydlbench.backends.native.nvml import Monitor
from pydlbench.backends.verification.verify import TENSOR_ACCUMULATOR
from pydlbench.devices.cpu.affinity import own_cpus
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.cupy.operators import CupyOperator
    from pydlbench.backends.host_clock import HostClock
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec


if TYPE_CHECKING:
    Inputs = dict[str, NDArray[Any]]

_PRODUCTS = ("fp32", "tf32", "fp16-tc")


class _Settled(Operator, Protocol):
    """An operator that needs CuPy's global switches in a position of its own."""

    def settle(self) -> None:
        """Set what is global in CuPy as this operator needs it, before a chunk of samples."""


class CupyClock(EventClock):
    """Times an operator between events, behind its switches.

    Args:
        operator: what is timed.
        runtime: of CuPy.
        watcher: of the GPU; None where nobody watches.
    """

    def __init__(
        self, operator: _Settled, runtime: EventRuntime, watcher: Watcher | None = None
    ) -> None:
        super().__init__(operator, runtime, watcher)
        self._settle = operator.settle

    def seconds(self, samples: int, inner: int, untimed: int) -> list[float]:
        """Return seconds per call, one for each sample of ``inner`` calls."""
        self._settle()
        return super().seconds(samples, inner, untimed)


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

            from pydlbench.backends.cupy.operators import Runtime

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
        self.watcher: Monitor = Monitor(_uuid(bytes(facts["uuid"])))

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
            "nvml": self.watcher.snapshot(),
        }

    def variants(self, case: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see the base class."""
        if case.mode is not None:
            raise UnsupportedError(f"cupy has no mode {case.mode}: its calls are always eager")
        if case.fuse != "none":
            raise UnsupportedError(f"cupy has no kernel for --fuse {case.fuse}")
        layer = case.layer
        if layer.op not in ("conv", "gemm"):
            word = layer.op if layer.kind == "pointwise" else layer.kind
            raise UnsupportedError(f"cupy: no {word} layers here; there is: conv2d, gemm")
        check_plain("cupy", layer)
        check(case.precision, self._capability)
        if case.timing == "cuda-graph":
            raise UnsupportedError("cupy refuses to capture cuBLAS: ask for --timing events")
        return _variants(case, element_type(case.precision))

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - there is one way to call
        """Return a fill of one element."""
        import cupy

        from pydlbench.backends.cupy.operators import CupyOperator

        def fill(result: Any) -> Any:
            result = cupy.empty((1,), "float32") if result is None else result
            result.fill(0)
            return result

        return CupyOperator(fill, (1,), "float32", "dst", lambda plain: plain, "fp32")

    def clock(self, operator: Operator) -> HostClock:
        """Return what times an operator: events around launches."""
        return CupyClock(cast("CupyOperator", operator), self._runtime, self.watcher)

    def completed(self, facts: KernelFacts, operator: Operator, case: KernelSpec) -> KernelFacts:
        """Return the facts with how its time is taken."""
        facts = super().completed(facts, operator, case)
        return dataclasses.replace(
            facts, timing=CupyClock.timing, accumulate=facts.accumulate.removesuffix("-tensor")
        )


def _variants(case: KernelSpec, type_: str) -> list[Variant]:
    layer = case.layer
    sums = "float32" if case.precision == "fp32" else TENSOR_ACCUMULATOR
    if layer.op == "gemm":
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
    assert layer.op == "conv"
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


def _chunks(layer: Layer, itemsize: int) -> list[tuple[int, str]]:
    """Return how many images are lowered at a time: one, as Caffe did, and the whole batch."""
    taps = math.prod(layer.kernel)
    columns = layer.in_channels * taps * math.prod(layer.out_size) * itemsize
    found = [(1, "image by image")]
    if layer.batch > 1 and layer.batch * columns <= DEFAULT_WORKSPACE:
        found.append((layer.batch, "all images at once"))
    return found


def _build_conv(case: KernelSpec, type_: str, together: int, inputs: Inputs) -> CupyOperator:
    from pydlbench.backends.cupy.operators import CupyOperator, build_conv

    assert case.layer.op == "conv"
    compute = build_conv(case.layer, case.pass_, type_, together, inputs)
    role = case.layer.result(case.pass_)
    shape = case.layer.shapes()[role]
    return CupyOperator(compute, shape, type_, role, lambda plain: plain, case.precision)


def _build_gemm(case: KernelSpec, type_: str, transposed: bool, inputs: Inputs) -> CupyOperator:
    from pydlbench.backends.cupy.operators import CupyOperator, build_gemm

    layer = case.layer
    assert layer.op == "gemm"
    compute = build_gemm(layer, case.pass_, type_, transposed, inputs)
    role = layer.result(case.pass_)
    plain_shape = layer.shapes()[role]
    batch, rows, columns = plain_shape
    turned = transposed and role == "weights"
    stored = (columns, rows) if turned else (rows, columns)

    def plain(result: NDArray[Any]) -> NDArray[Any]:
        return (result.swapaxes(-1, -2) if turned else result).reshape(plain_shape)

    shape = stored if batch == 1 else (batch, *stored)
    return CupyOperator(compute, shape, type_, role, plain, case.precision)


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


def element_type(precision: str) -> str:
    """Return the type in which a precision is stored."""
    return "float32" if precision in ("fp32", "tf32") else "float16"


def check(precision: str, capability: int) -> None:
    """Refuse a precision that CuPy does not have for products.

    Args:
        precision: storage and arithmetic.
        capability: of the GPU, ten times: 90.

    Raises:
        UnsupportedError: it has none; says why.
    """
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
