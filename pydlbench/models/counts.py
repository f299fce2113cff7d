"""Counts of a model: parameters, multiply-adds, and the memory that a step needs."""

from __future__ import annotations

import math
from typing import Any, Final

from pydlbench.errors import unknown_word
from pydlbench.models.graph import INPUT, GraphNode, Model, buffers, trained_tensors
from pydlbench.models.passes import check_phase, step_passes
from pydlbench.ops.table import ITEM_BYTES

_FLOAT32: Final = 4


def parameters(model: Model) -> int:
    """Return the number of trained parameters, including the parameters of normalisations."""
    return sum(math.prod(shape) for node in model for shape in trained_tensors(node).values())


def macs(model: Model, phase: str = "forward") -> int:
    """Return the multiply-adds of convolutions and products for one image, padding included.

    ``training`` and ``forward-backward`` have equal numbers: three times ``forward``, minus
    gradients of data before the first trained layer.

    Raises:
        UsageError: There is no such phase.
    """
    check_phase(phase)
    flops = sum(
        item.layer.flops(item.pass_)
        for item in step_passes(model, "forward" if phase == "forward" else "forward-backward")
        if item.layer.multiply_adds
    )
    return flops // (2 * model.batch)


def summary(model: Model) -> dict[str, Any]:
    """Return the model as a JSON object; multiply-adds are for one image.

    ``layers`` has every node: its operation, the shape of its output for one image, its descriptor
    (None if nothing is computed), trained parameters and forward multiply-adds.
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
    - ``gradients``: gradients of the trained tensors.
    - ``optimizer``: velocities of the optimizer.
    - ``activations``: in ``forward``, the peak if each output is freed after its last use. In the
      other phases the images and the outputs of all nodes, which backward passes read; their
      gradients are not counted.

    Tensors of batch normalisations are float32 in every precision. Workspaces of kernels are not
    counted.

    Raises:
        UsageError: There is no such phase or precision.
    """
    check_phase(phase)
    if precision not in ITEM_BYTES:
        raise unknown_word(f"--precision {precision}: none", precision, ITEM_BYTES)
    itemsize = ITEM_BYTES[precision]
    trained = untrained = 0
    for node in model:
        size = _FLOAT32 if node.op == "batchnorm" else itemsize
        trained += size * sum(map(math.prod, trained_tensors(node).values()))
        untrained += _FLOAT32 * sum(map(math.prod, buffers(node).values()))
    forward = phase == "forward"
    elements = _peak(model) if forward else _all_outputs(model)
    velocities = phase == "training" and model.optimizer.kind == "momentum"
    return {
        "weights": trained + untrained,
        "gradients": 0 if forward else trained,
        "optimizer": trained if velocities else 0,
        "activations": itemsize * model.batch * elements,
    }


def _entry(model: Model, node: GraphNode) -> dict[str, Any]:
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


def _is_view(node: GraphNode, *, training: bool) -> bool:
    """Whether a node's output is a view of its input."""
    return node.op == "flatten" or (node.op == "dropout" and not training)


def _all_outputs(model: Model) -> int:
    """Return the elements of an image and of all outputs."""
    outputs = (node for node in model if not _is_view(node, training=True))
    return math.prod(model.image) + sum(math.prod(node.shape) for node in outputs)


def _peak(model: Model) -> int:
    """Return the peak number of elements per image in a forward pass."""
    buffer_of = {INPUT: INPUT}
    for node in model:
        shared = _is_view(node, training=False)
        buffer_of[node.name] = buffer_of[node.inputs[0]] if shared else node.name
    last_use = {
        buffer_of[name]: number for number, node in enumerate(model) for name in node.inputs
    }
    last_use[buffer_of[model.output.name]] = len(model.nodes)
    live = {INPUT: math.prod(model.image)}
    peak = live[INPUT]
    for number, node in enumerate(model):
        if buffer_of[node.name] == node.name:
            live[node.name] = math.prod(node.shape)
        peak = max(peak, sum(live.values()))
        for name in [name for name in live if last_use[name] <= number]:
            del live[name]
    return peak
