"""Convolutions: the three passes through ATen's operators, without autograd's bookkeeping.

PyTorch's convolution pads both ends of an axis alike. Where a layer does not, its users pad first,
and pay for it: the forward pass is then two operators in one call, and so is backward-data, which
cuts the padding off its result. Backward-weights reads the padded source that the forward pass
keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from pydlbench.backends.reference import tensor_shapes
from pydlbench.backends.torch.recipe import FORMATS, Made, Place, Recipe, padding_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.layers import Conv2d

__all__ = ["recipes"]

_NAMES = {
    "forward": "aten::convolution",
    "backward-data": "aten::convolution_backward",
    "backward-weights": "aten::convolution_backward",
}
_LAYOUTS = {
    "nchw": "src nchw, weights oihw, dst nchw",
    "nhwc": "src nhwc, weights ohwi, dst nhwc",
}


def recipes(layer: Conv2d, pass_: str, *, bias: bool = False) -> list[Recipe]:
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
            return _make(
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


def _make(
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
        for role, shape in tensor_shapes(layer).items()
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
