"""Parts of TensorFlow's step: the operators of the step in functions of their own.

A call of a function costs more than many a part. So a part that is short is put into its function
several times, on operands of its own each time, and what an empty call costs is taken off: one
right after it, where the caches are as parts leave them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.endtoend.tensorflow.steps import TensorflowStep
from pydlbench.models.graph import INPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.endtoend.pieces.call_cost import CallCost
    from pydlbench.models.graph import Node

__all__ = ["FeedPart", "FunctionPart", "ProducedPart", "StepParts", "copied"]


class StepParts(TensorflowStep):
    """A step that is never run, its nodes, its loss and its update within reach."""

    def node(self, node: Node, inputs: list[Any]) -> Any:
        """Return a node's output, by the code that builds the step."""
        return self.net.apply(node, inputs, self.ways())

    def values(
        self, names: Sequence[str], differentiated: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values that nodes have in a step, by name, and gradients of them; untimed.

        How long an operator takes may hang on its operands: the gradient of a local response
        normalisation leaves out what is multiplied by zero, and behind a pooling most is.
        """

        def run(images: Any, labels: Any = None) -> list[Any]:
            found = {INPUT: self.net.cast(images)}
            with tf.GradientTape() as tape:
                for node in self.model:
                    found[node.name] = self.node(node, [found[name] for name in node.inputs])
                loss = self._loss_after(found[self.model.output.name], labels)
            gradients = tape.gradient(
                loss,
                [found[name] for name in differentiated],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.identity(one) for one in (*(found[name] for name in names), *gradients)]

        every = self.traced(run)(*self.operands())
        count = len(names)
        return (
            dict(zip(names, every[:count], strict=True)),
            dict(zip(differentiated, every[count:], strict=True)),
        )

    def group(
        self,
        nodes: Sequence[str],
        inputs: dict[str, Any],
        wanted: Sequence[str],
        outputs: Sequence[str],
        upstream: Sequence[Any],
    ) -> list[Any]:
        """Return the outputs of nodes, and the gradients of what is wanted and of their weights."""
        known = dict(inputs)
        own = [one for name in nodes for one in self._trained_of(name)]
        sources = [inputs[name] for name in wanted]
        with tf.GradientTape() as tape:
            for one in sources:
                tape.watch(one)
            for name in nodes:
                node = self.model[name]
                known[name] = self.node(node, [known[one] for one in node.inputs])
        results = [known[name] for name in outputs]
        if not (self.case.backward and upstream and (sources or own)):
            return results
        found = tape.gradient(results, [*sources, *own], output_gradients=list(upstream))
        return [*results, *(one for one in found if one is not None)]

    def loss_part(self, output: Any, labels: Any) -> list[Any]:
        """Return the loss of an output, and the gradients of that and of what L2 terms name."""
        variables = {id(v): v for v in self._decayed()}
        with tf.GradientTape() as tape:
            tape.watch(output)
            loss = self._loss_after(output, labels)
        first, *others = tape.gradient(loss, [output, *variables.values()])
        # A weight's gradient has two sources then, and they are summed.
        sums = [tf.add_n([g, v.value()]) for g, v in zip(others, variables.values(), strict=True)]
        return [loss, first, *sums]

    def update(self, *gradients: Any) -> Any:
        """Update all weights with given gradients; returns a constant."""
        return self._train(gradients)

    def fed(self) -> list[Any]:
        """Return images and labels as a function takes them over from the host's arrays."""
        return [tf.convert_to_tensor(one) for one in self._host]

    def _differentiated(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """Give the update the gradients that it was called with."""
        del labels
        return tf.constant(0.0), list(images)

    def _loss_after(self, output: Any, labels: Any) -> Any:
        """Return the loss of an output that is there already."""
        kept, stand_in = self.net, _Given(self.net)
        self.net = stand_in  # type: ignore[assignment]  # the loss asks it for the output only
        try:
            return self.loss_of(output, labels)
        finally:
            self.net = kept

    def _trained_of(self, name: str) -> list[Any]:
        own = {id(one) for one in self.net.trained}
        return [
            variable
            for path, variable in self.net.variables.items()
            if path.rpartition("/")[0] == name and id(variable) in own
        ]

    def _decayed(self) -> list[Any]:
        terms = self.model.decays if self.case.phase == "training" else ()
        return [self.net.variables[f"{one.node}/{one.tensor}"] for one in terms]


class FeedPart:
    """Images and labels from the host's arrays."""

    executions = 1

    def __init__(self, step: StepParts) -> None:
        self._step = step

    def run(self) -> float:
        """Take them over once."""
        start = time.perf_counter()
        found = self._step.fed()
        seconds = time.perf_counter() - start
        del found
        return seconds


class _Given:
    """Stands in for a network whose output is given."""

    def __init__(self, net: Any) -> None:
        self.variables = net.variables

    def __call__(self, output: Any, ways: Any) -> Any:
        """Return the output."""
        del ways
        return output


class FunctionPart:
    """A function of TensorFlow that holds a part several times.

    Args:
        step: traces as the step is traced.
        body: returns a part's results for one set of operands.
        sets: of operands; the part is executed once for each.
        costs: returns what a call costs by its numbers of operands and results; None leaves it in.
    """

    def __init__(
        self,
        step: StepParts,
        body: Callable[..., list[Any]],
        sets: Sequence[Sequence[Any]],
        costs: Callable[[int, int], CallCost] | None = None,
    ) -> None:
        self.executions = len(sets)
        width = len(sets[0])
        self._operands = [one for each in sets for one in each]

        def all_of(*tensors: Any) -> list[Any]:
            found: list[Any] = []
            for start in range(self.executions):
                found += body(*tensors[start * width : (start + 1) * width])
            # A compiler would compute no more than these elements.
            return found if step.case.mode == "xla" else [_first(one) for one in found]

        self._function = step.traced(all_of)
        results = len(self._function(*self._operands))
        self._cost = costs(len(self._operands), results) if costs else None

    def run(self) -> float:
        """Call it once; seconds of one execution."""
        seconds = _call(self._function, self._operands)
        return (seconds - (self._cost.seconds() if self._cost else 0.0)) / self.executions


class ProducedPart(FunctionPart):
    """A part of a forward pass that reads what was written just before, as it does in a step.

    Each operand is a product by one, made in the same function. What these products take alone, in
    a function of their own, is taken off, and what a call costs with it.

    Args:
        step: see :class:`FunctionPart`.
        body: likewise.
        sets: likewise; no integers.
    """

    def __init__(
        self, step: StepParts, body: Callable[..., list[Any]], sets: Sequence[Sequence[Any]]
    ) -> None:
        with tf.device("/CPU:0"):
            ones = {one.dtype: tf.constant(1, one.dtype) for one in sets[0]}

        def produced(*tensors: Any) -> list[Any]:
            # By operands, which no optimiser knows to be one.
            *given, one = tensors
            return [each * one for each in given]

        def together(*tensors: Any) -> list[Any]:
            return body(*produced(*tensors))

        full = [[*one, ones[one[0].dtype]] for one in sets]
        super().__init__(step, together, full)
        self._products = FunctionPart(step, produced, full)

    def run(self) -> float:
        """Call it once, and what only makes its operands; seconds of one execution."""
        return max(0.0, super().run() - self._products.run())


def _call(function: Any, operands: Sequence[Any]) -> float:
    """Call a function once, and return the seconds."""
    start = time.perf_counter()
    found = function(*operands)
    end = time.perf_counter()
    del found
    return end - start


def _first(tensor: Any) -> Any:
    """Return an element, so that the rest is given back as soon as it is there.

    In a step the next operator's result comes to lie where one before it was, in the caches; what a
    function returns stays until it ends.
    """
    return tf.reshape(tensor, [-1])[:1]


def copied(tensor: Any, device: str) -> Any:
    """Return a tensor of the same values in memory of its own."""
    with tf.device(device):
        return tf.constant(np.array(tensor.numpy()), dtype=tensor.dtype)
