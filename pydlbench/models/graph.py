"""A model as a graph of layers, for estimates, frameworks and counts alike; and its builder."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pydlbench.ops.axis import ceil_pad, same_pads
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer, image_layer

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


#: Elementwise operations on one node's output.
Activation: TypeAlias = Literal["relu", "relu6", "hardswish", "hardsigmoid"]


ZERO = Init(kind="constant")
HE = Init(kind="he")


# -----------------------------------------------------------------------------
# Padding.

#: Padding in a model's definition: TensorFlow's names, a number, (height, width), or
#: (top, bottom, left, right).
Pad: TypeAlias = Literal["SAME", "VALID"] | int | tuple[int, int] | tuple[int, int, int, int]


def pad_sides(
    padding: Pad,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    *,
    ceil: bool = False,
) -> tuple[int, int, int, int]:
    """Return the pads (top, bottom, left, right).

    Args:
        padding: Padding in the model's definition.
        size: Input (height, width).
        kernel: Taps, (height, width).
        stride: Stride of both sides.
        ceil: Whether the output size is rounded up, with padding behind the last element.
    """
    if padding == "VALID":
        padding = 0
    if padding == "SAME":
        top, bottom = same_pads(size[0], kernel[0], stride)
        left, right = same_pads(size[1], kernel[1], stride)
        return top, bottom, left, right
    if isinstance(padding, int):
        padding = (padding, padding)
    if len(padding) == 2:
        padding = (padding[0], padding[0], padding[1], padding[1])
    top, bottom, left, right = padding
    if ceil:
        bottom = ceil_pad(size[0], kernel[0], stride, top, bottom)
        right = ceil_pad(size[1], kernel[1], stride, left, right)
    return top, bottom, left, right


class Builder:
    """A model under construction: each call adds a node.

    A call continues the last node, or the one given as ``after``, and returns the name of its node.
    All shapes come from the layers themselves, so that the graph and the timed layers agree.

    Args:
        name: Name of the model; layers are called ``<name>/<node>``.
        batch: Images per step.
        image: ``(channels, height, width)`` of an image.
        epsilon: Epsilon of batch normalisations.
        momentum: Momentum of running statistics: one minus TensorFlow's decay.
        scale: Whether batch normalisations have a trained factor.
    """

    def __init__(
        self,
        name: str,
        batch: int,
        image: tuple[int, int, int],
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.1,
        scale: bool = True,
    ) -> None:
        self.name = name
        self.batch = batch
        self.image = image
        self.last = INPUT
        self._nodes: list[GraphNode] = []
        self._shapes: dict[str, tuple[int, ...]] = {INPUT: image}
        self._epsilon = epsilon
        self._momentum = momentum
        self._scale = scale

    def shape(self, node: str | None = None) -> tuple[int, ...]:
        """Return a node's output shape for one image; the last node's if None."""
        return self._shapes[node or self.last]

    def model(
        self,
        *,
        title: str,
        source: str,
        loss: Loss | None = None,
        decays: Sequence[Decay] = (),
        decay: float = 0,
        optimizer: Optimizer | None = None,
    ) -> Model:
        """Return the finished model; its classes are the features of its last node.

        Args:
            title: Description of the model.
            source: Publication or code that the graph is from.
            loss: Loss of the model; cross entropy if None.
            decays: L2 terms that are added to the loss.
            decay: Factor of an L2 term for each weight and bias, instead of ``decays``.
            optimizer: Update of the weights in the training phase; plain SGD if None.
        """
        loss = loss or Loss()
        return Model(
            name=self.name,
            title=title,
            source=source,
            batch=self.batch,
            image=self.image,
            classes=self.shape()[0] if loss.kind == "cross-entropy" else 0,
            nodes=tuple(self._nodes),
            loss=loss,
            decays=weight_decays(self._nodes, decay) if decay else tuple(decays),
            optimizer=optimizer or Optimizer(),
        )

    def _layer_name(self, node: str) -> str:
        return f"{self.name}/{node}"

    def _map(self, after: str | None) -> tuple[int, int, int]:
        shape = self.shape(after)
        if len(shape) != 3:
            raise ValueError(f"{self.name}/{after or self.last}: features, where maps are needed")
        return shape[0], shape[1], shape[2]

    def _pointwise(self, op: str, name: str, after: str | None) -> Layer:
        shape = self.batch, *self.shape(after)
        return image_layer(op, shape, name=self._layer_name(name))

    def _add(
        self,
        name: str,
        op: Op,
        after: str | tuple[str, ...] | None,
        shape: tuple[int, ...],
        layer: Layer | None,
        *,
        bias: bool = False,
        scale: bool = True,
        weights_init: Init = HE,
        bias_init: Init = ZERO,
    ) -> str:
        node = GraphNode(
            name=name,
            op=op,
            inputs=after if isinstance(after, tuple) else (after or self.last,),
            shape=shape,
            layer=layer,
            bias=bias,
            scale=scale,
            weights_init=weights_init,
            bias_init=bias_init,
        )
        self._nodes.append(node)
        self._shapes[name] = shape
        self.last = name
        return name

    def conv(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: Pad = 0,
        *,
        groups: int = 1,
        bias: bool = True,
        weights_init: Init = HE,
        bias_init: Init = ZERO,
        activation: Activation | None = None,
        after: str | None = None,
    ) -> str:
        """Add a convolution.

        Args:
            name: Name of the node.
            channels: Channels of the output.
            kernel: Taps: a number or (height, width).
            stride: Stride of both sides.
            padding: TensorFlow's ``SAME`` or ``VALID``, a number, (height, width), or
                (top, bottom, left, right).
            groups: Groups of channels.
            bias: Whether the convolution adds a bias.
            weights_init: Initial weights.
            bias_init: Initial bias.
            activation: Elementwise operation behind it; its node is then the one returned.
            after: Node whose output is read; None for the last node.
        """
        inputs, height, width = self._map(after)
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        layer = build_layer(
            "conv",
            batch=self.batch,
            in_channels=inputs,
            in_size=(height, width),
            out_channels=channels,
            kernel=kernel,
            stride=stride,
            padding=pad_sides(padding, (height, width), kernel, stride),
            groups=groups,
            name=self._layer_name(name),
        )
        shape = channels, *layer.out_size
        node = self._add(
            name,
            "conv",
            after,
            shape,
            layer,
            bias=bias,
            weights_init=weights_init,
            bias_init=bias_init,
        )
        return self.activation(activation) if activation else node

    def deconv(
        self, name: str, channels: int, kernel: int, stride: int = 1, *, after: str | None = None
    ) -> str:
        """Add a transposed convolution with a bias and without padding.

        Args:
            name: Name of the node.
            channels: Channels of the output.
            kernel: Taps of both sides.
            stride: Distance between neighbouring windows in the output, for both sides.
            after: Node whose output is read; None for the last node.
        """
        inputs, height, width = self._map(after)
        layer = build_layer(
            "deconv",
            batch=self.batch,
            in_channels=inputs,
            in_size=(height, width),
            out_channels=channels,
            kernel=kernel,
            stride=stride,
            name=self._layer_name(name),
        )
        shape = channels, *layer.out_size
        return self._add(name, "deconv", after, shape, layer, bias=True)

    def linear(
        self,
        name: str,
        outputs: int,
        *,
        bias: bool = True,
        weights_init: Init = HE,
        bias_init: Init = ZERO,
        activation: Activation | None = None,
        after: str | None = None,
    ) -> str:
        """Add a fully connected layer on features, and an activation if one is named."""
        shape = self.shape(after)
        if len(shape) != 1:
            raise ValueError(f"{self._layer_name(name)}: behind {shape}, which is not flattened")
        layer = build_layer(
            "gemm", m=self.batch, k=shape[0], n=outputs, name=self._layer_name(name)
        )
        node = self._add(
            name,
            "linear",
            after,
            (outputs,),
            layer,
            bias=bias,
            weights_init=weights_init,
            bias_init=bias_init,
        )
        return self.activation(activation) if activation else node

    def pool(
        self,
        name: str,
        kernel: int,
        stride: int = 1,
        padding: Pad = 0,
        *,
        mode: str = "max",
        ceil: bool = False,
        count_include_pad: bool = False,
        after: str | None = None,
    ) -> str:
        """Add a pooling; ``ceil`` rounds the output size up, as Caffe does."""
        channels, height, width = self._map(after)
        sides = pad_sides(padding, (height, width), (kernel, kernel), stride, ceil=ceil)
        layer = build_layer(
            "pool",
            batch=self.batch,
            channels=channels,
            in_size=(height, width),
            kernel=kernel,
            stride=stride,
            padding=sides,
            mode=mode,
            count_include_pad=count_include_pad,
            name=self._layer_name(name),
        )
        return self._add(name, "pool", after, (channels, *layer.out_size), layer)

    def global_pool(self, name: str, *, after: str | None = None) -> str:
        """Add the average over a whole map."""
        _, height, width = self._map(after)
        if height != width:
            raise ValueError(f"{self._layer_name(name)}: maps of {height}x{width} are not square")
        return self.pool(name, height, mode="avg", after=after)

    def relu(self, name: str | None = None, *, after: str | None = None) -> str:
        """Add a rectifier, by default named ``<node>/relu`` after its input."""
        return self.activation("relu", name, after=after)

    def activation(
        self, op: Activation, name: str | None = None, *, after: str | None = None
    ) -> str:
        """Add an elementwise operation, by default named ``<node>/<op>`` after its input."""
        source = after or self.last
        name = name or f"{source.removesuffix('/bn').removesuffix('/add')}/{op}"
        return self._add(name, op, after, self.shape(after), self._pointwise(op, name, after))

    def scale(self, name: str, images: str, factors: str) -> str:
        """Add the product of maps and a factor for each of their channels."""
        shape = self._map(images)
        if self.shape(factors) != (shape[0], 1, 1):
            raise ValueError(f"{self._layer_name(name)}: {self.shape(factors)} are no factors")
        layer = self._pointwise("scale", name, images)
        return self._add(name, "scale", (images, factors), shape, layer)

    def lrn(
        self, name: str, size: int, alpha: float, beta: float, k: float, *, after: str | None = None
    ) -> str:
        """Add a local response normalisation; ``alpha`` is TensorFlow's times ``size``."""
        layer = self._pointwise("lrn", name, after)
        layer = layer.replace(local_size=size, alpha=alpha, beta=beta, k=k)
        return self._add(name, "lrn", after, self.shape(after), layer)

    def batchnorm(self, name: str | None = None, *, after: str | None = None) -> str:
        """Add a batch normalisation, by default named ``<node>/bn`` after its input."""
        name = name or f"{after or self.last}/bn"
        layer = self._pointwise("batchnorm", name, after)
        layer = layer.replace(epsilon=self._epsilon, momentum=self._momentum)
        return self._add(name, "batchnorm", after, self.shape(after), layer, scale=self._scale)

    def conv_bn(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: Pad = 0,
        *,
        groups: int = 1,
        activation: Activation | None = "relu",
        after: str | None = None,
    ) -> str:
        """Add a convolution without bias, a batch normalisation, and an activation."""
        self.conv(name, channels, kernel, stride, padding, groups=groups, bias=False, after=after)
        self.batchnorm()
        return self.activation(activation) if activation else self.last

    def dropout(self, name: str, keep: float, *, after: str | None = None) -> str:
        """Add a dropout that keeps an element with probability ``keep``."""
        layer = self._pointwise("dropout", name, after).replace(keep=keep)
        return self._add(name, "dropout", after, self.shape(after), layer)

    def flatten(self, name: str = "flatten", *, after: str | None = None) -> str:
        """Add a node that flattens maps to features."""
        return self._add(name, "flatten", after, (math.prod(self.shape(after)),), None)

    def shift(self, name: str, *, after: str | None = None) -> str:
        """Add a node that drops the first row and column, with zeros behind the last."""
        return self._add(name, "shift", after, self._map(after), None)

    def crop(self, name: str, like: str, *, after: str | None = None) -> str:
        """Add a node that crops maps to the size of another node's maps, keeping the middle."""
        channels, *sizes = self._map(after)
        _, *target = self._map(like)
        if any(size < smaller for size, smaller in zip(sizes, target, strict=True)):
            raise ValueError(f"{self._layer_name(name)}: {sizes} is smaller than {target}")
        return self._add(name, "crop", after, (channels, *target), None)

    def add(self, name: str, first: str, second: str) -> str:
        """Add the sum of two nodes' outputs."""
        shape = self.shape(first)
        if self.shape(second) != shape:
            raise ValueError(f"{self._layer_name(name)}: {shape} and {self.shape(second)} differ")
        return self._add(name, "add", (first, second), shape, self._pointwise("add", name, first))

    def concat(self, name: str, sources: Sequence[str]) -> str:
        """Add the concat of nodes' outputs along the channels."""
        shapes = [self._map(source) for source in sources]
        sides = {shape[1:] for shape in shapes}
        if len(sides) != 1:
            raise ValueError(f"{self._layer_name(name)}: sides {sorted(sides)} differ")
        channels = tuple(shape[0] for shape in shapes)
        shape = sum(channels), *sides.pop()
        layer = image_layer(
            "concat", (self.batch, *shape), sources=channels, name=self._layer_name(name)
        )
        return self._add(name, "concat", tuple(sources), shape, layer)
