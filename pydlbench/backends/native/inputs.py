"""The inputs of a spec in a native worker."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UnsupportedError
from pydlbench.verification.inputs import make_inputs, round_to, significand_bits

if TYPE_CHECKING:
    from pydlbench.records.measurement import KernelSpec

# The bias of a fused kernel has its own random stream.
_BIAS_STREAM = 7


class RecentInputs:
    """Cache of the last inputs, for the next row of the same layer and pass.

    Generating four hundred million random numbers takes seconds.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._cached: dict[str, NDArray[Any]] = {}

    def inputs(self, spec: KernelSpec, seed: int) -> dict[str, NDArray[Any]]:
        """Return a spec's inputs by role; the arrays are shared and must not be changed.

        Args:
            spec: the spec; a fused bias is included.
            seed: seed of the random numbers.

        Raises:
            UnsupportedError: the layer has no bias to fuse.
        """
        # Formats with the same number of significand bits have the same uniform values.
        bits = significand_bits(spec.precision)
        stored = spec.precision if spec.layer.kind == "pointwise" else bits
        nameless = dataclasses.replace(spec.layer, name=None)
        key = (nameless, spec.pass_, stored, spec.propagation, seed)
        if key != self._key:
            self._key, self._cached = None, {}  # free the memory first
            self._cached = make_inputs(
                spec.layer, spec.pass_, spec.precision, seed, propagation=spec.propagation
            )
            self._key = key
        inputs = dict(self._cached)
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
