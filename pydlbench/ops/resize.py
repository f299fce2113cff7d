"""Resizing of images: nearest and linear resampling.

Pixels are squares: the centre of output ``o`` lies at ``(o + 1/2) in / out`` of the source, where
the centre of input ``i`` is at ``i + 1/2`` ("half-pixel centres").

- ``nearest``: the pixel that contains the centre; on an edge, the second one.
- ``linear``: the weighted mean of the two pixels whose centres enclose it, along each side; beyond
  the outermost centres their values continue. There is no smoothing if the result is smaller.

Sources: oneDNN's developer guide, "Resampling"; PyTorch's ``interpolate`` with ``nearest-exact``,
and with ``bilinear`` and ``align_corners=False``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from pydlbench.ops.op import Field, Layer, Op, Pass
from pydlbench.ops.windows import expand_sides


def flops_of_pixel(per_side: int, sides: Iterable[tuple[int, int]], *, backward: bool) -> int:
    """Return the FLOPs per pixel of the result.

    Args:
        per_side: number of pixels along a side in the weighted sum; 1 means a copy.
        sides: sizes of source and result; sides of equal size have no weights.
        backward: whether the pass computes the gradient, which is added to all of these pixels.
    """
    if per_side == 1:
        return int(backward)
    return 2 * math.prod(per_side if size != out else 1 for size, out in sides) - (not backward)


def _touched(mode: str, size: int, out: int) -> int:
    """Return the number of positions of a side that the result depends on."""
    if mode == "nearest" or size <= 2 * out:
        return min(size, out) if mode == "nearest" else size
    # Two positions per pixel of the result, or one if its centre is the centre of a source pixel.
    common = math.gcd(size, out)
    centred = common if size // common % 2 and out // common % 2 else 0
    return 2 * out - centred


def taps(mode: str, size: int, out: int) -> list[tuple[int, int, float]]:
    """Return two positions of the source and the weight of the second, per position of the result.

    If only one position is read, it is given twice, with weight zero.

    Args:
        mode: Kind of resampling: ``nearest`` or ``linear``.
        size: Size of the source.
        out: Size of the result.
    """
    if mode == "nearest":
        nearest = ((2 * to + 1) * size // (2 * out) for to in range(out))
        return [(at, at, 0.0) for at in nearest]
    positions = []
    for to in range(out):
        # Exact: whole pixels, and a fraction in units of 1 / (2 out).
        low, part = divmod((2 * to + 1) * size - out, 2 * out)
        if 0 <= low < size - 1 and part:
            positions.append((low, low + 1, part / (2 * out)))
        else:
            at = min(max(low, 0), size - 1)
            positions.append((at, at, 0.0))
    return positions


def side_sizes(layer: Layer) -> list[tuple[int, int]]:
    """Return the sizes of source and result for each side, outermost first."""
    return list(zip(layer.in_size, layer.out_size, strict=True))


def _resample(np: Any, layer: Layer, t: Any) -> Any:
    values = t.src
    for axis, (size, out) in enumerate(side_sizes(layer), 2):
        low, high, weight = map(np.array, zip(*taps(layer.op, size, out), strict=True))
        weight = weight.reshape(-1, *(1,) * (values.ndim - axis - 1))
        first, second = np.take(values, low, axis), np.take(values, high, axis)
        values = first * (1 - weight) + second * weight
    return values


def _resize(mode: str) -> Op:
    def flops(layer: Layer, *, backward: bool) -> int:
        per_side = 1 if mode == "nearest" else 2
        return math.prod(layer.shapes()["dst"]) * flops_of_pixel(
            per_side, side_sizes(layer), backward=backward
        )

    return Op(
        name=mode,
        key=f"resize:{mode}",
        kind="resize",
        prefix=f"resize:{mode}:",
        fields=(
            Field(name="batch", spelling="mb", default=1, shown=True),
            Field(name="channels", spelling="ic"),
            Field(name="in_size", spelling="i", type="sides"),
            Field(name="out_size", spelling="o", type="sides"),
        ),
        output="out_size",
        sizes_first=True,
        convert=expand_sides,
        shapes=lambda s: {
            "src": (s.batch, s.channels, *s.in_size),
            "dst": (s.batch, s.channels, *s.out_size),
        },
        passes={
            "forward": Pass(
                reads=("src",),
                writes=("dst",),
                flops=lambda s: flops(s, backward=False),
                touched=lambda s: {
                    "src": s.batch
                    * s.channels
                    * math.prod(_touched(mode, size, out) for size, out in side_sizes(s))
                },
            ),
            # Each element of the gradient is added to the pixels that its value came from.
            "backward-data": Pass(
                reads=("dst",), writes=("src",), flops=lambda s: flops(s, backward=True)
            ),
        },
        reference=_resample,
        native=lambda s: {"mode": mode, **s.fields},
        attributes={"mode": lambda _: mode},
        memory_bound=True,
    )


RESIZES: Final = tuple(map(_resize, ("nearest", "linear")))
