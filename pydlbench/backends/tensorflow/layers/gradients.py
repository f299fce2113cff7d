"""Gradients of layers: the part of a TensorFlow graph after the forward pass.

A forward pass is traced together with its gradients. The graph is cut at the tensors of the forward
pass that the gradients read (a result, a mask, statistics). These become operands of the gradients,
as in a step, which keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pydlbench.backends.tensorflow.settings import tf

# Operators that compute nothing: constants, views, reads and assignments of variables.
_PLUMBING: Final = (
    *("Const", "Placeholder", "Identity", "StopGradient", "PreventGradient", "Reshape", "Squeeze"),
    *("ExpandDims", "ReadVariableOp", "AssignVariableOp", "Fill"),
)


class TracedGraph:
    """The graph of a forward pass, and of its gradients if they are requested.

    Attributes:
        sources: operands of the function.
        result: first result of the function.
        incoming: the gradient of the result.
        kept: tensors of the forward pass that the gradients read, where the graph is cut.
        names: distinct names of the gradients' operators; if no gradients are requested, names of
            the forward pass's operators.

    Args:
        function: the forward pass.
        operands: shapes and types of the function's operands.
        wanted: positions of operands to differentiate by; None traces the forward pass alone.
        variables: positions of operands that are variables.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[tuple[Sequence[int], str]],
        wanted: Sequence[int] | None = None,
        variables: Sequence[int] = (),
    ) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            self.sources = [tf.compat.v1.placeholder(kind, shape) for shape, kind in operands]
            arguments = list(self.sources)
            for index in variables:
                shape, kind = operands[index]
                arguments[index] = tf.Variable(tf.zeros(shape, kind), trainable=False)
            before = self._graph.get_operations()
            returned = function(*arguments)
            self.result = tf.nest.flatten(returned)[0]
            forward = self._graph.get_operations()
            self.names = _names(forward[len(before) :])
            if wanted is None:
                return
            self.incoming = tf.compat.v1.placeholder(self.result.dtype, self.result.shape)
            sources = [self.sources[index] for index in wanted]
            self._gradients = tf.gradients(self.result, sources, self.incoming)
        self.kept = self._cut(frozenset(forward))

    def tensor(self, name: str) -> Any:
        """Return a tensor of the graph by its name."""
        return self._graph.get_tensor_by_name(name)

    def gradients(self) -> Callable[..., list[Any]]:
        """Return the gradients as a function of the kept tensors and the incoming gradient."""
        return self.part([*self.kept, self.incoming], self._gradients)

    def gradients_from_result(self) -> Callable[..., list[Any]]:
        """Return the gradients as a function of sources, result and the incoming gradient."""
        return self.part([*self.sources, self.result, self.incoming], self._gradients)

    def part(self, given: Sequence[Any], wanted: Sequence[Any]) -> Callable[..., list[Any]]:
        """Return a part of the graph as a function.

        Args:
            given: operands of the function; the operators that compute them are left out.
            wanted: results of the function.
        """
        names = [tensor.name for tensor in given]
        fetched = [tensor.name for tensor in wanted if tensor.name not in names]
        needed = {
            operator.name
            for operator in reached_operators(
                (self.tensor(name).op for name in fetched),
                lambda operator: (x.op for x in operator.inputs if x.name not in names),
            )
        }
        nodes = tf.compat.v1.GraphDef()
        whole = self._graph.as_graph_def()
        nodes.versions.CopyFrom(whole.versions)
        nodes.node.extend(node for node in whole.node if node.name in needed)
        for node in nodes.node:
            node.attr.pop("_class", None)  # colocation with operators that are left out

        def function(*tensors: Any) -> list[Any]:
            by_name = dict(zip(names, tensors, strict=True))
            # TensorFlow refuses to map tensors that are not read.
            read = {
                name if ":" in name else f"{name}:0" for node in nodes.node for name in node.input
            }
            mapped = {name: tensor for name, tensor in by_name.items() if name in read}
            results = tf.graph_util.import_graph_def(
                nodes, input_map=mapped, return_elements=fetched, name=""
            )
            by_name |= dict(zip(fetched, results, strict=True))
            return [by_name[tensor.name] for tensor in wanted]

        return function

    def _cut(self, forward: frozenset[Any]) -> list[Any]:
        """Return the tensors of the forward pass that gradients read; name their operators."""

        def is_kept(tensor: Any) -> bool:
            # Constants of the forward pass stay constants, which a compiler may fold.
            return tensor.op in forward and tensor.op.type != "Const"

        reached = reached_operators(
            (tensor.op for tensor in self._gradients),
            lambda operator: (x.op for x in operator.inputs if not is_kept(x)),
        )
        self.names = _names([op for op in self._graph.get_operations() if op in reached])
        read = (tensor for operator in reached for tensor in operator.inputs)
        kept = {tensor.name: tensor for tensor in read if is_kept(tensor)}
        return list(kept.values())


def reached_operators(
    operators: Iterable[Any], inputs: Callable[[Any], Iterable[Any]]
) -> dict[Any, None]:
    """Return operators and all that they depend on, as the keys of a dictionary.

    Args:
        operators: operators to start from.
        inputs: function that returns the operators that an operator depends on.
    """
    waiting = list(operators)
    reached: dict[Any, None] = {}
    while waiting:
        operator = waiting.pop()
        if operator not in reached:
            reached[operator] = None
            waiting += inputs(operator)
    return reached


def _names(operators: Sequence[Any]) -> tuple[str, ...]:
    """Return names of operators, without those that only move data or compute integers."""
    return tuple(
        dict.fromkeys(
            operator.type
            for operator in operators
            if operator.type not in _PLUMBING
            and not (operator.outputs and all(item.dtype.is_integer for item in operator.outputs))
        )
    )
