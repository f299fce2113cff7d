"""A model as a graph of layers, for estimates, frameworks and counts alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pydlbench.ops.op import Layer

#: Name of the images among the inputs of nodes.
INPUT: Final = "input"

Op: TypeAlias = Literal[
    "conv",
    "deconv",
    "linear",
    "pool",
    "relu",
    "relu6",
    "hardswish",
    "hardsigmoid",
    "scale",
    "lrn",
    "batchnorm",
    "add",
    "concat",
    "dropout",
    "flatten",
    "shift",
    "crop",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """Initial values of a tensor.

    Attributes:
        kind: ``normal`` (cut off at two standard deviations), ``he`` (normal with variance
            ``2 / inputs``) or ``constant``.
        value: standard deviation of ``normal``, or the constant; ``he`` does not use it.
    """

    kind: Literal["normal", "he", "constant"]
    value: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operation on images or on other nodes' outputs.

    =========== ======================================================================
    op          operation
    =========== ======================================================================
    conv        grouped and depthwise ones too; ``bias`` per output channel
    deconv      a transposed convolution; ``bias`` per output channel
    linear      m is the batch, k the inputs, n the outputs; ``bias``
    pool        max or average, including the average over a whole map
    relu
    relu6
    hardswish
    hardsigmoid
    scale       maps times a factor for each channel
    lrn         across channels
    batchnorm   per channel; ``scale``: whether its factor is trained
    add         of two inputs
    concat      of two or more inputs, along the channels
    dropout     nothing in inference
    flatten     ``(channels, height, width)`` to features in that order; moves nothing
    shift       drops the first row and column, adds zeros after the last
    crop        keeps the middle
    =========== ======================================================================

    The last three have no layer.

    Attributes:
        name: name that is unique in the model: ``conv1``, ``block2/unit1/add``.
        op: operation, from the table above.
        inputs: names of the nodes whose outputs are read, or :data:`INPUT`.
        shape: shape of the output for one image: ``(channels, height, width)`` or ``(features,)``.
        layer: layer that is timed, with the model's batch and the name ``<model>/<node>``; None if
            nothing is computed.
        bias: whether a convolution or product adds a bias.
        scale: whether a batch normalisation has a trained factor beside its trained offset.
        weights_init: initial weights of convolutions and products.
        bias_init: initial biases of convolutions and products.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    layer: Layer | None = None
    bias: bool = False
    scale: bool = True
    weights_init: Init = Init(kind="he")
    bias_init: Init = Init(kind="constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of a model.

    Attributes:
        kind: ``cross-entropy`` (mean over the batch of softmax cross entropy with integer labels,
            for maps one label per pixel), ``l2`` (half the sum of squares of the output) or ``sum``
            (of the output).
    """

    kind: Literal["cross-entropy", "l2", "sum"] = "cross-entropy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """An L2 term: ``factor * sum(tensor**2) / 2`` is added to the loss.

    Attributes:
        node: name of the node that has the tensor.
        tensor: ``weights`` or ``bias``.
        factor: factor of the term; terms with factor 0, which some scripts have, take time too.
    """

    node: str
    tensor: Literal["weights", "bias"]
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The update of weights.

    Attributes:
        kind: ``sgd``, ``momentum`` (velocity = mu * velocity + gradient), or ``none``: the
            published script computes only gradients.
        rate: learning rate.
        mu: factor of the velocity.
    """

    kind: Literal["sgd", "momentum", "none"] = "sgd"
    rate: float = 0.01
    mu: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model for one batch size.

    Attributes:
        name: name as typed on the command line: ``alexnet-owt``.
        title: description of the model.
        source: publication or code that the graph is from.
        batch: images per step.
        image: ``(channels, height, width)`` of an image.
        classes: number of classes; 0 if the loss has no labels.
        nodes: nodes in a valid order of execution; the last one is the output.
        loss: loss that training minimises.
        decays: L2 terms that are added to the loss.
        optimizer: update of the weights in the training phase.
        input_gradient: whether the gradient of the images is computed too, as in scripts whose
            images require a gradient.
    """

    name: str
    title: str
    source: str
    batch: int
    image: tuple[int, int, int]
    classes: int
    nodes: tuple[GraphNode, ...]
    loss: Loss = Loss()
    decays: tuple[Decay, ...] = ()
    optimizer: Optimizer = Optimizer()
    input_gradient: bool = False
    _index: dict[str, GraphNode] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        """Index the nodes and check that each follows its inputs."""
        for node in self.nodes:
            missing = [name for name in node.inputs if name != INPUT and name not in self._index]
            if missing or node.name in self._index or node.name == INPUT:
                raise ValueError(f"{self.name}/{node.name}: twice, or before {missing}")
            self._index[node.name] = node

    def __iter__(self) -> Iterator[GraphNode]:
        return iter(self.nodes)

    def __getitem__(self, name: str) -> GraphNode:
        return self._index[name]

    @property
    def output(self) -> GraphNode:
        """The node whose output the loss takes."""
        return self.nodes[-1]

    def readers(self) -> dict[str, list[str]]:
        """Return the readers of each value by name; the loss, named "", reads the output."""
        readers: dict[str, list[str]] = {INPUT: [], **{node.name: [] for node in self.nodes}}
        for node in self.nodes:
            for name in node.inputs:
                readers[name].append(node.name)
        readers[self.output.name].append("")
        return readers


def weight_decays(nodes: Iterable[GraphNode], factor: float) -> tuple[Decay, ...]:
    """Return an L2 term for each weight and bias, but none for batch normalisations."""
    decays = []
    for node in nodes:
        if node.layer is not None and node.layer.multiply_adds:
            decays.append(Decay(node=node.name, tensor="weights", factor=factor))
            if node.bias:
                decays.append(Decay(node=node.name, tensor="bias", factor=factor))
    return tuple(decays)


def cropped(model: Model, node: GraphNode) -> tuple[int, int, int, int]:
    """Return the dropped columns on the left and right, and rows above and below."""
    source = node.inputs[0]
    before = model.image if source == INPUT else model[source].shape
    rows, columns = (before[axis] - node.shape[axis] for axis in (1, 2))
    return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


# -----------------------------------------------------------------------------
# State of a node between steps: trained tensors and running statistics, by name.


def trained_tensors(node: GraphNode) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the trained tensors.

    ``weights`` of convolutions are ``(out, in / groups, height, width)``, ``weights`` of products
    ``(inputs, outputs)``; ``bias`` and a batch normalisation's ``weights`` have the channels.
    """
    layer = node.layer
    shapes: dict[str, tuple[int, ...]] = {}
    if node.op == "batchnorm":
        shapes = {"weights": node.shape[:1], "bias": node.shape[:1]}
        return shapes if node.scale else {"bias": shapes["bias"]}
    if layer is not None and layer.op == "gemm":
        shapes["weights"] = layer.k, layer.n
    elif layer is not None and layer.multiply_adds:
        shapes["weights"] = layer.shapes()["weights"]
    if node.bias:
        shapes["bias"] = node.shape[:1]
    return shapes


def buffers(node: GraphNode) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the state that is not trained."""
    if node.op != "batchnorm":
        return {}
    return {"running_mean": node.shape[:1], "running_variance": node.shape[:1]}
