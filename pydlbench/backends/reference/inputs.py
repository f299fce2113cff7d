"""Seeded random inputs, rounded so that the kernel and the reference see the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pydlbench.backends.reference.rounding import round_to, significand_bits
from pydlbench.backends.reference.shapes import RESULT_ROLE, tensor_shapes
from pydlbench.errors import UsageError, nearest
from pydlbench.layers.pool import Pool2d

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.layers.conv import Conv2d
    from pydlbench.layers.gemm import Gemm

__all__ = ["make_inputs"]

_ROLES = ("src", "weights", "dst")
#: Elements made at a time, so that they are rounded while they are in the cache.
_CHUNK = 1 << 16


def make_inputs(
    layer: Conv2d | Gemm | Pool2d, pass_: str, precision: str, seed: int
) -> dict[str, NDArray[np.float32]]:
    """Return what a pass reads: float32 arrays in plain layouts, by role.

    Values are uniform in [-1, 1) and rounded to the nearest value of the storage precision. Each
    role has a random stream of its own, so the weights of a layer are the same in two passes.

    Max pooling backward reads the source too, to find the maxima. There its values differ within
    any window, because which of two equal maxima gets the gradient is up to the library.

    Args:
        layer: What is computed.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        precision: Storage precision, such as ``fp32`` or ``bf16``.
        seed: Non-negative; the same seed gives the same arrays.

    Raises:
        UsageError: The layer has no such pass, or there is no such precision.
    """
    if pass_ not in layer.passes:
        choices = ", ".join(nearest(pass_, layer.passes) or layer.passes)
        raise UsageError(f"pass {pass_}: {layer.kind} has no such pass; nearest: {choices}")
    significand_bits(precision)
    maxima = isinstance(layer, Pool2d) and layer.mode == "max" and pass_ == "backward-data"
    inputs = {}
    for role, shape in tensor_shapes(layer).items():
        if role == RESULT_ROLE[pass_] and not maxima:
            continue
        if role == "src" and isinstance(layer, Pool2d) and pass_ == "backward-data" and not maxima:
            continue
        stream = np.random.SFC64(np.random.SeedSequence([seed, _ROLES.index(role)]))
        array = np.empty(shape, dtype=np.float32)
        _fill_uniform(array.reshape(-1), stream, precision)
        if role == "src" and maxima and isinstance(layer, Pool2d):
            _separate(array, layer, precision, np.random.Generator(stream))
        inputs[role] = array
    return inputs


def _fill_uniform(flat: NDArray[np.float32], stream: np.random.SFC64, precision: str) -> None:
    """Fill with uniform values in [-1, 1): random significands of numbers in [2, 4), less 3."""
    for first in range(0, flat.size, _CHUNK):
        chunk = flat[first : first + _CHUNK]
        bits = stream.random_raw((chunk.size + 1) // 2).view(np.uint32)[: chunk.size]
        bits >>= np.uint32(9)
        bits |= np.uint32(0x40000000)
        np.subtract(bits.view(np.float32), np.float32(3), out=chunk)
        if precision != "fp32":
            chunk[:] = round_to(precision, chunk)


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
