"""A model's graph as a module of PyTorch: straight-line code as its users write it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import fx, nn
from torch.nn.utils import skip_init

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.deconv import Deconv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d
from pydlbench.models.graph import INPUT, cropped
from pydlbench.steps.inputs import weight_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model, Node

__all__ = ["Net"]


# -----------------------------------------------------------------------------
# Convolutions and poolings as PyTorch has them: what pads unevenly is padded beforehand.


def padding_before(layer: Conv2d | Pool2d) -> tuple[int, int, int, int] | None:
    """Return what must be padded first: (left, right, top, bottom); None where nothing must.

    PyTorch pads both ends of an axis alike, and poolings by half a window at the most.
    """
    sides = (layer.pad_left, layer.pad_right, layer.pad_top, layer.pad_bottom)
    even = layer.pad_left == layer.pad_right and layer.pad_top == layer.pad_bottom
    if even and layer.kind == "pool2d":
        even = 2 * layer.pad_top <= layer.kernel_height and 2 * layer.pad_left <= layer.kernel_width
    return None if even else sides


def convolution(layer: Conv2d, bias: bool) -> nn.Module:
    """Return the module of a convolution; what :func:`padding_before` says has been padded."""
    padded = padding_before(layer) is not None
    # PyTorch's own initialisation takes time, and nobody would read it.
    make: Any = skip_init
    made: nn.Module = make(
        nn.Conv2d,
        layer.in_channels,
        layer.out_channels,
        (layer.kernel_height, layer.kernel_width),
        (layer.stride_height, layer.stride_width),
        (0, 0) if padded else (layer.pad_top, layer.pad_left),
        (layer.dilation_height, layer.dilation_width),
        layer.groups,
        bias=bias,
    )
    return made


def transposed_convolution(layer: Deconv2d, bias: bool) -> nn.Module:
    """Return the module of a transposed convolution, whose result has its least size."""
    make: Any = skip_init
    made: nn.Module = make(
        nn.ConvTranspose2d,
        layer.in_channels,
        layer.out_channels,
        (layer.kernel_height, layer.kernel_width),
        (layer.stride_height, layer.stride_width),
        (layer.pad_top, layer.pad_left),
        groups=layer.groups,
        bias=bias,
        dilation=(layer.dilation_height, layer.dilation_width),
    )
    return made


def linear(layer: Gemm, bias: bool) -> nn.Module:
    """Return the module of a product."""
    # Its own initialisation of large matrices takes seconds, and nobody would read it.
    make: Any = skip_init
    made: nn.Module = make(nn.Linear, layer.k, layer.n, bias=bias)
    return made


def pooling(layer: Pool2d) -> nn.Module:
    """Return the module of a pooling; what :func:`padding_before` says has been padded."""
    padded = padding_before(layer) is not None
    kernel = (layer.kernel_height, layer.kernel_width)
    stride = (layer.stride_height, layer.stride_width)
    padding = (0, 0) if padded else (layer.pad_top, layer.pad_left)
    if layer.mode == "max":
        return nn.MaxPool2d(kernel, stride, padding)
    if padded and not layer.count_include_pad:
        return ScaledAverage(layer)
    return nn.AvgPool2d(kernel, stride, padding, count_include_pad=layer.count_include_pad)


class ScaledAverage(nn.Module):  # type: ignore[misc]  # an unknown class to mypy
    """An average over what was padded beforehand, scaled so that padding does not count.

    Args:
        layer: the pooling.
    """

    def __init__(self, layer: Pool2d) -> None:
        super().__init__()
        self._kernel = (layer.kernel_height, layer.kernel_width)
        self._stride = (layer.stride_height, layer.stride_width)
        whole = layer.kernel_height * layer.kernel_width
        scale = whole / np.multiply.outer(*layer.elements_inside())
        self.register_buffer("scale", torch.from_numpy(scale.astype(np.float32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the averages over the elements inside the image."""
        scale: Any = self.scale
        average: torch.Tensor = nn.functional.avg_pool2d(x, self._kernel, self._stride)
        return average.mul(scale.to(x.dtype))


# -----------------------------------------------------------------------------
# A model's graph as a module: straight-line code as its users write it.
#
# ``torch.fx`` turns the graph into a ``forward`` of one line per node, which drops each
# activation after its last reader, as code written by hand does by using a name again. ReLU, ReLU6,
# hardswish and addition work in place where nobody else reads their input, as in torchvision's
# models.

# Whose gradient does not need their own output: it may be overwritten.
_OVERWRITABLE = frozenset({"conv", "deconv", "linear", "batchnorm", "add"})
_ACTIVATIONS: Mapping[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardswish": nn.Hardswish,
}
# Our roles by PyTorch's names.
_ROLES = {
    "weights": "weight",
    "bias": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
}


class Net:
    """A model as a module, its nodes known by name.

    Args:
        model: the graph.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._modules: dict[str, nn.Module] = {}
        self._paths: dict[str, str] = {}
        self._graph = fx.Graph()
        self._readers = model.readers()
        #: The node of ours by the name of each node of fx that holds its output.
        self.outputs: dict[str, str] = {}
        values: dict[str, fx.Node] = {INPUT: self._graph.placeholder("images")}
        for node in model:
            values[node.name] = self._add(node, [values[name] for name in node.inputs])
            self.outputs[values[node.name].name] = node.name
        self._graph.output(values[model.output.name])
        self.module = fx.GraphModule(self._modules, self._graph, class_name="Net")

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and running statistics by ``<node>/<role>``."""
        found = {}
        for node in self.model:
            for role in weight_shapes(node):
                module = self.module.get_submodule(self._paths[node.name])
                found[f"{node.name}/{role}"] = getattr(module, _ROLES[role])
        return found

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights by name; products' are stored transposed."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                array = weights[name]
                tensor.copy_(torch.from_numpy(array.T if array.ndim == 2 else array))

    def plain(self, name: str, tensor: torch.Tensor) -> NDArray[Any]:
        """Return a tensor's (or its gradient's) values as they are by name, in float32."""
        array: NDArray[Any] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
        return array.T if array.ndim == 2 and name.endswith("/weights") else array

    def _add(self, node: Node, inputs: list[fx.Node]) -> fx.Node:
        layer = node.layer
        if isinstance(layer, (Conv2d, Pool2d)):
            made = convolution(layer, node.bias) if isinstance(layer, Conv2d) else pooling(layer)
            sides = padding_before(layer)
            if sides:
                least = isinstance(layer, Pool2d) and layer.mode == "max"
                inputs = [self._pad(inputs[0], sides, float("-inf") if least else 0.0)]
            return self._call(node, made, inputs)
        if isinstance(layer, Deconv2d):
            return self._call(node, transposed_convolution(layer, node.bias), inputs)
        if isinstance(layer, Gemm):
            return self._call(node, linear(layer, node.bias), inputs)
        if isinstance(layer, Pointwise):
            return self._of_elements(node, layer, inputs)
        if node.op == "flatten":
            return self._graph.call_function(torch.flatten, (inputs[0], 1))
        assert node.op in ("shift", "crop"), node.op
        dropped = (1, -1, 1, -1) if node.op == "shift" else cropped(self.model, node)
        return self._pad(inputs[0], tuple(-side for side in dropped), 0.0)

    def _of_elements(self, node: Node, layer: Pointwise, inputs: list[fx.Node]) -> fx.Node:
        if node.op == "add":
            function = operator.iadd if self._free(node) else operator.add
            return self._graph.call_function(function, tuple(inputs))
        if node.op == "scale":
            return self._graph.call_function(operator.mul, tuple(inputs))
        if node.op == "concat":
            return self._graph.call_function(torch.cat, (inputs, 1))
        return self._call(node, self._pointwise(node, layer), inputs)

    def _pointwise(self, node: Node, layer: Pointwise) -> nn.Module:
        if node.op in _ACTIVATIONS:
            return _ACTIVATIONS[node.op](inplace=self._free(node))
        if node.op == "hardsigmoid":
            return nn.Hardsigmoid()
        if node.op == "dropout":
            return nn.Dropout(1 - layer.keep)
        if node.op == "lrn":
            return nn.LocalResponseNorm(layer.local_size, layer.alpha, layer.beta, layer.k)
        assert node.op == "batchnorm", node.op
        made = nn.BatchNorm2d(layer.channels, layer.epsilon, layer.momentum)
        # Without a trained factor it stays at one.
        made.weight.requires_grad_(node.scale)
        return made

    def _free(self, node: Node) -> bool:
        """Whether a node may overwrite its first input."""
        first = node.inputs[0]
        if first == INPUT or len(self._readers[first]) > 1:
            return False
        return self.model[first].op in _OVERWRITABLE

    def _call(self, node: Node, made: nn.Module, inputs: list[fx.Node]) -> fx.Node:
        # Names of modules have neither slashes nor dots, and may not begin with a digit.
        path = f"n{len(self._paths)}_" + "".join(c if c.isalnum() else "_" for c in node.name)
        self._paths[node.name] = path
        self._modules[path] = made
        return self._graph.call_module(path, tuple(inputs))

    def _pad(self, image: fx.Node, sides: tuple[int, ...], value: float) -> fx.Node:
        return self._graph.call_function(F.pad, (image, sides, "constant", value))
