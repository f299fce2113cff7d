"""A network of the catalogue as a function, built from a framework's table of forward functions.

For frameworks whose networks are functions: TensorFlow and JAX. A framework defines how the layers
of its table are called in a network, and its dropout and batch normalisation.
"""

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.operands import LayerLayout
from pydlbench.backends.steps.catalogue import CatalogueModel, host_arrays
from pydlbench.backends.steps.definition import Outcome, StepDefinition, check_trainable
from pydlbench.backends.steps.inputs import Batch, weight_shapes
from pydlbench.models.graph import INPUT, GraphNode, Model, cropped
from pydlbench.ops.op import Layer

#: Scopes of operators that belong to no node.
LOSS: Final = "step_loss"
OPTIMIZER: Final = "step_optimizer"


def scope_of(name: str) -> str:
    """Return the scope of a node's operators; a slash in it would make several scopes of it."""
    return name.replace("/", ".")


@dataclass(slots=True)
class NetworkRun:
    """A forward pass through a network, while it is traced.

    Attributes:
        tensors: weights and running statistics by ``<node>/<role>``.
        definition: definition of the step.
        key: key of the random numbers of dropout, in frameworks that have keys.
        statistics: updated running statistics by name, in frameworks that do not assign them.
    """

    tensors: Mapping[str, Any]
    definition: StepDefinition
    key: Any = None
    statistics: dict[str, Any] = field(default_factory=dict)


class Network(abc.ABC):
    """A model as a function.

    Args:
        model: the graph.
        images: layout of the images: ``nhwc`` or ``nchw``.
        computed: type of activations; statistics of normalisations are float32.
    """

    #: The framework's module of array functions with NumPy's names.
    arrays: ClassVar[Any]
    #: Makes the context that gives operators a name.
    scope: ClassVar[Any]

    def __init__(self, model: Model, images: str, computed: Any) -> None:
        self.model, self.images, self.computed = model, images, computed
        #: Shapes of the nodes' outputs in the last traced pass, NCHW.
        self.shapes: dict[str, tuple[int, ...]] = {}

    def output(self, images: Any, run: NetworkRun) -> Any:
        """Return the output for images, in the type of activations."""
        values = self.values(images, run)
        self.shapes = {node.name: self._nchw_shape(values[node.name]) for node in self.model}
        return values[self.model.output.name]

    def values(self, images: Any, run: NetworkRun) -> dict[str, Any]:
        """Return the outputs of all nodes by name, and the images in the type of activations."""
        values = {INPUT: self.cast(images)}
        for node in self.model:
            values[node.name] = self.apply(node, [values[name] for name in node.inputs], run)
        return values

    def apply(self, node: GraphNode, inputs: Sequence[Any], run: NetworkRun) -> Any:
        """Return a node's output."""
        tensors = {role: run.tensors[f"{node.name}/{role}"] for role in weight_shapes(node)}
        with self.scope(scope_of(node.name)):
            match node.op:
                case "flatten":
                    return self._flattened(inputs[0])
                case "shift" | "crop":
                    return self.pad(inputs[0], self._frame(node))
                case "dropout":
                    return self.dropped(node, inputs[0], run) if run.definition.drops else inputs[0]
                case "batchnorm":
                    return self.normalised(node, inputs[0], tensors, run)
            assert node.layer is not None, node.op
            cast = {role: self.cast(tensor) for role, tensor in tensors.items()}
            weights = [cast["weights"]] if "weights" in cast else []
            result = self.function(node.layer)(*inputs, *weights)
            return self.biased(result, cast["bias"]) if "bias" in cast else result

    def arrange(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a plain tensor in the layout of the network, by name: filters are transposed."""
        return self._layout(name).arrange("weights", array) if array.ndim == 4 else array

    def plain(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor of the network, or its gradient, in the plain layout, by name."""
        return self._layout(name).plain("weights", array) if array.ndim == 4 else array

    def is_exact(self, name: str) -> bool:
        """Whether a tensor is float32 in every precision, as tensors of normalisations are."""
        node, _, role = name.rpartition("/")
        layer = self.model[node].layer
        return layer is not None and layer.in_float32(role)

    # -------------------------------------------------------------------------
    # Defined by each framework.

    @abc.abstractmethod
    def cast(self, tensor: Any) -> Any:
        """Return a tensor in the type of activations."""

    @abc.abstractmethod
    def function(self, layer: Layer) -> Callable[..., Any]:
        """Return the forward function of a layer, which takes its inputs and weights."""

    @abc.abstractmethod
    def biased(self, result: Any, bias: Any) -> Any:
        """Return a result with a bias for each channel added."""

    @abc.abstractmethod
    def layer_layout(self, layer: Layer) -> LayerLayout:
        """Return the layout of a layer's tensors."""

    @abc.abstractmethod
    def pad(self, images: Any, pads: Sequence[tuple[int, int]]) -> Any:
        """Return images padded with zeros on both sides of each axis; negative numbers crop."""

    @abc.abstractmethod
    def dropped(self, node: GraphNode, images: Any, run: NetworkRun) -> Any:
        """Return the images after dropout."""

    @abc.abstractmethod
    def normalised(
        self, node: GraphNode, images: Any, tensors: Mapping[str, Any], run: NetworkRun
    ) -> Any:
        """Return the images after batch normalisation, which updates running statistics.

        Args:
            node: the normalisation; its factor is one if it has no trained ``weights``.
            images: input of the normalisation.
            tensors: tensors of the normalisation by role, in float32.
            run: defines which statistics are used.
        """

    # -------------------------------------------------------------------------
    # Nodes without a layer, which only move images.

    def _flattened(self, images: Any) -> Any:
        """Return images as features in the order channel, row, column."""
        batch, *sizes = (int(size) for size in images.shape)
        if self.images == "nhwc" and len(sizes) == 3 and sizes[0] * sizes[1] > 1:
            images = self.arrays.transpose(images, (0, 3, 1, 2))
        return self.arrays.reshape(images, (batch, math.prod(sizes)))

    def _frame(self, node: GraphNode) -> list[tuple[int, int]]:
        """Return the padding of each axis by a node that shifts or crops images."""
        left, right, above, below = (
            (1, -1, 1, -1) if node.op == "shift" else cropped(self.model, node)
        )
        pads = [(0, 0)] * 4
        first = self.images.index("h")
        pads[first : first + 2] = (-above, -below), (-left, -right)
        return pads

    def _nchw_shape(self, tensor: Any) -> tuple[int, ...]:
        sizes = tuple(int(size) for size in tensor.shape)
        if len(sizes) == 4 and self.images == "nhwc":
            return sizes[0], sizes[3], sizes[1], sizes[2]
        return sizes

    def _layout(self, name: str) -> LayerLayout:
        layer = self.model[name.rpartition("/")[0]].layer
        assert layer is not None, "a node with weights has a layer"
        return self.layer_layout(layer)


class NetworkModel(CatalogueModel):
    """A network of the catalogue whose steps are functions; see :class:`FunctionStep`."""

    #: Images and labels on the host.
    host: tuple[NDArray[Any], ...]

    @property
    @abc.abstractmethod
    def net(self) -> Network:
        """The network."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features)."""
        return dict(self.net.shapes)

    def plain(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor, or its gradient, in the plain layout and float32, by name."""
        return self.net.plain(name, array.astype(np.float32, copy=False))


class FunctionStep(abc.ABC):
    """A step as one function of images and labels; see ``steps.definition.FrameworkStep``.

    Args:
        owner: the model and its weights, with images and labels on the host.
        definition: definition of the step.

    Raises:
        UsageError: training without an optimizer.
    """

    def __init__(self, owner: Any, definition: StepDefinition) -> None:
        self.owner, self.definition = owner, definition
        self.updates = definition.optimizer == "model"
        if self.updates:
            check_trainable(owner.model, "--set optimizer=sgd")
        self._last_rate: float = owner.model.optimizer.rate

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; on a GPU it may return early if nothing is fetched."""
        if rate is not None and rate != self._last_rate:
            self._set_rate(rate)
        host = None
        if self.definition.feed == "host":
            host = self.owner.host if batch is None else host_arrays(batch, self.owner.spec.layout)
        results, fetch = self.run(host), self.definition.fetch
        if not fetch:
            return Outcome()
        return Outcome.fetched({name: self._fetched(results[name]) for name in fetch})

    def loss(self, output: Any, labels: Any, tensors: Mapping[str, Any]) -> Any:
        """Return the loss of an output; the classes of images are their channels.

        Args:
            output: output of the network.
            labels: labels of the images; None if the loss takes none.
            tensors: tensors of the network, by name.
        """
        net = self.owner.net
        if labels is not None and len(output.shape) == 4 and net.images == "nchw":
            output = net.arrays.transpose(output, (0, 2, 3, 1))
        return self.owner.loss(self.definition.loss)(output, labels, tensors)

    def add_results(
        self, results: dict[str, Any], output: Any, loss: Callable[[], Any]
    ) -> dict[str, Any]:
        """Add the results that are fetched or kept to the results that are computed anyway.

        Args:
            results: results that are computed anyway; the mapping is changed and returned.
            output: output of the network.
            loss: function that returns the loss.
        """
        definition = self.definition
        if "output" in definition.fetch:
            results["output"] = output
        if "loss" in definition.fetch or definition.keep_loss:
            results["loss"] = loss()
        if "predictions" in definition.fetch:
            results["predictions"] = self.predictions(output)
        return results

    @abc.abstractmethod
    def run(self, host: tuple[NDArray[Any], ...] | None = None) -> dict[str, Any]:
        """Run the step once and return its results without copying them to the host.

        Args:
            host: images and labels that are fed; None uses those on the device.
        """

    @abc.abstractmethod
    def reset(self) -> None:
        """Reset the state of training: velocities, averages, the rate."""

    @abc.abstractmethod
    def predictions(self, output: Any) -> Any:
        """Return the softmax of an output, in float32."""

    @abc.abstractmethod
    def _set_rate(self, rate: float) -> None:
        """Set the learning rate from the next step on, and note it."""

    @abc.abstractmethod
    def _fetched(self, result: Any) -> list[NDArray[Any]]:
        """Return a result, or gradients in the order of the trained tensors, on the host."""
