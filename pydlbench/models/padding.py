"""Padding as frameworks name it, worked out into the four sides that layers take."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["Pad", "pad_sides"]

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
