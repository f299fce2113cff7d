"""Check every element of copies, maxima, reductions and gathers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.op import Layer
from pydlbench.verification.arithmetic import EXACT, TRANSCENDENTAL
from pydlbench.verification.checksums import (
    CHECKSUM_UNIT,
    Deviation,
    ElementComparison,
    KernelRun,
    Piece,
    contract,
    element_name,
    pieces,
    sums_over,
    worse,
    worst_of,
)
from pydlbench.verification.elements import compare, evaluate, gradient, make_piece
from pydlbench.verification.inputs import largest

#: Error scale of exact values.
_NO_ERROR: Final = np.zeros(())


def check_exact(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare a result whose elements are copies of input elements, or zeros: exact."""
    (role,) = run.results
    single = layer.with_batch(1)

    def expected() -> Iterator[Piece]:
        # One image at a time if there is a batch.
        for image in range(layer.batch):
            here = slice(None) if layer.entry.batch is None else slice(image, image + 1)
            inputs = {name: array[here] for name, array in run.inputs.items()}
            value = single.entry.reference(np, single, SimpleNamespace(**inputs))
            for first, *rest in pieces(value):
                place = first if layer.entry.batch is None else here
                cut = place, *rest
                yield Piece(
                    role=role, cut=cut, value=value[(first, *rest)], size=_NO_ERROR, terms=EXACT
                )

    return compare(layer, run, expected())


def check_reduction(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare all elements of a reduction; maxima and minima are exact."""
    if layer.op in ("max", "min"):
        return check_exact(layer, run)
    axes = [i for i, (n, out) in enumerate(zip(layer.src, layer.dst, strict=True)) if n != out]
    terms = math.prod(layer.src) // math.prod(layer.dst)
    value, squares = sums_over(run.inputs["src"], axes)
    size = np.sqrt(squares)
    if layer.op == "mean":
        value, size = value / terms, size / terms
    elif layer.op == "norm":
        value, terms = size, terms + TRANSCENDENTAL
    whole = (slice(None),) * value.ndim
    sums = Piece(role="dst", cut=whole, value=value, size=size, terms=terms)
    return compare(layer, run, [sums])


def check_gather(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare all rows: gathered rows are exact, scattered ones are sums."""
    if layer.op == "rows":
        return check_exact(layer, run)
    source, indices = run.inputs["src"], run.inputs["indices"]
    terms = int(np.bincount(indices.astype(np.intp)).max())

    def expected() -> Iterator[Piece]:
        for first in range(0, layer.width, _COLUMNS):
            columns = slice(first, min(first + _COLUMNS, layer.width))
            given = source[:, columns].astype(np.float64)
            part = layer.replace(width=given.shape[1])
            value, squares = (
                part.reference({"src": rows, "indices": indices})["dst"]
                for rows in (given, np.square(given))
            )
            cut = slice(None), columns
            yield Piece(role="dst", cut=cut, value=value, size=np.sqrt(squares), terms=terms)

    return compare(layer, run, expected())


#: Number of columns of a table that are compared at a time.
_COLUMNS: Final = 64

# -----------------------------------------------------------------------------
# Maxima of windows, and their gradient.

#: Maximum number of comparisons of the backward pass; of a larger layer only some images are
#: compared.
_COMPARISONS: Final = 40_000_000
_SIDES: Final = (2, 3, 4)


def choose(rng: np.random.Generator, count: int, affordable: int) -> NDArray[np.intp]:
    """Choose some of many images or heads, including the first and the last.

    A kernel that starts late or stops early fails there.
    """
    if count <= max(2, affordable):
        return np.arange(count)
    inner = rng.permutation(np.arange(1, count - 1))[: max(0, affordable - 2)]
    return np.sort(np.concatenate([[0, count - 1], inner]))


def check_maxima(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare a max pooling with the reference.

    The maximum over padding alone is minus infinity, or the lowest finite number. The gradient of a
    large layer is compared element by element in some images, and by the sum over each channel in
    all of them.
    """
    if run.pass_ != "forward":
        return _check_gradient(layer, run)
    if any(axis.used_outputs() < axis.out for axis in layer.axes):
        least = -largest(run.precision)
        results = {
            role: np.where(array <= least, -np.inf, array) for role, array in run.results.items()
        }
        run = replace(run, results=results)
    return check_exact(layer, run)


def _check_gradient(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    output, inputs = run.results["src"], run.inputs
    per_image = layer.flops("backward-data") // layer.batch
    single = layer.with_batch(1)

    def expected() -> Iterator[Piece]:
        for image in choose(run.rng, layer.batch, _COMPARISONS // per_image):
            here = slice(image, image + 1)
            given = {role: array[here] for role, array in inputs.items()}
            for role, cut, numbers in evaluate(single, given, gradient, _SIDES[: layer.sides]):
                yield make_piece(role, (here, *cut[1:]), numbers)

    ((role, compared),) = compare(layer, run, expected()).items()
    worst = worse(compared.worst, _channel_sums(layer, inputs["dst"], output))
    return {role: replace(compared, checksums=math.prod(output.shape[:2]), worst=worst)}


def _channel_sums(layer: Layer, gradient_: NDArray[Any], output: NDArray[Any]) -> Deviation:
    """Compare the sum over each channel of each image: no gradient is lost or counted twice.

    The gradient of a window of padding alone is dropped.
    """
    got, got_energy = sums_over(output, range(2, output.ndim))
    factors = {
        number: (np.array(axis.elements_inside(), ndmin=2).T > 0).astype(np.float64)
        for number, axis in enumerate(layer.axes, start=2)
    }
    expected, energy = contract(gradient_, factors, factors)
    return worst_of(
        got,
        expected,
        CHECKSUM_UNIT * np.sqrt(got_energy + energy),
        lambda at: "checksum of " + element_name("src", [at[0], at[1], *":" * layer.sides]),
    )
