"""Seeded inputs of memory-bound layers: images, parameters, statistics, labels, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pydlbench.backends.reference.rounding import round_to
from pydlbench.backends.reference.uniform import fill_uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.layers.pointwise import Pointwise

__all__ = ["make_pointwise_inputs"]

_ROLES = (
    *("src", "weights", "dst", "bias", "mean", "variance", "running_mean", "running_variance"),
    *("labels", "gradient", "velocity"),
)
_POSITIVE = ("variance", "running_variance")


def make_pointwise_inputs(
    layer: Pointwise, pass_: str, precision: str, seed: int, propagation: str
) -> dict[str, NDArray[np.float32]]:
    """Return what a pass reads; see :func:`~pydlbench.backends.reference.make_inputs`.

    Variances are in [0.5, 1.5), labels are whole numbers below the number of classes, and the
    probabilities that the gradient of a softmax reads add up to one in each row.
    """
    inputs = {}
    for role in layer.reads(pass_, propagation):
        stream = np.random.SFC64(np.random.SeedSequence([seed, _stream(role)]))
        array = np.empty(layer.dims(role), dtype=np.float32)
        if role == "labels":
            array[:] = np.random.Generator(stream).integers(0, layer.channels, array.size)
        elif role == "dst" and layer.op == "softmax-xent":
            fill_uniform(array.reshape(-1), stream, "fp32")
            powers = np.exp(array, dtype=np.float64)
            array = round_to(precision, powers / powers.sum(axis=1, keepdims=True))
        else:
            stored = "fp32" if layer.in_float32(role) else precision
            fill_uniform(array.reshape(-1), stream, stored)
        if role in _POSITIVE:
            array += np.float32(2)
            array /= np.float32(2)
        inputs[role] = array
    return inputs


def _stream(role: str) -> int:
    """Return the number of a role's random stream; further sources follow the other roles."""
    if role in _ROLES:
        return _ROLES.index(role)
    return len(_ROLES) + int(role.removeprefix("src"))
