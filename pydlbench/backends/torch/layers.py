"""Convolutions, products and poolings through ATen's operators, without autograd's bookkeeping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself

from pydlbench.backends.torch.operator import FORMATS, Made, Place, Recipe, padding_text
from pydlbench.errors import UnsupportedError
from pydlbench.layers.window import extent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.conv import Conv2d
    from pydlbench.layers.deconv import Deconv2d
    from pydlbench.layers.gemm import Gemm
    from pydlbench.layers.pool import Pool2d

__all__ = ["conv_recipes", "deconv_recipes", "gemm_recipes", "pool_recipes", "scaled_recipes"]


# -----------------------------------------------------------------------------
# Convolutions: the three passes through ATen's operators, without autograd's bookkeeping.
#
# PyTorch's convolution pads both ends of an axis alike. Where a layer does not, its users pad
# first, and pay for it: the forward pass is then two operators in one call, and so is
# backward-data, which cuts the padding off its result. Backward-weights reads the padded source
# that the forward pass keeps.

_NAMES = {
    "forward": "aten::convolution",
    "backward-data": "aten::convolution_backward",
    "backward-weights": "aten::convolution_backward",
}
_LAYOUTS = {
    "nchw": "src nchw, weights oihw, dst nchw",
    "nhwc": "src nhwc, weights ohwi, dst nhwc",
}


def conv_recipes(layer: Conv2d, pass_: str, *, bias: bool = False) -> list[Recipe]:
    """List the ways to run a pass of a convolution: one per memory format.

    Args:
        layer: The convolution.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        bias: Whether the same operator adds a bias, or gives its gradient.
    """
    sides = (layer.pad_left, layer.pad_right, layer.pad_top, layer.pad_bottom)
    even = layer.pad_left == layer.pad_right and layer.pad_top == layer.pad_bottom
    algorithm = _NAMES[pass_]
    notes: tuple[str, ...] = ()
    if not even:
        algorithm, notes = _padded(pass_, algorithm, sides)
    if bias:
        algorithm += " with bias"

    def recipe(word: str) -> Recipe:
        def make(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
            return _make_conv(
                layer, pass_, inputs, place, FORMATS[word], None if even else sides, bias=bias
            )

        return Recipe(
            algorithm=algorithm, layout=_LAYOUTS[word], variant=word, make=make, notes=notes
        )

    return [recipe(word) for word in FORMATS]


def _padded(pass_: str, name: str, sides: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
    """Name what an uneven padding makes of an operator, and say why."""
    why = f"torch pads both ends of an axis alike; here {padding_text(sides)}"
    if pass_ == "forward":
        return f"aten::constant_pad_nd + {name}", (f"{why}: padded within the call",)
    if pass_ == "backward-data":
        return f"{name} + aten::constant_pad_nd", (f"{why}: cut off within the call",)
    return name, (f"{why}: reads the padded source that the forward pass keeps",)


def _make_conv(
    layer: Conv2d,
    pass_: str,
    inputs: Mapping[str, NDArray[Any]],
    place: Place,
    like: torch.memory_format,
    sides: tuple[int, ...] | None,
    *,
    bias: bool,
) -> Made:
    stride = [layer.stride_height, layer.stride_width]
    dilation = [layer.dilation_height, layer.dilation_width]
    padding = [0, 0] if sides else [layer.pad_top, layer.pad_left]
    groups = layer.groups
    # What a pass does not read is asked for its shape only.
    operand = {
        role: place.tensor(inputs[role], like) if role in inputs else place.empty(shape, like)
        for role, shape in layer.shapes().items()
    }
    if pass_ == "forward":
        added = place.tensor(inputs["bias"]) if bias else None
        return _forward(operand, sides, added, (stride, padding, dilation, groups))
    source, weights, gradient = operand["src"], operand["weights"], operand["dst"]
    if sides:
        source = F.pad(source, sides)
    backward = torch.ops.aten.convolution_backward.default
    settings = (
        [layer.out_channels] if bias else [0],
        stride,
        padding,
        dilation,
        False,
        [0, 0],
        groups,
    )
    if pass_ == "backward-data":
        cut = [-side for side in sides or ()]

        def backward_data(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
            found = backward(g, x, w, *settings, [True, False, False])[0]
            return F.pad(found, cut) if cut else found

        return Made(function=backward_data, arguments=(gradient, source, weights), plain=_itself)

    def backward_weights(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return backward(g, x, w, *settings, [False, True, bias])[1:]

    def weights_and_bias(result: Any) -> Any:
        return {"weights": result[0], "bias": result[1]} if bias else result[0]

    return Made(
        function=backward_weights, arguments=(gradient, source, weights), plain=weights_and_bias
    )


def _forward(
    operand: Mapping[str, torch.Tensor],
    sides: tuple[int, ...] | None,
    bias: torch.Tensor | None,
    settings: tuple[list[int], list[int], list[int], int],
) -> Made:
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if sides:
            x = F.pad(x, sides)
        return torch.conv2d(x, w, None, *settings)

    def with_bias(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if sides:
            x = F.pad(x, sides)
        return torch.conv2d(x, w, b, *settings)

    operands = operand["src"], operand["weights"]
    if bias is None:
        return Made(function=forward, arguments=operands, plain=_itself)
    return Made(function=with_bias, arguments=(*operands, bias), plain=_itself)


def _itself(result: Any) -> Any:
    return result


# -----------------------------------------------------------------------------
# Transposed convolutions: the same operators, told so.


def deconv_recipes(layer: Deconv2d, pass_: str) -> list[Recipe]:
    """List the ways to run a pass of a transposed convolution: one per memory format.

    Raises:
        UnsupportedError: The result has a size that PyTorch's padding does not give.
    """
    stride = [layer.stride_height, layer.stride_width]
    padding = [layer.pad_top, layer.pad_left]
    dilation = [layer.dilation_height, layer.dilation_width]
    least = (
        (layer.in_height - 1) * stride[0] + extent(layer.kernel_height, dilation[0]),
        (layer.in_width - 1) * stride[1] + extent(layer.kernel_width, dilation[1]),
    )
    sizes = layer.out_height, layer.out_width
    further = [size + 2 * pad - one for size, pad, one in zip(sizes, padding, least, strict=True)]
    for one, *steps in zip(further, stride, dilation, strict=True):
        if not 0 <= one < max(steps):
            raise UnsupportedError(
                f"torch pads both ends of an axis alike, and {layer.problem} does not"
            )

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.conv_transpose2d(x, w, None, stride, padding, further, layer.groups, dilation)

    settings = ([0], stride, padding, dilation, True, further, layer.groups)
    mask = [pass_ == "backward-data", pass_ == "backward-weights", False]
    backward = torch.ops.aten.convolution_backward.default

    def gradient(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        return backward(g, x, w, *settings, mask)[mask.index(True)]

    def recipe(word: str) -> Recipe:
        def make(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
            # What a pass does not read is asked for its shape only.
            x, w, g = (
                place.tensor(inputs[role], FORMATS[word])
                if role in inputs
                else place.empty(shape, FORMATS[word])
                for role, shape in layer.shapes().items()
            )
            if pass_ == "forward":
                return Made(function=forward, arguments=(x, w), plain=_itself)
            return Made(function=gradient, arguments=(x, w, g), plain=_itself)

        return Recipe(
            algorithm=f"{_NAMES[pass_]} transposed",
            layout=_LAYOUTS[word].replace("oihw", "iohw").replace("ohwi", "ihwo"),
            variant=word,
            make=make,
        )

    return [recipe(word) for word in FORMATS]


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


def gemm_recipes(layer: Gemm, pass_: str, *, bias: bool = False) -> list[Recipe]:
    """List the ways to run a pass of a product: transposed and plain weights.

    Args:
        layer: The product.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        bias: Whether a bias is added in the same operator, or its gradient summed in the same call.
    """
    many = layer.batch_count > 1
    letter = "g" if many else ""

    def recipe(variant: str) -> Recipe:
        transposed = variant == "transposed"
        weights = "nk" if transposed else "kn"
        name = "aten::bmm" if many else "aten::mm"
        if transposed and pass_ == "forward" and not many:
            name = "aten::linear"
        if bias and pass_ == "forward":
            name = {"aten::mm": "aten::addmm", "aten::bmm": "aten::baddbmm"}.get(name, name)
            name += " with bias"
        elif bias:
            name += " + aten::sum"

        def make(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
            if bias and pass_ == "forward":
                return _with_bias(inputs, place, transposed=transposed, many=many)
            product = _make_gemm(pass_, inputs, place, transposed=transposed, many=many)
            return _with_bias_gradient(product, transposed=transposed) if bias else product

        return Recipe(
            algorithm=name,
            layout=f"src {letter}mk, weights {letter}{weights}, dst {letter}mn",
            variant=variant,
            make=make,
        )

    return [recipe("transposed"), recipe("plain")]


def _make_gemm(
    pass_: str,
    inputs: Mapping[str, NDArray[Any]],
    place: Place,
    *,
    transposed: bool,
    many: bool,
) -> Made:
    def operand(role: str) -> torch.Tensor:
        array = inputs[role]
        if role == "weights" and transposed:
            array = array.swapaxes(1, 2)
        tensor = place.tensor(array)
        return tensor if many else tensor[0]

    multiply: Callable[..., Any] = torch.bmm if many else torch.mm
    if pass_ == "forward":
        source, weights = operand("src"), operand("weights")
        if transposed and not many:
            return _made(torch.nn.functional.linear, source, weights)
        return _made(multiply, source, weights.mT if transposed else weights)
    if pass_ == "backward-data":
        gradient, weights = operand("dst"), operand("weights")
        return _made(multiply, gradient, weights if transposed else weights.mT)
    source, gradient = operand("src"), operand("dst")
    if transposed:  # the gradient lies as the weights do
        return _made(multiply, gradient.mT, source, turned=True)
    return _made(multiply, source.mT, gradient)


def _with_bias(
    inputs: Mapping[str, NDArray[Any]], place: Place, *, transposed: bool, many: bool
) -> Made:
    """A forward pass whose operator adds the bias as well."""
    alone = _make_gemm("forward", inputs, place, transposed=transposed, many=many)
    source, weights = alone.arguments
    linear = transposed and not many
    add_multiply: Callable[..., Any] = torch.baddbmm if many else torch.addmm

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return torch.nn.functional.linear(a, b, c) if linear else add_multiply(c, a, b)

    bias = place.tensor(inputs["bias"])
    return Made(function=product, arguments=(source, weights, bias), plain=alone.plain)


def _with_bias_gradient(alone: Made, *, transposed: bool) -> Made:
    """The gradient of the weights, and that of the bias by the operator behind it."""
    multiply = alone.function

    def both(a: torch.Tensor, b: torch.Tensor) -> Any:
        gradient = a.mT if transposed else b
        return multiply(a, b), gradient.sum(tuple(range(gradient.dim() - 1)))

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        weights = alone.plain(results[0])
        assert isinstance(weights, torch.Tensor)
        return {"weights": weights, "bias": results[1]}

    return Made(function=both, arguments=alone.arguments, plain=plain)


def _made(
    multiply: Callable[..., Any], left: torch.Tensor, right: torch.Tensor, turned: bool = False
) -> Made:
    def product(a: torch.Tensor, b: torch.Tensor) -> Any:
        return multiply(a, b)

    def plain(result: torch.Tensor) -> torch.Tensor:
        found = result.mT if turned else result
        return found if found.dim() == 3 else found[None]

    return Made(function=product, arguments=(left, right), plain=plain)


def scaled_recipes(layer: Gemm, pass_: str) -> list[Recipe]:
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

    def make(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
        return _make_scaled(pass_, inputs, place)

    return [
        Recipe(
            algorithm="aten::_scaled_mm",
            layout=_FP8_LAYOUTS[pass_],
            variant="transposed",
            make=make,
            notes=(
                "fp8-tc: scales of one, no fast accumulation; the result is stored in bfloat16",
            ),
        )
    ]


def _make_scaled(pass_: str, inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
    # The second factor is given as a view: its columns lie in a row.
    def operand(role: str, turned: bool) -> torch.Tensor:
        array = inputs[role][0]
        return place.tensor(array.T if turned else array)

    if pass_ == "forward":
        left, right = operand("src", turned=False), operand("weights", turned=True)
    elif pass_ == "backward-data":
        left, right = operand("dst", turned=False), operand("weights", turned=False)
    else:
        left, right = operand("src", turned=True), operand("dst", turned=True)
    one = torch.ones((), dtype=torch.float32, device=place.device)

    def product(
        a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
    ) -> Any:
        return torch._scaled_mm(  # noqa: SLF001 - the one way to FP8
            a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=False
        )

    def plain(result: torch.Tensor) -> torch.Tensor:
        return result[None]

    return Made(function=product, arguments=(left, right.t(), one, one.clone()), plain=plain)


# -----------------------------------------------------------------------------
# Poolings: forward and backward-data through ATen's operators.
#
# PyTorch pads both ends of an axis alike, by half a window at the most. Where a layer does
# otherwise, its users pad first (with minus infinity for a maximum), and pay for it.


def pool_recipes(layer: Pool2d, pass_: str, training: bool, gradient_sums: str) -> list[Recipe]:
    """List the ways to run a pass of a pooling: one per memory format.

    Args:
        layer: The pooling.
        pass_: ``forward`` or ``backward-data``.
        training: Whether a forward pass hands out where its maxima are.
        gradient_sums: Data type in which gradients of overlapping windows are summed.

    Raises:
        UnsupportedError: An average that leaves out padding which the operator does not have.
    """
    sides = (layer.pad_left, layer.pad_right, layer.pad_top, layer.pad_bottom)
    known = _known(layer)
    average = layer.mode == "avg"
    if average and not known and not layer.count_include_pad:
        raise UnsupportedError(
            "torch pads poolings alike on both ends, by half a window at the most, and has no "
            f"average that leaves out any other padding ({padding_text(sides)})"
        )
    name = "aten::avg_pool2d" if average else "aten::max_pool2d_with_indices"
    if pass_ == "forward" and not average and not training:
        name = "aten::max_pool2d"
    algorithm = name if pass_ == "forward" else f"{name}_backward"
    notes: tuple[str, ...] = ()
    if not known:
        pad = "aten::constant_pad_nd"
        algorithm = f"{pad} + {algorithm}" if pass_ == "forward" else f"{algorithm} + {pad}"
        notes = (f"torch has no such padding in the operator: {padding_text(sides)}",)

    def recipe(word: str) -> Recipe:
        def make(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
            build = _average if average else _maximum
            return build(
                layer, pass_, inputs, place, FORMATS[word], None if known else sides, training
            )

        return Recipe(
            algorithm=algorithm,
            layout=f"src {word}, dst {word}",
            variant=word,
            make=make,
            accumulate="float32" if pass_ == "forward" else gradient_sums,
            notes=notes,
        )

    return [recipe(word) for word in FORMATS]


def _known(layer: Pool2d) -> bool:
    """Whether the operator itself has this padding."""
    even = layer.pad_left == layer.pad_right and layer.pad_top == layer.pad_bottom
    half = 2 * layer.pad_top <= layer.kernel_height and 2 * layer.pad_left <= layer.kernel_width
    return even and half


def _maximum(
    layer: Pool2d,
    pass_: str,
    inputs: Mapping[str, NDArray[Any]],
    place: Place,
    like: torch.memory_format,
    sides: tuple[int, ...] | None,
    training: bool,
) -> Made:
    settings = (*_window(layer, sides), [1, 1], False)
    with_indices = torch.ops.aten.max_pool2d_with_indices.default
    source = place.tensor(inputs["src"], like)
    lowest = float("-inf")
    if pass_ == "forward":

        def forward(x: torch.Tensor) -> Any:
            if sides:
                x = F.pad(x, sides, value=lowest)
            return with_indices(x, *settings) if training else torch.max_pool2d(x, *settings)

        plain = _first if training else _pool_itself
        return Made(function=forward, arguments=(source,), plain=plain)
    if sides:
        source = F.pad(source, sides, value=lowest)
    _, indices = with_indices(source, *settings)
    backward = torch.ops.aten.max_pool2d_with_indices_backward.default
    cut = [-side for side in sides or ()]

    def backward_data(g: torch.Tensor, x: torch.Tensor, where: torch.Tensor) -> Any:
        found = backward(g, x, *settings, where)
        return F.pad(found, cut) if cut else found

    gradient = place.tensor(inputs["dst"], like)
    return Made(function=backward_data, arguments=(gradient, source, indices), plain=_pool_itself)


def _average(
    layer: Pool2d,
    pass_: str,
    inputs: Mapping[str, NDArray[Any]],
    place: Place,
    like: torch.memory_format,
    sides: tuple[int, ...] | None,
    training: bool,  # noqa: ARG001 - an average keeps nothing for the backward pass
) -> Made:
    settings = (*_window(layer, sides), False, layer.count_include_pad, None)
    if pass_ == "forward":

        def forward(x: torch.Tensor) -> Any:
            if sides:
                x = F.pad(x, sides)
            return torch.ops.aten.avg_pool2d.default(x, *settings)

        source = place.tensor(inputs["src"], like)
        return Made(function=forward, arguments=(source,), plain=_pool_itself)
    backward = torch.ops.aten.avg_pool2d_backward.default
    source = place.empty(layer.shapes()["src"], like)
    if sides:
        source = F.pad(source, sides)
    cut = [-side for side in sides or ()]

    def backward_data(g: torch.Tensor, x: torch.Tensor) -> Any:
        found = backward(g, x, *settings)
        return F.pad(found, cut) if cut else found

    gradient = place.tensor(inputs["dst"], like)
    return Made(function=backward_data, arguments=(gradient, source), plain=_pool_itself)


def _window(layer: Pool2d, sides: tuple[int, ...] | None) -> tuple[list[int], list[int], list[int]]:
    """Return kernel, stride and the operator's own padding."""
    return (
        [layer.kernel_height, layer.kernel_width],
        [layer.stride_height, layer.stride_width],
        [0, 0] if sides else [layer.pad_top, layer.pad_left],
    )


def _pool_itself(result: Any) -> Any:
    return result


def _first(results: Any) -> Any:
    return results[0]
