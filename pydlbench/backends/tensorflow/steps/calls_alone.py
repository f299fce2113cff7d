"""Nodes of TensorFlow's steps in functions of their own, on operands that are made up.

Where XLA compiles a step, groups of nodes that it joins.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import framework_errors
from pydlbench.backends.steps.catalogue import host_arrays
from pydlbench.backends.steps.inputs import make_batch
from pydlbench.backends.steps.repeated import (
    CallCosts,
    RepeatedOperator,
    dispatch_s,
    long_enough,
    prepare_operators,
)
from pydlbench.backends.steps.timed_calls import OperatorsKernel, TimedCall, check_on_cpu
from pydlbench.backends.tensorflow.settings import Tracer, tf
from pydlbench.backends.tensorflow.steps.graph import Replayed, ReplayedGroup
from pydlbench.calls.groups import CallGroup, is_feed, is_group
from pydlbench.calls.seen.tensorflow import TensorFlowNode
from pydlbench.models import build_model
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.records.step import StepSpec


# -----------------------------------------------------------------------------
# Nodes in functions of their own.


def repeated(
    traced: Tracer,
    body: Callable[..., list[Any]],
    sets: Sequence[Sequence[Any]],
    costs: CallCosts | None = None,
) -> RepeatedOperator:
    """Return a function of TensorFlow that holds an operator several times.

    Args:
        traced: traces as the steps are traced.
        body: returns an operator's results for one set of operands.
        sets: of operands; the operator is executed once for each.
        costs: of calls, which are taken off; None leaves them in.
    """
    width = len(sets[0])
    operands = [item for each in sets for item in each]

    def all_of(*tensors: Any) -> list[Any]:
        results: list[Any] = []
        for number in range(len(sets)):  # an operand there need not be
            results += body(*tensors[number * width : (number + 1) * width])
        # A compiler would compute no more than these elements.
        return results if traced.mode == "xla" else [_first(item) for item in results]

    function = traced(all_of)
    results = len(function(*operands))
    cost = costs.at(len(operands), results) if costs else None
    return RepeatedOperator(partial(function, *operands), len(sets), cost)


class ProducedOperator(RepeatedOperator):
    """An operator of a forward pass that reads what was written just before, as it does in a step.

    Each operand is a product by one, made in the same function. What these products take alone, in
    a function of their own, is taken off, and what a call costs with it.

    Args:
        traced: see :func:`repeated`.
        body: likewise.
        sets: likewise; no integers.
    """

    def __init__(
        self, traced: Tracer, body: Callable[..., list[Any]], sets: Sequence[Sequence[Any]]
    ) -> None:
        with tf.device("/CPU:0"):
            ones = {item.dtype: tf.constant(1, item.dtype) for item in sets[0]}

        def produced(*tensors: Any) -> list[Any]:
            # By operands, which no optimiser knows to be one.
            *given, unit = tensors
            return [each * unit for each in given]

        def together(*tensors: Any) -> list[Any]:
            return body(*produced(*tensors))

        full = [[*item, ones[item[0].dtype]] for item in sets]
        super().__init__(repeated(traced, together, full).call, len(sets))
        self._products = repeated(traced, produced, full)

    def run(self) -> float:
        """Call it once, and what only makes its operands; seconds of one execution."""
        return max(0.0, super().run() - self._products.run())


def _first(tensor: Any) -> Any:
    """Return an element, so that the rest is given back as soon as it is there.

    In a step the next operator's result comes to lie where one before it was, in the caches; what a
    function returns stays until it ends.
    """
    # What has no elements by its shape is a number from some kernels of oneDNN's.
    return tf.reshape(tensor, [-1])[:1] if tensor.shape.num_elements() else tensor


def copied(tensor: Any, device: str) -> Any:
    """Return a tensor of the same values in memory of its own; a variable stays the same one."""
    if tensor.dtype == tf.resource:
        return tensor
    with tf.device(device):
        return tf.constant(np.array(tensor.numpy()), dtype=tensor.dtype)


# -----------------------------------------------------------------------------
# TensorFlow's operators, prepared: traced, repeated where they are short, calibrated.

_CPU = "/CPU:0"


def serve_calls(
    backend: FrameworkBackend, spec: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make nodes and groups of them ready; see ``requests.request_calls``."""
    check_on_cpu(spec)
    traced = Tracer("/GPU:0" if spec.on_gpu else _CPU, str(spec.mode))
    # One for all: it depends on numbers of operands and results only.
    costs = CallCosts(partial(_empty, traced))
    ready, refused = prepare_operators(
        signatures,
        lambda text: _operator(text, spec, traced, costs, among=len(signatures)),
    )
    facts = OperatorsFacts(names=tuple(ready), dispatch_s=_dispatch_s(traced), refused=refused)
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)


def _operator(
    signature: str, spec: StepSpec, traced: Tracer, costs: CallCosts, among: int
) -> TimedCall:
    """Return a node of a recorded graph, or a group of nodes."""
    if is_feed(signature):
        model = build_model(spec.model, batch=spec.batch, **spec.options)
        host = host_arrays(make_batch(model, spec.seed), spec.layout)
        return TimedCall(lambda: [tf.convert_to_tensor(each) for each in host])
    alone: Replayed | ReplayedGroup
    if is_group(signature):
        group = CallGroup.read(signature)
        name, alone = TensorFlowNode.read(group.calls[0]).op, ReplayedGroup(group)
    else:
        node = TensorFlowNode.read(signature)
        name, alone = node.op, Replayed(node)
    with framework_errors(name):
        operands = alone.operands(traced.device)
        make: Callable[..., RepeatedOperator] = partial(repeated, traced, alone, costs=costs)
        if spec.phase == "forward" and alone.plain:
            make = partial(ProducedOperator, traced, alone)
        # XLA takes a variable once only.
        once = traced.mode == "xla" and any(each.dtype == tf.resource for each in operands)
        return long_enough(
            make,
            operands,
            partial(copied, device=_CPU),
            size=sum(each.dtype.size * each.shape.num_elements() for each in operands),
            among=among,
            **({"most": 1} if once else {}),
        )


def _empty(traced: Tracer, operands: int, results: int) -> RepeatedOperator:
    """Return a call that computes nothing, with so many operands and results."""
    with tf.device(_CPU):
        scalar = tf.constant(1.0)

    def body(*tensors: Any) -> list[Any]:
        return [tf.identity(tensors[i % len(tensors)]) for i in range(results)]

    return repeated(traced, body, [[scalar] * operands])


def _dispatch_s(traced: Tracer) -> float:
    """Return what an operator costs that computes nothing, in seconds.

    Softmax is joined with nothing.
    """
    if traced.mode == "xla":
        return 0.0  # a compiled program has no operators any more
    with tf.device(_CPU):
        source = tf.ones([1, 2])

    def chain(length: int) -> RepeatedOperator:
        def body(value: Any) -> list[Any]:
            for _ in range(length):
                value = tf.nn.softmax(value)
            return [value]

        return repeated(traced, body, [[source]])

    return dispatch_s(chain)
