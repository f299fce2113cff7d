"""What a pass of an op should give, in float64: its reference in the table, or slopes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.verification.inputs import kept_elements, make_inputs
from pydlbench.verification.verify import Verdict, verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Tensors = dict[str, NDArray[Any]]

#: Half the distance of two points that a slope is taken of: it is off by about its square.
_STEP = 1e-4
_STATISTICS = {"mean", "variance"}


def drawn(layer: Layer, pass_: str, precision: str, propagation: str = "inference") -> Tensors:
    """Return what a pass reads; statistics that a gradient reads are those of its source."""
    inputs = dict(make_inputs(layer, pass_, precision, 3, propagation))
    if pass_ != "forward" and inputs.keys() >= _STATISTICS:
        rest = {role: array for role, array in inputs.items() if role not in _STATISTICS}
        forward = layer.reference(_completed(layer, rest))
        inputs |= {role: forward[role] for role in _STATISTICS}
    return inputs


def right_results(
    layer: Layer, pass_: str, inputs: Tensors, propagation: str = "inference"
) -> Tensors:
    """Return what a pass writes, by role, of small layers: a slope takes two forward passes."""
    if pass_ == "forward":
        written = layer.reference(inputs)
        right = {role: written[role] for role in layer.writes(pass_, propagation)}
    else:
        right = {role: _slopes(layer, inputs, role) for role in layer.writes(pass_)}
    if layer.op == "dropout":  # the reference drops nothing
        ((role, array),) = right.items()
        everything = tuple(slice(0, size) for size in array.shape)
        right[role] = array * kept_elements(array.shape, everything, layer.keep)
    return right


def judged(
    layer: Layer,
    pass_: str,
    precision: str,
    inputs: Tensors,
    results: Tensors,
    propagation: str = "inference",
) -> Verdict:
    """Return the verdict on all results of a pass."""
    main, *others = layer.writes(pass_, propagation)
    extra = {role: results[role] for role in others}
    return verify(
        layer, pass_, precision, inputs, results[main], 3, extra=extra, propagation=propagation
    )


def _completed(layer: Layer, tensors: Tensors) -> Tensors:
    """Return tensors for a forward pass of training, those that no gradient reads being zero."""
    reads = layer.reads("forward", "training")
    zeros = {role: np.zeros(layer.shapes()[role]) for role in reads if role not in tensors}
    return zeros | {role: array.astype(np.float64) for role, array in tensors.items()}


def _slopes(layer: Layer, inputs: Tensors, role: str) -> NDArray[np.float64]:
    """Return central differences of the sum that a gradient is the slope of."""
    given = {name: array for name, array in inputs.items() if name not in _STATISTICS}
    gradient = given.pop("dst", 1.0)  # of a loss it is one
    added: Any = 0.0
    if layer.op == "l2":
        role, added = "weights", given.pop("gradient")
    elif layer.op == "softmax-xent":
        given["src"] = np.log(gradient, dtype=np.float64)
    elif layer.op in ("softmax", "log-softmax"):
        result = given.pop("result").astype(np.float64)
        given["src"] = np.log(result) if layer.op == "softmax" else result
    tensors = _completed(layer, given)

    def total() -> Any:
        written = layer.reference(tensors)
        if layer.op == "l2":
            return layer.decay * written["dst"].sum()
        if layer.op == "softmax-xent":
            return written["loss"].sum()
        return (written["dst"] * gradient).sum()

    slopes = np.zeros(tensors[role].shape)
    for at in np.ndindex(slopes.shape):
        middle = tensors[role][at]
        ends = []
        for end in (middle + _STEP, middle - _STEP):
            tensors[role][at] = end
            ends.append(total())
        tensors[role][at] = middle
        slopes[at] = (ends[0] - ends[1]) / (2 * _STEP)
    return slopes + added
