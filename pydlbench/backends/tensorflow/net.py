"""A model's graph as a function of TensorFlow on NHWC images (or NCHW ones on a GPU)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.steps.inputs import trained, weight_shapes
from pydlbench.backends.tensorflow.layers import LayerInNetwork
from pydlbench.backends.tensorflow.operator import InNetwork, Phase, pads_around
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.models.graph import INPUT, cropped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.steps.definition import StepDefinition
    from pydlbench.models.graph import Model, Node


def flattened(images: Any, data_format: str) -> Any:
    """Return images as features in the order channel, row, column."""
    batch, *sizes = images.shape.as_list()
    if data_format == "NHWC" and len(sizes) == 3 and sizes[0] * sizes[1] > 1:
        images = tf.transpose(images, [0, 3, 1, 2])
    return tf.reshape(images, [batch, int(np.prod(sizes))])


def framed(images: Any, sides: tuple[int, int, int, int], data_format: str) -> Any:
    """Return images in another frame.

    Args:
        images: NHWC or NCHW.
        sides: how many columns to drop on the left and right, and rows above and below; of a
            negative number, so many zeros are added.
        data_format: of the images.
    """
    left, right, above, below = sides
    height, width = (images.shape[data_format.index(axis)] for axis in "HW")
    rows = slice(max(above, 0), height - max(below, 0))
    columns = slice(max(left, 0), width - max(right, 0))
    kept = images[:, :, rows, columns] if data_format == "NCHW" else images[:, rows, columns, :]
    if min(sides) >= 0:
        return kept
    added = (max(-above, 0), max(-below, 0)), (max(-left, 0), max(-right, 0))
    return tf.pad(kept, pads_around(data_format, *added))


def scope_of(name: str) -> str:
    """Return the scope that a node's operators are in; one with a line in it would be several."""
    return name.replace("/", ".")


class MovedImages(InNetwork):
    """A node that only moves images, and stands for no layer.

    Args:
        move: makes the output of the one input.
    """

    def __init__(self, move: Callable[[Any], Any]) -> None:
        self._move = move

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the images, moved."""
        del own, phase
        (images,) = inputs
        return self._move(images)


class Net:
    """A model as a function, with its variables.

    Args:
        model: the graph.
        weights: float32 arrays by ``<node>/<role>``.
        data_format: ``NHWC`` or ``NCHW``.
        stored: type of the variables; those of normalisations are float32.
        computed: type of activations.
        device: TensorFlow's name of it.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        *,
        data_format: str,
        stored: str,
        computed: str,
        device: str,
    ) -> None:
        self.model = model
        self.data_format = data_format
        self.computed = tf.as_dtype(computed)
        self.variables: dict[str, Any] = {}
        to_train = set(trained(model))
        with tf.device(device):
            for node in model:
                for role in weight_shapes(node):
                    name = f"{node.name}/{role}"
                    self.variables[name] = tf.Variable(
                        self._arranged(node, role, weights[name]),
                        dtype="float32" if _is_exact(node, role) else stored,
                        trainable=name in to_train,
                    )
        self.trained = [self.variables[name] for name in trained(model)]
        #: Static shapes of the nodes' outputs, as the last tracing found them, NCHW.
        self.shapes: dict[str, tuple[int, ...]] = {}

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights by name."""
        for node in self.model:
            for role in weight_shapes(node):
                name = f"{node.name}/{role}"
                variable = self.variables[name]
                arranged = self._arranged(node, role, weights[name])
                variable.assign(tf.cast(arranged, variable.dtype))

    def plain(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a variable's (or its gradient's) values arranged as they are by name."""
        node, _, role = name.rpartition("/")
        array = np.asarray(array, np.float32)
        # Filters; matrices of products, biases and statistics lie as they do by name.
        return self.calls(self.model[node]).plain(role, array) if array.ndim == 4 else array

    def __call__(self, images: Any, definition: StepDefinition) -> Any:
        """Return the output for images, in the type of activations."""
        values = self.values(images, definition)
        self.shapes = {node.name: self._logical(values[node.name].shape) for node in self.model}
        return values[self.model.output.name]

    def values(self, images: Any, definition: StepDefinition) -> dict[str, Any]:
        """Return the outputs of all nodes by name, and the images.

        Args:
            images: as they are handed over.
            definition: what the step does.
        """
        found = {INPUT: self.cast(images)}
        for node in self.model:
            found[node.name] = self.apply(node, [found[one] for one in node.inputs], definition)
        return found

    def cast(self, images: Any) -> Any:
        """Return images in the type of activations."""
        return tf.cast(images, self.computed)

    def apply(self, node: Node, inputs: Sequence[Any], definition: StepDefinition) -> Any:
        """Return a node's output."""
        own = {}
        for role in weight_shapes(node):
            variable = self.variables[f"{node.name}/{role}"]
            # What a layer keeps in float32 it takes so, and may assign to it.
            own[role] = variable if _is_exact(node, role) else tf.cast(variable, self.computed)
        phase = Phase(drops=definition.drops, batch_statistics=definition.batch_statistics)
        with tf.name_scope(scope_of(node.name)):
            return self.calls(node).output(inputs, own, phase)

    def calls(self, node: Node) -> InNetwork:
        """Return what is called for a node."""
        if node.layer is not None:
            return LayerInNetwork(node.layer, self.data_format)
        if node.op == "flatten":
            return MovedImages(partial(flattened, data_format=self.data_format))
        assert node.op in ("shift", "crop"), node.op
        sides = (1, -1, 1, -1) if node.op == "shift" else cropped(self.model, node)
        return MovedImages(partial(framed, sides=sides, data_format=self.data_format))

    def _arranged(self, node: Node, role: str, array: NDArray[Any]) -> NDArray[Any]:
        return self.calls(node).arranged(role, array) if array.ndim == 4 else array

    def _logical(self, shape: Any) -> tuple[int, ...]:
        sizes = tuple(shape.as_list())
        if len(sizes) == 4 and self.data_format == "NHWC":
            return sizes[0], sizes[3], sizes[1], sizes[2]
        return sizes


def _is_exact(node: Node, role: str) -> bool:
    """Whether a tensor is float32 whatever the precision, as those of normalisations are."""
    return node.layer is not None and node.layer.in_float32(role)
