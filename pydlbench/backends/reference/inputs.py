"""Seeded random inputs, rounded so that the kernel and the reference see the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pydlbench.backends.reference.pointwise_inputs import make_pointwise_inputs
from pydlbench.backends.reference.rounding import significand_bits
from pydlbench.backends.reference.shapes import RESULT_ROLE, tensor_shapes
from pydlbench.backends.reference.uniform import fill_uniform
from pydlbench.errors import UsageError, nearest
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.layers.layer import Layer

__all__ = ["make_inputs"]

_ROLES = ("src", "weights", "dst")


def make_inputs(
    layer: Layer, pass_: str, precision: str, seed: int, propagation: str = "inference"
) -> dict[str, NDArray[np.float32]]:
    """Return what a pass reads: float32 arrays in plain layouts, by role.

    Values are uniform in [-1, 1) and rounded to the nearest value of the storage precision. Each
    role has a random stream of its own, so the weights of a layer are the same in two passes.

    Max pooling backward reads the source too, to find the maxima. There its values differ within
    any window, because which of two equal maxima gets the gradient is up to the library.

    Memory-bound layers also read variances, which are positive, and labels, which are whole numbers
    below the number of classes.

    Args:
        layer: What is computed.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        precision: Storage precision, such as ``fp32`` or ``bf16``.
        seed: Non-negative; the same seed gives the same arrays.
        propagation: ``inference`` or ``training``; a batch normalisation reads other statistics.

    Raises:
        UsageError: The layer has no such pass, or there is no such precision.
    """
    if pass_ not in layer.passes:
        choices = ", ".join(nearest(pass_, layer.passes) or layer.passes)
        raise UsageError(f"pass {pass_}: {layer.kind} has no such pass; nearest: {choices}")
    significand_bits(precision)
    if isinstance(layer, Pointwise):
        return make_pointwise_inputs(layer, pass_, precision, seed, propagation)
    maxima = isinstance(layer, Pool2d) and layer.mode == "max" and pass_ == "backward-data"
    inputs = {}
    for role, shape in tensor_shapes(layer).items():
        if role == RESULT_ROLE[pass_] and not maxima:
            continue
        if role == "src" and isinstance(layer, Pool2d) and pass_ == "backward-data" and not maxima:
            continue
        stream = np.random.SFC64(np.random.SeedSequence([seed, _ROLES.index(role)]))
        array = np.empty(shape, dtype=np.float32)
        fill_uniform(array.reshape(-1), stream, precision)
        if role == "src" and maxima and isinstance(layer, Pool2d):
            _separate(array, layer, precision, np.random.Generator(stream))
        inputs[role] = array
    return inputs


def _separate(
    images: NDArray[np.float32], layer: Pool2d, precision: str, rng: np.random.Generator
) -> None:
    """Move values to a grid so that no two in a pooling window are equal.

    A window holds each pair (row modulo kernel height, column modulo kernel width) at most once.
    Each pair gets every ``taps``-th value of the grid as its own. Windows with more elements than
    the grid has room for keep their ties.
    """
    taps = layer.kernel_height * layer.kernel_width
    half = 1 << (significand_bits(precision) - 1)
    rounds = 2 * half // taps
    if rounds < 2:
        return
    rows = np.arange(layer.in_height) % layer.kernel_height
    columns = np.arange(layer.in_width) % layer.kernel_width
    pair = rows[:, None] * layer.kernel_width + columns
    for image in images:
        own = rng.permutation(taps).astype(np.float32)[pair] - np.float32(half)
        # From [-1, 1] to 0 .. rounds - 1; rounding may have reached 1 itself.
        turn = np.floor((image + np.float32(1)) * np.float32(rounds / 2))
        np.minimum(turn, np.float32(rounds - 1), out=turn)
        image[...] = (turn * np.float32(taps) + own) / np.float32(half)
