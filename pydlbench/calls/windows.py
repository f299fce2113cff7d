"""Convolutions, poolings and resizing: windows over images of any number of sides.

Pads are a pair (before, after) for each side.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydlbench.calls.meaning import (
    LayerPass,
    Meaning,
    Value,
    least_bytes,
    meaning_rule,
    no_layer,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.axis import ceil_pad, extent, output_size, same_pads
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer, image_layer
from pydlbench.ops.windows import TAPS, positions_read, resize_flops

Pads = Sequence[tuple[int, int]]

_MODES: Final = {taps: mode for mode, taps in TAPS.items()}


def pair_pads(before: Sequence[int], after: Sequence[int] | None = None) -> Pads:
    """Return pads as pairs; by default, pads after are equal to pads before."""
    return list(zip(before, before if after is None else after, strict=True))


def same_padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    *,
    larger_before: bool = False,
) -> Pads:
    """Return the pads of TensorFlow's ``SAME``: one window per stride.

    Args:
        sizes: sizes of the images.
        kernel: sizes of the windows.
        stride: stride for each side.
        dilation: dilation for each side; 1 is dense.
        larger_before: whether an odd element of padding is before, not after.
    """
    sides = zip(sizes, kernel, stride, dilation, strict=True)
    pads = [same_pads(size, extent(taps, spread), step) for size, taps, step, spread in sides]
    return [pad[::-1] for pad in pads] if larger_before else pads


@meaning_rule
def convolution(
    source: Sequence[int],
    weights: Sequence[int],
    *,
    stride: Sequence[int],
    pads: Pads,
    dilation: Sequence[int],
    groups: int = 1,
    transposed: bool = False,
    out: Sequence[int] | None = None,
    bias: bool = False,
    gradients: Sequence[str] = (),
    reads: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a convolution.

    Args:
        source: shape of the source: ``(batch, channels, ...)``.
        weights: shape of the weights: ``(out, in / groups, ...)``; of a transposed convolution
            ``(in, out / groups, ...)``.
        stride: stride for each side.
        pads: pads for each side.
        dilation: dilation for each side; 1 is dense.
        groups: number of groups of channels.
        transposed: whether the convolution is transposed.
        out: sides of the result of a transposed convolution.
        bias: whether a bias is added, or its gradient computed.
        gradients: backward passes; empty for a forward pass.
        reads: bytes read, if only the shapes of some operands matter; None for all operands.
    """
    batch, channels, *sizes = source
    kernel = weights[2:]
    if out is None:
        windows = zip(sizes, kernel, stride, pads, dilation, strict=True)
        out = [output_size(i, extent(k, d), s, *p) for i, k, s, p, d in windows]
    result = (batch, weights[1] * groups if transposed else weights[0], *out)
    # Each weight is multiplied once for each position of the smaller images.
    positions = math.prod(sizes if transposed else out)
    products = 2 * batch * math.prod(weights) * positions * (len(gradients) or 1)
    flops = products + math.prod(result) * bias
    yield Meaning(kind="convolution", flops=flops, product_flops=products, reads=reads)
    if bias and gradients:
        yield LayerPass(image_layer("bias", result), "backward-weights")
    before, after = zip(*pads, strict=True)
    layer = build_layer(
        "deconv" if transposed else "conv",
        batch=batch,
        in_channels=channels,
        out_channels=result[1],
        groups=groups,
        in_size=sizes,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        pad_before=before,
        **({"out_size": out} if transposed else {"pad_after": after}),
    )
    for pass_ in gradients or ("forward",):
        yield LayerPass(layer, pass_)
    if bias and not gradients:
        yield LayerPass(image_layer("bias", result))


@meaning_rule
def pooling(
    source: Sequence[int],
    *,
    mode: str,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Pads,
    dilation: Sequence[int] | None = None,
    ceil: bool = False,
    count_padding: bool = False,
    divisor: int | None = None,
    backward: bool = False,
    reads: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a pooling.

    The gradient of a maximum adds one number per window; all others add one at each tap.

    Args:
        source: shape of the source, sides last.
        mode: ``max`` or ``avg``.
        kernel: size of the windows for each side.
        stride: stride for each side.
        pads: pads for each side.
        dilation: dilation for each side; None if all are dense.
        ceil: whether the last window may reach beyond the padding; no window begins in the padding.
        count_padding: whether an average divides by padded positions too.
        divisor: divisor of an average instead of the number of elements.
        backward: whether the call computes the gradient.
        reads: bytes read, if only the shapes of some operands matter; None for all operands.
    """
    planes, sizes = source[: -len(kernel)], source[-len(kernel) :]
    spreads = dilation or [1] * len(kernel)
    sides = list(zip(sizes, map(extent, kernel, spreads), stride, pads, strict=True))
    trailing = [ceil_pad(i, w, s, *p) if ceil else p[1] for i, w, s, p in sides]
    ends = zip(sides, trailing, strict=True)
    out = [output_size(i, w, s, p[0], after) for (i, w, s, p), after in ends]
    positions = math.prod((*planes, *out))
    flops = positions if backward and mode == "max" else positions * math.prod(kernel)
    yield Meaning(kind="pooling", flops=flops, reads=reads)
    if divisor is not None:
        raise no_layer("an average with a divisor of its own")
    count_padding = count_padding and any(map(any, pads))
    beyond = any(more > after for more, (_, after) in zip(trailing, pads, strict=True))
    if count_padding and beyond:
        # PyTorch divides these by the elements within the given padding.
        raise no_layer("an average over windows beyond the padding")
    layer = pooling_layer(
        planes,
        [(before, after) for (before, _), after in zip(pads, trailing, strict=True)],
        in_size=sizes,
        kernel=kernel,
        stride=stride,
        dilation=spreads,
        mode=mode,
        count_include_pad=count_padding,
    )
    yield LayerPass(layer, "backward-data" if backward else "forward")


@meaning_rule
def adaptive_pooling(
    source: Sequence[int],
    out: Sequence[int],
    *,
    mode: str,
    backward: bool = False,
    reads: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a pooling to a given size.

    Window ``i`` is from ``floor(i in / out)`` to ``ceil((i+1) in / out)``.
    """
    planes, sizes = source[: -len(out)], source[-len(out) :]
    sides = list(zip(sizes, out, strict=True))
    once = backward and mode == "max"
    flops = math.prod(source[: -len(out)]) * (
        math.prod(out) if once else resize_flops("area", 1, sides)
    )
    yield Meaning(kind="pooling", flops=flops, reads=reads)
    if any(i % o for i, o in sides):
        if mode == "max":
            raise no_layer("a maximum over windows that differ in size")
        *batch, channels = planes
        sizes_of: dict[str, Any] = {"in_size": sizes, "out_size": out, "channels": channels}
        layer = build_layer("resize:area", batch=math.prod(batch), **sizes_of)
        yield LayerPass(layer, "backward-data" if backward else "forward")
        return
    kernel = [i // o for i, o in sides]
    layer = pooling_layer(planes, in_size=sizes, kernel=kernel, stride=kernel, mode=mode)
    yield LayerPass(layer, "backward-data" if backward else "forward")


@meaning_rule
def unfold(
    source: Sequence[int],
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Pads,
    dilation: Sequence[int],
    backward: bool = False,
    reads: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a copy of all windows, or of their sum.

    Args:
        source: shape of the images, channels second.
        kernel: size of the windows for each side.
        stride: stride for each side.
        pads: pads for each side.
        dilation: dilation for each side; 1 is dense.
        backward: whether the call adds up windows.
        reads: bytes read.
    """
    batch, channels, *sizes = source
    before, after = zip(*pads, strict=True)
    extents = map(extent, kernel, dilation)
    sides = zip(sizes, extents, stride, pads, strict=True)
    columns = math.prod(output_size(size, taps, step, *pad) for size, taps, step, pad in sides)
    flops = batch * channels * math.prod(kernel) * columns if backward else 0
    yield Meaning(kind="copy", flops=flops, reads=reads)
    layer = build_layer(
        "unfold",
        batch=batch,
        channels=channels,
        in_size=sizes,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        pad_before=before,
        pad_after=after,
    )
    yield LayerPass(layer, "backward-data" if backward else "forward")


@meaning_rule
def sample(source: Value, grid: Value, *, taps: int) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of sampling images at the places of a grid.

    Args:
        source: images, channels second.
        grid: places, for two sides ``(batch, height, width, 2)``.
        taps: pixels along a side in the weighted sum of a pixel of the result; 1 is the nearest.
    """
    (batch, channels, *sides), out = source.shape, grid.shape[1:-1]
    pixels, summed = batch * channels * math.prod(out), taps ** len(out)
    read = min(least_bytes([source]), pixels * summed * source.itemsize)
    yield Meaning(
        kind="resize",
        flops=pixels * (2 * summed - 1) * (taps > 1),
        reads=read + least_bytes([grid]),
    )
    if taps != 2 or len(out) != 2:
        raise no_layer("sampling other than that of four pixels")
    sizes: dict[str, Any] = {"in_size": sides, "out_size": out}
    yield LayerPass(build_layer("grid-sample", batch=batch, channels=channels, **sizes))


def pooling_layer(planes: Sequence[int], pads: Pads | None = None, **fields: Any) -> Layer:
    """Return the layer of a pooling.

    Args:
        planes: dimensions in front of the sides, channels last.
        pads: pads for each side; None if there is no padding.
        fields: further fields of the layer.
    """
    *batch, channels = planes
    if pads is not None:
        fields["pad_before"], fields["pad_after"] = zip(*pads, strict=True)
    return build_layer("pool", batch=math.prod(batch), channels=channels, **fields)


@meaning_rule
def resize(
    source: Sequence[int],
    out: Sequence[int],
    *,
    taps: int,
    coordinates: str = "centres",
    factors: Sequence[float | None] = (),
    backward: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a resampling.

    Args:
        source: shape of the source, channels second.
        out: sides of the result.
        taps: pixels of the source along a side in the weighted sum of a pixel of the result; 1 is
            the nearest.
        coordinates: positions that map to each other: ``centres`` of pixels, ``whole`` positions
            (corners of pixels), or ``aligned`` outermost centres.
        factors: given factors of the sides; None stands for the quotient of the sizes.
        backward: whether the call computes the gradient.
    """
    sides = list(zip(source[2:], out, strict=True))
    mode = _MODES[taps] + "-aligned" * (coordinates == "aligned" and taps > 1)
    yield Meaning(
        kind="resize", flops=resize_flops(mode, math.prod(source[:2]), sides, backward=backward)
    )
    for (size, to), factor in zip(sides, [*factors, *[None] * len(sides)], strict=False):
        _check_centres(mode, size, to, coordinates, factor)
    layer = build_layer(
        f"resize:{mode}", batch=source[0], channels=source[1], in_size=source[2:], out_size=out
    )
    yield LayerPass(layer, "backward-data" if backward else "forward")


def _check_centres(mode: str, size: int, out: int, coordinates: str, factor: float | None) -> None:
    """Refuse a side that needs other pixels than mapping the centres of pixels gives.

    Raises:
        UnsupportedError: the side does; the text has the mapping of the coordinates.
    """
    step = 1 / factor if factor else size / out
    if mode.endswith("-aligned"):
        return
    if mode != "nearest" and coordinates == "whole":
        if size != out:
            raise no_layer("resizing by corners of pixels")
    elif mode == "nearest" and coordinates == "aligned":
        if size != out:
            raise no_layer("the nearest pixel with aligned corners")
    elif coordinates == "whole":
        picked = [min(math.floor(to * step), size - 1) for to in range(out)]
        if picked != [low for ((low, _),) in positions_read("nearest", size, out)]:
            raise UnsupportedError("other nearest pixels than those of centres have no layer")
    elif not math.isclose(step * out, size):
        raise UnsupportedError("resizing by a factor that is not that of its sizes has no layer")
