"""The passes of layers that a step computes, in order.

This is the list of native kernels: nothing is fused, so the bias of a convolution is a layer of its
own, and so is the sum of the gradients of an output that several nodes read.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydlbench.models.graph import INPUT, GraphNode, Model, trained_tensors
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer, image_layer
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
