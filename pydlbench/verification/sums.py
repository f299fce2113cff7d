"""Weighted sums against the reference: convolutions, matrix products, means, resized images.

All passes of all of them are, with views of their tensors::

    y[n, g, o, p] = sum_{c, k} w[g, o, c, k] x[n, g, c, source(p, k)]

where ``p`` is a position along each side and ``k`` a tap, with the tables of
:mod:`~pydlbench.verification.checksums`. What is a ``c`` in one pass is an ``n`` or an
``o`` in another: a gradient of weights slides the gradient of the result over the source.

With random weights ``a[n]``, and ``b[p]`` that are products of one for each side, the checksum of
an output is, exchanging the sums::

    sum_{n, p} a[n] b[p] y[n, g, o, p] = sum_{c, k} w[g, o, c, k] S[g, c, k]
    S[g, c, k] = sum_{n, p} a[n] b[p] x[n, g, c, source(p, k)]

which takes one pass over each tensor. Where it is cheap there is one for each ``n``.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.ops.windows import PASS_OF_CONVOLUTION
from pydlbench.verification.checksums import (
    CHECKSUM_UNIT,
    F64,
    Comparison,
    Computed,
    TapAxis,
    checksum_weights,
    choose_pixels,
    contract,
    element_name,
    larger,
    pieces,
    resize_axes,
    window_axes,
    worst_of,
)
from pydlbench.verification.inputs import smallest_normal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

# -----------------------------------------------------------------------------
# The tensors of each pass: the source, the weights and the output, and of each axis the letters
# that it stands for; ``go`` is an axis of groups, one behind the other.

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
#: Roles of source, weights and output, if the source of a convolution is its ``src``.
_ROLES: Final = {
    "forward": ("src", "weights", "dst"),
    "backward-data": ("dst", "weights", "src"),
    "backward-weights": ("src", "dst", "weights"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor and what its axes stand for; those behind are the sides.

    Attributes:
        array: Its elements.
        letters: Of each axis; the sides have none.
        groups: Their number, where an axis has two letters.
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
        """Return it with an axis for each wanted letter, and the sides; others have one element."""
        parts = self.parts
        sides = self.array.shape[len(self.letters) :]
        split = self.array.reshape(*(size for _, size in parts), *sides)
        places = [[at for at, (own, _) in enumerate(parts) if own == letter] for letter in wanted]
        rest = [at for at, (own, _) in enumerate(parts) if own not in wanted]
        turned = split.transpose(*itertools.chain(*places), *rest, *range(len(parts), split.ndim))
        shape = [math.prod(parts[at][1] for at in each) for each in places]
        result: NDArray[Any] = turned.reshape(*shape, *sides)
        return result

    def name(self, role: str, at: dict[str, int | None], sides: Sequence[Any]) -> str:
        """Name an element, or all of them along axes whose letter has no index."""
        sizes: dict[str, list[int]] = {}
        for letter, size in self.parts:
            sizes.setdefault(letter, []).append(size)
        index = {letter: iter(_places(at.get(letter, 0), each)) for letter, each in sizes.items()}
        place: list[Any] = []
        for letters in self.letters:
            every = [next(index[letter]) for letter in letters]
            size = self.array.shape[len(place)] // self.groups
            number = every[-1] if len(every) == 1 or None in every else every[0] * size + every[1]
            place.append(":" if number is None else number)
        return element_name(role, [*place, *sides])


def _places(index: int | None, sizes: list[int]) -> list[int | None]:
    if index is None:
        return [None] * len(sizes)
    return [int(place) for place in np.unravel_index(index, sizes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A weighted sum.

    Attributes:
        source: What is added up.
        weights: What it is multiplied with.
        output: What a kernel wrote.
        axes: The tables of the windows, of each side.
        uncertain: What a weight may be off by whatever its size, in units of a rounding.
    """

    source: _Tensor
    weights: _Tensor
    output: _Tensor
    axes: Sequence[TapAxis] = ()
    uncertain: float = 0.0

    @property
    def few(self) -> bool:
        """Whether windows slide over few positions: the source is added up one after the other."""
        return all(axis.outputs <= axis.source.shape[1] for axis in self.axes)

    @property
    def elements(self) -> int:
        """Sums over the source that there are at a time, for each of its channels and images."""
        taps = math.prod(axis.source.shape[1] for axis in self.axes)
        read = math.prod(axis.source_size for axis in self.axes)
        return int(max(taps, read) if self.few else taps)


def _convolution(layer: Layer, pass_: str, tensors: dict[str, NDArray[Any]]) -> _Sum:
    roles: tuple[str, ...] = _ROLES[pass_]
    if layer.op == "deconv":  # a pass of the convolution whose source is its result
        layer, pass_ = layer.convolution, PASS_OF_CONVOLUTION[pass_]
        turned = {"src": "dst", "dst": "src", "weights": "weights"}
        roles = tuple(turned[role] for role in _ROLES[pass_])
    source, weights, output = (
        _Tensor(array=tensors[role], letters=letters, groups=layer.groups)
        for role, letters in zip(roles, _CONVOLUTION[pass_], strict=True)
    )
    axes = window_axes(layer, "backward-data" if pass_ == "backward-data" else "forward")
    if pass_ == "backward-weights":
        axes = tuple(axis.turned() for axis in axes)
    return _Sum(source=source, weights=weights, output=output, axes=axes)


def _product(_: Layer, pass_: str, tensors: dict[str, NDArray[Any]]) -> _Sum:
    """Return a matrix product; a matrix stands for all those of a batch that meet it."""
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
    return _Sum(source=source, weights=weights, output=output)


def _mean(layer: Layer, pass_: str, tensors: dict[str, NDArray[Any]]) -> _Sum:
    """Return a sum that does not mix channels: a mean, or images in another size."""
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
    return _Sum(source=source, weights=weights, output=output, axes=axes, uncertain=uncertain)


_SUMS: Final = {"conv": _convolution, "deconv": _convolution, "gemm": _product}

# -----------------------------------------------------------------------------

#: Multiply-adds spent on single points, and on the checksums' side of the weights.
_POINT_MACS: Final = 20_000_000
_CHECKSUM_MACS: Final = 30_000_000
#: Source elements gathered for the points.
_PATCH_ELEMENTS: Final = 1_000_000
#: Weights converted to float64 at a time, and sums over the source that there are at a time.
_WEIGHT_BLOCK: Final = 1 << 18
_SOURCE_BLOCK: Final = 1 << 22


def check_sums(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare weighted sums with the reference: all by checksums, and some elements exactly."""
    ((role, array),) = computed.results.items()
    make = _SUMS.get(layer.entry.kind, _mean)
    form = make(layer, computed.pass_, {**computed.inputs, role: array})
    least, rng, axes = smallest_normal(computed.precision), computed.rng, form.axes
    source, weights = form.source.view("ngc"), form.weights.view("goc")
    output = form.output.view("ngo")
    images, groups, outs, *sizes = output.shape
    fold = _fold(rng, form, images)
    buckets = images if fold is None else len(fold)
    by_side = [checksum_weights(rng, axis.outputs) for axis in axes]
    per_pixel = source.shape[2] * math.prod(weights.shape[3:]) * groups
    count = max(1, min(_POINT_MACS // weights.size, _PATCH_ELEMENTS // per_pixel))
    pixels = choose_pixels(rng, images, sizes, count)

    expected, variance = np.zeros((2, buckets + len(pixels.image), groups, outs))
    step = max(1, _SOURCE_BLOCK // (buckets * groups * form.elements))
    for first in range(0, source.shape[2], step):
        block = slice(first, first + step)
        summed = _source_sums(form, source[:, :, block], by_side, fold)
        patches = pixels.patches(source[:, :, block], axes, form.uncertain)
        rows, squared = (np.concatenate(each) for each in zip(summed, patches, strict=True))
        _mix(rows, squared, weights[:, :, block], expected, variance)

    factors = {3 + side: vector[:, None] for side, vector in enumerate(by_side)}
    if fold is not None:
        factors[0] = fold.T
    got, energy = contract(output, factors, {axis: matrix**2 for axis, matrix in factors.items()})
    energy = energy.reshape(buckets, groups, outs)
    folded = 1.0 if fold is None else np.square(fold).sum(axis=1).reshape(-1, 1, 1)
    energy += least**2 * math.prod(float(np.sum(vector**2)) for vector in by_side) * folded

    def name(image: int | None, channel: Sequence[int], place: Sequence[Any]) -> str:
        return form.output.name(role, {"n": image, "g": channel[0], "o": channel[1]}, place)

    checksum = worst_of(
        got.reshape(buckets, groups, outs),
        expected[:buckets],
        CHECKSUM_UNIT * np.sqrt(energy + variance[:buckets]),
        lambda at: f"checksum of {name(at[0] if fold is None else None, at[1:], ':' * len(sizes))}",
    )
    point = worst_of(
        pixels.values(output),
        expected[buckets:],
        np.maximum(np.abs(expected[buckets:]) + np.sqrt(variance[buckets:]), least),
        lambda at: name(int(pixels.image[at[0]]), at[1:], [each[at[0]] for each in pixels.place]),
    )
    return {
        role: Comparison(
            terms=source.shape[2] * math.prod(axis.terms for axis in axes),
            points=len(pixels.image) * groups * outs,
            checksums=got.size,
            worst=larger(point, checksum),
        )
    }


def _fold(rng: np.random.Generator, form: _Sum, images: int) -> F64 | None:
    """Return the (buckets, images) matrix that adds images up; None where it need not."""
    weights, source = form.weights.array.size, form.source.array.size
    if images * weights <= _CHECKSUM_MACS:
        return None
    once = weights + form.output.array.size // math.prod(axis.outputs for axis in form.axes)
    once += source if form.few else source // math.prod(axis.source_size for axis in form.axes)
    buckets = max(1, min(images, _CHECKSUM_MACS // once))
    matrix = np.zeros((buckets, images))
    matrix[np.arange(images) % buckets, np.arange(images)] = checksum_weights(rng, images)
    return matrix


def _source_sums(
    form: _Sum, source: NDArray[Any], by_side: Sequence[F64], fold: F64 | None
) -> tuple[F64, F64]:
    """Return S and the variance that rounding gives it: (buckets, groups, channels, taps...)."""
    axes = form.axes
    images = {} if fold is None else {0: fold.T}
    squares = {axis: matrix**2 for axis, matrix in images.items()}
    squares |= {3 + side: np.ones((size, 1)) for side, size in enumerate(source.shape[3:])}
    if form.few:
        sums, energy = contract(source, images, squares)
        for side, (axis, weights) in enumerate(zip(axes, by_side, strict=True)):
            sums = axis.add_up(weights, sums, 3 + side)
    else:
        spread = {
            3 + i: axis.spread(w) for i, (axis, w) in enumerate(zip(axes, by_side, strict=True))
        }
        sums, energy = contract(source, images | spread, squares)
    # The mean square of a channel stands for that of each window in it.
    mean_square = energy / math.prod(source.shape[3:])
    by_tap = [
        [axis.energy(vector), vector**2 @ (axis.factor != 0)]
        for axis, vector in zip(axes, by_side, strict=True)
    ]
    exact, rough = (
        functools.reduce(np.multiply.outer, [each[i] for each in by_tap], np.ones(()))
        for i in (0, 1)
    )
    return sums, mean_square * (exact + form.uncertain**2 * rough)


def _mix(rows: F64, squared: F64, weights: NDArray[Any], expected: F64, variance: F64) -> None:
    """Add the products of rows with the weights, and of squared rows with the squared weights.

    Args:
        rows: (rows, groups, channels, taps...).
        squared: The same.
        weights: (groups, outputs, channels, taps...), of any strides; converted block by block.
        expected: (rows, groups, outputs), to which it is added.
        variance: The same.
    """
    for g, o, *inner in pieces(weights, _WEIGHT_BLOCK):
        block = weights[(g, o, *inner)].astype(np.float64, order="C")
        block = block.reshape(*block.shape[:2], -1).swapaxes(1, 2)
        for total, part, matrix in ((expected, rows, block), (variance, squared, block**2)):
            met = part[(slice(None), g, *inner)]
            met = met.reshape(*met.shape[:2], -1).swapaxes(0, 1)
            total[:, g, o] += np.matmul(met, matrix).swapaxes(0, 1)
