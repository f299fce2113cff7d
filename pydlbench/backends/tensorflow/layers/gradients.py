"""A layer's gradient as TensorFlow has it: the part of a graph behind its forward pass.

A forward pass is traced together with its gradients; what they read of it (a result, a mask,
statistics) is where the graph is cut. Those tensors are operands of the gradients then, as they are
in a step, where they are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.tensorflow.settings import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Operators that compute nothing: constants, views, what reads and assigns variables.
_PLUMBING: Final = (
    *("Const", "Placeholder", "Identity", "StopGradient", "PreventGradient", "Reshape", "Squeeze"),
    *("ExpandDims", "ReadVariableOp", "AssignVariableOp", "Fill"),
)


class TracedGraph:
    """A forward pass as a graph, and its gradients if they are wanted.

    Attributes:
        sources: what the function takes.
        result: what it returns, or the first of several.
        incoming: the gradient of the result.
        kept: what the gradients read of the forward pass: where the graph is cut.
        names: of the operators, each once; of gradients theirs.

    Args:
        function: the forward pass.
        operands: shape and type of what it takes.
        wanted: places of those whose gradients are wanted; None is the forward pass alone.
        variables: places of those that are variables.
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
            taken = list(self.sources)
            for place in variables:
                shape, kind = operands[place]
                taken[place] = tf.Variable(tf.zeros(shape, kind), trainable=False)
            before = self._graph.get_operations()
            returned = function(*taken)
            self.result = tf.nest.flatten(returned)[0]
            forward = self._graph.get_operations()
            self.names = _names(forward[len(before) :])
            if wanted is None:
                return
            self.incoming = tf.compat.v1.placeholder(self.result.dtype, self.result.shape)
            sources = [self.sources[place] for place in wanted]
            self._gradients = tf.gradients(self.result, sources, self.incoming)
        own, self.kept = self._behind(self._gradients, frozenset(forward))
        self.names = _names(own)

    def tensor(self, name: str) -> Any:
        """Return a tensor of the graph by its name."""
        return self._graph.get_tensor_by_name(name)

    def gradients(self) -> Callable[..., list[Any]]:
        """Return the gradients as a function of what is kept and the incoming gradient."""
        return self.part([*self.kept, self.incoming], self._gradients)

    def gradients_from_result(self) -> Callable[..., list[Any]]:
        """Return the gradients as a function of sources, result and the incoming gradient."""
        return self.part([*self.sources, self.result, self.incoming], self._gradients)

    def part(self, given: Sequence[Any], wanted: Sequence[Any]) -> Callable[..., list[Any]]:
        """Return a part of the graph as a function.

        Args:
            given: tensors that the function takes; nothing behind them is computed.
            wanted: tensors that it returns.
        """
        names = [each.name for each in given]
        known = frozenset(names)
        needed = self._needed([each for each in wanted if each.name not in known], known)
        nodes = tf.compat.v1.GraphDef()
        whole = self._graph.as_graph_def()
        nodes.versions.CopyFrom(whole.versions)
        nodes.node.extend(node for node in whole.node if node.name in needed)
        for node in nodes.node:
            node.attr.pop("_class", None)  # where it stands: beside operators that are cut off
        fetched = [each.name for each in wanted if each.name not in known]

        def function(*tensors: Any) -> list[Any]:
            by_name = dict(zip(names, tensors, strict=True))
            # Nothing may be mapped that nobody reads.
            read = {
                name if ":" in name else f"{name}:0" for node in nodes.node for name in node.input
            }
            mapped = {name: tensor for name, tensor in by_name.items() if name in read}
            made = tf.graph_util.import_graph_def(
                nodes, input_map=mapped, return_elements=fetched, name=""
            )
            by_name |= dict(zip(fetched, made, strict=True))
            return [by_name[each.name] for each in wanted]

        return function

    def _needed(self, wanted: Sequence[Any], known: frozenset[str]) -> set[str]:
        """Return the operators behind tensors, up to those that are known."""
        reached: set[str] = set()
        waiting = [each.op for each in wanted]
        while waiting:
            operator = waiting.pop()
            if operator.name not in reached:
                reached.add(operator.name)
                waiting += [each.op for each in operator.inputs if each.name not in known]
        return reached

    def _behind(
        self, wanted: Sequence[Any], forward: frozenset[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return the operators behind a forward pass in their order, and what they read of it."""
        kept: dict[str, Any] = {}
        reached: set[Any] = set()
        waiting = [each.op for each in wanted]
        while waiting:
            operator = waiting.pop()
            if operator in reached:
                continue
            reached.add(operator)
            for each in operator.inputs:
                # Constants of the forward pass stay constants: a compiler may know them.
                if each.op in forward and each.op.type != "Const":
                    kept[each.name] = each
                else:
                    waiting.append(each.op)
        kept.pop(self.incoming.name, None)
        return [each for each in self._graph.get_operations() if each in reached], list(
            kept.values()
        )


def _names(operators: Sequence[Any]) -> tuple[str, ...]:
    """Return the operators that compute; what gives integers counts and measures shapes."""
    return tuple(
        dict.fromkeys(
            each.type
            for each in operators
            if each.type not in _PLUMBING
            and not (each.outputs and all(output.dtype.is_integer for output in each.outputs))
        )
    )
