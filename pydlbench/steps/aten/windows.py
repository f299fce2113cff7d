"""Convolutions, poolings and resized images: what slides over images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError
from pydlbench.ops.resize import flops_of_pixel, taps
from pydlbench.ops.table import build_layer
from pydlbench.steps.aten.call import Found, least_bytes, on_images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.models.work import Work
    from pydlbench.ops.op import Layer
    from pydlbench.steps.aten.call import Call
    from pydlbench.steps.aten.text import TensorText


# -----------------------------------------------------------------------------
# Convolutions. Those of one side are images of height 1.


class _Convolution:
    """The convolution of a call, of any number of sides.

    Args:
        source: ``(batch, channels, ...)``.
        weights: ``(out, in / groups, ...)``, transposed ``(in, out / groups, ...)``.
        settings: stride, padding, dilation, whether it is transposed, padding of the result,
            groups.
    """

    def __init__(self, source: TensorText, weights: TensorText, settings: Sequence[Any]) -> None:
        stride, padding, dilation, self._transposed, more, self._groups = settings
        number = len(source.shape) - 2
        self._kernel = weights.shape[2:]
        self._stride, self._padding, self._dilation, extra = (
            _each(one, number) for one in (stride, padding, dilation, more)
        )
        self._batch, self._channels, *self._sizes = source.shape
        own = zip(
            self._sizes,
            self._kernel,
            self._stride,
            self._padding,
            self._dilation,
            extra,
            strict=True,
        )
        if self._transposed:
            self.channels = weights.shape[1] * self._groups
            self._out = [(i - 1) * s - 2 * p + d * (k - 1) + e + 1 for i, k, s, p, d, e in own]
        else:
            self.channels = weights.shape[0]
            self._out = [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d, _ in own]
        # Each element of the weights meets one element per place of the smaller images.
        places = self._sizes if self._transposed else self._out
        self.flops = 2 * self._batch * weights.elements * math.prod(places)

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self._batch, self.channels, *self._out

    def layer(self) -> Layer:
        """Return the layer.

        Raises:
            UsageError: a convolution that cannot be.
            UnsupportedError: three sides.
        """
        if len(self._sizes) > 2:
            raise UnsupportedError(f"a convolution of {len(self._sizes)} sides has no layer")

        def both(values: Sequence[int], missing: int = 1) -> tuple[int, int]:
            height, width = (*[missing] * (2 - len(values)), *values)
            return height, width

        pads = both(self._padding, 0)
        return build_layer(
            "deconv" if self._transposed else "conv",
            batch=self._batch,
            in_channels=self._channels,
            in_size=both(self._sizes),
            out_channels=self.channels,
            kernel=both(self._kernel),
            stride=both(self._stride),
            dilation=both(self._dilation),
            groups=self._groups,
            padding=pads,
            out_size=both(self._out),
        )


def _each(values: Any, number: int) -> tuple[int, ...]:
    """Return one number for each side, where all may share one."""
    listed = values if isinstance(values, (list, tuple)) else [values]
    return tuple(listed) * number if len(listed) == 1 else tuple(listed)


def _convolution(call: Call) -> Found:
    """``convolution``: source, weights, bias, settings."""
    source, weights, bias = call.arguments[:3]
    made = _Convolution(source, weights, call.arguments[3:9])

    def layers() -> Iterator[Work]:
        yield call.work(made.layer())
        if bias is not None:
            yield call.work(on_images("bias", made.result))

    added = 0 if bias is None else math.prod(made.result)
    return Found.of("convolution", layers, flops=made.flops + added, product_flops=made.flops)


def _convolution_backward(call: Call) -> Found:
    """``convolution_backward``: outer gradient, source, weights, sizes of the bias, settings, mask.

    The mask says which gradients are wanted: of the source, the weights, the bias.
    """
    outer, source, weights = call.arguments[:3]
    made = _Convolution(source, weights, call.arguments[4:10])
    of_source, of_weights, of_bias = call.arguments[10]

    def layers() -> Iterator[Work]:
        if of_bias:
            yield call.work(on_images("bias", made.result), "backward-weights")
        if of_weights:
            yield call.work(made.layer(), "backward-weights")
        if of_source:
            yield call.work(made.layer(), "backward-data")

    products = made.flops * (bool(of_source) + bool(of_weights))
    read = [outer] + [source] * bool(of_weights) + [weights] * bool(of_source)
    return Found.of(
        "convolution",
        layers,
        flops=products + outer.elements * bool(of_bias),
        product_flops=products,
        read=least_bytes(read),
    )


# -----------------------------------------------------------------------------
# Poolings.


class _Pooling:
    """The pooling of a call, of two or three sides.

    Args:
        call: the call.
        source: what is pooled.
        first: place of the kernel's size among the arguments.
        mode: ``max`` or ``avg``.
    """

    def __init__(self, call: Call, source: TensorText, first: int, mode: str) -> None:
        number = 3 if "3d" in call.operator else 2
        self._mode, self._shape, self._number = mode, source.shape, number
        self._kernel = _each(call.get(first, "kernel_size"), number)
        self._stride = _each(call.get(first + 1, "stride", []) or self._kernel, number)
        self._padding = _each(call.get(first + 2, "padding", 0), number)
        self._dilation: tuple[int, ...] = (1,) * number
        self._counted, self._divisor = False, None
        if mode == "max":
            self._dilation = _each(call.get(first + 3, "dilation", 1), number)
            self._ceil = call.get(first + 4, "ceil_mode", False)
        else:
            self._ceil = call.get(first + 3, "ceil_mode", False)
            self._counted = call.get(first + 4, "count_include_pad", True) and any(self._padding)
            self._divisor = call.get(first + 5, "divisor_override")
        self._sizes = source.shape[-number:]
        own = zip(
            self._sizes, self._kernel, self._stride, self._padding, self._dilation, strict=True
        )
        self._out = [_windows(*one, ceil=self._ceil) for one in own]
        planes = math.prod(source.shape[:-number])
        self.flops = planes * math.prod(self._out) * math.prod(self._kernel)

    def layer(self) -> Layer:
        """Return the layer.

        Raises:
            UsageError: a pooling that cannot be.
            UnsupportedError: one that we have no layer for.
        """
        if self._number == 3:
            raise UnsupportedError("a pooling of 3 sides has no layer")
        if any(one != 1 for one in self._dilation):
            raise UnsupportedError("a dilated pooling has no layer")
        if self._divisor is not None:
            raise UnsupportedError("an average with a divisor of its own has no layer")
        trailing = [
            max(0, (o - 1) * s + k - i - p)
            for o, s, k, i, p in zip(
                self._out, self._stride, self._kernel, self._sizes, self._padding, strict=True
            )
        ]
        if not self._ceil:
            trailing = list(self._padding)
        elif self._counted and any(
            more > pad for more, pad in zip(trailing, self._padding, strict=True)
        ):
            # PyTorch divides these by the elements within the padding it was given.
            raise UnsupportedError("an average over windows beyond the padding has no layer")
        *batch, channels, height, width = self._shape
        return build_layer(
            "pool",
            batch=math.prod(batch),
            channels=channels,
            in_size=(height, width),
            kernel=(self._kernel[0], self._kernel[1]),
            stride=(self._stride[0], self._stride[1]),
            padding=(self._padding[0], trailing[0], self._padding[1], trailing[1]),
            mode=self._mode,
            count_include_pad=bool(self._counted),
        )


def _windows(size: int, kernel: int, stride: int, pad: int, dilation: int, *, ceil: bool) -> int:
    """Return how many windows there are on one side; with ``ceil``, none begins in the padding."""
    reach = size + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil:
        return reach // stride + 1
    found = -(-reach // stride) + 1
    return found - 1 if (found - 1) * stride >= size + pad else found


def _pooling(mode: str) -> Callable[[Call], Found]:
    def rule(call: Call) -> Found:
        made = _Pooling(call, call.arguments[0], 1, mode)
        return Found.of("pooling", lambda: [call.work(made.layer())], flops=made.flops)

    return rule


def _pooling_backward(mode: str) -> Callable[[Call], Found]:
    """Outer gradient, source, settings, and of maxima their indices; no source is read.

    An average adds at each tap, a maximum once for each window.
    """

    def rule(call: Call) -> Found:
        outer, source = call.arguments[:2]
        made = _Pooling(call, source, 2, mode)
        return Found.of(
            "pooling",
            lambda: [call.work(made.layer(), "backward-data")],
            flops=outer.elements if mode == "max" else made.flops,
            read=least_bytes([one for one in call.tensors if one.number != source.number]),
        )

    return rule


def _to_size(mode: str) -> Callable[[Call], Found]:
    """``adaptive``: source, size of the result."""

    def rule(call: Call) -> Found:
        source, size = call.arguments[:2]
        made = _Even(source.shape, size)
        return Found.of("pooling", lambda: [call.work(made.layer(mode))], flops=made.flops)

    return rule


def _to_size_backward(mode: str) -> Callable[[Call], Found]:
    """Outer gradient, source, and of maxima their indices; no source is read."""

    def rule(call: Call) -> Found:
        outer, source = call.arguments[:2]
        made = _Even(source.shape, outer.shape[-2:])
        return Found.of(
            "pooling",
            lambda: [call.work(made.layer(mode), "backward-data")],
            flops=outer.elements if mode == "max" else made.flops,
            read=least_bytes([one for one in call.tensors if one.number != source.number]),
        )

    return rule


class _Even:
    """A pooling to a size: window ``i`` is from ``floor(i in / out)`` to ``ceil((i+1) in / out)``.

    Args:
        shape: of the source.
        size: of the result's sides.
    """

    def __init__(self, shape: tuple[int, ...], size: Sequence[int]) -> None:
        *self._planes, height, width = shape
        self._sizes, self._out = (height, width), (size[0], size[1])
        taps = [
            sum(-(-(index + 1) * i // o) - index * i // o for index in range(o))
            for i, o in zip(self._sizes, self._out, strict=True)
        ]
        self.flops = math.prod(self._planes) * math.prod(taps)

    def layer(self, mode: str) -> Layer:
        """Return the layer.

        Raises:
            UnsupportedError: windows of several sizes.
        """
        own = list(zip(self._sizes, self._out, strict=True))
        if any(i % o for i, o in own):
            raise UnsupportedError("a pooling whose windows differ in size has no layer")
        kernel = self._sizes[0] // self._out[0], self._sizes[1] // self._out[1]
        *batch, channels = self._planes
        return build_layer(
            "pool",
            batch=math.prod(batch),
            channels=channels,
            in_size=self._sizes,
            kernel=kernel,
            stride=kernel,
            mode=mode,
        )


# -----------------------------------------------------------------------------
# Images in another size.


def _resized(per_side: int) -> Callable[[Call], Found]:
    """Source and size, backward outer gradient, size and that of the source; then factors.

    Args:
        per_side: pixels of the source along a side that one of the result is a weighted sum of.
    """

    def rule(call: Call) -> Found:
        backward = call.operator.endswith("_backward")
        first, size = call.arguments[:2]
        shape, *more = call.arguments[2:] if backward else (first.shape, *call.arguments[2:])
        if not isinstance(size, list):
            why = "resized by a factor only"
            return Found(kind="resize", lacks=why, unknown=why)
        sides = list(zip(shape[2:], size, strict=True))
        each = flops_of_pixel(per_side, sides, backward=backward)

        def layers() -> list[Work]:
            if len(sides) > 2 or per_side > 2:
                raise UnsupportedError(f"{call.operator} has no layer")
            aligned = bool(more.pop(0)) if per_side > 1 else False
            factors = [*more, None, None]
            mode = "nearest" if per_side == 1 else "linear"
            whole = call.operator.startswith("upsample_nearest")
            how = "aligned" if aligned else "whole" if whole else "centres"
            for (one, out), factor in zip(sides, factors, strict=False):
                check_centres(mode, one, out, how, factor)
            both = [(1, 1)] * (2 - len(sides)) + sides
            layer = build_layer(
                f"resize:{mode}",
                batch=shape[0],
                channels=shape[1],
                in_size=tuple(one for one, _ in both),
                out_size=tuple(out for _, out in both),
            )
            return [call.work(layer, "backward-data" if backward else "forward")]

        return Found.of("resize", layers, flops=math.prod([*shape[:2], *size]) * each)

    return rule


def check_centres(
    mode: str, size: int, out: int, how: str = "centres", factor: float | None = None
) -> None:
    """Refuse a side whose pixels do not come from where half-pixel centres lie.

    Args:
        mode: ``nearest`` or ``linear``.
        size: of the source.
        out: of the result.
        how: a library finds a pixel by its ``centres``; from ``whole`` positions; or ``aligned``,
            so that the outermost centres lie on each other.
        factor: that a library was given instead of the quotient of the sizes; None for that.

    Raises:
        UnsupportedError: with what is done instead.
    """
    step = 1 / factor if factor else size / out
    if how == "aligned" or (how, mode) == ("whole", "linear"):
        if size != out:
            raise UnsupportedError(f"resizing by {_NOT_CENTRES[how]} has no layer, none in oneDNN")
    elif how == "whole":
        picked = [min(math.floor(to * step), size - 1) for to in range(out)]
        if picked != [low for low, _, _ in taps("nearest", size, out)]:
            raise UnsupportedError("other nearest pixels than those of centres have no layer")
    elif not math.isclose(step * out, size):
        raise UnsupportedError("resizing by a factor that is not that of its sizes has no layer")


_NOT_CENTRES: Final = {"aligned": "aligned corners", "whole": "corners of pixels"}
#: Elements of the source along a side that one of the result comes from.
_TAPS: Final = {
    "upsample_nearest1d": 1,
    "upsample_nearest2d": 1,
    "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 1,
    "upsample_linear1d": 2,
    "upsample_bilinear2d": 2,
    "upsample_bicubic2d": 4,
    "upsample_trilinear3d": 2,
}

#: By operator.
RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _pooling("max"),
    "max_pool3d_with_indices": _pooling("max"),
    "avg_pool2d": _pooling("avg"),
    "avg_pool3d": _pooling("avg"),
    "max_pool2d_with_indices_backward": _pooling_backward("max"),
    "max_pool3d_with_indices_backward": _pooling_backward("max"),
    "avg_pool2d_backward": _pooling_backward("avg"),
    "avg_pool3d_backward": _pooling_backward("avg"),
    "_adaptive_avg_pool2d": _to_size("avg"),
    "adaptive_max_pool2d": _to_size("max"),
    "_adaptive_avg_pool2d_backward": _to_size_backward("avg"),
    "adaptive_max_pool2d_backward": _to_size_backward("max"),
    **{name: _resized(taps) for name, taps in _TAPS.items()},
    **{f"{name}_backward": _resized(taps) for name, taps in _TAPS.items()},
}
