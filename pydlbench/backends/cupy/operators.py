"""CuPy's operators; each call allocates its result from CuPy's memory pool.

A convolution is lowered to products, as in Caffe: elements under its taps are copied to columns.

Only this module imports CuPy at the top, which may fail on a machine without a GPU.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.device_clock import DeviceWork, SampledRuntime
from pydlbench.backends.frameworks.operands import LayerLayout
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec

#: Computes into the given result, or into a new one if it is None, and returns it.
Compute = Callable[[Any], Any]

linalg = importlib.import_module("cupy._core._routines_linalg")
cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")


def set_precision(precision: str) -> None:
    """Allow or forbid TF32, independent of ``CUPY_TF32``.

    Single products follow CuPy's compute type; batches of products follow the handle's math mode.
    """
    allowed = precision == "tf32"
    linalg.set_compute_type(
        np.dtype(np.float32), linalg.COMPUTE_TYPE_TF32 if allowed else linalg.COMPUTE_TYPE_FP32
    )
    mode = cublas.CUBLAS_TF32_TENSOR_OP_MATH if allowed else cublas.CUBLAS_DEFAULT_MATH
    cublas.setMathMode(cupy.cuda.get_cublas_handle(), mode)


class CupyOperator:
    """An operator of CuPy.

    Args:
        compute: the function to time; takes a result to write into, or None.
        role: role of the result.
        plain: converts the result to its plain layout.
        precision: precision of cuBLAS.
    """

    def __init__(
        self,
        compute: Compute,
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
        precision: str,
    ) -> None:
        self._compute = compute
        self._role = role
        self._plain = plain
        self._precision = precision
        with self.guard():
            self.call()  # compiles kernels and fills the pool
        self.wait()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Set the precision of cuBLAS, until the next operator sets it."""
        set_precision(self._precision)
        yield

    def call(self) -> Any:
        """Run the operator once; the result comes from CuPy's pool."""
        return self._compute(None)

    def wait(self) -> None:
        """Return when all calls have finished."""
        cupy.cuda.get_current_stream().synchronize()

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run the operator once into a result filled with NaN, and return it as float32."""
        with self.guard():
            result = self.call()
            result.fill(np.nan)
            result = self._compute(result)
        return {self._role: self._plain(cupy.asnumpy(result).astype(np.float32))}


class CupyRuntime(SampledRuntime):
    """CuPy's CUDA runtime on one stream, which becomes the current one of this thread.

    Args:
        index: index of the device.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()

    def on_stream(self, stream: int) -> Any:
        """Return CuPy's context of a stream."""
        return cupy.cuda.ExternalStream(stream)

    def graph_work(self, call: Callable[[], Any], times: int) -> DeviceWork:  # noqa: ARG002 - refuses
        """Refuse: CuPy does not capture cuBLAS."""
        raise UnsupportedError("cupy refuses to capture cuBLAS: ask for --timing events")

    def wait(self) -> None:
        """Return when the stream is empty."""
        self._stream.synchronize()


# -----------------------------------------------------------------------------
# Passes of layers, each a function that computes into a given result, or into a new one.


def build_gemm(spec: KernelSpec, type_: str, inputs: dict[str, NDArray[Any]]) -> CupyOperator:
    """Return a product; weights have the layer's layout, by default (terms, columns).

    cuBLAS reads transposes of single matrices in place. CuPy copies transposes of batches before
    each product.

    Args:
        spec: the case.
        type_: type of the elements.
        inputs: plain arrays by role.
    """
    layer = spec.layer
    transposed = layer.variant == "transposed"
    layout = LayerLayout(layer, "transposed" if transposed else "plain")
    operands = {
        role: cupy.asarray(layout.arrange(role, array), type_) for role, array in inputs.items()
    }
    if spec.pass_ == "backward-weights":
        a, b = operands["src"].swapaxes(-1, -2), operands["dst"]
        if transposed:
            a, b = b.swapaxes(-1, -2), a.swapaxes(-1, -2)
    else:
        forward = spec.pass_ == "forward"
        a, b = operands["src" if forward else "dst"], operands["weights"]
        if transposed == forward:
            b = b.swapaxes(-1, -2)
    role = layer.result(spec.pass_)
    # The gradient of a matrix that stands for several is the sum over these.
    whole = zip(layout.stored_shape(role), layout.stored_shape("dst"), strict=True)
    summed = tuple(axis for axis, (size, products) in enumerate([*whole][:-2]) if size != products)

    def compute(result: Any) -> Any:
        if summed:
            return cupy.matmul(a, b).sum(summed, out=result, keepdims=True)
        return cupy.matmul(a, b) if result is None else cupy.matmul(a, b, out=result)

    return CupyOperator(
        compute,
        role,
        lambda result: layout.plain(role, result),
        spec.precision,
    )


def build_conv(
    spec: KernelSpec, type_: str, together: int, inputs: dict[str, NDArray[Any]]
) -> CupyOperator:
    """Return a convolution, lowered to products.

    Args:
        spec: the case.
        type_: type of the elements.
        together: number of images whose columns are in memory at a time.
        inputs: plain arrays by role.
    """
    layer = spec.layer
    operands = {role: cupy.asarray(array, type_) for role, array in inputs.items()}
    lowering = _Lowering(layer, together, **operands)
    fill = {
        "forward": lowering.forward,
        "backward-data": lowering.backward_data,
        "backward-weights": lowering.backward_weights,
    }[spec.pass_]
    role = layer.result(spec.pass_)
    shape = layer.shapes()[role]

    def compute(result: Any) -> Any:
        result = cupy.empty(shape, type_) if result is None else result
        fill(result)
        return result

    return CupyOperator(compute, role, lambda result: result, spec.precision)


class _Lowering:
    """A convolution as a product of its weights with columns: the elements under taps, by pixel.

    Args:
        layer: the convolution.
        together: number of images whose columns are in memory at a time.
        src: the source, in the plain layout, if the pass reads it.
        weights: the weights, in the plain layout, if the pass reads them.
        dst: the gradient of the result, in the plain layout, if the pass reads it.
    """

    def __init__(
        self, layer: Layer, together: int, src: Any = None, weights: Any = None, dst: Any = None
    ) -> None:
        self._layer = layer
        self._src, self._dst = src, dst
        # With a dimension for one group, cuBLAS would use its kernels for batches of products.
        self._groups = () if layer.groups == 1 else (layer.groups,)
        self._outs = layer.out_channels // layer.groups
        self._filters = math.prod(layer.shapes()["weights"][1:])
        self._weights: Any = None
        if weights is not None:
            self._weights = weights.reshape(*self._groups, self._outs, self._filters)
        first = range(0, layer.batch, together)
        self._chunks = [slice(start, start + together) for start in first]

    def forward(self, result: Any) -> None:
        """Compute ``dst`` as weights @ columns."""
        for chunk in self._chunks:
            taps = self._taps(self._padded(self._src[chunk]))
            columns = taps.reshape(len(taps), *self._groups, self._filters, -1)
            cupy.matmul(self._weights, columns, out=self._by_pixel(result[chunk]))

    def backward_data(self, result: Any) -> None:
        """Compute the gradient of ``src``: columns are weights.T @ gradient, summed by tap."""
        layer = self._layer
        turned = self._weights.swapaxes(-1, -2)
        inside = [
            slice(pad, pad + size)
            for pad, size in zip(layer.pad_before, layer.in_size, strict=True)
        ]
        for chunk in self._chunks:
            # Products in float16 are accumulated in float32.
            padded = self._padded(cupy.zeros(result[chunk].shape, np.float32))
            taps = self._taps(padded)
            columns = cupy.matmul(turned, self._by_pixel(self._dst[chunk])).reshape(taps.shape)
            for row, column in np.ndindex(*layer.kernel):
                # Elements under one tap of all pixels are distinct.
                met = taps[:, :, :, row, column]
                met += columns[:, :, :, row, column]
            result[chunk] = padded[(..., *inside)]

    def backward_weights(self, result: Any) -> None:
        """Compute the gradient of the weights as gradient @ columns.T, over pixels and images."""
        # Products in float16 are accumulated over chunks in float32.
        total = cupy.zeros((*self._groups, self._outs, self._filters), np.float32)
        for chunk in self._chunks:
            taps = self._taps(self._padded(self._src[chunk]))
            rows = taps.transpose(1, 0, 5, 6, 2, 3, 4).reshape(*self._groups, -1, self._filters)
            gradient = cupy.moveaxis(self._by_pixel(self._dst[chunk]), 0, -2)
            total += cupy.matmul(gradient.reshape(*self._groups, self._outs, -1), rows)
        result.reshape(total.shape)[...] = total

    def _by_pixel(self, images: Any) -> Any:
        """Return a view of images of ``dst`` as (image, group, channel of the group, pixel)."""
        return images.reshape(len(images), *self._groups, self._outs, -1)

    def _padded(self, images: Any) -> Any:
        layer = self._layer
        pads = zip(layer.pad_before, layer.pad_after, strict=True)
        return cupy.pad(images, ((0, 0), (0, 0), *pads))

    def _taps(self, padded: Any) -> Any:
        """Return a view of padded images of ``src``: the elements under each tap.

        Returns:
            Shape (image, group, channel of the group, kernel row, kernel column, row, column).
        """
        layer = self._layer
        _, channels, *kernel = layer.shapes()["weights"]
        image, channel, row, column = padded.strides
        by_tap = row * layer.dilation[0], column * layer.dilation[1]
        by_pixel = row * layer.stride[0], column * layer.stride[1]
        return cupy.lib.stride_tricks.as_strided(
            padded,
            (len(padded), layer.groups, channels, *kernel, *layer.out_size),
            (image, channels * channel, channel, *by_tap, *by_pixel),
        )
