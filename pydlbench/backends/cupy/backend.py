"""The CuPy backend: cuBLAS, convolutions lowered to products; GPUs only."""

import dataclasses
import importlib
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pydlbench.backends.base import DEFAULT_WORKSPACE, KernelFacts
from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant, entry_of
from pydlbench.backends.frameworks.device_clock import (
    CACHES_OF_SAMPLER,
    DeviceClock,
    sampler_module,
)
from pydlbench.backends.host_clock import HostClock, Operator
from pydlbench.backends.native.nvml import Monitor
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.verify import TENSOR_ACCUMULATOR

if TYPE_CHECKING:
    from pydlbench.backends.cupy.operators import CupyOperator

_PRODUCTS = ("fp32", "tf32", "fp16-tc")


class CupyBackend(FrameworkBackend):
    """CuPy on one GPU.

    Args:
        device: ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: CuPy cannot use the GPU.
    """

    name = "cupy"
    caches = CACHES_OF_SAMPLER

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        # Imported here, as the import may fail on machines without a GPU.
        try:
            import cupy

            from pydlbench.backends.cupy.operators import CupyRuntime

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
        self._runtime = CupyRuntime(index)
        facts = cupy.cuda.runtime.getDeviceProperties(index)
        self.watcher: Monitor = Monitor(_uuid(bytes(facts["uuid"])))

    def check_clock(self) -> None:
        """Check that the native sampler can be loaded."""
        sampler_module()

    def describe(self) -> dict[str, Any]:
        """Return versions of CuPy, CUDA and cuBLAS, and the GPU's compute capability."""
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

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see the base class."""
        if spec.mode is not None:
            raise UnsupportedError(f"cupy has no mode {spec.mode}: its calls are always eager")
        if spec.fuse != "none":
            raise UnsupportedError(f"cupy has no kernel for --fuse {spec.fuse}")
        variant = entry_of("cupy", _VARIANTS, spec.layer, sides=(2,))
        check(spec.precision, self._capability)
        if spec.timing == "cuda-graph":
            raise UnsupportedError("cupy refuses to capture cuBLAS: ask for --timing events")
        return [variant(spec)]

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - there is one way to call
        """Return a fill of one element."""
        import cupy

        from pydlbench.backends.cupy.operators import CupyOperator

        def fill(result: Any) -> Any:
            result = cupy.empty((1,), "float32") if result is None else result
            result.fill(0)
            return result

        return CupyOperator(fill, "dst", lambda result: result, "fp32")

    def clock(self, operator: Operator, cache: str = "hot") -> HostClock:
        """Return a clock that times launches with the native sampler."""
        guard = cast("CupyOperator", operator).guard
        return DeviceClock(operator, self._runtime, watcher=self.watcher, guard=guard, cache=cache)

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts, with the way in which time is measured."""
        facts = super().complete_facts(facts, operator, spec)
        return dataclasses.replace(
            facts, timing="events", accumulate=facts.accumulate.removesuffix("-tensor")
        )


def _sums(spec: KernelSpec) -> str:
    """Return the accumulator of a product."""
    return "float32" if spec.precision == "fp32" else TENSOR_ACCUMULATOR


def _gemm_variant(spec: KernelSpec) -> Variant:
    from pydlbench.backends.cupy.operators import build_gemm

    layer, type_ = spec.layer, element_type(spec.precision)
    copies = layer.batch_count > 1
    variant = layer.variant or "plain"
    # The products of a broadcast matrix are rounded to the storage type before they are summed.
    whole, result = layer.shapes(), layer.result(spec.pass_)
    rounded = type_ == "float16" and whole[result][:-2] != whole["dst"][:-2]
    return Variant(
        algorithm="cupy.matmul: cuBLAS",
        layout=f"src mk, weights {'kn' if variant == 'plain' else 'nk'}, dst mn",
        variant=variant,
        build=partial(build_gemm, spec, type_),
        accumulate="float16" if rounded else _sums(spec),
        notes=("CuPy copies transposed batches before each product",) if copies else (),
    )


def _conv_variant(spec: KernelSpec) -> Variant:
    from pydlbench.backends.cupy.operators import build_conv

    layer, type_ = spec.layer, element_type(spec.precision)
    together = _images_per_chunk(layer, 4 if type_ == "float32" else 2)
    # A chunk's part of the gradient is rounded to the storage type before it is added.
    rounded = type_ == "float16" and spec.pass_ == "backward-weights" and together < layer.batch
    return Variant(
        algorithm="im2col + cuBLAS",
        layout="src nchw, weights oihw, dst nchw",
        variant="nchw",
        build=partial(build_conv, spec, type_, together),
        accumulate="float16" if rounded else _sums(spec),
        notes=("the historical baseline: columns are written to memory and read again",),
    )


_VARIANTS = {"conv": _conv_variant, "gemm": _gemm_variant}


def _images_per_chunk(layer: Layer, itemsize: int) -> int:
    """Return the number of images lowered at a time, whose columns fit in the workspace."""
    taps, pixels = math.prod(layer.kernel), math.prod(layer.out_size)
    columns: int = layer.in_channels * taps * pixels * itemsize
    return max(1, min(int(layer.batch), DEFAULT_WORKSPACE // columns))


def _uuid(raw: bytes) -> str:
    """Return a GPU's identity as NVML writes it."""
    digits = raw.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
    return "GPU-" + "-".join(parts)


def create(device: str) -> FrameworkBackend:
    """Create the backend for a GPU.

    Raises:
        UnsupportedError: the device is a CPU, or CuPy cannot use the GPU.
    """
    if device == "cpu":
        raise UnsupportedError("cupy needs an NVIDIA GPU; ask for --device cuda:0")
    return CupyBackend(device, process_cpus())


def element_type(precision: str) -> str:
    """Return the storage type of a precision."""
    return "float32" if precision in ("fp32", "tf32") else "float16"


def check(precision: str, capability: int) -> None:
    """Refuse a precision that CuPy does not have for products.

    Args:
        precision: storage and arithmetic.
        capability: compute capability of the GPU times ten: 90.

    Raises:
        UnsupportedError: the precision is not supported; the message has the reason.
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
