"""CuPy's operators: each computes into a result, which a call allocates from CuPy's pool.

A convolution is lowered: with the columns of an image as (group, channel and tap, pixel), forward
is weights @ columns, backward-data is col2im(weights.T @ gradient), and backward-weights is
gradient @ rows, added up over images, where rows are columns the other way round.

Only this module imports CuPy, which may fail on a machine without a GPU.
"""

from __future__ import annotations

import importlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    #: Allocates the result if it is given none, computes into it and returns it.
    Compute = Callable[[Any], Any]

linalg = importlib.import_module("cupy._core._routines_linalg")
cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")

_THREADS = 256
_MOST_BLOCKS = 1 << 20
_COLUMNS = Path(__file__).with_name("columns.cu")
_TYPES = {
    "float32": "typedef float T;\n",
    "float16": "#include <cuda_fp16.h>\ntypedef __half T;\n",
}
# Keeps a stream busy for so many nanoseconds of the device's own clock.
_SLEEP = r"""
extern "C" __global__ void sleep(unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}
"""


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


class CupyOperator:
    """One line of CuPy, or a few.

    Args:
        compute: what is timed; takes a result to write into, or None.
        shape: of the result.
        type_: of its elements.
        role: what the result is.
        plain: turns the result into its plain layout.
        precision: what cuBLAS is allowed.
    """

    def __init__(
        self,
        compute: Compute,
        shape: tuple[int, ...],
        type_: str,
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
        precision: str,
    ) -> None:
        self._compute = compute
        self._shape = shape
        self._type = type_
        self._role = role
        self._plain = plain
        self._precision = precision
        self.settle()
        self.call()  # compiles kernels and fills the pool
        self.wait()

    def settle(self) -> None:
        """Set what cuBLAS is allowed, for all calls until the next operator's."""
        settle(self._precision)

    def call(self) -> Any:
        """Run it once; the result comes from CuPy's pool."""
        return self._compute(None)

    def wait(self) -> None:
        """Return when everything that was called is done."""
        cupy.cuda.get_current_stream().synchronize()

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once into a result full of NaN and return that one as float32."""
        self.settle()
        result = self._compute(cupy.full(self._shape, np.nan, self._type))
        return {self._role: self._plain(cupy.asnumpy(result).astype(np.float32))}


class Runtime:
    """CuPy's CUDA runtime on one stream, which becomes this thread's current one."""

    def __init__(self) -> None:
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._sleep = cupy.RawKernel(_SLEEP, "sleep")

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


def build_conv(
    layer: Layer, pass_: str, type_: str, together: int, inputs: dict[str, NDArray[Any]]
) -> Compute:
    """Return a function that computes a pass into a result, or into a new one from CuPy's pool.

    Args:
        layer: the convolution.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        type_: of the elements.
        together: images whose columns are in memory at a time.
        inputs: plain arrays by role.
    """
    lowering = _Lowering(layer, type_, together, inputs)
    shape = layer.shapes()[layer.result(pass_)]
    fill = {
        "forward": lowering.forward,
        "backward-data": lowering.backward_data,
        "backward-weights": lowering.backward_weights,
    }[pass_]

    def compute(result: Any) -> Any:
        result = cupy.empty(shape, type_) if result is None else result
        fill(result)
        return result

    return compute


class _Lowering:
    def __init__(
        self, layer: Layer, type_: str, together: int, inputs: dict[str, NDArray[Any]]
    ) -> None:
        self._layer = layer
        self._type = type_
        self._together = together
        self._sizes = cupy.asarray(np.array(_sizes(layer), np.int32))
        module = cupy.RawModule(code=_TYPES[type_] + _COLUMNS.read_text(encoding="utf-8"))
        self._im2col = module.get_function("im2col")
        self._im2row = module.get_function("im2row")
        self._col2im = module.get_function("col2im")
        groups, taps = layer.groups, math.prod(layer.kernel)
        self._groups = groups
        self._filters = layer.in_channels // groups * taps
        self._outs = layer.out_channels // groups
        self._pixels = math.prod(layer.out_size)
        given = {name: cupy.asarray(value.astype(type_)) for name, value in inputs.items()}
        self._src: Any = given.get("src")
        self._dst: Any = given.get("dst")
        weights = given.get("weights")
        if weights is not None:
            # A group of one would make every product a batch, and cuBLAS picks others for those.
            self._weights = self._slim(weights.reshape(groups, self._outs, self._filters))
            turned = weights.reshape(groups, self._outs, self._filters).transpose(0, 2, 1)
            self._turned = self._slim(cupy.ascontiguousarray(turned))

    def forward(self, result: Any) -> None:
        """Compute ``dst``, image by image or many at a time."""
        for first, count in self._chunks():
            columns = cupy.empty((count, self._groups, self._filters, self._pixels), self._type)
            self._launch(self._im2col, self._src[first], columns, columns.size)
            out = result[first : first + count].reshape(
                count, self._groups, self._outs, self._pixels
            )
            cupy.matmul(self._weights, self._slim(columns), out=self._slim(out))

    def backward_data(self, result: Any) -> None:
        """Compute the gradient of ``src``."""
        for first, count in self._chunks():
            gradient = self._gradient(first, count)
            columns = cupy.matmul(self._turned, self._slim(gradient))
            part = result[first : first + count]
            self._launch(self._col2im, columns, part, part.size)

    def backward_weights(self, result: Any) -> None:
        """Compute the gradient of the weights, added up over images."""
        # Sums of float16 products are added up over images in float32.
        total = cupy.zeros((self._groups, self._outs, self._filters), np.float32)
        for first, count in self._chunks():
            rows = cupy.empty((count, self._groups, self._pixels, self._filters), self._type)
            self._launch(self._im2row, self._src[first], rows, rows.size)
            gradient = self._gradient(first, count)
            part = cupy.matmul(self._slim(gradient), self._slim(rows))
            part = part.reshape(count, self._groups, self._outs, self._filters)
            total += part[0] if count == 1 else part.sum(axis=0, dtype=np.float32)
        result.reshape(total.shape)[...] = total

    def _chunks(self) -> list[tuple[int, int]]:
        """Return the first image and the number of images of each step."""
        batch, step = self._layer.batch, self._together
        return [(first, min(step, batch - first)) for first in range(0, batch, step)]

    def _gradient(self, first: int, count: int) -> Any:
        return self._dst[first : first + count].reshape(
            count, self._groups, self._outs, self._pixels
        )

    def _slim(self, array: Any) -> Any:
        """Drop axes of one image or one group: two axes are a single product."""
        return array.reshape(*(size for size in array.shape[:-2] if size > 1), *array.shape[-2:])

    def _launch(self, kernel: Any, source: Any, target: Any, count: int) -> None:
        blocks = min(-(-count // _THREADS), _MOST_BLOCKS)
        kernel((blocks,), (_THREADS,), (source, target, self._sizes, np.int64(count)))


def _sizes(layer: Layer) -> list[int]:
    """Return a layer's sizes in the order of ``Convolution`` in columns.cu."""
    return [
        layer.in_channels,
        layer.in_size[0],
        layer.in_size[1],
        layer.out_size[0],
        layer.out_size[1],
        layer.kernel[0],
        layer.kernel[1],
        layer.stride[0],
        layer.stride[1],
        layer.pad_before[0],
        layer.pad_before[1],
        layer.dilation[0],
        layer.dilation[1],
        layer.groups,
    ]


def build_gemm(
    layer: Layer, pass_: str, type_: str, transposed: bool, inputs: dict[str, NDArray[Any]]
) -> Compute:
    """Return a function that computes a pass into a result, or into a new one.

    A single product is one of plain matrices, whose transposes cuBLAS reads in place. CuPy copies
    the transposes of a batch before each product.

    Args:
        layer: the product.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        type_: of the elements.
        transposed: weights, and their gradient, are stored as (columns, terms).
        inputs: plain arrays by role.
    """
    one = layer.batch_count == 1

    def upload(name: str) -> Any:
        value = inputs[name]
        if name == "weights" and transposed:
            value = value.transpose(0, 2, 1)
        array = cupy.asarray(np.ascontiguousarray(value, type_))
        return array[0] if one else array

    if pass_ == "backward-weights":
        source, gradient = upload("src"), upload("dst")
        a, b = (_turned(gradient), source) if transposed else (_turned(source), gradient)
    else:
        weights = upload("weights")
        a = upload("src" if pass_ == "forward" else "dst")
        b = _turned(weights) if transposed == (pass_ == "forward") else weights

    def compute(result: Any) -> Any:
        return cupy.matmul(a, b) if result is None else cupy.matmul(a, b, out=result)

    return compute


def _turned(array: Any) -> Any:
    return array.swapaxes(-1, -2)
