"""Padding in TensorFlow's words: ``VALID``, ``SAME``, or four numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.windows import extent

if TYPE_CHECKING:
    from pydlbench.layers.pool import Pool2d

__all__ = ["Padding", "padding_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Padding of one layer.

    Attributes:
        word: ``VALID``, ``SAME`` or ``EXPLICIT``: a word means what the numbers say, exactly.
        rows: padding above and below.
        columns: padding left and right.
    """

    word: str
    rows: tuple[int, int]
    columns: tuple[int, int]

    def explicit(self, data_format: str) -> list[int]:
        """Return the pads of all four dimensions one after the other; empty with a word."""
        if self.word != "EXPLICIT":
            return []
        if data_format == "NHWC":
            return [0, 0, *self.rows, *self.columns, 0, 0]
        return [0, 0, 0, 0, *self.rows, *self.columns]

    def pairs(self, data_format: str) -> str | list[list[int]]:
        """Return what ``tf.nn.conv2d`` takes: the word, or a pair for each dimension."""
        flat = self.explicit(data_format)
        return [flat[i : i + 2] for i in range(0, 8, 2)] if flat else self.word

    def __str__(self) -> str:
        """Return the four numbers in words."""
        (top, bottom), (left, right) = self.rows, self.columns
        return f"{top} above, {bottom} below, {left} left and {right} right"


def padding_of(layer: Conv2d | Pool2d) -> Padding:
    """Return a layer's padding, by a word where one says the same."""
    dilations = (1, 1)
    if isinstance(layer, Conv2d):
        dilations = layer.dilation_height, layer.dilation_width
    rows = _words(
        layer.in_height,
        layer.out_height,
        extent(layer.kernel_height, dilations[0]),
        layer.stride_height,
        layer.pad_top,
    )
    columns = _words(
        layer.in_width,
        layer.out_width,
        extent(layer.kernel_width, dilations[1]),
        layer.stride_width,
        layer.pad_left,
    )
    common = [word for word in rows if word in columns]
    return Padding(
        word=common[0] if common else "EXPLICIT",
        rows=(layer.pad_top, layer.pad_bottom),
        columns=(layer.pad_left, layer.pad_right),
    )


def _words(size: int, out: int, window: int, stride: int, leading: int) -> list[str]:
    """Return the words that give these outputs and this leading pad along one axis.

    The outputs and the leading pad decide which element meets which tap; what is left over at the
    end is padding in either case.
    """
    words = []
    if leading == 0 and out == (size - window) // stride + 1:
        words.append("VALID")
    total = max(0, (out - 1) * stride + window - size)
    if out == -(-size // stride) and leading == total // 2:
        words.append("SAME")
    return words
