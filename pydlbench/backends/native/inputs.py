"""The inputs of a case in a native worker."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.errors import UnsupportedError
from pydlbench.verification.inputs import make_inputs, round_to, significand_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.records.specs import KernelSpec

# The bias of a fused kernel has a random stream of its own.
_BIAS_STREAM = 7


class RecentInputs:
    """The inputs of the last case, kept for the next row of the same layer and pass.

    Rows of one layer and pass follow one another, and four hundred million random numbers take
    seconds.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._made: dict[str, NDArray[Any]] = {}

    def inputs(self, spec: KernelSpec, seed: int) -> dict[str, NDArray[Any]]:
        """Return a case's inputs by role; the arrays are shared, so only to be read.

        Args:
            spec: what is computed; with a bias where it is fused.
            seed: of the random numbers.

        Raises:
            UnsupportedError: a bias where the layer has none.
        """
        # Uniform values of equal significands are the same numbers, whatever the format's name.
        bits = significand_bits(spec.precision)
        stored = spec.precision if spec.layer.kind == "pointwise" else bits
        nameless = dataclasses.replace(spec.layer, name=None)
        key = (nameless, spec.pass_, stored, spec.propagation, seed)
        if key != self._key:
            self._key, self._made = None, {}  # not two layers' at a time
            self._made = make_inputs(
                spec.layer, spec.pass_, spec.precision, seed, propagation=spec.propagation
            )
            self._key = key
        inputs = dict(self._made)
        if spec.fuse == "bias-relu":
            inputs["bias"] = _bias(spec, seed)
        return inputs


def _bias(spec: KernelSpec, seed: int) -> NDArray[np.float32]:
    """Return one random value per output channel, or per column of a product."""
    layer = spec.layer
    shape: tuple[int, ...]
    if layer.op == "conv":
        count, shape = layer.out_channels, (1, layer.out_channels, 1, 1)
    elif layer.op == "gemm":
        count, shape = layer.n, (1, 1, layer.n)
    else:
        raise UnsupportedError(f"--fuse {spec.fuse}: {layer.kind} has no bias")
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, _BIAS_STREAM])))
    values = rng.uniform(-1, 1, count).astype(np.float32)
    return round_to(spec.precision, values).reshape(shape)
