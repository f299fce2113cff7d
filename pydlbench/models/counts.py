"""A model in numbers: parameters, multiply-adds, and the memory that a step needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError, nearest
from pydlbench.models.graph import INPUT, buffers, trained_tensors
from pydlbench.models.passes import check_phase, step_passes
from pydlbench.ops.table import ITEM_BYTES

if TYPE_CHECKING:
    from pydlbench.models.graph import Model, Node

_FLOAT32: Final = 4


def parameters(model: Model) -> int:
    """Return the trained numbers: weights, biases, factors and offsets of normalisations."""
    return sum(math.prod(shape) for node in model for shape in trained_tensors(node).values())


def macs(model: Model, phase: str = "forward") -> int:
    """Return the multiply-adds of convolutions and products, padding counted, for one image.

    ``training`` and ``forward-backward`` are the same: three times ``forward``, without the
    gradients of data that nothing trained lies in front of (the first convolution's).

    Raises:
        UsageError: No such phase.
    """
    check_phase(phase)
    flops = sum(
        item.layer.flops(item.pass_)
        for item in step_passes(model, "forward" if phase == "forward" else "forward-backward")
        if item.layer.multiply_adds
    )
    return flops // (2 * model.batch)


def summary(model: Model) -> dict[str, Any]:
    """Return the model as a JSON object; multiply-adds are those of one image.

    ``layers`` has every node: its operation, the shape of its output for one image, its descriptor
    (None where nothing is computed), trained parameters and forward multiply-adds.
    """
    return {
        "model": model.name,
        "title": model.title,
        "source": model.source,
        "batch": model.batch,
        "image": list(model.image),
        "parameters": parameters(model),
        "macs_forward": macs(model, "forward"),
        "macs_training": macs(model, "training"),
        "layers": [_entry(model, node) for node in model],
    }


def memory(model: Model, phase: str, precision: str = "fp32") -> dict[str, int]:
    """Return the bytes that a step needs with everything stored in this precision.

    - ``weights``: trained tensors and running statistics.
    - ``gradients``: of the trained tensors.
    - ``optimizer``: what the optimizer keeps from step to step: velocities.
    - ``activations``: in ``forward``, the most that must be there at one moment when each output is
      dropped after its last use. In the other phases the images and all nodes' outputs, which the
      backward passes use; their gradients are not counted.

    What belongs to batch normalisations is float32 whatever the precision, and scratch memory of
    kernels is not counted.

    Raises:
        UsageError: No such phase or precision.
    """
    check_phase(phase)
    if precision not in ITEM_BYTES:
        choices = nearest(precision, ITEM_BYTES) or list(ITEM_BYTES)
        raise UsageError(f"--precision {precision}: none; nearest: {', '.join(choices)}")
    itemsize = ITEM_BYTES[precision]
    trained = kept = 0
    for node in model:
        size = _FLOAT32 if node.op == "batchnorm" else itemsize
        trained += size * sum(map(math.prod, trained_tensors(node).values()))
        kept += _FLOAT32 * sum(map(math.prod, buffers(node).values()))
    forward = phase == "forward"
    elements = _peak(model) if forward else _all_outputs(model)
    velocities = phase == "training" and model.optimizer.kind == "momentum"
    return {
        "weights": trained + kept,
        "gradients": 0 if forward else trained,
        "optimizer": trained if velocities else 0,
        "activations": itemsize * model.batch * elements,
    }


def _entry(model: Model, node: Node) -> dict[str, Any]:
    layer = node.layer
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.inputs),
        "shape": list(node.shape),
        "problem": layer.problem if layer else None,
        "parameters": sum(map(math.prod, trained_tensors(node).values())),
        "macs_forward": (
            layer.flops("forward") // (2 * model.batch) if layer and layer.multiply_adds else 0
        ),
    }


def _moves_nothing(node: Node, *, training: bool) -> bool:
    """Whether a node's output is its input, seen otherwise."""
    return node.op == "flatten" or (node.op == "dropout" and not training)


def _all_outputs(model: Model) -> int:
    """Return the elements of one image and all outputs made from it."""
    outputs = (node for node in model if not _moves_nothing(node, training=True))
    return math.prod(model.image) + sum(math.prod(node.shape) for node in outputs)


def _peak(model: Model) -> int:
    """Return the most elements per image that are needed at one moment of a forward pass."""
    stands_for = {INPUT: INPUT}
    for node in model:
        shared = _moves_nothing(node, training=False)
        stands_for[node.name] = stands_for[node.inputs[0]] if shared else node.name
    last_use = {
        stands_for[taken]: number for number, node in enumerate(model) for taken in node.inputs
    }
    last_use[stands_for[model.output.name]] = len(model.nodes)
    live = {INPUT: math.prod(model.image)}
    most = live[INPUT]
    for number, node in enumerate(model):
        if stands_for[node.name] == node.name:
            live[node.name] = math.prod(node.shape)
        most = max(most, sum(live.values()))
        for name in [name for name in live if last_use[name] <= number]:
            del live[name]
    return most
