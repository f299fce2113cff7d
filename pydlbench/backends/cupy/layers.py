"""Layers in CuPy: cuBLAS, convolutions lowered to products with im2col, pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from pydlbench.backends.cupy import kernels
from pydlbench.layers.layer import result_role

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pydlbench.layers.conv import Conv2d
    from pydlbench.layers.gemm import Gemm
    from pydlbench.layers.pool import Pool2d

__all__ = ["build_conv", "build_gemm", "build_pool"]


# -----------------------------------------------------------------------------
# Convolution as a matrix product: im2col and cuBLAS, as Caffe did it in 2014.
#
# With the columns of an image as (group, channel and tap, pixel), forward is weights @ columns,
# backward-data is col2im(weights.T @ gradient), and backward-weights is gradient @ rows, added up
# over images, where rows are columns the other way round.

_THREADS = 256
_MOST_BLOCKS = 1 << 20


def build_conv(
    layer: Conv2d, pass_: str, type_: str, together: int, inputs: dict[str, NDArray[Any]]
) -> Callable[[Any], Any]:
    """Return a function that computes a pass into a result, or into a new one.

    Args:
        layer: the convolution.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        type_: of the elements.
        together: images whose columns are in memory at a time.
        inputs: plain arrays by role.
    """
    lowering = _Lowering(layer, type_, together, inputs)
    return {
        "forward": lowering.forward,
        "backward-data": lowering.backward_data,
        "backward-weights": lowering.backward_weights,
    }[pass_]


class _Lowering:
    def __init__(
        self, layer: Conv2d, type_: str, together: int, inputs: dict[str, NDArray[Any]]
    ) -> None:
        self._layer = layer
        self._type = type_
        self._together = together
        self._sizes = cupy.asarray(np.array(kernels.convolution(layer), np.int32))
        module = cupy.RawModule(code=kernels.source("columns", type_))
        self._im2col = module.get_function("im2col")
        self._im2row = module.get_function("im2row")
        self._col2im = module.get_function("col2im")
        groups, taps = layer.groups, layer.kernel_height * layer.kernel_width
        self._groups = groups
        self._filters = layer.in_channels // groups * taps
        self._outs = layer.out_channels // groups
        self._pixels = layer.out_height * layer.out_width
        given = {name: cupy.asarray(value.astype(type_)) for name, value in inputs.items()}
        self._src: Any = given.get("src")
        self._dst: Any = given.get("dst")
        weights = given.get("weights")
        if weights is not None:
            # A group of one would make every product a batch, and cuBLAS picks others for those.
            self._weights = self._slim(weights.reshape(groups, self._outs, self._filters))
            turned = weights.reshape(groups, self._outs, self._filters).transpose(0, 2, 1)
            self._turned = self._slim(cupy.ascontiguousarray(turned))

    def forward(self, result: Any) -> Any:
        """Compute ``dst``, image by image or many at a time."""
        layer = self._layer
        if result is None:
            shape = layer.batch, layer.out_channels, layer.out_height, layer.out_width
            result = cupy.empty(shape, self._type)
        for first, count in self._chunks():
            columns = cupy.empty((count, self._groups, self._filters, self._pixels), self._type)
            self._launch(self._im2col, self._src[first], columns, columns.size)
            out = result[first : first + count].reshape(
                count, self._groups, self._outs, self._pixels
            )
            cupy.matmul(self._weights, self._slim(columns), out=self._slim(out))
        return result

    def backward_data(self, result: Any) -> Any:
        """Compute the gradient of ``src``."""
        layer = self._layer
        if result is None:
            shape = layer.batch, layer.in_channels, layer.in_height, layer.in_width
            result = cupy.empty(shape, self._type)
        for first, count in self._chunks():
            gradient = self._gradient(first, count)
            columns = cupy.matmul(self._turned, self._slim(gradient))
            part = result[first : first + count]
            self._launch(self._col2im, columns, part, part.size)
        return result

    def backward_weights(self, result: Any) -> Any:
        """Compute the gradient of the weights, added up over images."""
        if result is None:
            layer = self._layer
            shape = (
                layer.out_channels,
                layer.in_channels // layer.groups,
                layer.kernel_height,
                layer.kernel_width,
            )
            result = cupy.empty(shape, self._type)
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
        return result

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


# -----------------------------------------------------------------------------
# Products by ``cupy.matmul``, which calls cuBLAS.


def build_gemm(
    layer: Gemm, pass_: str, type_: str, transposed: bool, inputs: dict[str, NDArray[Any]]
) -> Callable[[Any], Any]:
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


# -----------------------------------------------------------------------------
# Pooling by kernels of our own, since CuPy has none.

_NOWHERE = np.uint64(0)


def build_pool(
    layer: Pool2d, pass_: str, propagation: str, type_: str, inputs: dict[str, NDArray[Any]]
) -> Callable[[Any], Any]:
    """Return a function that computes a pass into a result, or into a new one.

    Args:
        layer: the pooling.
        pass_: ``forward`` or ``backward-data``.
        propagation: ``training`` keeps where the maxima are.
        type_: of the elements.
        inputs: plain arrays by role.
    """
    shapes = layer.shapes()
    role = result_role(layer, pass_)
    module = cupy.RawModule(code=kernels.source("pooling", type_))
    sizes = cupy.asarray(np.array(kernels.pooling(layer), np.int32))
    given = {name: cupy.asarray(value.astype(type_)) for name, value in inputs.items()}
    places: Any = _NOWHERE
    if layer.mode == "max" and (pass_ == "backward-data" or propagation == "training"):
        places = cupy.empty(shapes["dst"], np.int32)

    def run(name: str, result: Any, *operands: Any) -> None:
        blocks = min(-(-result.size // _THREADS), _MOST_BLOCKS)
        kernel = module.get_function(name)
        kernel((blocks,), (_THREADS,), (*operands, sizes, np.int64(result.size)))

    if pass_ == "backward-data" and layer.mode == "max":
        maxima = cupy.empty(shapes["dst"], type_)
        run("maximum", maxima, given["src"], maxima, places)

    def compute(result: Any) -> Any:
        if result is None:
            result = cupy.empty(shapes[role], type_)
        if layer.mode == "avg":
            forward = pass_ == "forward"
            name = "average" if forward else "average_backward"
            run(name, result, given["src" if forward else "dst"], result)
        elif pass_ == "forward":
            run("maximum", result, given["src"], result, places)
        else:
            run("maximum_backward", result, given["dst"], places, result)
        return result

    return compute
