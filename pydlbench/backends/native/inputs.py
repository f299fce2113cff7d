"""The inputs of a spec in a native worker."""

import dataclasses
from typing import Any

from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import (
    DrawnInput,
    draw_inputs,
    fused_inputs,
    made,
    significand_bits,
)
from pydlbench.words import MIXED_TYPES


class RecentInputs:
    """Cache of the last inputs, for the next row of the same layer and pass.

    Generating four hundred million random numbers takes seconds. A GPU does that itself.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._cached: dict[str, DrawnInput] = {}

    def inputs(self, spec: KernelSpec, seed: int) -> dict[str, DrawnInput]:
        """Return a spec's inputs by role; the arrays are shared and must not be changed.

        Args:
            spec: the spec; a fused bias is included.
            seed: seed of the random numbers.
        """
        # Formats with the same number of significand bits have the same uniform values.
        bits = significand_bits(spec.precision)
        mixed = spec.precision in MIXED_TYPES
        stored = spec.precision if mixed or spec.layer.kind == "pointwise" else bits
        nameless = dataclasses.replace(spec.layer, name=None)
        key = (nameless, spec.pass_, stored, spec.propagation, seed)
        if key != self._key:
            self._key, self._cached = None, {}  # free the memory first
            drawn = draw_inputs(spec.layer, spec.pass_, spec.precision, seed, spec.propagation)
            self._cached = drawn if spec.on_gpu else dict(made(drawn))
            self._key = key
        fused = fused_inputs(spec.layer, spec.precision, seed, spec.fuse)
        if spec.on_gpu and "bias" in fused:
            shape = (1, -1, 1, 1) if spec.layer.op == "conv" else (1, 1, -1)
            fused["bias"] = fused["bias"].reshape(shape)
        return self._cached | fused
