"""What PyTorch calls for each kind of layer: for a pass of it alone, and as a node of a network.

A pass alone is called through ATen's operators, without autograd's bookkeeping. A new kind of
layer is an entry in :data:`LAYERS`, and a memory-bound operation one in
:data:`~pydlbench.backends.torch.pointwise.POINTWISE`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import nn
from torch.nn.utils import skip_init

from pydlbench.backends.frameworks.backend import entry_of
from pydlbench.backends.torch import pointwise
from pydlbench.backends.torch.operator import (
    LayerCalls,
    Made,
    NodeCall,
    Recipe,
    image_recipes,
    padding_text,
)
from pydlbench.backends.torch.settings import stored
from pydlbench.errors import UnsupportedError
from pydlbench.ops.axis import extent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.backends.torch.operator import NodeSite, Operands
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec

# A module whose own initialisation, which takes seconds for large ones, nobody would read.
_uninitialised: Any = skip_init


# -----------------------------------------------------------------------------
# Windows, as PyTorch has them.
#
# It pads both ends of an axis alike, and poolings by half a window at the most. Where a layer does
# otherwise, its users pad first (with minus infinity for a maximum), and pay for it: the forward
# pass is then two operators in one call, and so is backward-data, which cuts the padding off its
# result. Backward-weights reads the padded source that the forward pass keeps.


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution or pooling; pairs are (height, width).

    Attributes:
        kernel: its taps.
        stride: from one output to the next.
        padding: what the operator pads at both ends of each axis.
        pads: (left, right, top, bottom) that must be padded beforehand; empty where the operator
            pads by itself.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    pads: tuple[int, ...]

    @property
    def cuts(self) -> list[int]:
        """What takes ``pads`` off again."""
        return [-side for side in self.pads]


def window_of(layer: Layer) -> Window:
    """Return a layer's window."""
    sides = (layer.pad_before[1], layer.pad_after[1], layer.pad_before[0], layer.pad_after[0])
    kernel, padding = layer.kernel, layer.pad_before
    alike = layer.pad_before[1] == layer.pad_after[1] and layer.pad_before[0] == layer.pad_after[0]
    if layer.op == "pool":
        alike = alike and all(2 * pad <= taps for pad, taps in zip(padding, kernel, strict=True))
    return Window(
        kernel=kernel,
        stride=layer.stride,
        padding=padding if alike else (0, 0),
        pads=() if alike else sides,
    )


# -----------------------------------------------------------------------------
# Convolutions, and transposed ones: the gradients of both are one operator of ATen's.

_CONV_NAMES = {
    "forward": "aten::convolution",
    "backward-data": "aten::convolution_backward",
    "backward-weights": "aten::convolution_backward",
}


def conv_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a convolution: one per memory format."""
    algorithm = _CONV_NAMES[case.pass_]
    notes: tuple[str, ...] = ()
    pads = window_of(layer).pads
    if pads:
        algorithm, notes = _padded(case.pass_, algorithm, pads)
    bias = case.fuse == "bias"
    if bias:
        algorithm += " with bias"
    make = functools.partial(_conv_gradient, pass_=case.pass_, bias=bias)
    if case.pass_ == "forward":
        make = functools.partial(_conv, bias=bias)
    return image_recipes(algorithm, _conv_layout, make, notes=notes)


def conv_in_network(layer: Layer, site: NodeSite) -> NodeCall:
    """Return the module of a convolution."""
    window = window_of(layer)
    module = _uninitialised(
        nn.Conv2d,
        layer.in_channels,
        layer.out_channels,
        window.kernel,
        window.stride,
        window.padding,
        layer.dilation,
        layer.groups,
        bias=site.node.bias,
    )
    return NodeCall(module, site.inputs, window.pads)


def _padded(pass_: str, name: str, sides: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
    """Name what an uneven padding makes of an operator, and say why."""
    why = f"torch pads both ends of an axis alike; here {padding_text(sides)}"
    if pass_ == "forward":
        return f"aten::constant_pad_nd + {name}", (f"{why}: padded within the call",)
    if pass_ == "backward-data":
        return f"{name} + aten::constant_pad_nd", (f"{why}: cut off within the call",)
    return name, (f"{why}: reads the padded source that the forward pass keeps",)


def _conv_layout(word: str) -> str:
    return f"src {word}, weights {'oihw' if word == 'nchw' else 'ohwi'}, dst {word}"


def _conv(operands: Operands, *, bias: bool) -> Made:
    layer, window = operands.layer, window_of(operands.layer)
    pads = window.pads
    settings = (
        window.stride,
        window.padding,
        layer.dilation,
        layer.groups,
    )

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> Any:
        if pads:
            x = F.pad(x, pads)
        return torch.conv2d(x, w, b, *settings)

    roles = ("src", "weights", "bias") if bias else ("src", "weights")
    return Made(forward, tuple(map(operands.tensor, roles)))


def _conv_gradient(operands: Operands, *, pass_: str, bias: bool) -> Made:
    layer, window = operands.layer, window_of(operands.layer)
    settings = (
        [layer.out_channels] if bias else [0],
        window.stride,
        window.padding,
        layer.dilation,
        False,
        (0, 0),
        layer.groups,
    )
    return _gradients(operands, pass_, settings, window, bias=bias)


def _gradients(
    operands: Operands,
    pass_: str,
    settings: tuple[Any, ...],
    window: Window | None = None,
    *,
    bias: bool = False,
) -> Made:
    """Return the gradient of a convolution's source or weights, transposed or not.

    Args:
        operands: of the layer.
        pass_: ``backward-data`` or ``backward-weights``.
        settings: what the operator is told of the convolution.
        window: of one that may have to be padded beforehand.
        bias: whether the gradient of a bias is given beside that of the weights.
    """
    backward = torch.ops.aten.convolution_backward.default
    gradient = operands.tensor("dst")
    pads, cuts = (window.pads, window.cuts) if window else ((), [])
    if pass_ == "backward-data":
        source, weights = operands.shape_of("src"), operands.tensor("weights")
    else:
        source, weights = operands.tensor("src"), operands.shape_of("weights")
    if pads:
        source = F.pad(source, pads)

    def backward_data(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        found = backward(g, x, w, *settings, [True, False, False])[0]
        return F.pad(found, cuts) if cuts else found

    def backward_weights(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return backward(g, x, w, *settings, [False, True, bias])[1:]

    def plain(results: Any) -> Any:
        return {"weights": results[0], "bias": results[1]} if bias else results[0]

    arguments = gradient, source, weights
    if pass_ == "backward-data":
        return Made(backward_data, arguments)
    return Made(backward_weights, arguments, plain)


def deconv_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a transposed convolution: one per memory format.

    Raises:
        UnsupportedError: The result has a size that PyTorch's padding does not give.
    """
    _further(layer)
    make = functools.partial(_deconv_gradient, pass_=case.pass_)
    return image_recipes(
        f"{_CONV_NAMES[case.pass_]} transposed",
        lambda word: f"src {word}, weights {'iohw' if word == 'nchw' else 'ihwo'}, dst {word}",
        _deconv if case.pass_ == "forward" else make,
    )


def deconv_in_network(layer: Layer, site: NodeSite) -> NodeCall:
    """Return the module of a transposed convolution.

    Raises:
        UnsupportedError: The result has a size that PyTorch's padding does not give.
    """
    *settings, dilation = _deconv_settings(layer)
    module = _uninitialised(
        nn.ConvTranspose2d,
        layer.in_channels,
        layer.out_channels,
        layer.kernel,
        *settings,
        bias=site.node.bias,
        dilation=dilation,
    )
    return NodeCall(module, site.inputs)


def _deconv_settings(layer: Layer) -> tuple[Any, ...]:
    """Return stride, padding, how far the result goes further, groups and dilation.

    Raises:
        UnsupportedError: The result has a size that PyTorch's padding does not give.
    """
    return (
        layer.stride,
        layer.pad_before,
        _further(layer),
        layer.groups,
        layer.dilation,
    )


def _further(layer: Layer) -> tuple[int, int]:
    """Return by how much the result is larger than the least that has its source, (height, width).

    Raises:
        UnsupportedError: By something that PyTorch's padding does not give.
    """
    stride = layer.stride
    dilation = layer.dilation
    height = (layer.in_size[0] - 1) * stride[0] + extent(layer.kernel[0], dilation[0])
    width = (layer.in_size[1] - 1) * stride[1] + extent(layer.kernel[1], dilation[1])
    further = (
        layer.out_size[0] + 2 * layer.pad_before[0] - height,
        layer.out_size[1] + 2 * layer.pad_before[1] - width,
    )
    for one, *steps in zip(further, stride, dilation, strict=True):
        if not 0 <= one < max(steps):
            raise UnsupportedError(
                f"torch pads both ends of an axis alike, and {layer.problem} does not"
            )
    return further


def _deconv(operands: Operands) -> Made:
    settings = _deconv_settings(operands.layer)

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.conv_transpose2d(x, w, None, *settings)

    return Made(forward, (operands.tensor("src"), operands.tensor("weights")))


def _deconv_gradient(operands: Operands, *, pass_: str) -> Made:
    stride, padding, further, groups, dilation = _deconv_settings(operands.layer)
    settings = ([0], stride, padding, dilation, True, further, groups)
    return _gradients(operands, pass_, settings)


# -----------------------------------------------------------------------------
# Matrix products: as ``torch.nn.Linear`` keeps its weights (``nk``), and with plain ones
# (``kn``).
#
# Views of transposed operands are made beforehand: a product takes any strides.

# FP8 kernels read both factors along the summed dimension, 16 elements at a time.
_FP8_MULTIPLE = 16
_FP8_LAYOUTS = {
    "forward": "src mk, weights nk, dst mn",
    "backward-data": "src mk, weights kn, dst mn",
    "backward-weights": "src km, weights kn, dst nm",
}


def gemm_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a product: transposed and plain weights; in FP8 there is one.

    Raises:
        UnsupportedError: A product that PyTorch does not have in FP8.
    """
    if case.precision == "fp8-tc":
        if case.fuse != "none":
            raise UnsupportedError("torch: no product in fp8-tc with a bias here")
        return _scaled_recipes(layer, case.pass_)
    return [
        _gemm_recipe(layer, case.pass_, transposed=transposed, bias=case.fuse == "bias")
        for transposed in (True, False)
    ]


def linear_in_network(layer: Layer, site: NodeSite) -> NodeCall:
    """Return the module of a product with trained weights."""
    return NodeCall(_uninitialised(nn.Linear, layer.k, layer.n, bias=site.node.bias), site.inputs)


def _gemm_recipe(layer: Layer, pass_: str, *, transposed: bool, bias: bool) -> Recipe:
    many = layer.batch_count > 1
    name = "aten::bmm" if many else "aten::mm"
    if transposed and pass_ == "forward" and not many:
        name = "aten::linear"
    make = functools.partial(_gemm, pass_=pass_, transposed=transposed)
    if bias and pass_ == "forward":
        name = {"aten::mm": "aten::addmm", "aten::bmm": "aten::baddbmm"}.get(name, name)
        name += " with bias"
        make = functools.partial(_gemm_with_bias, transposed=transposed)
    elif bias:
        name += " + aten::sum"
        make = functools.partial(_gemm_with_bias_gradient, pass_=pass_, transposed=transposed)
    letter, weights = "g" if many else "", "nk" if transposed else "kn"
    return Recipe(
        algorithm=name,
        layout=f"src {letter}mk, weights {letter}{weights}, dst {letter}mn",
        variant="transposed" if transposed else "plain",
        make=make,
    )


def _gemm(operands: Operands, *, pass_: str, transposed: bool) -> Made:
    many = operands.layer.batch_count > 1

    def operand(role: str) -> torch.Tensor:
        array = operands.inputs[role]
        if role == "weights" and transposed:
            array = array.swapaxes(1, 2)
        tensor = operands.place.tensor(array)
        return tensor if many else tensor[0]

    multiply: Callable[..., Any] = torch.bmm if many else torch.mm
    if pass_ == "forward":
        source, weights = operand("src"), operand("weights")
        if transposed and not many:
            return _product(F.linear, source, weights)
        return _product(multiply, source, weights.mT if transposed else weights)
    if pass_ == "backward-data":
        gradient, weights = operand("dst"), operand("weights")
        return _product(multiply, gradient, weights if transposed else weights.mT)
    source, gradient = operand("src"), operand("dst")
    if transposed:  # the gradient lies as the weights do
        return _product(multiply, gradient.mT, source, turned=True)
    return _product(multiply, source.mT, gradient)


def _product(
    multiply: Callable[..., Any], left: torch.Tensor, right: torch.Tensor, turned: bool = False
) -> Made:
    def product(a: torch.Tensor, b: torch.Tensor) -> Any:
        return multiply(a, b)

    def plain(result: torch.Tensor) -> torch.Tensor:
        found = result.mT if turned else result
        return found if found.dim() == 3 else found[None]

    return Made(product, (left, right), plain)


def _gemm_with_bias(operands: Operands, *, transposed: bool) -> Made:
    """A forward pass whose operator adds the bias as well."""
    alone = _gemm(operands, pass_="forward", transposed=transposed)
    many = operands.layer.batch_count > 1
    linear = transposed and not many
    add_multiply: Callable[..., Any] = torch.baddbmm if many else torch.addmm

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return F.linear(a, b, c) if linear else add_multiply(c, a, b)

    return Made(product, (*alone.arguments, operands.tensor("bias")), alone.plain)


def _gemm_with_bias_gradient(operands: Operands, *, pass_: str, transposed: bool) -> Made:
    """The gradient of the weights, and that of the bias by the operator behind it."""
    alone = _gemm(operands, pass_=pass_, transposed=transposed)
    multiply = alone.function

    def both(a: torch.Tensor, b: torch.Tensor) -> Any:
        gradient = a.mT if transposed else b
        return multiply(a, b), gradient.sum(tuple(range(gradient.dim() - 1)))

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        weights = alone.plain(results[0])
        assert isinstance(weights, torch.Tensor)
        return {"weights": weights, "bias": results[1]}

    return Made(both, alone.arguments, plain)


def _scaled_recipes(layer: Layer, pass_: str) -> list[Recipe]:
    """List the one way to run a pass of a product in FP8: ``torch._scaled_mm``, scales of one.

    Raises:
        UnsupportedError: Several products at once, or sizes that are no multiples of 16.
    """
    if layer.batch_count > 1:
        raise UnsupportedError("torch has no batched product in fp8-tc")
    if any(size % _FP8_MULTIPLE for size in (layer.m, layer.k, layer.n)):
        raise UnsupportedError(
            f"fp8-tc needs sizes that are multiples of 16, and {layer.problem} has others"
        )
    return [
        Recipe(
            algorithm="aten::_scaled_mm",
            layout=_FP8_LAYOUTS[pass_],
            variant="transposed",
            make=functools.partial(_scaled, pass_=pass_),
            notes=(
                "fp8-tc: scales of one, no fast accumulation; the result is stored in bfloat16",
            ),
        )
    ]


def _scaled(operands: Operands, *, pass_: str) -> Made:
    # The second factor is given as a view: its columns lie in a row.
    def operand(role: str, turned: bool) -> torch.Tensor:
        array = operands.inputs[role][0]
        return operands.place.tensor(array.T if turned else array)

    if pass_ == "forward":
        left, right = operand("src", turned=False), operand("weights", turned=True)
    elif pass_ == "backward-data":
        left, right = operand("dst", turned=False), operand("weights", turned=False)
    else:
        left, right = operand("src", turned=True), operand("dst", turned=True)
    one = torch.ones((), dtype=torch.float32, device=operands.place.device)

    def product(
        a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
    ) -> Any:
        return torch._scaled_mm(  # noqa: SLF001 - the one way to FP8
            a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=False
        )

    return Made(product, (left, right.t(), one, one.clone()), lambda result: result[None])


# -----------------------------------------------------------------------------
# Poolings: forward and backward-data.


def pool_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a pooling: one per memory format.

    Raises:
        UnsupportedError: An average that leaves out padding which the operator does not have.
    """
    pads = window_of(layer).pads
    average, forward = layer.mode == "avg", case.pass_ == "forward"
    if average and pads and not layer.count_include_pad:
        raise UnsupportedError(
            "torch pads poolings alike on both ends, by half a window at the most, and has no "
            f"average that leaves out any other padding ({padding_text(pads)})"
        )
    # The forward pass of a training hands out where its maxima are.
    indices = not average and not (forward and case.propagation == "inference")
    name = "aten::avg_pool2d" if average else "aten::max_pool2d"
    name += "_with_indices" if indices else ""
    algorithm = name if forward else f"{name}_backward"
    notes: tuple[str, ...] = ()
    if pads:
        pad = "aten::constant_pad_nd"
        algorithm = f"{pad} + {algorithm}" if forward else f"{algorithm} + {pad}"
        notes = (f"torch has no such padding in the operator: {padding_text(pads)}",)
    # GPU kernels sum overlapping windows' gradients in float32, CPU kernels in what is stored.
    in_float32 = forward or case.on_gpu
    return image_recipes(
        algorithm,
        lambda word: f"src {word}, dst {word}",
        functools.partial(_pool, indices=indices) if forward else _pool_gradient,
        accumulate="float32" if in_float32 else stored(case.precision),
        notes=notes,
    )


def pool_in_network(layer: Layer, site: NodeSite) -> NodeCall:
    """Return the module of a pooling."""
    window = window_of(layer)
    module: nn.Module
    if layer.mode == "max":
        module = nn.MaxPool2d(window.kernel, window.stride, window.padding)
    elif window.pads and not layer.count_include_pad:
        module = ScaledAverage(layer)
    else:
        module = nn.AvgPool2d(
            window.kernel,
            window.stride,
            window.padding,
            count_include_pad=layer.count_include_pad,
        )
    return NodeCall(module, site.inputs, window.pads, _fill(layer))


class ScaledAverage(nn.Module):  # type: ignore[misc]  # an unknown class to mypy
    """An average over what was padded beforehand, scaled so that padding does not count.

    Args:
        layer: the pooling.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        window = window_of(layer)
        self._kernel, self._stride = window.kernel, window.stride
        whole = math.prod(layer.kernel)
        scale = whole / np.multiply.outer(*layer.elements_inside)
        self.register_buffer("scale", torch.from_numpy(scale.astype(np.float32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the averages over the elements inside the image."""
        scale: Any = self.scale
        average: torch.Tensor = F.avg_pool2d(x, self._kernel, self._stride)
        return average.mul(scale.to(x.dtype))


def _fill(layer: Layer) -> float:
    """What padding holds, so that it counts for nothing in a maximum, and as zero in a mean."""
    return float("-inf") if layer.mode == "max" else 0.0


def _pool_settings(layer: Layer) -> tuple[Any, ...]:
    """Return what ATen's operators are told of a pooling, forward and backward."""
    window = window_of(layer)
    place = window.kernel, window.stride, window.padding
    if layer.mode == "max":
        return (*place, (1, 1), False)  # no dilation, and outputs for whole windows only
    return (*place, False, layer.count_include_pad, None)


def _pool(operands: Operands, *, indices: bool) -> Made:
    layer = operands.layer
    settings, pads, fill = _pool_settings(layer), window_of(layer).pads, _fill(layer)
    function: Callable[..., Any] = torch.ops.aten.avg_pool2d.default
    if layer.mode == "max":
        with_indices = torch.ops.aten.max_pool2d_with_indices.default
        function = with_indices if indices else torch.max_pool2d

    def forward(x: torch.Tensor) -> Any:
        if pads:
            x = F.pad(x, pads, value=fill)
        return function(x, *settings)

    plain = (lambda results: results[0]) if indices else (lambda result: result)
    return Made(forward, (operands.tensor("src"),), plain)


def _pool_gradient(operands: Operands) -> Made:
    layer, window = operands.layer, window_of(operands.layer)
    settings, cuts = _pool_settings(layer), window.cuts
    maxima = layer.mode == "max"
    source = operands.tensor("src") if maxima else operands.shape_of("src")
    if window.pads:
        source = F.pad(source, window.pads, value=_fill(layer))
    backward = torch.ops.aten.avg_pool2d_backward.default
    kept: tuple[torch.Tensor, ...] = ()
    if maxima:
        backward = torch.ops.aten.max_pool2d_with_indices_backward.default
        kept = (torch.ops.aten.max_pool2d_with_indices.default(source, *settings)[1],)

    def backward_data(g: torch.Tensor, x: torch.Tensor, *indices: torch.Tensor) -> Any:
        found = backward(g, x, *settings, *indices)
        return F.pad(found, cuts) if cuts else found

    return Made(backward_data, (operands.tensor("dst"), source, *kept))


# -----------------------------------------------------------------------------
# Images in another size: PyTorch's operators with half-pixel centres.


def resize_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a resize: one per memory format."""
    forward = case.pass_ == "forward"
    name = {"nearest": "_upsample_nearest_exact2d", "linear": "upsample_bilinear2d"}[layer.mode]
    name = name if forward else f"{name}_backward"
    function = getattr(torch.ops.aten, name).default
    (*_, height, width), shape = layer.shapes()["dst"], layer.shapes()["src"]
    sizes = [(height, width)] if forward else [(height, width), shape]
    aligned = [False] if layer.mode == "linear" else []

    def call(images: torch.Tensor) -> Any:
        return function(images, *sizes, *aligned, None, None)

    (role,) = layer.reads(case.pass_)
    return image_recipes(
        f"aten::{name}",
        lambda word: f"src {word}, dst {word}",
        lambda operands: Made(call, (operands.tensor(role),)),
    )


# -----------------------------------------------------------------------------
# Recurrent layers: what modules call. Their gradients come from a chain of operators that differs
# from library to library, so that autograd's graph of it is kept and run again and again.

#: Places of our gates among PyTorch's: the update gate is its second one.
_GATES: Final = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2)}


def recurrent_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to run a pass of a recurrent layer.

    Raises:
        UnsupportedError: A compiled one.
    """
    if case.mode != "eager":
        raise UnsupportedError(f"torch compiles no {layer.cell} as a whole; nearest: --mode eager")
    backward = case.pass_ != "forward"
    name = f"aten::{layer.cell}"
    return [
        Recipe(
            algorithm=f"autograd of {name}" if backward else name,
            layout="src tnc, weights ldgoi, dst tnc",
            variant="plain",
            make=_recurrent_gradient
            if backward
            else functools.partial(_recurrent, training=case.propagation == "training"),
        )
    ]


def _recurrent(operands: Operands, *, training: bool) -> Made:
    layer = operands.layer
    own = _Matrices(operands)
    function = torch.lstm if layer.cell == "lstm" else torch.gru
    settings = (True, layer.layers, 0.0, training, layer.directions == 2, False)

    def forward(source: torch.Tensor, *given: torch.Tensor) -> Any:
        states, matrices = given[: own.states], given[own.states :]
        initial = states if layer.cell == "lstm" else states[0]
        return function(source, initial, matrices, *settings)

    return Made(forward, own.arguments, lambda results: results[0])


def _recurrent_gradient(operands: Operands) -> Made:
    made = _recurrent(operands, training=True)
    wanted = tuple(one.requires_grad_() for one in made.arguments)
    result = made.function(*wanted)[0]

    def backward(gradient: torch.Tensor) -> Any:
        return torch.autograd.grad(result, wanted, gradient, retain_graph=True)

    return Made(backward, (operands.tensor("dst"),), _Matrices(operands).by_role)


class _Matrices:
    """The operands of a recurrent layer as PyTorch has them, and back.

    Each layer has, for each direction, matrices ``(gates times out, in)`` of source and state, and
    a bias of both: ours is the first one's, but what the reset gate multiplies is the second one's.

    Attributes:
        arguments: source, initial states, matrices and biases.
        states: how many initial states there are.

    Args:
        operands: of the layer.
    """

    def __init__(self, operands: Operands) -> None:
        layer: Layer = operands.layer
        self._layer, self._order = layer, _GATES[layer.cell]
        roles = [role for role in ("src_iter", "src_iter_c") if role in operands.inputs]
        self.states = len(roles)
        merged = (layer.layers * layer.directions, layer.batch, layer.hidden)
        place, inputs = operands.place, operands.inputs
        found = [operands.tensor("src")]
        found += [place.tensor(inputs[role].reshape(merged)) for role in roles]
        back = np.argsort(self._order)
        for at in np.ndindex(layer.layers, layer.directions):
            for role in ("weights", "weights_iter"):
                turned = inputs[role][at][:, back].transpose(1, 2, 0)
                found.append(place.tensor(turned.reshape(-1, turned.shape[-1])))
            bias = inputs["bias"][at]
            second = np.zeros_like(bias[: layer.gates])
            second[layer.gates - 1] = 0 if layer.cell == "lstm" else bias[-1]
            found += [place.tensor(one.reshape(-1)) for one in (bias[back], second)]
        self.arguments = tuple(found)

    def by_role(self, gradients: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the gradients of all arguments by our roles, in the shapes that they have."""
        layer, order = self._layer, list(self._order)
        shapes = layer.shapes()
        source, *rest = gradients
        named = zip(("src_iter", "src_iter_c"), rest[: self.states], strict=False)
        found = {"src": source} | {role: one.reshape(shapes[role]) for role, one in named}
        rest = rest[self.states :]
        for place, role in enumerate(("weights", "weights_iter")):
            each = [one.reshape(layer.gates, layer.hidden, -1)[order] for one in rest[place::4]]
            found[role] = torch.stack([one.permute(2, 0, 1) for one in each]).reshape(shapes[role])
        biases = [one.reshape(layer.gates, layer.hidden)[order] for one in rest[2::4]]
        if layer.cell == "gru":
            others = [one.reshape(layer.gates, layer.hidden)[-1:] for one in rest[3::4]]
            biases = [torch.cat(both) for both in zip(biases, others, strict=True)]
        return found | {"bias": torch.stack(biases).reshape(shapes["bias"])}


# -----------------------------------------------------------------------------
# Layers on tensors of any shape: one call for each operator.

#: By operator, where it is not the function of that name: what is called, of the operands and the
#: number.
_ELEMENTWISE: Final[Mapping[str, tuple[str, Callable[..., torch.Tensor]]]] = {
    "power": ("pow", torch.pow),
    "add": ("add", lambda x, y, a: torch.add(x, y, alpha=a)),
    "max": ("maximum", lambda x, y, _: torch.maximum(x, y)),
    "min": ("minimum", lambda x, y, _: torch.minimum(x, y)),
    "leaky-relu": ("where + mul", lambda x, y, _: torch.where(x > 0, x, x * y)),
    "add-square": ("addcmul", lambda x, y, a: torch.addcmul(x, y, y, value=a)),
    "addcmul": ("addcmul", lambda x, y, z, a: torch.addcmul(x, y, z, value=a)),
    "addcdiv": ("addcdiv", lambda x, y, z, a: torch.addcdiv(x, y, z, value=a)),
    "leaky-relu-gradient": ("where + mul", lambda x, y, z, _: torch.where(y > 0, x, x * z)),
}


def elementwise_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to run element-wise arithmetic."""
    name, function = _ELEMENTWISE.get(layer.op, (layer.op, None))
    number = layer.number

    def call(*operands: torch.Tensor) -> Any:
        if function is None:
            return getattr(torch, name)(*operands)
        return function(*operands, number)

    return _plain(layer, case, name, call)


def reduction_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to reduce a tensor."""
    name = {"max": "amax", "min": "amin", "norm": "linalg_vector_norm"}.get(layer.op, layer.op)
    function = getattr(torch.ops.aten, name)
    both = zip(layer.src, layer.dst, strict=True)
    axes = [axis for axis, (size, kept) in enumerate(both) if size != kept]
    order = [2] if layer.op == "norm" else []

    def call(source: torch.Tensor) -> Any:
        return function(source, *order, axes, True)

    return _plain(layer, case, name, call)


def move_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to copy, turn over or fill a tensor."""
    if layer.op == "copy":
        return _plain(layer, case, "clone", torch.clone)
    if layer.op == "fill":

        def make(operands: Operands) -> Made:
            place = operands.place
            return Made(lambda: torch.zeros(layer.src, dtype=place.dtype, device=place.device), ())

        return [replace(one, make=make) for one in _plain(layer, case, "zeros", torch.clone)]
    return _plain(
        layer, case, "contiguous", lambda source: source.permute(layer.order).contiguous()
    )


def gather_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to read rows of a table, or to add to them."""
    if layer.op == "rows":
        return _plain(layer, case, "embedding", torch.ops.aten.embedding.default)
    name = "embedding_dense_backward"
    backward = getattr(torch.ops.aten, name).default
    return _plain(layer, case, name, lambda g, i: backward(g, i, layer.rows, -1, False))


def _plain(layer: Layer, case: KernelSpec, name: str, call: Callable[..., Any]) -> list[Recipe]:
    roles = layer.reads(case.pass_)
    return [
        Recipe(
            algorithm=" + ".join(f"aten::{one}" for one in name.split(" + ")),
            layout="plain",
            variant="plain",
            make=lambda operands: Made(call, tuple(map(operands.tensor, roles))),
        )
    ]


#: What PyTorch calls for a layer, by its kind; for memory-bound layers by their operation.
LAYERS: Final[Mapping[str, LayerCalls]] = {
    "conv2d": LayerCalls(recipes=conv_recipes, in_network=conv_in_network, overwritable=True),
    "deconv2d": LayerCalls(recipes=deconv_recipes, in_network=deconv_in_network, overwritable=True),
    "gemm": LayerCalls(recipes=gemm_recipes, in_network=linear_in_network, overwritable=True),
    "pool2d": LayerCalls(recipes=pool_recipes, in_network=pool_in_network),
    "elementwise": LayerCalls(recipes=elementwise_recipes),
    "reduction": LayerCalls(recipes=reduction_recipes),
    "move": LayerCalls(recipes=move_recipes),
    "gather": LayerCalls(recipes=gather_recipes),
    "recurrent": LayerCalls(recipes=recurrent_recipes),
    "resize": LayerCalls(recipes=resize_recipes),
    **pointwise.POINTWISE,
}


def calls_of(layer: Layer) -> LayerCalls:
    """Return what PyTorch calls for a layer.

    Raises:
        UnsupportedError: it has no such layers.
    """
    return entry_of("torch", LAYERS, layer)
