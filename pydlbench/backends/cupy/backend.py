"""CuPy as a backend: GPUs only."""

from __future__ import annotations

import dataclasses
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.backends.cupy.clock import CupyClock
from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.frameworks.operator import Variant
from pydlbench.backends.native.nvml import Monitor
from pydlbench.backends.own_cpus import own_cpus
from pydlbench.backends.reference import tensor_shapes
from pydlbench.backends.reference.tolerance import TENSOR_ACCUMULATOR
from pydlbench.errors import UnsupportedError
from pydlbench.layers import Conv2d, Gemm, Pool2d
from pydlbench.layers.layer import result_role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.case import Case
    from pydlbench.backends.cupy.operator import CupyOperator
    from pydlbench.backends.frameworks.kernel import HostClock
    from pydlbench.backends.frameworks.operator import Operator

    Inputs = dict[str, NDArray[Any]]

__all__ = ["CupyBackend", "create"]


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
        from pydlbench.backends.cupy.runtime import Runtime

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
        from pydlbench.backends.cupy import precision

        if case.mode is not None:
            raise UnsupportedError(f"cupy has no mode {case.mode}: its calls are always eager")
        if case.fuse != "none":
            raise UnsupportedError(f"cupy has no kernel for --fuse {case.fuse}")
        if case.layer.kind == "pointwise":
            raise UnsupportedError("cupy: memory-bound layers come with whole models")
        precision.check(case.layer, case.precision, self._capability)
        if case.timing == "cuda-graph" and not isinstance(case.layer, Pool2d):
            raise UnsupportedError("cupy refuses to capture cuBLAS: ask for --timing events")
        return _variants(case, precision.element_type(case.precision))

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
        from pydlbench.backends.cupy.operator import CupyOperator

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
    from pydlbench.backends.cupy import conv

    assert isinstance(case.layer, Conv2d)
    compute = conv.build(case.layer, case.pass_, type_, together, inputs)
    return _of_case(case, compute, type_)


def _build_pool(case: Case, type_: str, inputs: Inputs) -> CupyOperator:
    from pydlbench.backends.cupy import pool

    assert isinstance(case.layer, Pool2d)
    compute = pool.build(case.layer, case.pass_, case.propagation, type_, inputs)
    return _of_case(case, compute, type_)


def _build_gemm(case: Case, type_: str, transposed: bool, inputs: Inputs) -> CupyOperator:
    from pydlbench.backends.cupy import gemm

    layer = case.layer
    assert isinstance(layer, Gemm)
    compute = gemm.build(layer, case.pass_, type_, transposed, inputs)
    role = result_role(layer, case.pass_)
    plain_shape = tensor_shapes(layer)[role]
    batch, rows, columns = plain_shape
    turned = transposed and role == "weights"
    stored = (columns, rows) if turned else (rows, columns)

    def plain(result: NDArray[Any]) -> NDArray[Any]:
        return (result.swapaxes(-1, -2) if turned else result).reshape(plain_shape)

    shape = stored if batch == 1 else (batch, *stored)
    return _operator(compute, shape, type_, role, plain, case.precision, _timing(case))


def _of_case(case: Case, compute: Callable[[Any], Any], type_: str) -> CupyOperator:
    role = result_role(case.layer, case.pass_)
    shape = tensor_shapes(case.layer)[role]
    return _operator(
        compute, shape, type_, role, lambda plain: plain, case.precision, _timing(case)
    )


def _operator(*arguments: Any) -> CupyOperator:
    from pydlbench.backends.cupy.operator import CupyOperator

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
