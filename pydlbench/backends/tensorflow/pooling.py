"""Pooling: ``MaxPool`` and ``AvgPool`` with their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.padding import padding_of
from pydlbench.backends.tensorflow.recipe import (
    FORMATS,
    Recipe,
    as_they_are,
    from_plain,
    spatial,
    to_plain,
)
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.layers.pool import Pool2d

__all__ = ["poolings"]

_NAMES = {
    ("max", "forward"): "MaxPool",
    ("max", "backward-data"): "MaxPoolGrad",
    ("avg", "forward"): "AvgPool",
    ("avg", "backward-data"): "AvgPoolGrad",
}
_READS = {
    ("max", "forward"): ("src",),
    ("max", "backward-data"): ("src", "dst"),
    ("avg", "forward"): ("src",),
    ("avg", "backward-data"): ("dst",),
}


def poolings(layer: Pool2d, pass_: str) -> list[Recipe]:
    """Return the ways to compute a pass of a pooling.

    Raises:
        UnsupportedError: an average that TensorFlow has not: over padding, or padded in a way that
            neither of its two words describes.
    """
    padding = padding_of(layer)
    if layer.mode == "avg" and padding.word != "VALID":
        if layer.count_include_pad:
            raise UnsupportedError("TensorFlow's averages leave padding out of the count")
        if padding.word == "EXPLICIT":
            raise UnsupportedError(
                f"TensorFlow's averages are padded as SAME or VALID, not {padding}"
            )
    return [_recipe(layer, pass_, data_format) for data_format in FORMATS]


def _recipe(layer: Pool2d, pass_: str, data_format: str) -> Recipe:
    which = layer.mode, pass_

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return tuple(from_plain(inputs[role], data_format) for role in _READS[which])

    def plain(result: NDArray[Any]) -> NDArray[Any]:
        return to_plain(result, data_format)

    images = data_format.lower()
    maxima = which == ("max", "backward-data")
    return Recipe(
        algorithm=_NAMES[which],
        layout=f"src {images}, dst {images}",
        variant=images,
        function=_function(layer, pass_, data_format),
        operands=operands,
        result="dst" if pass_ == "forward" else "src",
        plain=plain,
        complete=_with_maxima(layer, data_format) if maxima else as_they_are,
        # Overlapping windows' gradients are added up in the gradient itself.
        sums="stored" if maxima else "float32",
    )


def _function(layer: Pool2d, pass_: str, data_format: str) -> Callable[..., Any]:
    window = _window(layer, data_format)
    if layer.mode == "max":
        window["explicit_paddings"] = padding_of(layer).explicit(data_format)
        if pass_ == "forward":
            return lambda source: tf.raw_ops.MaxPool(input=source, **window)
        return lambda source, maxima, gradient: tf.raw_ops.MaxPoolGrad(
            orig_input=source, orig_output=maxima, grad=gradient, **window
        )
    if pass_ == "forward":
        return lambda source: tf.raw_ops.AvgPool(value=source, **window)
    shape = [layer.batch, layer.channels, layer.in_height, layer.in_width]
    if data_format == "NHWC":
        shape = [shape[0], *shape[2:], shape[1]]
    return lambda gradient: tf.raw_ops.AvgPoolGrad(orig_input_shape=shape, grad=gradient, **window)


def _window(layer: Pool2d, data_format: str) -> dict[str, Any]:
    return {
        "ksize": spatial(data_format, layer.kernel_height, layer.kernel_width),
        "strides": spatial(data_format, layer.stride_height, layer.stride_width),
        "padding": padding_of(layer).word,
        "data_format": data_format,
    }


def _with_maxima(layer: Pool2d, data_format: str) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Add the result of the forward pass, which TensorFlow's backward pass reads as well."""

    def complete(tensors: Sequence[Any]) -> Sequence[Any]:
        source, gradient = tensors
        # In NHWC, which every device has.
        moved = source if data_format == "NHWC" else tf.transpose(source, [0, 2, 3, 1])
        maxima = _function(layer, "forward", "NHWC")(moved)
        if data_format != "NHWC":
            maxima = tf.transpose(maxima, [0, 3, 1, 2])
        return source, maxima, gradient

    return complete
