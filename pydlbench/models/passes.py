"""The passes of layers that a step computes, in order; and counts of a model.

This is the list of native kernels: nothing is fused, so the bias of a convolution is a layer of its
own, and so is the sum of the gradients of an output that several nodes read.
"""

import collections
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydlbench.errors import unknown_word
from pydlbench.models.graph import INPUT, GraphNode, Model, buffers, trained_tensors
from pydlbench.ops.op import Layer
from pydlbench.ops.table import ITEM_BYTES, build_layer, image_layer
from pydlbench.words import PHASES, check_word

#: Stands for the loss where a node's name is expected.
LOSS: Final = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPass:
    """One pass of one layer.

    Attributes:
        node: Name of the layer's node, or :data:`LOSS`.
        layer: Layer that is computed, named ``<model>/<node>``, with ``/bias``, ``/gradient-sum``,
            ``/weights/l2``, ``/weights/update`` and so on if it is only a part of the node.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        propagation: ``inference`` or ``training``.
    """

    node: str
    layer: Layer
    pass_: str
    propagation: str


def check_phase(phase: str) -> None:
    """Check that a phase exists.

    Raises:
        UsageError: there is no such phase; names the nearest one.
    """
    check_word("--phase", phase, PHASES)


def step_passes(model: Model, phase: str) -> tuple[StepPass, ...]:
    """Return all passes of a step, in a valid order of execution.

    - ``forward``: the forward pass of every layer in inference, without dropout.
    - ``forward-backward``: forward passes in training, the loss, and the backward passes that the
      gradients of trained tensors need. Gradients of outputs before the first trained tensor are
      not computed, unless the model needs the gradient of its input.
    - ``training``: the same with L2 terms, and the update of each trained tensor.

    Some gradients of losses need no kernel: the gradient of ``l2`` is the output, and the gradient
    of ``sum`` is one everywhere.

    Raises:
        UsageError: there is no such phase.
    """
    check_phase(phase)
    if phase == "forward":
        return tuple(_forward(model, "inference"))
    decays = phase == "training"
    items = [*_forward(model, "training"), *_loss(model, "forward")]
    if decays:
        items += _decay_terms(model, "forward")
    items += [*_loss(model, "backward-data"), *_backward(model)]
    if decays:
        items += [*_decay_terms(model, "backward-weights"), *_updates(model)]
    return tuple(items)


def _forward(model: Model, propagation: str) -> Iterator[StepPass]:
    for node in model:
        if node.layer is None or (node.op == "dropout" and propagation == "inference"):
            continue
        yield StepPass(node=node.name, layer=node.layer, pass_="forward", propagation=propagation)
        if node.bias:
            layer = _output_layer(model, node, "bias", "bias")
            yield StepPass(node=node.name, layer=layer, pass_="forward", propagation=propagation)


def _loss(model: Model, pass_: str) -> Iterator[StepPass]:
    shape = model.output.shape
    name = f"{model.name}/{LOSS}"
    if model.loss.kind == "cross-entropy":
        rows = model.batch * math.prod(shape[1:])
        layer = build_layer("softmax-xent", batch=rows, channels=shape[0], name=name)
        yield _training(LOSS, layer, pass_)
    elif model.loss.kind == "l2" and pass_ == "forward":
        elements = model.batch * math.prod(shape)
        yield _training(LOSS, build_layer("l2", channels=elements, name=name), pass_)


def _backward(model: Model) -> Iterator[StepPass]:
    differentiated = _with_gradient(model)
    readers = collections.Counter(name for node in model for name in node.inputs)
    for node in reversed(model.nodes):
        if node.name not in differentiated:
            continue
        sum_ = _output_layer(model, node, "add", "gradient-sum")
        for _ in range(readers[node.name] - 1):
            yield _training(node.name, sum_, "forward")
        yield from _node_backward(model, node, to_input=not differentiated.isdisjoint(node.inputs))
    if model.input_gradient:
        name = f"{model.name}/{INPUT}/gradient-sum"
        sum_ = image_layer("add", (model.batch, *model.image), name=name)
        for _ in range(readers[INPUT] - 1):
            yield _training(INPUT, sum_, "forward")


def _node_backward(model: Model, node: GraphNode, *, to_input: bool) -> Iterator[StepPass]:
    """Yield a node's backward passes; ``to_input``: whether its input's gradient is needed."""
    if node.layer is None:
        return
    tensors = trained_tensors(node)
    if node.bias:
        layer = _output_layer(model, node, "bias", "bias")
        yield _training(node.name, layer, "backward-weights")
    if tensors and "backward-weights" in node.layer.passes:
        yield _training(node.name, node.layer, "backward-weights")
    # The pass of a batch normalisation computes the gradients of its factor and offset, too.
    if "backward-data" in node.layer.passes and (to_input or node.op == "batchnorm"):
        yield _training(node.name, node.layer, "backward-data")


def _with_gradient(model: Model) -> set[str]:
    """Return the nodes whose output gradient is needed for a trained tensor or the input."""
    names = {INPUT} if model.input_gradient else set()
    for node in model:
        if trained_tensors(node) or not names.isdisjoint(node.inputs):
            names.add(node.name)
    return names


def _decay_terms(model: Model, pass_: str) -> Iterator[StepPass]:
    for decay in model.decays:
        elements = math.prod(trained_tensors(model[decay.node])[decay.tensor])
        layer = build_layer(
            "l2",
            channels=elements,
            decay=decay.factor,
            name=f"{model.name}/{decay.node}/{decay.tensor}/l2",
        )
        yield _training(decay.node, layer, pass_)


def _updates(model: Model) -> Iterator[StepPass]:
    optimizer = model.optimizer
    if optimizer.kind == "none":
        return
    for node in model:
        for tensor, shape in trained_tensors(node).items():
            layer = build_layer(
                optimizer.kind,
                channels=math.prod(shape),
                rate=optimizer.rate,
                name=f"{model.name}/{node.name}/{tensor}/update",
            )
            if optimizer.kind == "momentum":
                layer = layer.replace(mu=optimizer.mu)
            yield _training(node.name, layer, "forward")


def _output_layer(model: Model, node: GraphNode, op: str, part: str) -> Layer:
    """Return a layer on a tensor with the shape of a node's output."""
    return image_layer(op, (model.batch, *node.shape), name=f"{model.name}/{node.name}/{part}")


def _training(node: str, layer: Layer, pass_: str) -> StepPass:
    return StepPass(node=node, layer=layer, pass_=pass_, propagation="training")


# -----------------------------------------------------------------------------
# Counts of a model: parameters, multiply-adds, and the memory that a step needs.

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
