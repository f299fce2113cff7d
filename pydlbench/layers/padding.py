"""Padding of the four sides: reading it, checking it against the window, making it canonical."""

from __future__ import annotations

from typing import Protocol

from pydlbench.errors import UsageError
from pydlbench.layers.windows import output_size, trailing_pad

__all__ = ["Padded", "Padding", "read_padding", "settle_padding"]

Padding = int | tuple[int, int] | tuple[int, int, int, int]


class Padded(Protocol):
    """What a layer with windows and padding has in common."""

    @property
    def in_height(self) -> int:
        """Rows of the input."""

    @property
    def in_width(self) -> int:
        """Columns of the input."""

    @property
    def out_height(self) -> int:
        """Rows of the output."""

    @property
    def out_width(self) -> int:
        """Columns of the output."""

    @property
    def kernel_height(self) -> int:
        """Taps of the window, downwards."""

    @property
    def kernel_width(self) -> int:
        """Taps of the window, across."""

    @property
    def stride_height(self) -> int:
        """Rows from one output to the next."""

    @property
    def stride_width(self) -> int:
        """Columns from one output to the next."""

    @property
    def pad_top(self) -> int:
        """Padding above."""

    @property
    def pad_bottom(self) -> int:
        """Padding below."""

    @property
    def pad_left(self) -> int:
        """Padding on the left."""

    @property
    def pad_right(self) -> int:
        """Padding on the right."""


def read_padding(padding: Padding) -> tuple[int, int, int, int]:
    """Read ``1``, ``(height, width)`` or ``(top, bottom, left, right)`` as the latter.

    Raises:
        UsageError: A sequence of another length.
    """
    if not isinstance(padding, (tuple, list)):
        return padding, padding, padding, padding
    if len(padding) == 2:
        return padding[0], padding[0], padding[1], padding[1]
    if len(padding) == 4:
        return padding
    raise UsageError(
        f"padding={padding!r}: expected a number, (height, width) or (top, bottom, left, right)"
    )


def settle_padding(layer: Padded, window_height: int, window_width: int) -> None:
    """Check that the window fits, then put the canonical trailing pads into a frozen layer.

    Args:
        layer: The layer, its fields already checked one by one.
        window_height: Rows that the kernel spans, dilation included.
        window_width: Columns that the kernel spans.

    Raises:
        UsageError: The kernel is larger than the padded input.
    """
    _check_fit("height", window_height, layer.in_height, layer.pad_top, layer.pad_bottom)
    _check_fit("width", window_width, layer.in_width, layer.pad_left, layer.pad_right)
    size, stride, leading = layer.in_height, layer.stride_height, layer.pad_top
    out = output_size(size, window_height, stride, leading, layer.pad_bottom)
    bottom = trailing_pad(size, window_height, stride, leading, out)
    size, stride, leading = layer.in_width, layer.stride_width, layer.pad_left
    out = output_size(size, window_width, stride, leading, layer.pad_right)
    right = trailing_pad(size, window_width, stride, leading, out)
    object.__setattr__(layer, "pad_bottom", bottom)
    object.__setattr__(layer, "pad_right", right)


def _check_fit(side: str, window: int, size: int, leading: int, trailing: int) -> None:
    padded = size + leading + trailing
    if window > padded:
        raise UsageError(
            f"kernel {side} {window} (dilation included): larger than the padded input {side} "
            f"{padded}; at most {padded}"
        )
