"""Writing a model down: each call adds one node, its layer and output shape worked out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydlbench.models.graph import INPUT, Init, Loss, Model, Node, Optimizer, weight_decays
from pydlbench.ops.table import build_layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.models.graph import Decay, Op
    from pydlbench.ops.op import Layer

#: Operations on each element of one node's output.
Activation: TypeAlias = Literal["relu", "relu6", "hardswish", "hardsigmoid"]


# -----------------------------------------------------------------------------
# A model's nodes while they are being written down: names, shapes, and the finished model.

ZERO = Init(kind="constant")
HE = Init(kind="he")


class NodeList:
    """The nodes so far.

    Args:
        name: Of the model; layers are called ``<name>/<node>``.
        batch: Images per step.
        image: ``(channels, height, width)`` of an image.
    """

    def __init__(self, name: str, batch: int, image: tuple[int, int, int]) -> None:
        self.name = name
        self.batch = batch
        self.image = image
        self.last = INPUT
        self._nodes: list[Node] = []
        self._shapes: dict[str, tuple[int, ...]] = {INPUT: image}

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
            title: In words.
            source: Where the graph was read.
            loss: What is differentiated; cross entropy if None.
            decays: L2 terms.
            decay: The factor of an L2 term for each weight and bias, instead of ``decays``.
            optimizer: Of the training phase; plain descent if None.
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
        channels, height, width = (*self.shape(after), 1, 1)[:3]
        return build_layer(
            op,
            batch=self.batch,
            channels=channels,
            height=height,
            width=width,
            name=self._layer_name(name),
        )

    def _add(
        self,
        name: str,
        op: Op,
        after: str | None,
        shape: tuple[int, ...],
        layer: Layer | None,
        *,
        bias: bool = False,
        scale: bool = True,
        weights_init: Init = HE,
        bias_init: Init = ZERO,
    ) -> str:
        return self._append(
            Node(
                name=name,
                op=op,
                inputs=(after or self.last,),
                shape=shape,
                layer=layer,
                bias=bias,
                scale=scale,
                weights_init=weights_init,
                bias_init=bias_init,
            )
        )

    def _append(self, node: Node) -> str:
        self._nodes.append(node)
        self._shapes[node.name] = node.shape
        self.last = node.name
        return node.name


# -----------------------------------------------------------------------------
# Padding as frameworks name it, worked out into the four sides that layers take.

#: What a model's definition says: TensorFlow's names, a number, (height, width), or
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
    """Return (top, bottom, left, right).

    Args:
        padding: As the model's definition says.
        size: Input (height, width).
        kernel: Taps, (height, width).
        stride: Of both sides.
        ceil: Whether the output size is rounded up: what the last window lacks is padded behind.
    """
    if padding == "VALID":
        padding = 0
    if padding == "SAME":
        top, bottom = _same(size[0], kernel[0], stride)
        left, right = _same(size[1], kernel[1], stride)
        return top, bottom, left, right
    if isinstance(padding, int):
        padding = (padding, padding)
    if len(padding) == 2:
        padding = (padding[0], padding[0], padding[1], padding[1])
    top, bottom, left, right = padding
    if ceil:
        bottom = _ceil(size[0], kernel[0], stride, top, bottom)
        right = _ceil(size[1], kernel[1], stride, left, right)
    return top, bottom, left, right


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the two pads for ``ceil(size / stride)`` outputs; the odd one is behind."""
    outputs = -(-size // stride)
    total = max(0, (outputs - 1) * stride + kernel - size)
    return total // 2, total - total // 2


def _ceil(size: int, kernel: int, stride: int, leading: int, trailing: int) -> int:
    """Return the trailing pad with which the output size is rounded up.

    A window that would begin behind the last element, in the padding, is left out, as in torch.
    """
    outputs = -(-(size + leading + trailing - kernel) // stride) + 1
    if (outputs - 1) * stride >= size + leading:
        outputs -= 1
    return max(0, (outputs - 1) * stride + kernel - size - leading)


class Builder(NodeList):
    """A model that is being written: each call adds one node.

    A call continues the node that was added last, or the one given as ``after``, and returns the
    name of the node it added. All shapes come from the layers themselves, so a graph and what is
    timed cannot disagree.

    Args:
        name: Of the model; layers are called ``<name>/<node>``.
        batch: Images per step.
        image: ``(channels, height, width)`` of an image.
        epsilon: Of batch normalisations.
        momentum: Of their running statistics: one minus what TensorFlow calls decay.
        scale: Whether they have a trained factor.
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
        super().__init__(name, batch, image)
        self._epsilon = epsilon
        self._momentum = momentum
        self._scale = scale

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
        after: str | None = None,
    ) -> str:
        """Add a convolution.

        Args:
            name: Of the node.
            channels: Of its output.
            kernel: Taps: a number or (height, width).
            stride: Of both sides.
            padding: ``SAME`` or ``VALID`` as TensorFlow has them, a number, (height, width), or
                (top, bottom, left, right).
            groups: Groups of channels.
            bias: Whether it adds one.
            weights_init: How its weights start.
            bias_init: How its bias starts.
            after: The node whose output it takes.
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
        return self._add(
            name,
            "conv",
            after,
            shape,
            layer,
            bias=bias,
            weights_init=weights_init,
            bias_init=bias_init,
        )

    def deconv(
        self, name: str, channels: int, kernel: int, stride: int = 1, *, after: str | None = None
    ) -> str:
        """Add a transposed convolution with a bias, its windows not cut off.

        Args:
            name: Of the node.
            channels: Of its output.
            kernel: Taps of both sides.
            stride: Of both sides: how far windows lie apart in the output.
            after: The node whose output it takes.
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
        after: str | None = None,
    ) -> str:
        """Add a fully connected layer behind features."""
        shape = self.shape(after)
        if len(shape) != 1:
            raise ValueError(f"{self._layer_name(name)}: behind {shape}, which is not flattened")
        layer = build_layer(
            "gemm", m=self.batch, k=shape[0], n=outputs, name=self._layer_name(name)
        )
        return self._add(
            name,
            "linear",
            after,
            (outputs,),
            layer,
            bias=bias,
            weights_init=weights_init,
            bias_init=bias_init,
        )

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
        """Add a pooling; ``ceil`` rounds the output size up, as Caffe does and torch may."""
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
        """Add the average over whole maps."""
        _, height, width = self._map(after)
        if height != width:
            raise ValueError(f"{self._layer_name(name)}: maps of {height}x{width} are not square")
        return self.pool(name, height, mode="avg", after=after)

    def relu(self, name: str | None = None, *, after: str | None = None) -> str:
        """Add a rectifier, called ``<node>/relu`` after the node that it follows."""
        return self.activation("relu", name, after=after)

    def activation(
        self, op: Activation, name: str | None = None, *, after: str | None = None
    ) -> str:
        """Add an operation on each element, called ``<node>/<op>`` after the node it follows."""
        source = after or self.last
        name = name or f"{source.removesuffix('/bn').removesuffix('/add')}/{op}"
        return self._add(name, op, after, self.shape(after), self._pointwise(op, name, after))

    def scale(self, name: str, images: str, factors: str) -> str:
        """Add the product of maps and a factor for each of their channels."""
        shape = self._map(images)
        if self.shape(factors) != (shape[0], 1, 1):
            raise ValueError(f"{self._layer_name(name)}: {self.shape(factors)} are no factors")
        layer = self._pointwise("scale", name, images)
        return self._append(
            Node(name=name, op="scale", inputs=(images, factors), shape=shape, layer=layer)
        )

    def lrn(
        self, name: str, size: int, alpha: float, beta: float, k: float, *, after: str | None = None
    ) -> str:
        """Add a local response normalisation; ``alpha`` is cuDNN's: TensorFlow's times ``size``."""
        layer = self._pointwise("lrn", name, after)
        layer = layer.replace(local_size=size, alpha=alpha, beta=beta, k=k)
        return self._add(name, "lrn", after, self.shape(after), layer)

    def batchnorm(self, name: str | None = None, *, after: str | None = None) -> str:
        """Add a batch normalisation, called ``<node>/bn`` after the node that it follows."""
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
        """Add a convolution without bias, a batch normalisation, and an activation behind."""
        self.conv(name, channels, kernel, stride, padding, groups=groups, bias=False, after=after)
        self.batchnorm()
        return self.activation(activation) if activation else self.last

    def dropout(self, name: str, keep: float, *, after: str | None = None) -> str:
        """Add a dropout that keeps an element with probability ``keep``."""
        layer = self._pointwise("dropout", name, after).replace(keep=keep)
        return self._add(name, "dropout", after, self.shape(after), layer)

    def flatten(self, name: str = "flatten", *, after: str | None = None) -> str:
        """Add the turning of maps into features."""
        return self._add(name, "flatten", after, (math.prod(self.shape(after)),), None)

    def shift(self, name: str, *, after: str | None = None) -> str:
        """Add the dropping of the first row and column, with zeros behind the last."""
        return self._add(name, "shift", after, self._map(after), None)

    def crop(self, name: str, like: str, *, after: str | None = None) -> str:
        """Add the middle of maps, as large as those of another node."""
        channels, *sizes = self._map(after)
        _, *wanted = self._map(like)
        if any(size < least for size, least in zip(sizes, wanted, strict=True)):
            raise ValueError(f"{self._layer_name(name)}: {sizes} is smaller than {wanted}")
        return self._add(name, "crop", after, (channels, *wanted), None)

    def add(self, name: str, first: str, second: str) -> str:
        """Add the sum of two nodes' outputs."""
        shape = self.shape(first)
        if self.shape(second) != shape:
            raise ValueError(f"{self._layer_name(name)}: {shape} and {self.shape(second)} differ")
        layer = self._pointwise("add", name, first)
        return self._append(
            Node(name=name, op="add", inputs=(first, second), shape=shape, layer=layer)
        )

    def concat(self, name: str, sources: Sequence[str]) -> str:
        """Add the joining of nodes' outputs along the channels."""
        shapes = [self._map(source) for source in sources]
        sides = {shape[1:] for shape in shapes}
        if len(sides) != 1:
            raise ValueError(f"{self._layer_name(name)}: sides {sorted(sides)} differ")
        ((height, width),) = sides
        channels = tuple(shape[0] for shape in shapes)
        layer = build_layer(
            "concat",
            batch=self.batch,
            channels=sum(channels),
            height=height,
            width=width,
            sources=channels,
            name=self._layer_name(name),
        )
        shape = sum(channels), height, width
        return self._append(
            Node(name=name, op="concat", inputs=tuple(sources), shape=shape, layer=layer)
        )
