"""Writing a layer's spatial fields in the one form that both we and benchdnn read alike.

benchdnn derives what a descriptor leaves out: width from height where no width is given at all,
the leading pad from the output size. So the canonical form leaves out only what both would derive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydlbench.layers.padding import Padded

__all__ = ["derived_pad", "spatial_fields"]


def derived_pad(size: int, window: int, stride: int, out: int) -> int:
    """Return the leading pad that follows from the output size: the smaller half of the total."""
    return max(0, (out - 1) * stride + window - size) // 2


def spatial_fields(
    layer: Padded,
    *,
    channels: str,
    windows: tuple[int, int],
    dilations: tuple[int, int] = (0, 0),
) -> str:
    """Return ``ih13oc384oh13kh3ph1`` and the like, from the input height onwards.

    Args:
        layer: A convolution or pooling.
        channels: What stands between input and output size: ``oc384``, or nothing for pooling.
        windows: Rows and columns that the kernel spans.
        dilations: As benchdnn counts them, 0 is dense: (height, width).
    """
    heights = {
        "i": layer.in_height,
        "o": layer.out_height,
        "k": layer.kernel_height,
        "s": layer.stride_height,
        "p": layer.pad_top,
        "d": dilations[0],
    }
    widths = {
        "i": layer.in_width,
        "o": layer.out_width,
        "k": layer.kernel_width,
        "s": layer.stride_width,
        "p": layer.pad_left,
        "d": dilations[1],
    }
    square = heights == widths
    omitted = [
        letter
        for letter, default in (("s", 1), ("p", 0), ("d", 0))
        if heights[letter] == widths[letter] == default
    ]
    if "p" in omitted and not (
        _says_no_pad(heights, windows[0]) and _says_no_pad(widths, windows[1])
    ):
        omitted.remove("p")
    text = ""
    for letter, height in heights.items():
        if letter not in omitted:
            text += f"{letter}h{height}" + ("" if square else f"{letter}w{widths[letter]}")
        if letter == "i":
            text += channels
    return text


def _says_no_pad(side: dict[str, int], window: int) -> bool:
    """Whether benchdnn derives a pad of zero from this side's sizes (it may derive less)."""
    return abs((side["o"] - 1) * side["s"] + window - side["i"]) <= 1
