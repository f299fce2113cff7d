"""Convolution, transposed convolution, pooling and resizing of images of one, two or three sides.

``dst[n, oc, o] = sum over ic, k of weights[oc, ic, k] * src[n, group(oc) + ic, o * stride -
pad_before + k * dilation]``, with as many ``o`` and ``k`` as there are sides, is a convolution
(cross-correlation) without bias. A transposed convolution is its backward-data pass as a layer:
each source element adds a window to the result. With a stride above one, several sizes of the
result belong to one size of the source.

Trailing pads whose last positions no output reads are replaced by the pads that
:func:`~pydlbench.ops.axis.trailing_pad` returns, so that layers that compute the same are equal.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.ops.axis import Axis, derived_pad, extent, output_size, trailing_pad
from pydlbench.ops.op import NO_CUDA_KERNEL, SIDES, Field, Layer, Op, Pass, Shapes

_MAX_CUT: Final = 2**63
_GROUPS: Final = Field(name="groups", spelling="g", default=1)
_BATCH: Final = Field(name="batch", spelling="mb", default=1, shown=True)
_IN: Final = Field(name="in_channels", spelling="ic")
_OUT: Final = Field(name="out_channels", spelling="oc")
_KERNEL: Final = (
    Field(name="kernel", spelling="k", type="sides"),
    Field(name="stride", spelling="s", type="sides", default=1),
    Field(name="pad_before", spelling="p", type="sides", default=None, minimum=0),
    Field(name="dilation", spelling="d", type="sides", default=1, offset=1),
)
_IN_SIZE: Final = Field(name="in_size", spelling="i", type="sides")


def _out_size(*, derived: bool) -> Field:
    return Field(
        name="out_size", spelling="o", type="sides", default=None, derived=derived, shown=True
    )


def _pad_after(*, derived: bool) -> Field:
    """Return the field; it is negative if windows end before the images do."""
    return Field(name="pad_after", type="sides", default=None, minimum=-_MAX_CUT, derived=derived)


def expand_sides(op: Op, values: dict[str, Any]) -> dict[str, Any]:
    """Expand fields with a single value to one for each side.

    ``sides`` is the number of sides; by default the length of a tuple among the fields, or two.
    ``padding`` is a number, one for each side, or two for each side: (top, bottom, left, right).

    Raises:
        UsageError: The number of values, or of sides, is wrong.
    """
    names = [field.name for field in op.fields if field.type == "sides"]
    tuples = [len(values[name]) for name in names if isinstance(values.get(name), (tuple, list))]
    sides = values.pop("sides", tuples[0] if tuples else 2)
    if sides not in (1, 2, 3):
        raise UsageError(f"sides={sides!r}: not 1, 2 or 3; nearest: 2")
    padding = values.pop("padding", None)
    if padding is not None:
        several = isinstance(padding, (tuple, list))
        if several and len(padding) == 2 * sides:
            values |= {"pad_before": padding[::2], "pad_after": padding[1::2]}
        else:
            values |= {"pad_before": padding, "pad_after": padding}
    defaults = {field.name: field.default for field in op.fields}
    for name in names:
        value = values.get(name, defaults[name])
        if isinstance(value, (tuple, list)):
            if len(value) != sides:
                raise UsageError(f"{name}={value!r}: expected a number, or {sides} of them")
        elif name in values or value is None or isinstance(value, int):
            values[name] = (value,) * sides
    return values


def _settle(values: dict[str, Any], *, transposed: bool = False) -> None:
    """Fill in the sizes of the output, and the pads."""
    names = ("in_size", "kernel", "stride", "dilation", "pad_before", "pad_after", "out_size")
    sides = SIDES[-len(values["in_size"]) :]
    rows = zip(sides, *(values[name] for name in names), strict=True)
    settled = [_settle_side(*row, transposed=transposed) for row in rows]
    columns = zip(*settled, strict=True)
    values |= dict(zip(("out_size", "pad_before", "pad_after"), columns, strict=True))


def _settle_side(
    side: str,
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    before: int | None,
    after: int | None,
    out: int | None,
    *,
    transposed: bool,
) -> tuple[int, int, int]:
    """Return the size of the output, and the pads before and after, of one side.

    A transposed convolution writes the images that its windows slide over.
    """
    window = extent(kernel, dilation)
    reach = (size - 1) * stride + window
    # Windows may end before the images do only if the leading pad alone is given.
    cuts = before is not None and after is None and not transposed
    if transposed and out is None:
        before = before or 0
        out = reach - before - (before if after is None else after)
    images, places = (out, size) if transposed else (size, out)
    assert images is not None
    if before is None:
        before = 0 if places is None else derived_pad(images, window, stride, places)
    if places is not None:
        after = max(-images if cuts else 0, (places - 1) * stride + window - images - before)
    elif after is None:
        after = before
    padded = images + before + after
    if window > padded and not transposed:
        raise UsageError(
            f"k{side}{kernel}: a window of {window} (dilation included) is larger than the padded "
            f"input {padded}; at most {padded}"
        )
    actual = output_size(images, window, stride, before, after)
    if images < 1 or places not in (None, actual):
        least = max(1, reach - 2 * before) if transposed else actual
        raise UsageError(
            f"o{side}{out}: does not follow from i{side}{size}, k{side}{kernel}, s{side}{stride} "
            f"and p{side}{before}; nearest: o{side}{least}"
        )
    trailing = trailing_pad(images, window, stride, before, actual)
    return (images if transposed else actual), before, trailing


def axes(layer: Layer) -> tuple[Axis, ...]:
    """Return the sides of the windows, outermost first; ``deconv`` has its convolution's."""
    fields, transposed = layer.fields, layer.op == "deconv"
    names = {
        "size": "out_size" if transposed else "in_size",
        "out": "in_size" if transposed else "out_size",
        "kernel": "kernel",
        "stride": "stride",
        "dilation": "dilation",
        "pad": "pad_before",
    }
    rows = zip(*(fields[field] for field in names.values()), strict=True)
    return tuple(Axis(**dict(zip(names, row, strict=True))) for row in rows)


def elements_inside(layer: Layer) -> list[list[int]]:
    """Return the number of taps that meet an element, by side and position of the window.

    The elements of a window are the product of its numbers; its other taps meet padding.
    """
    return [axis.elements_inside() for axis in axes(layer)]


def on_padded_images(layer: Layer) -> Layer:
    """Return the layer for images that include the padding."""
    pads = (layer.in_size, layer.pad_before, layer.pad_after)
    return layer.replace(in_size=tuple(map(sum, zip(*pads, strict=True))), padding=0)


def _shown(layer: Layer, field: Field) -> bool:
    """Whether a descriptor contains leading pads, even zeros if benchdnn would derive others."""
    if field.name != "pad_before":
        return False
    return any((*layer.pad_before, min(layer.pad_after) < 0)) or any(
        abs((axis.out - 1) * axis.stride + extent(axis.kernel, axis.dilation) - axis.size) > 1
        for axis in axes(layer)
    )


# -----------------------------------------------------------------------------
# Convolutions.


def _settle_conv(values: dict[str, Any], *, transposed: bool = False) -> None:
    inputs, outputs, groups = (values[name] for name in ("in_channels", "out_channels", "groups"))
    for field, channels in (("in_channels", inputs), ("out_channels", outputs)):
        if channels % groups:
            steps = range(1, min(groups, 4096))
            near = (groups + sign * step for step in steps for sign in (-1, 1))
            nearest = next((n for n in near if not (inputs % n or outputs % n)), 1)
            raise UsageError(
                f"groups={groups}: does not divide {field}={channels}; nearest: {nearest}"
            )
    _settle(values, transposed=transposed)


def fits_transposed(layer: Layer) -> bool:
    """Whether a convolution's sizes are those of a transposed one.

    Its padding is then larger than its windows, and its output as large as that of the other.
    """
    for axis, before, after in zip(axes(layer), layer.pad_before, layer.pad_after, strict=True):
        window = extent(axis.kernel, axis.dilation)
        more = axis.out - ((axis.size - 1) * axis.stride + window - 2 * before)
        derived = before == derived_pad(axis.size, window, axis.stride, axis.out)
        if before + after >= 2 * window and (derived or more >= 0) and more < axis.stride:
            return True
    return False


def _conv_shapes(layer: Layer) -> Shapes:
    filters = (layer.out_channels, layer.in_channels // layer.groups)
    if layer.op == "deconv":
        filters = (layer.in_channels, layer.out_channels // layer.groups)
    return {
        "src": (layer.batch, layer.in_channels, *layer.in_size),
        "weights": (*filters, *layer.kernel),
        "dst": (layer.batch, layer.out_channels, *layer.out_size),
    }


def _per_tap(layer: Layer) -> int:
    """Return the FLOPs of a tap: output channels times the input channels of their group."""
    return 2 * layer.batch * int(layer.out_channels) * int(layer.in_channels // layer.groups)


def _conv_touched(layer: Layer) -> Mapping[str, int]:
    shapes = layer.shapes()
    image, result = ("dst", "src") if layer.op == "deconv" else ("src", "dst")
    sides = axes(layer)
    return {
        image: math.prod(shapes[image][:2]) * math.prod(axis.touched_inputs() for axis in sides),
        "weights": math.prod(shapes["weights"][:2]) * math.prod(axis.used_taps() for axis in sides),
        result: math.prod(shapes[result][:2]) * math.prod(axis.used_outputs() for axis in sides),
    }


def _product_pass(reads: tuple[str, str], writes: str) -> Pass:
    return Pass(
        reads=reads,
        writes=(writes,),
        flops=lambda layer: (
            _per_tap(layer) * math.prod(axis.out * axis.kernel for axis in axes(layer))
        ),
        executed=lambda layer: _per_tap(layer) * math.prod(axis.taps() for axis in axes(layer)),
        touched=_conv_touched,
    )


_PASSES: Final = {
    "forward": _product_pass(("src", "weights"), "dst"),
    "backward-data": _product_pass(("weights", "dst"), "src"),
    "backward-weights": _product_pass(("src", "dst"), "weights"),
}


def _slide(axis: Axis, tap: int) -> slice:
    """Return the positions of padded images that a tap reads along a side."""
    first = tap * axis.dilation
    return slice(first, first + (axis.out - 1) * axis.stride + 1, axis.stride)


def _windows_of(layer: Layer, padded: Any, taps: tuple[int, ...]) -> Any:
    """Return the view of padded images that a tap reads over all outputs."""
    slices = [_slide(axis, tap) for axis, tap in zip(axes(layer), taps, strict=True)]
    return padded[(slice(None), slice(None), *slices)]


def _pads(layer: Layer) -> list[tuple[int, int]]:
    """Return pads before and after, the latter large enough for all windows."""
    trailing = [
        max(
            0,
            (axis.out - 1) * axis.stride
            + extent(axis.kernel, axis.dilation)
            - axis.size
            - axis.pad,
        )
        for axis in axes(layer)
    ]
    return [(0, 0), (0, 0), *zip(layer.pad_before, trailing, strict=True)]


def _convolve(np: Any, layer: Layer, t: Any) -> Any:
    images, groups = np.pad(t.src, _pads(layer)), layer.groups
    dst = np.zeros((layer.batch, groups, layer.out_channels // groups, *layer.out_size))
    weights = t.weights.reshape(groups, layer.out_channels // groups, -1, *layer.kernel)
    for taps in itertools.product(*map(range, layer.kernel)):
        elements = _windows_of(layer, images, taps)
        elements = elements.reshape(layer.batch, groups, -1, *layer.out_size)
        dst += np.einsum("goi,ngi...->ngo...", weights[(..., *taps)], elements)
    return dst.reshape(layer.shapes()["dst"])


def _convolve_transposed(np: Any, layer: Layer, t: Any) -> Any:
    groups, pads = layer.groups, _pads(layer)
    padded = [size + sum(pad) for size, pad in zip(layer.shapes()["dst"], pads, strict=True)]
    images = np.zeros(padded)
    src = t.src.reshape(layer.batch, groups, -1, *layer.in_size)
    weights = t.weights.reshape(groups, layer.in_channels // groups, -1, *layer.kernel)
    for taps in itertools.product(*map(range, layer.kernel)):
        part = np.einsum("gio,ngi...->ngo...", weights[(..., *taps)], src)
        _windows_of(layer, images, taps)[...] += part.reshape(layer.batch, -1, *layer.in_size)
    inner = (
        slice(pad[0], pad[0] + size) for pad, size in zip(pads, layer.shapes()["dst"], strict=True)
    )
    return images[tuple(inner)]


def _grouped_weights(layer: Layer) -> Shapes:
    """Return the shape of weights with a leading axis for groups."""
    first, *rest = layer.shapes()["weights"]
    return {"weights": (layer.groups, first // layer.groups, *rest)}


CONV: Final = Op(
    name="conv",
    key="conv",
    kind="conv",
    written_prefix=lambda s: "conv:" if fits_transposed(s) else "",
    fields=(
        *(_GROUPS, _BATCH, _IN, _IN_SIZE, _OUT, _out_size(derived=True), *_KERNEL),
        _pad_after(derived=False),
    ),
    output="out_size",
    convert=expand_sides,
    settle=_settle_conv,
    shown=_shown,
    shapes=_conv_shapes,
    other_shapes=_grouped_weights,
    passes=_PASSES,
    reference=_convolve,
    native=lambda s: s.fields,
    attributes={"axes": axes},
    multiply_adds=True,
    trained=("weights",),
    windows=True,
)


def _convolution(layer: Layer) -> Layer:
    """Return the convolution whose backward-data pass a transposed convolution is.

    Its ``src`` is this layer's ``dst`` and vice versa; the weights are the same.
    """
    same = ("batch", "groups", "kernel", "stride", "dilation", "pad_before", "pad_after")
    return CONV.build(
        layer.name,
        in_channels=layer.out_channels,
        in_size=layer.out_size,
        out_channels=layer.in_channels,
        **{field: getattr(layer, field) for field in same},
    )


DECONV: Final = Op(
    name="deconv",
    key="deconv",
    kind="deconv",
    prefix="deconv:",
    fields=(
        *(_GROUPS, _BATCH, _IN, _IN_SIZE, _OUT, _out_size(derived=False), *_KERNEL),
        _pad_after(derived=True),
    ),
    output="out_size",
    convert=expand_sides,
    settle=functools.partial(_settle_conv, transposed=True),
    shown=_shown,
    shapes=_conv_shapes,
    other_shapes=_grouped_weights,
    passes=_PASSES,
    reference=_convolve_transposed,
    native=lambda s: s.fields,
    attributes={"axes": axes, "convolution": _convolution},
    multiply_adds=True,
    trained=("weights",),
    windows=True,
)

#: A fully connected layer in benchdnn's fields, whose layer is a product.
INNER_PRODUCT: Final = replace(
    CONV,
    key="ip",
    prefix="ip:",
    fields=(_BATCH, _IN, replace(_IN_SIZE, default=1), _OUT),
)

#: The pass of its ``convolution`` that computes each pass of a transposed convolution.
PASS_OF_CONVOLUTION: Final = {
    "forward": "backward-data",
    "backward-data": "forward",
    "backward-weights": "backward-weights",
}

# -----------------------------------------------------------------------------
# Poolings: the maximum or mean of the elements of a window. Padding is never the maximum. A mean is
# over the elements inside the input, or over the whole window. If a window has padding only, its
# maximum is the smallest value, and its mean without padding is undefined; libraries reject it.


def _settle_pool(values: dict[str, Any]) -> None:
    if values["count_include_pad"] and values["mode"] == "max":
        raise UsageError("count_include_pad=True: only for averages; nearest: mode avg")
    _settle(values)


def _pool_flops(layer: Layer) -> int:
    taps = math.prod(axis.out * axis.kernel for axis in axes(layer))
    return layer.batch * int(layer.channels) * taps


def _pool_executed(layer: Layer) -> int:
    return layer.batch * int(layer.channels) * math.prod(axis.taps() for axis in axes(layer))


def _pool(np: Any, layer: Layer, t: Any) -> Any:
    largest = layer.mode == "max"
    images = np.pad(t.src, _pads(layer), constant_values=-math.inf if largest else 0.0)
    # With the innermost side first, the first of equal maxima (in row-major order) is chosen.
    for number, axis in reversed(list(enumerate(axes(layer), start=2))):
        outer = (slice(None),) * number
        taps = [images[(*outer, _slide(axis, tap))] for tap in range(axis.kernel)]
        images = (
            functools.reduce(lambda most, x: np.maximum(x, most), taps) if largest else sum(taps)
        )
    if largest:
        return images
    counts = np.ones(())
    for axis in axes(layer):
        counts = np.multiply.outer(counts, axis.elements_inside())
    with np.errstate(invalid="ignore"):
        return images / (math.prod(layer.kernel) if layer.count_include_pad else counts)


POOL: Final = Op(
    name="pool",
    key="pool",
    kind="pool",
    fields=(
        _BATCH,
        Field(name="channels", spelling="ic"),
        _IN_SIZE,
        _out_size(derived=True),
        *_KERNEL,
        _pad_after(derived=False),
        Field(name="mode", type="word", choices=("max", "avg"), default="max"),
        Field(name="count_include_pad", type="flag", default=False),
    ),
    output="out_size",
    convert=expand_sides,
    settle=_settle_pool,
    shown=_shown,
    shapes=lambda s: {
        "src": (s.batch, s.channels, *s.in_size),
        "dst": (s.batch, s.channels, *s.out_size),
    },
    passes={
        "forward": Pass(
            reads=("src",),
            writes=("dst",),
            flops=_pool_flops,
            executed=_pool_executed,
            touched=lambda s: {
                "src": s.batch * s.channels * math.prod(axis.touched_inputs() for axis in axes(s))
            },
        ),
        # The maxima are searched in the source again. Libraries store their positions in their own
        # format instead; neither counts in the least bytes.
        "backward-data": Pass(
            reads=lambda s: ("src", "dst") if s.mode == "max" else ("dst",),
            writes=("src",),
            flops=_pool_flops,
            executed=_pool_executed,
            touched=lambda _: {"src": 0},
        ),
    },
    reference=_pool,
    native=lambda s: s.fields,
    attributes={"axes": axes, "elements_inside": elements_inside},
    windows=True,
)


# -----------------------------------------------------------------------------
# The elements of each window as a column (``im2col``); the gradient adds up the windows (``fold``).


def _unfold(np: Any, layer: Layer, t: Any) -> Any:
    images = np.pad(t.src, _pads(layer))
    taps = itertools.product(*map(range, layer.kernel))
    columns = [_windows_of(layer, images, tap) for tap in taps]
    shape = layer.batch, layer.channels, 1, math.prod(layer.out_size)
    columns = [column.reshape(shape) for column in columns]
    return np.concatenate(columns, 2).reshape(layer.shapes()["dst"])


UNFOLD: Final = replace(
    POOL,
    name="unfold",
    key="unfold",
    kind="unfold",
    prefix="unfold:",
    written_prefix=lambda _: "unfold:",
    fields=POOL.fields[:-2],
    settle=_settle,
    shapes=lambda s: {
        "src": (s.batch, s.channels, *s.in_size),
        "dst": (s.batch, s.channels * math.prod(s.kernel), math.prod(s.out_size)),
    },
    passes={
        "forward": replace(POOL.passes["forward"], flops=0, executed=None),
        "backward-data": replace(POOL.passes["backward-data"], reads=("dst",), touched=None),
    },
    reference=_unfold,
    attributes={"axes": axes},
    memory_bound=True,
    no_gpu=NO_CUDA_KERNEL,
)


# -----------------------------------------------------------------------------
# Resizing of images: each pixel is a sum of some pixels along each side, with weights that add up
# to one. ``nearest``, ``linear`` and ``cubic`` map the centres of pixels to each other, those with
# ``-aligned`` the outermost centres; ``area`` averages adaptive windows, from ``floor(i in / out)``
# to ``ceil((i+1) in / out)``.

#: The parameter of cubic convolution (R. Keys, 1981), as in OpenCV and PyTorch.
_CUBIC: Final = -0.75
_ALIGNED: Final = "-aligned"
#: Pixels along a side in the weighted sum of a pixel, by mode without ``-aligned``.
TAPS: Final = {"nearest": 1, "linear": 2, "cubic": 4}
RESIZE_MODES: Final = ("nearest", "linear", "linear-aligned", "cubic", "cubic-aligned", "area")


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


def adaptive_windows(size: int, out: int) -> list[range]:
    """Return the positions that each position of the result is the average or maximum of."""
    return [range(at * size // out, -(-(at + 1) * size // out)) for at in range(out)]


def _touched(mode: str, size: int, out: int) -> int:
    """Return the number of positions of a side that the result depends on."""
    if mode == "nearest" or (mode == "linear" and size <= 2 * out):
        return min(size, out) if mode == "nearest" else size
    if mode == "linear":
        # Two positions per pixel of the result, or one if its centre is the centre of a source
        # pixel.
        common = math.gcd(size, out)
        centred = common if size // common % 2 and out // common % 2 else 0
        return 2 * out - centred
    read = positions_read(mode, size, out)
    return len({at for positions in read for at, weight in positions if weight})


def positions_read(mode: str, size: int, out: int) -> list[list[tuple[int, float]]]:
    """Return the positions of the source and their weights, per position of the result.

    Args:
        mode: Kind of resampling, one of :data:`RESIZE_MODES`.
        size: Size of the source.
        out: Size of the result.
    """
    if mode == "nearest":
        return [[((2 * to + 1) * size // (2 * out), 1.0)] for to in range(out)]
    if mode == "area":
        return [[(at, 1 / len(window)) for at in window] for window in adaptive_windows(size, out)]
    positions = []
    for to in range(out):
        # Exact: whole pixels, and a fraction of a pixel.
        if mode.endswith(_ALIGNED):
            unit = max(1, out - 1)
            low, part = divmod(to * (size - 1) * (out > 1), unit)
        else:
            unit = 2 * out
            low, part = divmod((2 * to + 1) * size - out, unit)
        t = part / unit
        weights = _cubic_weights(t) if mode.startswith("cubic") else [1 - t, t]
        first = low + 1 - len(weights) // 2
        places = [min(max(at, 0), size - 1) for at in range(first, first + len(weights))]
        positions.append(list(zip(places, weights, strict=True)))
    return positions


def _cubic_weights(t: float) -> list[float]:
    """Return the weights of four pixels for a position ``t`` behind the second one."""
    a = _CUBIC
    outer = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (1 + t, 2 - t)]
    inner = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    return [outer[0], *inner, outer[1]]


def side_sizes(layer: Layer) -> list[tuple[int, int]]:
    """Return the sizes of source and result for each side, outermost first."""
    return list(zip(layer.in_size, layer.out_size, strict=True))


def _resample(np: Any, layer: Layer, t: Any) -> Any:
    values = t.src
    for axis, (size, out) in enumerate(side_sizes(layer), 2):
        read = positions_read(layer.op, size, out)
        total = 0.0
        for tap in range(max(map(len, read))):
            pairs = ((*taps, (0, 0.0))[min(tap, len(taps))] for taps in read)
            at, weights = zip(*pairs, strict=True)
            along = np.array(weights).reshape(-1, *(1,) * (values.ndim - axis - 1))
            total = total + np.take(values, at, axis) * along
        values = total
    return values


def resize_flops(
    mode: str, planes: int, sides: Sequence[tuple[int, int]], *, backward: bool = False
) -> int:
    """Return the FLOPs of resizing ``planes`` images; an average takes one for each element."""
    if mode == "area":
        return planes * math.prod(sum(map(len, adaptive_windows(*side))) for side in sides)
    per_pixel = flops_of_pixel(TAPS[mode.removesuffix(_ALIGNED)], sides, backward=backward)
    return planes * math.prod(out for _, out in sides) * per_pixel


def _resize(mode: str) -> Op:
    def flops(layer: Layer, *, backward: bool) -> int:
        planes = layer.batch * int(layer.channels)
        return resize_flops(mode, planes, side_sizes(layer), backward=backward)

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
        no_gpu="" if mode in ("nearest", "linear") else NO_CUDA_KERNEL,
    )


RESIZES: Final = tuple(map(_resize, RESIZE_MODES))


# -----------------------------------------------------------------------------
# Images at given places: ``grid`` has a column and a row for each pixel of the result, from -1 at
# the left and upper border to 1 at the others (M. Jaderberg et al., Spatial Transformer Networks,
# 2015). A pixel is the weighted sum of the four around its place; outside the images there are
# zeros.


def _sample(np: Any, layer: Layer, t: Any) -> Any:
    height, width = layer.in_size
    images = []
    for image, grid in zip(t.src, t.grid, strict=True):
        sides = []
        for axis, size in ((1, height), (0, width)):
            at = ((grid[..., axis] + 1) * size - 1) * 0.5
            low = np.floor(at)
            first = getattr(low, "value", low).astype(int)
            part = at - low
            sides.append([(first, 1 - part), (first + 1, part)])
        total = 0.0
        for (row, down), (column, across) in itertools.product(*sides):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            taken = image[:, row.clip(0, height - 1), column.clip(0, width - 1)]
            total = total + taken * inside * (down * across)
        images.append(total)
    return np.stack(images)


def _settle_two_sides(values: dict[str, Any]) -> None:
    if len(values["in_size"]) != 2:
        raise UsageError(f"in_size={values['in_size']}: not two sides; nearest: ih8iw8oh4ow4")


GRID_SAMPLE: Final = Op(
    name="grid-sample",
    key="grid-sample",
    kind="grid-sample",
    prefix="grid-sample:",
    fields=RESIZES[0].fields,
    output="out_size",
    sizes_first=True,
    convert=expand_sides,
    settle=_settle_two_sides,
    shapes=lambda s: {
        "src": (s.batch, s.channels, *s.in_size),
        "grid": (s.batch, *s.out_size, 2),
        "dst": (s.batch, s.channels, *s.out_size),
    },
    passes={
        # Four products and their sum.
        "forward": Pass(
            reads=("src", "grid"),
            writes=("dst",),
            flops=lambda s: 7 * math.prod(s.shapes()["dst"]),
            touched=lambda s: {
                "src": s.batch * s.channels * min(math.prod(s.in_size), 4 * math.prod(s.out_size))
            },
        ),
    },
    reference=_sample,
    memory_bound=True,
    no_gpu=NO_CUDA_KERNEL,
)
