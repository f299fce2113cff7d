"""Images in another size: nearest and linear resampling.

Pixels are squares: the centre of output ``o`` lies at ``(o + 1/2) in / out`` of the source, where
that of input ``i`` is at ``i + 1/2`` ("half-pixel centres").

- ``nearest``: the pixel that the centre lies in, of two the latter.
- ``linear``: the mean of the two pixels between whose centres it lies, weighted, along each side;
  beyond the outermost centres their values go on. Nothing is smoothed beforehand where the result
  is smaller.

Sources: oneDNN's developer guide, "Resampling"; PyTorch's ``interpolate`` with ``nearest-exact``,
and with ``bilinear`` and ``align_corners=False``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.ops.fields import Field
from pydlbench.ops.op import Layer, Op, Pass
from pydlbench.ops.windows import spread_sides

if TYPE_CHECKING:
    from collections.abc import Iterable


def flops_of_pixel(per_side: int, sides: Iterable[tuple[int, int]], *, backward: bool) -> int:
    """Return the FLOPs of each pixel of the result.

    Args:
        per_side: pixels of the source along a side that it is a weighted sum of; of one it is a
            copy.
        sides: sizes of source and result; along equal ones nothing is weighted.
        backward: its gradient is added to all of them, the first among them.
    """
    if per_side == 1:
        return int(backward)
    return 2 * math.prod(per_side if size != out else 1 for size, out in sides) - (not backward)


def _touched(mode: str, size: int, out: int) -> int:
    """Return how many positions of a side the result is made of."""
    if mode == "nearest" or size <= 2 * out:
        return min(size, out) if mode == "nearest" else size
    # Two for each, none of them of two; but one where a centre of the result is that of a pixel.
    common = math.gcd(size, out)
    centred = common if size // common % 2 and out // common % 2 else 0
    return 2 * out - centred


def taps(mode: str, size: int, out: int) -> list[tuple[int, int, float]]:
    """Return for each position of the result two of the source, and the weight of the latter.

    They are one and the same, and the weight is zero, where there is only one.

    Args:
        mode: ``nearest`` or ``linear``.
        size: Of the source.
        out: Of the result.
    """
    if mode == "nearest":
        nearest = ((2 * to + 1) * size // (2 * out) for to in range(out))
        return [(at, at, 0.0) for at in nearest]
    taps = []
    for to in range(out):
        # In units of a part of a pixel, so that nothing is rounded.
        low, part = divmod((2 * to + 1) * size - out, 2 * out)
        if 0 <= low < size - 1 and part:
            taps.append((low, low + 1, part / (2 * out)))
        else:
            at = min(max(low, 0), size - 1)
            taps.append((at, at, 0.0))
    return taps


def pairs(layer: Layer) -> list[tuple[int, int]]:
    """Return sizes of source and result of each side, outermost first."""
    return list(zip(layer.in_size, layer.out_size, strict=True))


def _resample(np: Any, layer: Layer, t: Any) -> Any:
    values = t.src
    for axis, (size, out) in enumerate(pairs(layer), 2):
        low, high, weight = map(np.array, zip(*taps(layer.op, size, out), strict=True))
        weight = weight.reshape(-1, *(1,) * (values.ndim - axis - 1))
        first, second = np.take(values, low, axis), np.take(values, high, axis)
        values = first * (1 - weight) + second * weight
    return values


def _resize(mode: str) -> Op:
    def flops(layer: Layer, *, backward: bool) -> int:
        per_side = 1 if mode == "nearest" else 2
        return math.prod(layer.shapes()["dst"]) * flops_of_pixel(
            per_side, pairs(layer), backward=backward
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
        given=spread_sides,
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
                    * math.prod(_touched(mode, size, out) for size, out in pairs(s))
                },
            ),
            # Each element of the gradient is added to all pixels that it came from.
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
