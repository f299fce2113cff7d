"""Writing a model down: each call adds one node, its layer and output shape worked out.

A call continues the node that was added last, or the one given as ``after``, and returns the name
of the node it added. All shapes come from the layers themselves, so a graph and what is timed
cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from pydlbench.layers import Conv2d, Gemm, Pointwise, Pool2d
from pydlbench.models.graph import Init, Node
from pydlbench.models.node_list import HE, ZERO, NodeList
from pydlbench.models.padding import Pad, pad_sides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Builder"]


class Builder(NodeList):
    """A model that is being written.

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
        layer = Conv2d.of(
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
        shape = channels, layer.out_height, layer.out_width
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
        layer = Gemm(m=self.batch, k=shape[0], n=outputs, name=self._layer_name(name))
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
        layer = Pool2d.of(
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
        return self._add(name, "pool", after, (channels, layer.out_height, layer.out_width), layer)

    def global_pool(self, name: str, *, after: str | None = None) -> str:
        """Add the average over whole maps."""
        _, height, width = self._map(after)
        if height != width:
            raise ValueError(f"{self._layer_name(name)}: maps of {height}x{width} are not square")
        return self.pool(name, height, mode="avg", after=after)

    def relu(self, name: str | None = None, *, after: str | None = None) -> str:
        """Add a rectifier, called ``<node>/relu`` after the node that it follows."""
        source = after or self.last
        name = name or f"{source.removesuffix('/bn').removesuffix('/add')}/relu"
        return self._add(
            name, "relu", after, self.shape(after), self._pointwise("relu", name, after)
        )

    def lrn(
        self, name: str, size: int, alpha: float, beta: float, k: float, *, after: str | None = None
    ) -> str:
        """Add a local response normalisation; ``alpha`` is cuDNN's: TensorFlow's times ``size``."""
        layer = self._pointwise("lrn", name, after)
        layer = dataclasses.replace(layer, local_size=size, alpha=alpha, beta=beta, k=k)
        return self._add(name, "lrn", after, self.shape(after), layer)

    def batchnorm(self, name: str | None = None, *, after: str | None = None) -> str:
        """Add a batch normalisation, called ``<node>/bn`` after the node that it follows."""
        name = name or f"{after or self.last}/bn"
        layer = dataclasses.replace(
            self._pointwise("batchnorm", name, after),
            epsilon=self._epsilon,
            momentum=self._momentum,
        )
        return self._add(name, "batchnorm", after, self.shape(after), layer, scale=self._scale)

    def conv_bn(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: Pad = 0,
        *,
        relu: bool = True,
        after: str | None = None,
    ) -> str:
        """Add a convolution without bias, a batch normalisation, and a rectifier if asked for."""
        self.conv(name, channels, kernel, stride, padding, bias=False, after=after)
        self.batchnorm()
        return self.relu() if relu else self.last

    def dropout(self, name: str, keep: float, *, after: str | None = None) -> str:
        """Add a dropout that keeps an element with probability ``keep``."""
        layer = dataclasses.replace(self._pointwise("dropout", name, after), keep=keep)
        return self._add(name, "dropout", after, self.shape(after), layer)

    def flatten(self, name: str = "flatten", *, after: str | None = None) -> str:
        """Add the turning of maps into features."""
        return self._add(name, "flatten", after, (math.prod(self.shape(after)),), None)

    def shift(self, name: str, *, after: str | None = None) -> str:
        """Add the dropping of the first row and column, with zeros behind the last."""
        return self._add(name, "shift", after, self._map(after), None)

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
        layer = Pointwise(
            op="concat",
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
