"""Nodes of TensorFlow's steps, timed alone in functions of their own on random operands.

If XLA compiles the step, groups of nodes are timed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pydlbench.backends.frameworks.backend import FrameworkBackend, framework_errors
from pydlbench.backends.frameworks.verbose import output_of
from pydlbench.backends.steps.catalogue import host_arrays
from pydlbench.backends.steps.inputs import make_batch
from pydlbench.backends.steps.timed_calls import (
    CallCosts,
    LoggedOperators,
    OperatorsKernel,
    RepeatedOperator,
    TimedCall,
    check_on_cpu,
    dispatch_s,
    long_enough,
    prepare_operators,
)
from pydlbench.backends.tensorflow.settings import Tracer, tf
from pydlbench.backends.tensorflow.steps.graph import Replayed, ReplayedGroup
from pydlbench.calls.groups import CallGroup, is_feed, is_group
from pydlbench.calls.seen.tensorflow import TensorFlowNode
from pydlbench.models import build_model
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts

# -----------------------------------------------------------------------------
# Nodes in functions of their own.


def repeat(
    tracer: Tracer,
    body: Callable[..., list[Any]],
    sets: Sequence[Sequence[Any]],
    costs: CallCosts | None = None,
) -> RepeatedOperator:
    """Return a function that executes an operator several times.

    Args:
        tracer: makes functions as steps are made.
        body: function that returns an operator's results for one set of operands.
        sets: sets of operands; the operator is executed once for each set.
        costs: costs of calls, which are subtracted; None to subtract nothing.
    """
    width = len(sets[0])
    operands = [tensor for items in sets for tensor in items]

    def repetitions(*tensors: Any) -> list[Any]:
        results: list[Any] = []
        for number in range(len(sets)):  # sets may be empty
            results += body(*tensors[number * width : (number + 1) * width])
        # XLA would compute nothing but the first elements.
        return results if tracer.mode == "xla" else [_first(item) for item in results]

    function = tracer(repetitions)
    results = len(function(*operands))
    cost = costs.at(len(operands), results) if costs else None
    return RepeatedOperator(partial(function, *operands), len(sets), cost)


class ProducedOperator(RepeatedOperator):
    """An operator of a forward pass that reads operands which were just written, as in a step.

    Each operand is a product with one, computed in the same function. The time of these products in
    a function of their own is subtracted, which includes the cost of a call.

    Args:
        tracer: makes functions as steps are made.
        body: function that returns an operator's results for one set of operands.
        sets: sets of floating-point operands; the operator is executed once for each set.
    """

    def __init__(
        self, tracer: Tracer, body: Callable[..., list[Any]], sets: Sequence[Sequence[Any]]
    ) -> None:
        with tf.device("/CPU:0"):
            ones = {item.dtype: tf.constant(1, item.dtype) for item in sets[0]}

        def products(*tensors: Any) -> list[Any]:
            # The factor is an operand, which optimizers do not know to be one.
            *operands, one = tensors
            return [operand * one for operand in operands]

        full = [[*item, ones[item[0].dtype]] for item in sets]
        produced = repeat(tracer, lambda *tensors: body(*products(*tensors)), full)
        super().__init__(produced.call, len(sets))
        self._products = repeat(tracer, products, full)

    def run(self) -> float:
        """Call it and the products once; return the seconds of one execution."""
        return max(0.0, super().run() - self._products.run())


def _first(tensor: Any) -> Any:
    """Return the first element, so that the memory of the tensor is freed immediately.

    In a step results reuse the memory of earlier ones, which is in the caches; results of a
    function are kept until it ends.
    """
    # Some kernels of oneDNN return a number where the shape has no elements.
    return tf.reshape(tensor, [-1])[:1] if tensor.shape.num_elements() else tensor


def copy_tensor(tensor: Any, device: str) -> Any:
    """Return a copy of a tensor; variables are not copied."""
    if tensor.dtype == tf.resource:
        return tensor
    with tf.device(device):
        return tf.constant(np.array(tensor.numpy()), dtype=tensor.dtype)


# -----------------------------------------------------------------------------
# Requests.

_CPU = "/CPU:0"


def serve_calls(
    backend: FrameworkBackend, spec: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Prepare nodes and groups of them; see ``requests.request_calls``."""
    ready, refused = _prepare(spec, signatures)
    dispatch_s = _dispatch_s(_tracer(spec))
    facts = OperatorsFacts(names=tuple(ready), dispatch_s=dispatch_s, refused=refused)
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)


def serve_logged_calls(
    backend: FrameworkBackend, spec: StepSpec, signatures: Sequence[str]
) -> LoggedOperators:
    """Prepare nodes in a process whose oneDNN logs; see ``requests.request_logged_calls``."""
    return LoggedOperators(*_prepare(spec, signatures), output_of, backend.cpus)


def _tracer(spec: StepSpec) -> Tracer:
    return Tracer("/GPU:0" if spec.on_gpu else _CPU, str(spec.mode))


def _prepare(
    spec: StepSpec, signatures: Sequence[str]
) -> tuple[dict[str, TimedCall], dict[str, str]]:
    """Prepare nodes; return those that ran, and why others did not, by signature."""
    check_on_cpu(spec)
    tracer = _tracer(spec)
    # Shared by all nodes, as costs depend on numbers of operands and results only.
    costs = CallCosts(partial(_empty, tracer))
    return prepare_operators(
        signatures,
        lambda text: _operator(text, spec, tracer, costs, among=len(signatures)),
    )


def _operator(
    signature: str, spec: StepSpec, tracer: Tracer, costs: CallCosts, among: int
) -> TimedCall:
    """Return a node of a recorded graph, or a group of nodes."""
    if is_feed(signature):
        model = build_model(spec.model, batch=spec.batch, **spec.options)
        host = host_arrays(make_batch(model, spec.seed), spec.layout)
        return TimedCall(lambda: [tf.convert_to_tensor(array) for array in host])
    alone: Replayed | ReplayedGroup
    if is_group(signature):
        group = CallGroup.read(signature)
        name, alone = TensorFlowNode.read(group.calls[0]).op, ReplayedGroup(group)
    else:
        node = TensorFlowNode.read(signature)
        name, alone = node.op, Replayed(node)
    with framework_errors(name):
        operands = alone.operands(tracer.device)
        make: Callable[..., RepeatedOperator] = partial(repeat, tracer, alone, costs=costs)
        if spec.phase == "forward" and alone.plain:
            make = partial(ProducedOperator, tracer, alone)
        # In XLA a variable can be an operand only once.
        once = tracer.mode == "xla" and any(tensor.dtype == tf.resource for tensor in operands)
        return long_enough(
            make,
            operands,
            partial(copy_tensor, device=_CPU),
            size=sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in operands),
            among=among,
            **({"most": 1} if once else {}),
        )


def _empty(tracer: Tracer, operands: int, results: int) -> RepeatedOperator:
    """Return a call with given numbers of operands and results that computes nothing."""
    with tf.device(_CPU):
        scalar = tf.constant(1.0)

    return repeat(
        tracer,
        lambda *tensors: [tf.identity(tensors[i % len(tensors)]) for i in range(results)],
        [[scalar] * operands],
    )


def _dispatch_s(tracer: Tracer) -> float:
    """Return the seconds of dispatching an operator: a softmax, which is never fused."""
    if tracer.mode == "xla":
        return 0.0  # a compiled program does not dispatch single operators
    with tf.device(_CPU):
        source = tf.ones([1, 2])

    def chain(length: int) -> RepeatedOperator:
        def body(value: Any) -> list[Any]:
            for _ in range(length):
                value = tf.nn.softmax(value)
            return [value]

        return repeat(tracer, body, [[source]])

    return dispatch_s(chain)
