"""Copies, extremes, reductions and gathers against the table: every element of every result."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.verification.arithmetic import EXACT, TRANSCENDENTAL
from pydlbench.verification.checksums import (
    CHECKSUM_UNIT,
    Comparison,
    Deviation,
    Piece,
    contract,
    element_name,
    larger,
    pieces,
    sums_over,
    worst_of,
)
from pydlbench.verification.elements import compare, evaluate, gradient, piece
from pydlbench.verification.inputs import largest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.verification.checksums import Computed


#: What adds nothing to the size of a number.
_ZERO: Final = np.zeros(())


def check_exact(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare elements that are some of those read, or zeros: exact."""
    (role,) = computed.results
    single = layer.with_batch(1)

    def expected() -> Iterator[Piece]:
        # One image at a time, where there are images.
        for image in range(layer.batch):
            here = slice(None) if layer.entry.batch is None else slice(image, image + 1)
            inputs = {name: array[here] for name, array in computed.inputs.items()}
            value = single.entry.reference(np, single, SimpleNamespace(**inputs))
            for first, *rest in pieces(value):
                place = first if layer.entry.batch is None else here
                cut = place, *rest
                yield Piece(
                    role=role, cut=cut, value=value[(first, *rest)], size=_ZERO, terms=EXACT
                )

    return compare(layer, computed, expected())


def check_reduction(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements: sums of as many terms as are reduced, or one of the elements."""
    if layer.op in ("max", "min"):
        return check_exact(layer, computed)
    axes = [i for i, (n, kept) in enumerate(zip(layer.src, layer.dst, strict=True)) if n != kept]
    terms = math.prod(layer.src) // math.prod(layer.dst)
    value, squares = sums_over(computed.inputs["src"], axes)
    size = np.sqrt(squares)
    if layer.op == "mean":
        value, size = value / terms, size / terms
    elif layer.op == "norm":
        value, terms = size, terms + TRANSCENDENTAL
    whole = (slice(None),) * value.ndim
    sums = Piece(role="dst", cut=whole, value=value, size=size, terms=terms)
    return compare(layer, computed, [sums])


def check_gather(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all rows: those that are named, exact, or sums of those that name one."""
    if layer.op == "rows":
        return check_exact(layer, computed)
    source, indices = computed.inputs["src"], computed.inputs["indices"]
    terms = int(np.bincount(indices.astype(np.intp)).max())

    def expected() -> Iterator[Piece]:
        for first in range(0, layer.width, _COLUMNS):
            columns = slice(first, min(first + _COLUMNS, layer.width))
            given = source[:, columns].astype(np.float64)
            part = layer.replace(width=given.shape[1])
            value, squares = (
                part.reference({"src": each, "indices": indices})["dst"]
                for each in (given, np.square(given))
            )
            cut = slice(None), columns
            yield Piece(role="dst", cut=cut, value=value, size=np.sqrt(squares), terms=terms)

    return compare(layer, computed, expected())


#: Columns of a table that are compared at a time.
_COLUMNS: Final = 64

# -----------------------------------------------------------------------------
# Maxima of windows, and their gradient.

#: Comparisons spent on the backward pass before only some images are compared.
_COMPARISONS: Final = 40_000_000
_SIDES: Final = (2, 3, 4)


def choose(rng: np.random.Generator, count: int, affordable: int) -> NDArray[np.intp]:
    """Choose some of many images or heads; the first and the last are always among them.

    A kernel that starts late or stops early goes wrong there.
    """
    if count <= max(2, affordable):
        return np.arange(count)
    inner = rng.permutation(np.arange(1, count - 1))[: max(0, affordable - 2)]
    return np.sort(np.concatenate([[0, count - 1], inner]))


def check_maxima(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare a max pooling with the reference.

    Over padding alone a maximum is minus infinity, or the least finite number in its place. Of the
    gradient of a large layer single elements are compared in some images, and the sum over each
    channel in all of them.
    """
    if computed.pass_ != "forward":
        return _check_gradient(layer, computed)
    if any(axis.used_outputs() < axis.out for axis in layer.axes):
        least = -largest(computed.precision)
        results = {
            role: np.where(array <= least, -np.inf, array)
            for role, array in computed.results.items()
        }
        computed = replace(computed, results=results)
    return check_exact(layer, computed)


def _check_gradient(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    output, inputs = computed.results["src"], computed.inputs
    each = layer.flops("backward-data") // layer.batch
    single = layer.with_batch(1)

    def expected() -> Iterator[Piece]:
        for image in choose(computed.rng, layer.batch, _COMPARISONS // each):
            here = slice(image, image + 1)
            given = {role: array[here] for role, array in inputs.items()}
            for role, cut, numbers in evaluate(single, given, gradient, _SIDES[: layer.sides]):
                yield piece(role, (here, *cut[1:]), numbers)

    ((role, compared),) = compare(layer, computed, expected()).items()
    worst = larger(compared.worst, _channel_sums(layer, inputs["dst"], output))
    return {role: replace(compared, checksums=math.prod(output.shape[:2]), worst=worst)}


def _channel_sums(layer: Layer, gradient_: NDArray[Any], output: NDArray[Any]) -> Deviation:
    """Compare the sum over each channel of each image: no gradient is lost or counted twice.

    That of a window of padding alone goes nowhere.
    """
    got, got_energy = sums_over(output, range(2, output.ndim))
    used = {
        number: np.array(axis.elements_inside(), ndmin=2).T > 0
        for number, axis in enumerate(layer.axes, start=2)
    }
    factors = {number: each.astype(np.float64) for number, each in used.items()}
    expected, energy = contract(gradient_, factors, factors)
    return worst_of(
        got,
        expected,
        CHECKSUM_UNIT * np.sqrt(got_energy + energy),
        lambda at: "checksum of " + element_name("src", [at[0], at[1], *":" * layer.sides]),
    )
