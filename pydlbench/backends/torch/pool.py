"""Poolings: forward and backward-data through ATen's operators.

PyTorch pads both ends of an axis alike, by half a window at the most. Where a layer does otherwise,
its users pad first (with minus infinity for a maximum), and pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from pydlbench.backends.reference import tensor_shapes
from pydlbench.backends.torch.recipe import FORMATS, Made, Place, Recipe, padding_text
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.layers import Pool2d

__all__ = ["recipes"]


def recipes(layer: Pool2d, pass_: str, training: bool, gradient_sums: str) -> list[Recipe]:
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

        plain = _first if training else _itself
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
    return Made(function=backward_data, arguments=(gradient, source, indices), plain=_itself)


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
        return Made(function=forward, arguments=(source,), plain=_itself)
    backward = torch.ops.aten.avg_pool2d_backward.default
    source = place.empty(tensor_shapes(layer)["src"], like)
    if sides:
        source = F.pad(source, sides)
    cut = [-side for side in sides or ()]

    def backward_data(g: torch.Tensor, x: torch.Tensor) -> Any:
        found = backward(g, x, *settings)
        return F.pad(found, cut) if cut else found

    gradient = place.tensor(inputs["dst"], like)
    return Made(function=backward_data, arguments=(gradient, source), plain=_itself)


def _window(layer: Pool2d, sides: tuple[int, ...] | None) -> tuple[list[int], list[int], list[int]]:
    """Return kernel, stride and the operator's own padding."""
    return (
        [layer.kernel_height, layer.kernel_width],
        [layer.stride_height, layer.stride_width],
        [0, 0] if sides else [layer.pad_top, layer.pad_left],
    )


def _itself(result: Any) -> Any:
    return result


def _first(results: Any) -> Any:
    return results[0]
