"""Check weighted sums: convolutions, matrix products, average pooling, resized images.

With suitable views of the tensors, all their passes are::

    y[n, g, o, p] = sum_{c, k} w[g, o, c, k] x[n, g, c, source(p, k)]

where ``p`` is a position along each side and ``k`` a tap, with the tables of
:mod:`~pydlbench.verification.checksums`. An axis has different letters in different passes: the
gradient of weights slides the gradient of the result over the source.

With random weights ``a[n]``, and ``b[p]`` as a product of one factor per side, the checksum of an
output is, exchanging the sums::

    sum_{n, p} a[n] b[p] y[n, g, o, p] = sum_{c, k} w[g, o, c, k] S[g, c, k]
    S[g, c, k] = sum_{n, p} a[n] b[p] x[n, g, c, source(p, k)]

which takes one pass over each tensor. If that is cheap, there is a checksum for each ``n``.

Where fused operations change the result, or it is rounded to integers, no checksum holds. The sums
are then recomputed exactly for as many pixels (rows of a product) as take a fraction of a second,
with all channels of each; the fused operations follow in the arithmetic that propagates rounding
errors. A result of integers may differ by half a unit, its rounding.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.fused import channel_axis, fused_ops
from pydlbench.ops.op import Layer
from pydlbench.ops.table import tensor_types
from pydlbench.ops.windows import PASS_OF_CONVOLUTION
from pydlbench.verification import arithmetic
from pydlbench.verification.arithmetic import Rounded
from pydlbench.verification.checksums import (
    CHECKSUM_UNIT,
    F64,
    Deviation,
    ElementComparison,
    KernelRun,
    Pixels,
    TapAxis,
    checksum_weights,
    choose_pixels,
    contract,
    element_name,
    pieces,
    resize_axes,
    window_axes,
    worse,
    worst_of,
)
from pydlbench.verification.inputs import INTEGER_RANGES, UNIT_ROUNDOFF, smallest_normal

# -----------------------------------------------------------------------------
# The axes of the source, the weights and the output in each pass, as letters of the formula above;
# ``go`` is an axis of ``g`` groups of ``o``.

_Axes = tuple[str, ...]
_CONVOLUTION: Final[dict[str, tuple[_Axes, _Axes, _Axes]]] = {
    "forward": (("n", "gc"), ("go", "c"), ("n", "go")),
    "backward-data": (("n", "gc"), ("gc", "o"), ("n", "go")),
    "backward-weights": (("c", "gn"), ("c", "go"), ("go", "n")),
}
_PRODUCT: Final[dict[str, tuple[_Axes, _Axes, _Axes]]] = {
    "forward": (("n", "c"), ("c", "o"), ("n", "o")),
    "backward-data": (("n", "c"), ("o", "c"), ("n", "o")),
    "backward-weights": (("c", "n"), ("c", "o"), ("n", "o")),
}
#: Roles of source, weights and output.
_ROLES: Final = {
    "forward": ("src", "weights", "dst"),
    "backward-data": ("dst", "weights", "src"),
    "backward-weights": ("src", "dst", "weights"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor with the letters of its axes.

    Attributes:
        array: Elements of the tensor.
        letters: Letters of the leading axes; the others are the sides.
        groups: Number of groups of an axis with two letters.
    """

    array: NDArray[Any]
    letters: _Axes
    groups: int = 1

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The letters one by one, with their sizes."""
        parts = []
        for letters, size in zip(self.letters, self.array.shape, strict=False):
            sizes = (size,) if len(letters) == 1 else (self.groups, size // self.groups)
            parts += list(zip(letters, sizes, strict=True))
        return parts

    def view(self, wanted: str) -> NDArray[Any]:
        """Return a view with an axis for each wanted letter, of size 1 if absent, and the sides."""
        parts = self.parts
        sides = self.array.shape[len(self.letters) :]
        split = self.array.reshape(*(size for _, size in parts), *sides)
        axes = [[at for at, (name, _) in enumerate(parts) if name == letter] for letter in wanted]
        rest = [at for at, (name, _) in enumerate(parts) if name not in wanted]
        ordered = split.transpose(*itertools.chain(*axes), *rest, *range(len(parts), split.ndim))
        shape = [math.prod(parts[at][1] for at in group) for group in axes]
        return np.asarray(ordered.reshape(*shape, *sides))

    def like(self, array: NDArray[Any]) -> Self:
        """Return another tensor with the same axes."""
        return replace(self, array=array)

    def name(self, role: str, at: dict[str, int | None], sides: Sequence[Any]) -> str:
        """Name an element, with ``:`` along axes whose letter has the index None."""
        sizes: dict[str, list[int]] = {}
        for letter, size in self.parts:
            sizes.setdefault(letter, []).append(size)
        index = {
            letter: iter(_unravel(at.get(letter, 0), shape)) for letter, shape in sizes.items()
        }
        place: list[Any] = []
        for letters in self.letters:
            parts = [next(index[letter]) for letter in letters]
            size = self.array.shape[len(place)] // self.groups
            number = parts[-1] if len(parts) == 1 or None in parts else parts[0] * size + parts[1]
            place.append(":" if number is None else number)
        return element_name(role, [*place, *sides])


def _unravel(index: int | None, sizes: list[int]) -> list[int | None]:
    if index is None:
        return [None] * len(sizes)
    return [int(place) for place in np.unravel_index(index, sizes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedSum:
    """The tensors of a weighted sum.

    Attributes:
        source: Tensor of the summands.
        weights: Tensor of the summands' factors.
        output: Result of the kernel.
        axes: Table of the windows along each side.
        uncertain: Absolute error of a weight, in units of roundoff.
    """

    source: _Tensor
    weights: _Tensor
    output: _Tensor
    axes: Sequence[TapAxis] = ()
    uncertain: float = 0.0

    @property
    def has_few_positions(self) -> bool:
        """Whether windows have no more positions than taps: the source is summed by position."""
        return all(axis.outputs <= axis.source.shape[1] for axis in self.axes)

    @property
    def terms(self) -> int:
        """Length of the longest sum."""
        source = self.source.view("ngc")
        return int(source.shape[2] * math.prod(axis.terms for axis in self.axes))

    def name(
        self, role: str, image: int | None, channel: Sequence[int], place: Sequence[Any]
    ) -> str:
        """Name an element of the output, or all of an image's or of the images' channel."""
        return self.output.name(role, {"n": image, "g": channel[0], "o": channel[1]}, place)

    @property
    def elements(self) -> int:
        """Number of simultaneous sums over the source, per channel and image."""
        taps = math.prod(axis.source.shape[1] for axis in self.axes)
        read = math.prod(axis.source_size for axis in self.axes)
        return int(max(taps, read) if self.has_few_positions else taps)


def _convolution(layer: Layer, pass_: str, tensors: dict[str, NDArray[Any]]) -> WeightedSum:
    roles: tuple[str, ...] = _ROLES[pass_]
    if layer.op == "deconv":  # a pass of the convolution with source and result exchanged
        layer, pass_ = layer.convolution, PASS_OF_CONVOLUTION[pass_]
        exchanged = {"src": "dst", "dst": "src", "weights": "weights"}
        roles = tuple(exchanged[role] for role in _ROLES[pass_])
    source, weights, output = (
        _Tensor(array=tensors[role], letters=letters, groups=layer.groups)
        for role, letters in zip(roles, _CONVOLUTION[pass_], strict=True)
    )
    axes = window_axes(layer, "backward-data" if pass_ == "backward-data" else "forward")
    if pass_ == "backward-weights":
        axes = tuple(axis.transpose() for axis in axes)
    return WeightedSum(source=source, weights=weights, output=output, axes=axes)


def _product(_: Layer, pass_: str, tensors: dict[str, NDArray[Any]]) -> WeightedSum:
    """Describe a matrix product; batch axes are broadcast."""
    arrays = [tensors[role] for role in _ROLES[pass_]]
    batch = []
    for left, right, both in zip(*(array.shape[:-2] for array in arrays), strict=True):
        if left == right == both:
            batch.append("g")
        else:
            batch.append("n" if left == both else "o" if right == both else "c")
    source, weights, output = (
        _Tensor(array=array, letters=(*batch, *letters))
        for array, letters in zip(arrays, _PRODUCT[pass_], strict=True)
    )
    return WeightedSum(source=source, weights=weights, output=output)


def _mean(layer: Layer, pass_: str, tensors: dict[str, NDArray[Any]]) -> WeightedSum:
    """Describe a sum that does not mix channels: average pooling or a resizing."""
    roles = ("src", "dst") if pass_ == "forward" else ("dst", "src")
    source, output = (_Tensor(array=tensors[role], letters=("n", "g")) for role in roles)
    uncertain = 0.0
    if layer.op == "pool":
        axes = window_axes(layer, pass_)
    else:
        axes, uncertain = resize_axes(layer, pass_)
    taps = [axis.source.shape[1] for axis in axes]
    ones = np.broadcast_to(np.float32(1), (layer.channels, *taps))
    weights = _Tensor(array=ones, letters=("g",))
    return WeightedSum(
        source=source, weights=weights, output=output, axes=axes, uncertain=uncertain
    )


_SUMS: Final = {"conv": _convolution, "deconv": _convolution, "gemm": _product}

# -----------------------------------------------------------------------------

#: Maximum numbers of multiply-adds: for single points, and for products of checksums with weights.
_POINT_MACS: Final = 20_000_000
_CHECKSUM_MACS: Final = 30_000_000
#: Maximum number of source elements gathered for the points.
_PATCH_ELEMENTS: Final = 1_000_000
#: Maximum numbers of weights converted to float64 at a time, and of simultaneous sums over the
#: source.
_WEIGHT_BLOCK: Final = 1 << 18
_SOURCE_BLOCK: Final = 1 << 22


def describe_sum(layer: Layer, pass_: str, tensors: dict[str, NDArray[Any]]) -> WeightedSum:
    """Return a pass as a weighted sum of its tensors, by role, with the result among them."""
    return _SUMS.get(layer.entry.kind, _mean)(layer, pass_, tensors)


def check_sums(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare all elements by checksums, and some of them exactly."""
    ((role, array),) = run.results.items()
    weighted = describe_sum(layer, run.pass_, {**run.inputs, role: array})
    least, rng, axes = smallest_normal(run.precision), run.rng, weighted.axes
    source, weights = weighted.source.view("ngc"), weighted.weights.view("goc")
    output = weighted.output.view("ngo")
    images, groups, outs, *sizes = output.shape
    fold = _fold(rng, weighted, images, whole=run.whole)
    buckets = images if fold is None else len(fold)
    by_side = [checksum_weights(rng, axis.outputs, whole=run.whole) for axis in axes]
    per_pixel = source.shape[2] * math.prod(weights.shape[3:]) * groups
    count = max(1, min(_POINT_MACS // weights.size, _PATCH_ELEMENTS // per_pixel))
    pixels = choose_pixels(rng, images, sizes, count)

    expected, variance = np.zeros((2, buckets + len(pixels.image), groups, outs))
    step = max(1, _SOURCE_BLOCK // (buckets * groups * weighted.elements))
    for first in range(0, source.shape[2], step):
        block = slice(first, first + step)
        summed = _source_sums(weighted, source[:, :, block], by_side, fold)
        patches = pixels.patches(source[:, :, block], axes, weighted.uncertain)
        rows, squared = (np.concatenate(pair) for pair in zip(summed, patches, strict=True))
        add_products(rows, squared, weights[:, :, block], expected, variance)

    # Sums of the weights of a checksum's elements, and of the squares of these weights.
    by_image = np.ones((1, 1)) if fold is None else fold
    total, squares = (
        math.prod(float(np.sum(vector**power)) for vector in by_side)
        * np.sum(by_image**power, axis=1).reshape(-1, 1, 1)
        for power in (1, 2)
    )
    if "bias" in run.inputs:
        bias = _by_channel(layer, run.inputs["bias"], weighted.output)
        expected[:buckets] += total * bias
        expected[buckets:] += bias
        variance[:buckets] += squares * bias**2
        variance[buckets:] += bias**2
    factors = {3 + side: vector[:, None] for side, vector in enumerate(by_side)}
    if fold is not None:
        factors[0] = fold.T
    got, energy = contract(output, factors, {axis: matrix**2 for axis, matrix in factors.items()})
    energy = energy.reshape(buckets, groups, outs)
    energy += least**2 * squares

    name = functools.partial(weighted.name, role)
    checksum = worst_of(
        got.reshape(buckets, groups, outs),
        expected[:buckets],
        CHECKSUM_UNIT * np.sqrt(energy + variance[:buckets]),
        lambda at: f"checksum of {name(at[0] if fold is None else None, at[1:], ':' * len(sizes))}",
    )
    scale = np.maximum(np.abs(expected[buckets:]) + np.sqrt(variance[buckets:]), least)
    point = _worst_pixel(weighted, role, pixels, pixels.values(output), expected[buckets:], scale)
    return {
        role: ElementComparison(
            terms=0 if run.whole else weighted.terms + ("bias" in run.inputs),
            points=len(pixels.image) * groups * outs,
            checksums=got.size,
            worst=worse(point, checksum),
        )
    }


def _by_channel(layer: Layer, bias: NDArray[Any], output: _Tensor) -> F64:
    """Return a bias as (groups, outputs) of the layer's result."""
    shape = [1] * output.array.ndim
    shape[channel_axis(layer)] = -1
    pairs = itertools.zip_longest(output.letters, output.array.shape, fillvalue="")
    spread: list[Any] = [size if set(letters) & set("go") else 1 for letters, size in pairs]
    view = output.like(np.broadcast_to(bias.reshape(shape), spread)).view("ngo")
    return view.reshape(view.shape[1:3]).astype(np.float64)


def _worst_pixel(
    weighted: WeightedSum, role: str, pixels: Pixels, got: F64, expected: F64, scale: F64
) -> Deviation:
    """Return the largest deviation among all channels of some pixels."""
    return worst_of(
        got,
        expected,
        scale,
        lambda at: weighted.name(
            role, int(pixels.image[at[0]]), at[1:], [side[at[0]] for side in pixels.place]
        ),
    )


def _fold(
    rng: np.random.Generator, weighted: WeightedSum, images: int, *, whole: bool
) -> F64 | None:
    """Return the (buckets, images) matrix that sums images with random weights.

    None if a checksum per image is cheap.
    """
    weights, source = weighted.weights.array.size, weighted.source.array.size
    if images * weights <= _CHECKSUM_MACS:
        return None
    once = weights + weighted.output.array.size // math.prod(axis.outputs for axis in weighted.axes)
    if weighted.has_few_positions:
        once += source
    else:
        once += source // math.prod(axis.source_size for axis in weighted.axes)
    buckets = max(1, min(images, _CHECKSUM_MACS // once))
    matrix = np.zeros((buckets, images))
    matrix[np.arange(images) % buckets, np.arange(images)] = checksum_weights(
        rng, images, whole=whole
    )
    return matrix


def _source_sums(
    weighted: WeightedSum, source: NDArray[Any], by_side: Sequence[F64], fold: F64 | None
) -> tuple[F64, F64]:
    """Return S and its variance by rounding: (buckets, groups, channels, taps...)."""
    axes = weighted.axes
    images = {} if fold is None else {0: fold.T}
    squares = {axis: matrix**2 for axis, matrix in images.items()}
    squares |= {3 + side: np.ones((size, 1)) for side, size in enumerate(source.shape[3:])}
    if weighted.has_few_positions:
        sums, energy = contract(source, images, squares)
        for side, (axis, weights) in enumerate(zip(axes, by_side, strict=True)):
            sums = axis.weighted_sum(weights, sums, 3 + side)
    else:
        spread = {
            3 + i: axis.spread(w) for i, (axis, w) in enumerate(zip(axes, by_side, strict=True))
        }
        sums, energy = contract(source, images | spread, squares)
    # Approximate the mean square of each window by the mean square of its channel.
    mean_square = energy / math.prod(source.shape[3:])
    by_tap = [
        [axis.energy(vector), vector**2 @ (axis.factor != 0)]
        for axis, vector in zip(axes, by_side, strict=True)
    ]
    exact, rough = (
        functools.reduce(np.multiply.outer, [pair[i] for pair in by_tap], np.ones(()))
        for i in (0, 1)
    )
    return sums, mean_square * (exact + weighted.uncertain**2 * rough)


def add_products(
    rows: F64, squared: F64, weights: NDArray[Any], expected: F64, variance: F64
) -> None:
    """Add the products of rows with the weights, and of squared rows with the squared weights.

    Args:
        rows: Rows to multiply, (rows, groups, channels, taps...).
        squared: Rows squared, of the same shape.
        weights: Weights, (groups, outputs, channels, taps...), of any strides; converted block by
            block.
        expected: Sums of the products, (rows, groups, outputs); updated.
        variance: Variance by rounding, of the same shape as ``expected``; updated.
    """
    for g, o, *inner in pieces(weights, _WEIGHT_BLOCK):
        block = weights[(g, o, *inner)].astype(np.float64, order="C")
        block = block.reshape(*block.shape[:2], -1).swapaxes(1, 2)
        for total, part, matrix in ((expected, rows, block), (variance, squared, block**2)):
            matched = part[(slice(None), g, *inner)]
            matched = matched.reshape(*matched.shape[:2], -1).swapaxes(0, 1)
            total[:, g, o] += np.matmul(matched, matrix).swapaxes(0, 1)


# -----------------------------------------------------------------------------
# Fused operations, and results of integers.

#: Maximum number of multiply-adds, and of source elements that are gathered for them.
_MAX_MACS: Final = 2_000_000_000
_MAX_GATHERED: Final = 8_000_000
_HALF: Final = 0.5


def rounds_to_integers(layer: Layer, precision: str) -> bool:
    """Whether a layer's result is rounded to integers, beyond exact sums of integers."""
    kind = tensor_types(layer, precision).get("dst")
    if layer.entry.kind == "pool":
        return layer.mode == "avg" and kind in INTEGER_RANGES
    return kind in ("s8", "u8")


def check_fused(
    layer: Layer, run: KernelRun, fuse: str, accumulate: str = "float32"
) -> dict[str, ElementComparison]:
    """Compare the results of the pixels that are recomputed.

    Args:
        layer: the layer.
        run: inputs and results of the kernel.
        fuse: the operations.
        accumulate: type of results between operations; sums are of float32 at least.
    """
    ops = fused_ops(fuse)
    inputs = dict(run.inputs)
    if "src_zero_point" in inputs:  # padding stands for zero, so it is not shifted
        inputs["src"] = inputs["src"] - inputs["src_zero_point"]
    weighted = describe_sum(layer, run.pass_, {**inputs, **run.results})
    source, weights = weighted.source.view("ngc"), weighted.weights.view("goc")
    output = weighted.output.view("ngo")
    images, _, _, *sizes = output.shape
    gathered = math.prod(source.shape[1:3]) * math.prod(weights.shape[3:])
    count = max(1, min(_MAX_MACS // weights.size, _MAX_GATHERED // gathered))
    pixels = choose_pixels(run.rng, images, sizes, count)
    expected, variance = np.zeros((2, len(pixels.image), *output.shape[1:3]))
    rows, squared = pixels.patches(source, weighted.axes, weighted.uncertain)
    add_products(rows, squared, weights, expected, variance)

    def operand(role: str) -> NDArray[Any]:
        array = inputs[role]
        if array.ndim == 1:
            along = [1] * len(layer.shapes()["dst"])
            along[channel_axis(layer)] = -1
            array = array.reshape(along)
        spread = np.broadcast_to(array, layer.shapes()["dst"])
        return pixels.values(weighted.output.like(spread).view("ngo")).astype(np.float64)

    # Sums of integers are exact, averages are not.
    whole = tensor_types(layer, run.precision).get("src") in INTEGER_RANGES
    terms = 0 if whole and layer.entry.kind != "pool" else weighted.terms
    y = _rounded_sums(expected, variance, terms, accumulate)
    roles = dict.fromkeys(op.role for op in ops if op.role and op.role != "src_zero_point")
    tensors = {role: operand(role) for role in roles}
    if "dst" in inputs:
        tensors["dst"] = operand("dst")
    for name in ("src_scale", "weights_scale"):
        y = y * tensors[name] if name in tensors else y
    for op in ops:
        if op.name == "bias" or not op.role or op.role.startswith("operand"):
            y = op.apply(arithmetic, y, tensors)
    if "dst_scale" in tensors:
        y = y / tensors["dst_scale"]
    if "dst_zero_point" in tensors:
        y = y + tensors["dst_zero_point"]
    return {"dst": _compared(layer, run, weighted, y, pixels)}


def _rounded_sums(
    expected: NDArray[Any], variance: NDArray[Any], terms: int, accumulate: str
) -> Rounded:
    """Return sums of products that are rounded to a type before the next operation.

    Without ``terms`` they are exact.
    """
    if terms == 0:
        return Rounded(expected)
    if accumulate not in ("bfloat16", "float16"):
        return Rounded(expected, variance, terms)
    # One error of this type; those of the additions are of float32.
    ratio = UNIT_ROUNDOFF["float32"] / UNIT_ROUNDOFF[accumulate]
    return Rounded(expected, expected**2 + variance * terms * ratio**2, 1)


def _compared(
    layer: Layer, run: KernelRun, weighted: WeightedSum, y: Rounded, pixels: Pixels
) -> ElementComparison:
    """Compare the values of some pixels with the expected ones."""
    got = pixels.values(weighted.output.view("ngo")).astype(np.float64)
    value, scale = y.value, np.abs(y.value) + y.size
    kind = tensor_types(layer, run.precision).get("dst")
    if kind in INTEGER_RANGES:
        low, high = INTEGER_RANGES[kind]
        value = np.clip(value, low, high)
        # A result within half a unit, its rounding, is right.
        near = np.abs(got - value) <= _HALF
        got_rounded = np.where(near, value, got - np.copysign(_HALF, got - value))
        whole = got == np.rint(got)
        got = np.where(whole & (got >= low) & (got <= high), got_rounded, np.nan)
        scale = np.maximum(scale, 1.0)
    scale = np.maximum(scale, smallest_normal(run.precision))
    worst = _worst_pixel(weighted, "dst", pixels, got, value, scale)
    return ElementComparison(terms=max(1, y.terms), points=value.size, checksums=0, worst=worst)
