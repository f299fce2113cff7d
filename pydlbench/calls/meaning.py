"""What recorded calls compute: layers, FLOPs and least bytes, or why they are unknown.

Frameworks have different names for the same computation. :mod:`pydlbench.calls.seen` parses their
calls; the functions here return the meaning. Nothing is measured, and no framework is imported.
Unknown values are None with a reason, never zero.

FLOPs are algorithmic: two for a multiply-add with padding counted; an addition, multiplication,
division, comparison, root, power, exponential, logarithm or error function counts as one.
Operations per channel, row or tensor are not counted, and operations on whole numbers are not
FLOPs.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self

from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.ops.resize import flops_of_pixel
from pydlbench.ops.resize import taps as taps_of
from pydlbench.ops.table import OPS, build_layer, in_place
from pydlbench.ops.tensors import merged_elementwise, merged_move, merged_reduction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pydlbench.ops.op import Layer

    Pads = Sequence[tuple[int, int]]

_P = ParamSpec("_P")
_FLOATS: Final = ("float", "bfloat")


def bytes_of_type(dtype: str) -> int:
    """Return the bytes of one element; 0 if unknown, and 1 for four bits.

    Args:
        dtype: name of the type: ``float32``, ``bool``, ``float8_e4m3fn``.
    """
    bits = re.search("[0-9]+", dtype)
    return -(-int(bits[0]) // 8) if bits else int(dtype == "bool")


# -----------------------------------------------------------------------------
# Operands of calls.


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that a call reads.

    Attributes:
        dtype: NumPy's name of its type: ``float32``, ``bfloat16``.
        shape: its shape.
        strides: its strides in elements.
        number: index among the tensors of the call, from 0.
        offset: bytes from the beginning of its memory.
        storage: number of the first tensor with the same memory, possibly its own.
        device: its device; None is that of the call.
        numbers: elements of a constant that determines what is computed; else None.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    number: int = 0
    offset: int = 0
    storage: int = 0
    device: str | None = None
    numbers: tuple[Any, ...] | None = None

    @classmethod
    def dense(cls, dtype: str, shape: Sequence[int], **more: Any) -> Self:
        """Return a value in row-major order without gaps."""
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(dtype=dtype, shape=tuple(shape), strides=strides, **more)

    def shaped(self, *shape: int) -> Value:
        """Return a dense value of the same type."""
        return Value.dense(self.dtype, shape)

    def permuted(self, order: Sequence[int]) -> Value:
        """Return a view with the dimensions in another order."""
        sizes, steps = ([given[axis] for axis in order] for given in (self.shape, self.strides))
        return replace(self, shape=tuple(sizes), strides=tuple(steps))

    def split(self, axis: int, inner: int) -> Value:
        """Return a view with a dimension split into an outer and an inner one."""
        sizes, steps = [*self.shape], [*self.strides]
        sizes[axis : axis + 1] = sizes[axis] // inner, inner
        steps[axis : axis + 1] = steps[axis] * inner, steps[axis]
        return replace(self, shape=tuple(sizes), strides=tuple(steps))

    @property
    def itemsize(self) -> int:
        """Bytes of one element.

        Raises:
            UnsupportedError: a type that is not known here.
        """
        size = bytes_of_type(self.dtype)
        if not size:
            raise UnsupportedError(f"{self.dtype}: the size of this type is not known")
        return size

    @property
    def elements(self) -> int:
        """Number of elements; broadcast elements count repeatedly."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * self.itemsize

    @property
    def floating(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype.startswith(_FLOATS)

    @property
    def end(self) -> int:
        """Offset of the byte after its last element."""
        if 0 in self.shape:
            return self.offset
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset + (last + 1) * self.itemsize

    @property
    def axes_in_memory(self) -> list[int]:
        """The dimensions from the largest stride to the smallest."""
        return sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis])

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory, with broadcast dimensions of size one."""
        sides = zip(self.shape, self.strides, strict=True)
        return tuple(size if stride else min(size, 1) for size, stride in sides)

    def same_as(self, other: Any) -> bool:
        """Whether another value has the same elements of the same memory."""
        return isinstance(other, Value) and self == replace(
            other, number=self.number, dtype=self.dtype, device=self.device, numbers=self.numbers
        )


def least_bytes(values: Collection[Value]) -> int:
    """Return the bytes of operands, counting each byte of memory once.

    An element with several indices (stride 0, overlapping windows) counts once, and so do equal
    views. Other overlapping views of a memory count at most the bytes between the first and the
    last one.
    """
    total = 0
    for memory in dict.fromkeys(value.storage for value in values):
        views = {
            (value.offset, value.shape, value.strides, value.itemsize): value
            for value in values
            if value.storage == memory
        }.values()
        extent = max(view.end for view in views) - min(view.offset for view in views)
        each = (
            min(math.prod(view.stored) * view.itemsize, view.end - view.offset) for view in views
        )
        total += min(sum(each), extent)
    return total


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common shape of operands, as in NumPy's broadcasting."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    # A size of zero makes the result empty.
    return tuple(max(sizes) if min(sizes) else 0 for sizes in zip(*padded, strict=True))


# -----------------------------------------------------------------------------
# Meaning of calls.


@dataclass(frozen=True, slots=True)
class Binding:
    """The operand of one of a layer's roles.

    Attributes:
        role: role of the layer.
        operand: a tensor of the call, with its dimensions in the order of the role (for a copy in
            that of the result); a number; None is the result of the layer before.
        factor: factor of all elements of the operand.
        causal: whether elements of the last dimension beyond the index of the second last one are
            replaced by minus infinity.
    """

    role: str
    operand: Value | float | None
    factor: float = 1.0
    causal: bool = False


@dataclass(frozen=True, slots=True)
class LayerPass:
    """A pass of a layer.

    Attributes:
        layer: the layer, without a name.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        training: whether a forward pass keeps data for the gradient.
        roles: its operands; None if unknown, or if the layer takes as long as the call but computes
            something else.
        number: number of the call if it differs from that of the layer; else None.
    """

    layer: Layer
    pass_: str = "forward"
    training: bool = False
    roles: tuple[Binding, ...] | None = field(default=None, compare=False)
    number: float | None = field(default=None, compare=False)

    @property
    def propagation(self) -> str:
        """``inference`` or ``training``."""
        return "training" if self.training or self.pass_ != "forward" else "inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a call computes, or a part of it.

    A call that runs no kernel (a view, uninitialised memory) is of kind ``view``: it has no layers,
    no reason for that, no FLOPs and no bytes.

    Attributes:
        kind: ``product``, ``convolution``, ``attention``, ``recurrent``, ``pooling``, ``resize``,
            ``normalisation``, ``softmax``, ``activation``, ``elementwise``, ``reduction``,
            ``update`` (of weights), ``loss``, ``gather``, ``copy``, ``random``, ``view`` or
            ``other``.
        layers: the sequence of layer passes that computes the same; layers may repeat.
        layers_missing: why there are none; None if there are, or none are needed.
        flops: algorithmic FLOPs. For a causal attention only the pairs of query and key that are
            attended to count, as in its layers and unlike in PyTorch's counter.
        product_flops: FLOPs of products and convolutions, as publications and PyTorch's counter
            count; None if ``flops`` is.
        flops_missing: why they are unknown.
        reads: least bytes read, each operand once; None until :func:`completed`.
        writes: bytes of the results; None if unknown.
        note: remark on the numbers, or None.
        dtypes: type of the computation (``bfloat16``), which is that of its operands, not of the
            step; several if they are mixed.
    """

    kind: str
    layers: tuple[LayerPass, ...] = ()
    layers_missing: str | None = None
    flops: int | None = 0
    product_flops: int | None = 0
    flops_missing: str | None = None
    reads: int | None = None
    writes: int | None = None
    note: str | None = None
    dtypes: tuple[str, ...] = ()

    @classmethod
    def unknown(cls, why: str, kind: str = "other") -> Self:
        """Return the meaning of a call without a formula, with the reason."""
        return cls(kind=kind, layers_missing=why, flops=None, product_flops=None, flops_missing=why)

    @property
    def bytes(self) -> int | None:
        """Least bytes moved: each operand that is read, once, and each result."""
        return None if self.reads is None or self.writes is None else self.reads + self.writes

    @property
    def bytes_missing(self) -> str | None:
        """Why there is no number."""
        if self.bytes is not None:
            return None
        uncounted = "the sizes of its results are not recorded"
        return self.flops_missing if self.kind == "other" else uncounted


def completed(
    part: Meaning, values: Sequence[Value], written: int | None, types: Iterable[str] = ()
) -> Meaning:
    """Return the meaning with bytes and types filled in from the operands.

    Args:
        part: the meaning of the call.
        values: all operands.
        written: bytes of all results, overwritten ones included; None if unknown.
        types: types among the call's arguments.

    Raises:
        UnsupportedError: the size of an operand's type is unknown.
    """
    return replace(
        part,
        reads=least_bytes(values) if part.reads is None else part.reads,
        writes=written if part.writes is None else part.writes,
        dtypes=part.dtypes or dtypes_of(values, types),
    )


def dtypes_of(values: Sequence[Value], types: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the type of the computation; several if they are mixed.

    Indices, labels and masks do not count besides floating-point numbers. A tensor without
    dimensions is converted to the type of the others.
    """
    every = {value.dtype for value in values if value.shape} or {value.dtype for value in values}
    every |= set(types)
    return tuple(sorted({dtype for dtype in every if dtype.startswith(_FLOATS)} or every))


def together(parts: Iterable[Meaning], **more: Any) -> Meaning:
    """Return the meaning of several parts in sequence.

    The kind is that of the first part other than a view. It has layers if all parts have.

    Args:
        parts: at least one part.
        more: attributes that replace those of the parts.
    """
    listed = [*parts]
    if len(listed) == 1:
        return replace(listed[0], **more)

    def first(name: str) -> Any:
        return next((value for part in listed if (value := getattr(part, name))), None)

    def added(name: str) -> int | None:
        counted = [getattr(part, name) for part in listed]
        return None if None in counted else sum(counted)

    layers = () if first("layers_missing") else (each for part in listed for each in part.layers)
    own: dict[str, Any] = {
        "kind": next((part.kind for part in listed if part.kind != "view"), "view"),
        "layers": tuple(layers),
        **{name: first(name) for name in ("layers_missing", "flops_missing", "note")},
        **{name: added(name) for name in ("flops", "product_flops", "reads", "writes")},
    }
    return Meaning(**own | more)


def overwriting(part: Meaning) -> Meaning:
    """Return the meaning of a call that overwrites its first operand: its layer does as well."""
    if len(part.layers) != 1 or part.layers[0].pass_ != "forward":
        return part
    (step,) = part.layers
    return replace(part, layers=(replace(step, layer=in_place(step.layer)),))


def _counted(rule: Callable[_P, Iterator[Meaning | LayerPass]]) -> Callable[_P, Meaning]:
    """Turn a generator into a function that returns the meaning with its layers.

    The generator yields the counts first, and then the layers, or raises why there are none.
    """

    @functools.wraps(rule)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> Meaning:
        steps = rule(*args, **kwargs)
        part = next(steps)
        assert isinstance(part, Meaning)
        try:
            return replace(
                part, layers=tuple(step for step in steps if isinstance(step, LayerPass))
            )
        except PydlbenchError as error:
            return replace(part, layers_missing=str(error))

    return run


def bound(part: Meaning, values: Sequence[Value], *, exact: bool = True) -> Meaning:
    """Return a meaning whose layers are bound to operands, in order.

    The first layer reads one operand per role. The first role of every other layer is the result of
    the layer before.

    Args:
        part: the meaning; returned unchanged unless all layers are forward passes.
        values: the operands; the meaning is returned unchanged if their number does not fit.
        exact: whether the layers compute the same as the call, not only take as long.
    """
    remaining, layers = list(values), []
    for place, layer_pass in enumerate(part.layers):
        roles = layer_pass.layer.reads(layer_pass.pass_, layer_pass.propagation)
        read = len(roles) - bool(place)
        if not exact or not roles or len(remaining) < read:
            return part
        operands = [*([None] if place else []), *remaining[:read]]
        del remaining[:read]
        layers.append(replace(layer_pass, roles=_bindings(roles, operands)))
    return part if remaining else replace(part, layers=tuple(layers))


def _bindings(
    roles: Sequence[str], operands: Sequence[Value | float | None]
) -> tuple[Binding, ...]:
    return tuple(Binding(*each) for each in zip(roles, operands, strict=True))


def _layerless(why: str) -> UnsupportedError:
    return UnsupportedError(f"{why} has no layer")


def _check_floating(value: Value) -> None:
    if not value.floating:
        raise UnsupportedError("whole numbers have no layer")


def on_images(op: str, shape: Sequence[int], **parameters: Any) -> Layer:
    """Return a memory-bound layer on a tensor; missing sides are 1, further ones are merged.

    Args:
        op: op of the layer.
        shape: shape of the tensor; a single dimension is channels.
        parameters: parameters of the op.

    Raises:
        UsageError: the layer is invalid.
    """
    batch, channels, *rest = shape if len(shape) > 1 else (1, *shape, *[1] * (1 - len(shape)))
    height = rest.pop(0) if len(rest) > 1 else 1
    width = math.prod(rest)
    return build_layer(op, batch=batch, channels=channels, height=height, width=width, **parameters)


# -----------------------------------------------------------------------------
# Convolutions and poolings: windows over images of any number of sides. Pads are a pair (before,
# after) for each side.


def padded(before: Sequence[int], after: Sequence[int] | None = None) -> Pads:
    """Return pads as pairs; those after default to those before."""
    return list(zip(before, before if after is None else after, strict=True))


def same_padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    *,
    first: bool = False,
) -> Pads:
    """Return the pads of TensorFlow's ``SAME``: one window per stride.

    Args:
        sizes: sizes of the images.
        kernel: sizes of the windows.
        stride: stride for each side.
        dilation: dilation for each side; 1 is dense.
        first: whether an odd element of padding is before, not after.
    """
    pads = []
    for size, taps, step, apart in zip(sizes, kernel, stride, dilation, strict=True):
        total = max(0, (-(-size // step) - 1) * step + apart * (taps - 1) + 1 - size)
        less, more = total // 2, total - total // 2
        pads.append((more, less) if first else (less, more))
    return pads


@_counted
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
    """Return what a convolution computes.

    Args:
        source: ``(batch, channels, ...)``.
        weights: ``(out, in / groups, ...)``, transposed ``(in, out / groups, ...)``.
        stride: for each side.
        pads: likewise.
        dilation: likewise; 1 is dense.
        groups: of channels.
        transposed: whether it is a convolution's gradient as a layer of its own.
        out: sides of a transposed one's result.
        bias: whether it is added, or its gradient computed.
        gradients: passes; none for a forward pass.
        reads: bytes, where some operands are given for their shapes only.
    """
    batch, channels, *sizes = source
    kernel = weights[2:]
    if out is None:
        windows = zip(sizes, kernel, stride, pads, dilation, strict=True)
        out = [(i + sum(p) - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in windows]
    result = (batch, weights[1] * groups if transposed else weights[0], *out)
    # Each element of the weights meets one element per place of the smaller images.
    places = math.prod(sizes if transposed else out)
    products = 2 * batch * math.prod(weights) * places * (len(gradients) or 1)
    flops = products + math.prod(result) * bias
    yield Meaning(kind="convolution", flops=flops, product_flops=products, reads=reads)
    if bias and gradients:
        yield LayerPass(on_images("bias", result), "backward-weights")
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
        yield LayerPass(on_images("bias", result))


@_counted
def pooling(
    source: Sequence[int],
    *,
    mode: str,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Pads,
    dilation: Sequence[int] | None = None,
    ceil: bool = False,
    counted: bool = False,
    divisor: int | None = None,
    backward: bool = False,
    reads: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return what a pooling computes: an average adds at each tap, and a maximum's gradient once.

    Args:
        source: shape, sides last.
        mode: ``max`` or ``avg``.
        kernel: for each side.
        stride: likewise.
        pads: likewise.
        dilation: likewise; None is dense.
        ceil: whether a last window may reach beyond the padding; none begins in it.
        counted: whether an average divides by padded positions too.
        divisor: what it divides by instead of their number.
        backward: whether it is the gradient.
        reads: bytes, where some operands are given for their shapes only.
    """
    planes, sizes = source[: -len(kernel)], source[-len(kernel) :]
    apart = dilation or [1] * len(kernel)
    extents = [d * (k - 1) + 1 for d, k in zip(apart, kernel, strict=True)]
    out, trailing = [], []
    for size, extent, step, (before, after) in zip(sizes, extents, stride, pads, strict=True):
        reach = size + before + after - extent
        windows = reach // step + 1
        if ceil:
            windows = -(-reach // step) + 1
            windows -= (windows - 1) * step >= size + before
        out.append(windows)
        trailing.append(max(0, (windows - 1) * step + extent - size - before) if ceil else after)
    places = math.prod((*planes, *out))
    flops = places if backward and mode == "max" else places * math.prod(kernel)
    yield Meaning(kind="pooling", flops=flops, reads=reads)
    if divisor is not None:
        raise _layerless("an average with a divisor of its own")
    counted = counted and any(map(any, pads))
    beyond = any(more > after for more, (_, after) in zip(trailing, pads, strict=True))
    if counted and beyond:
        # PyTorch divides these by the elements within the padding it was given.
        raise _layerless("an average over windows beyond the padding")
    around = [(before, after) for (before, _), after in zip(pads, trailing, strict=True)]
    layer = _pooling_layer(
        planes,
        around,
        in_size=sizes,
        kernel=kernel,
        stride=stride,
        dilation=apart,
        mode=mode,
        count_include_pad=counted,
    )
    yield LayerPass(layer, "backward-data" if backward else "forward")


@_counted
def pooling_to(
    source: Sequence[int],
    out: Sequence[int],
    *,
    mode: str,
    backward: bool = False,
    reads: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return what a pooling to a size computes.

    Window ``i`` is from ``floor(i in / out)`` to ``ceil((i+1) in / out)``.
    """
    planes, sizes = source[: -len(out)], source[-len(out) :]
    sides = list(zip(sizes, out, strict=True))
    taps = [sum(-(-(at + 1) * i // o) - at * i // o for at in range(o)) for i, o in sides]
    once = backward and mode == "max"
    yield Meaning(kind="pooling", flops=math.prod((*planes, *(out if once else taps))), reads=reads)
    if any(i % o for i, o in sides):
        raise _layerless("a pooling whose windows differ in size")
    kernel = [i // o for i, o in sides]
    layer = _pooling_layer(planes, in_size=sizes, kernel=kernel, stride=kernel, mode=mode)
    yield LayerPass(layer, "backward-data" if backward else "forward")


def _pooling_layer(planes: Sequence[int], pads: Pads | None = None, **fields: Any) -> Layer:
    *batch, channels = planes
    if pads is not None:
        fields["pad_before"], fields["pad_after"] = zip(*pads, strict=True)
    return build_layer("pool", batch=math.prod(batch), channels=channels, **fields)


# -----------------------------------------------------------------------------
# Images in another size.

_NOT_CENTRES: Final = {"aligned": "aligned corners", "whole": "corners of pixels"}


@_counted
def resize(
    source: Sequence[int],
    out: Sequence[int],
    *,
    taps: int,
    how: str = "centres",
    factors: Sequence[float | None] = (),
    backward: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return what a resampling computes.

    Args:
        source: shape, channels second.
        out: sides of the result.
        taps: pixels of the source along a side that one of the result is a weighted sum of: 1 is
            the nearest.
        how: a library finds a pixel by its ``centres``; from ``whole`` positions; or ``aligned``,
            so that the outermost centres lie on each other.
        factors: that it was given instead of the quotients of the sizes; None for that.
        backward: whether it is the gradient.
    """
    sides = list(zip(source[2:], out, strict=True))
    flops = math.prod((*source[:2], *out)) * flops_of_pixel(taps, sides, backward=backward)
    yield Meaning(kind="resize", flops=flops)
    if taps > 2:
        raise _layerless(f"a resampling of {taps} pixels of each side")
    mode = "nearest" if taps == 1 else "linear"
    for (size, to), factor in zip(sides, [*factors, *[None] * len(sides)], strict=False):
        _check_centres(mode, size, to, how, factor)
    layer = build_layer(
        f"resize:{mode}", batch=source[0], channels=source[1], in_size=source[2:], out_size=out
    )
    yield LayerPass(layer, "backward-data" if backward else "forward")


def _check_centres(mode: str, size: int, out: int, how: str, factor: float | None) -> None:
    """Refuse a side whose pixels do not come from where half-pixel centres lie; see there.

    Raises:
        UnsupportedError: with what is done instead.
    """
    step = 1 / factor if factor else size / out
    if how == "aligned" or (how, mode) == ("whole", "linear"):
        if size != out:
            raise UnsupportedError(f"resizing by {_NOT_CENTRES[how]} has no layer, none in oneDNN")
    elif how == "whole":
        picked = [min(math.floor(to * step), size - 1) for to in range(out)]
        if picked != [low for low, _, _ in taps_of("nearest", size, out)]:
            raise UnsupportedError("other nearest pixels than those of centres have no layer")
    elif not math.isclose(step * out, size):
        raise UnsupportedError("resizing by a factor that is not that of its sizes has no layer")


# -----------------------------------------------------------------------------
# Products of matrices.


@_counted
def product(
    batch: Sequence[int],
    m: int,
    k: int,
    n: int,
    *,
    left_turned: bool = False,
    right_turned: bool = False,
    backward: bool = False,
    outer_first: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return what ``(m, k) @ (k, n)`` computes, and which pass of which product it is.

    In a backward pass, a left matrix that lies transposed makes it a gradient of weights: it sums
    over the rows of a minibatch; and else it is that of data.

    Args:
        batch: sizes in front. Such products are those of activations, which are packed in no way.
        m: rows.
        k: what is summed over.
        n: columns.
        left_turned: whether the left matrix lies transposed.
        right_turned: whether the right one does.
        backward: whether it is a part of the backward pass.
        outer_first: whether a gradient of weights has the outer gradient on its left, transposed,
            and the source on its right, and not the other way round.
    """
    count = math.prod(batch)
    flops = 2 * count * m * k * n
    yield Meaning(kind="product", flops=flops, product_flops=flops)
    plain, turned = ("kn", "nk") if batch else ("any", "any")
    if backward and left_turned:
        rows, columns = (n, m) if outer_first else (m, n)
        layer = build_layer("gemm", m=k, k=rows, n=columns, batch_count=count, weights_tag=plain)
        yield LayerPass(layer, "backward-weights")
    elif backward:
        # What is k x n in this call are the weights the other way round.
        order = plain if right_turned else turned
        layer = build_layer("gemm", m=m, k=n, n=k, batch_count=count, weights_tag=order)
        yield LayerPass(layer, "backward-data")
    else:
        order = turned if right_turned else plain
        yield LayerPass(build_layer("gemm", m=m, k=k, n=n, batch_count=count, weights_tag=order))


def einsum(equation: str, shapes: Sequence[Sequence[int]]) -> Meaning:
    """Return what a product of two operands whose dimensions have letters computes.

    Letters are rows, columns, sums, or products apart.

    Raises:
        UnsupportedError: it is another sum.
    """
    inputs, _, result = equation.replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    rows, columns, kept = set(left), set(right), set(result)
    repeated = len(rows) < len(left) or len(columns) < len(right)
    if not right or set(".,") & (rows | columns) or repeated or (rows ^ columns) - kept:
        raise UnsupportedError(f"no rule for {equation}")
    sizes = dict(zip(left + right, (*shapes[0], *shapes[1]), strict=True))

    def number(letters: set[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    count, summed = number(rows & columns & kept), number((rows & columns) - kept)
    return product([count] * (count > 1), number(rows - columns), summed, number(columns - rows))


@_counted
def addition(result: Sequence[int], addend: Sequence[int]) -> Iterator[Meaning | LayerPass]:
    """Return what the addition of a bias, or of a whole matrix, to products computes."""
    *rows, columns = result
    yield Meaning(kind="elementwise", flops=math.prod(result))
    if tuple(addend) == tuple(result):
        yield LayerPass(build_layer("add", batch=math.prod(rows), channels=columns))
    elif math.prod(addend) == columns == addend[-1]:
        yield LayerPass(build_layer("bias", batch=math.prod(rows), channels=columns))
    else:
        yield LayerPass(merged_elementwise("add", result, addend))


@_counted
def grouped_product(left: Value, columns: int) -> Iterator[Meaning | LayerPass]:
    """Return what products of rows with experts' weights compute; each row meets one matrix."""
    flops = 2 * left.elements * columns
    yield Meaning(kind="product", flops=flops, product_flops=flops)
    raise UnsupportedError("products of groups whose sizes are values have no layer")


# -----------------------------------------------------------------------------
# Attention and recurrent layers: chains of products.

_SOFTMAX: Final = OPS["softmax"].passes
# Of each pair of a query and a key: an exponential of a difference is its probability again.
_AGAIN: Final = 2


@_counted
def attention(
    query: Sequence[int],
    keys: int,
    depth: int,
    *,
    causal: bool = False,
    backward: bool = False,
    operands: tuple[Value, Value, Value] | None = None,
    scale: float | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return what the heads of an attention compute, each alike.

    Args:
        query: ``(batch, heads, queries, size)``.
        keys: how many.
        depth: of the values.
        causal: whether a query sees the keys up to its own number only.
        backward: whether it is the gradient of all three, which makes probabilities again.
        operands: query, key and value of a forward pass that masks nothing; None for another.
        scale: of its scores; None is one over the root of the size.
    """
    *heads, queries, size = query
    count, pairs, note = math.prod(heads), queries * keys, None
    if causal:
        diagonal = min(queries, keys)
        attended = diagonal * (diagonal + 1) // 2 + (queries - diagonal) * keys
        note = f"causal: {attended} of {pairs} pairs of a query and a key are counted"
        pairs = attended
    pairs *= count
    # Backward scores again, then the gradients of values, probabilities, queries and keys.
    products = 2 * pairs * (3 * size + 2 * depth if backward else size + depth)
    each = (
        _AGAIN + _SOFTMAX["backward-data"].per_element
        if backward
        else _SOFTMAX["forward"].per_element
    )
    flops = products + pairs * each
    yield Meaning(kind="attention", flops=flops, product_flops=products, note=note)
    scores = build_layer("gemm", m=queries, k=size, n=keys, batch_count=count, weights_tag="nk")
    softmax = _on_rows("softmax", (heads[0], math.prod(heads[1:]), queries, keys), 1)
    context = build_layer("gemm", m=queries, k=keys, n=depth, batch_count=count, weights_tag="kn")
    steps = [(scores, "forward"), (softmax, "forward"), (context, "forward")]
    if backward:
        steps[2:] = [(context, "backward-weights"), (context, "backward-data")]
        steps += [(softmax, "backward-data")]
        steps += [(scores, "backward-weights"), (scores, "backward-data")]
    roles: dict[Layer, tuple[Binding, ...]] = {}
    if operands is not None:
        source, key, value = operands
        turned = key.permuted([*range(len(heads)), -1, -2])
        factor = size**-0.5 if scale is None else scale
        roles[scores] = Binding("src", source, factor), Binding("weights", turned)
        roles[softmax] = (Binding("src", None, causal=causal),)
        roles[context] = Binding("src", None), Binding("weights", value)
    for layer, pass_ in steps:
        yield LayerPass(layer, pass_, roles=roles.get(layer))


def projected_attention(query: Sequence[int], keys: int, heads: int, hidden: int = 0) -> Meaning:
    """Return what an attention with its projections computes, and perhaps two products behind it.

    Each of queries, keys and values is projected, whether they are the same tensor or not.

    Args:
        query: ``(batch, length, width)``.
        keys: how many for each batch.
        heads: how many.
        hidden: width between the two products; 0 for none.
    """
    batch, length, width = query
    rows, size = batch * length, width // heads
    of_rows = product((), rows, width, width)
    of_keys = product((), batch * keys, width, width)
    scores = attention((batch, heads, length, size), keys, size)
    parts = [of_rows, of_keys, of_keys, scores, of_rows]
    if hidden:
        parts += [product((), rows, width, hidden), product((), rows, hidden, width)]
    note = "biases, normalisations and activations within are not counted"
    return together(parts, kind="attention", note=note)


@_counted
def recurrent(
    source: Sequence[int],
    weights: Sequence[Value],
    cell: str | None,
    *,
    directions: int = 1,
    backward: bool = False,
    training: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return what a recurrent layer computes: each weight meets each element of each sequence once.

    Args:
        source: ``(length, batch, size)``.
        weights: of the source, and of the state: ``(..., gates x hidden, hidden)``.
        cell: ``lstm`` or ``gru``; None for one that is neither.
        directions: 1, or 2.
        backward: gives all gradients at once: two products for each one forward.
        training: whether a forward pass keeps what its gradient needs.
    """
    length, batch, size = source
    products = 2 * (1 + backward) * length * batch * sum(each.elements for each in weights)
    yield Meaning(
        kind="recurrent",
        flops=products,
        product_flops=products,
        note="what its gates compute beside products is not counted",
    )
    if cell is None:
        raise _layerless("a recurrent layer without gates, or with others")
    layer = build_layer(
        cell,
        directions=directions,
        steps=length,
        batch=batch,
        in_size=size,
        hidden=weights[1].shape[-1],
    )
    yield LayerPass(layer, "backward-data" if backward else "forward", training)


# -----------------------------------------------------------------------------
# Normalisations and softmax. Factors and statistics of a normalisation may stay in float32 where
# images are narrower, in frameworks as in oneDNN: they do not decide in which type it is computed.


@_counted
def batch_normalisation(
    images: Value,
    shape: Sequence[int] | None = None,
    *,
    epsilon: float,
    momentum: float = 0.1,
    training: bool,
    factors: bool = True,
    backward: bool = False,
    running: Sequence[Value] = (),
    written: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return what a batch normalisation computes.

    Args:
        images: or their gradient.
        shape: channels second; None for that of ``images``.
        epsilon: of it.
        momentum: of its running statistics.
        training: whether with the batch's statistics; backward, whether these were taken.
        factors: whether it has factors and summands.
        backward: whether it is the gradient.
        running: statistics that training moves, which are no results.
        written: bytes of the results.
    """
    # With fixed statistics, the gradient is the two sums, and one product for the source.
    each = (8 if training else 5) if backward else (5 if training else 2)
    moved = sum(value.bytes for value in running) * training
    writes = written + moved if moved and written is not None else None
    flops = images.elements * each
    yield Meaning(kind="normalisation", flops=flops, writes=writes, dtypes=(images.dtype,))
    _check_factors(factors)
    if backward and not training:
        raise UnsupportedError("a gradient with fixed statistics has no layer")
    layer = on_images("batchnorm", shape or images.shape, epsilon=epsilon, momentum=momentum)
    yield LayerPass(layer, "backward-data" if backward else "forward", training)


def _check_factors(there: bool) -> None:
    if not there:
        raise UnsupportedError("a normalisation without factors has no layer")


@_counted
def group_normalisation(source: Value, *, backward: bool = False) -> Iterator[Meaning | LayerPass]:
    """Return what the normalisation of groups computes: as much as that of rows."""
    each = OPS["layernorm"].passes["backward-data" if backward else "forward"].per_element
    yield Meaning(kind="normalisation", flops=source.elements * each)
    raise UnsupportedError("oneDNN 3.2 has no normalisation of groups")


@_counted
def rows(
    op: str,
    source: Value,
    dimensions: int = 1,
    *,
    dim: int = -1,
    factors: bool = True,
    backward: bool = False,
    **parameters: float,
) -> Iterator[Meaning | LayerPass]:
    """Return what a layer that works along rows computes.

    Args:
        op: ``layernorm`` or ``rmsnorm`` of the last dimensions together, ``softmax`` or
            ``log-softmax`` along one dimension.
        source: what it works on.
        dimensions: how many are a row.
        dim: the last of these.
        factors: whether a normalisation has factors, and what it adds.
        backward: whether it is the gradient.
        parameters: of the op.
    """
    pass_, normalises = "backward-data" if backward else "forward", op.endswith("norm")
    yield Meaning(
        kind="normalisation" if normalises else "softmax",
        flops=source.elements * OPS[op].passes[pass_].per_element * source.floating,
        dtypes=(source.dtype,) if normalises else (),
    )
    _check_factors(factors)
    end = dim % max(1, len(source.shape)) + 1
    if math.prod(source.shape[end:]) != 1:
        raise _layerless(f"{op} along other than the last dimension")
    yield LayerPass(_on_rows(op, source.shape[:end], dimensions, **parameters), pass_)


def _on_rows(op: str, shape: Sequence[int], last: int, **parameters: Any) -> Layer:
    """Return a layer that works along rows: the last dimensions together.

    Args:
        op: of the layer.
        shape: of the tensor.
        last: how many dimensions are a row.
        parameters: of the operation.
    """
    begin = len(shape) - last
    batch, channels, *rest = (*shape[:begin], 1, 1)
    height, width = math.prod(rest), math.prod(shape[begin:])
    return build_layer(op, batch=batch, channels=channels, height=height, width=width, **parameters)


@_counted
def label_loss(labels: Value, reads: int) -> Iterator[Meaning | LayerPass]:
    """Return what the sum of one score of each row computes, or its gradient."""
    yield Meaning(kind="loss", flops=labels.elements, reads=reads)
    raise UnsupportedError("a loss without its softmax has no layer")


# -----------------------------------------------------------------------------
# Element by element.

#: Numbers with which an activation is our layer; without any it is mostly.
_NUMBERS: Final[dict[str, tuple[list[float], ...]]] = {
    "relu": ([], [0]),
    "relu6": ([], [0, 6]),
    "elu": ([], [1], [1, 1, 1, False]),
    "softplus": ([], [1, 20]),
}


@_counted
def layer_on(
    op: str,
    shape: Sequence[int],
    *numbers: Any,
    kind: str = "elementwise",
    pass_: str = "forward",
    training: bool = False,
    floating: bool = True,
    **parameters: Any,
) -> Iterator[Meaning | LayerPass]:
    """Return what a memory-bound layer of ours computes.

    Args:
        op: of the layer; one that is none of ours has neither a layer nor a formula.
        shape: of the tensor, channels second.
        numbers: with which the framework calls it.
        kind: see :class:`Meaning`.
        pass_: of the layer.
        training: whether a forward pass keeps what its gradient needs.
        floating: whether it is one of floating-point numbers.
        parameters: of the op.
    """
    each = OPS[op].passes[pass_].per_element if op in OPS else 0
    yield Meaning(kind=kind, flops=math.prod(shape) * each * floating)
    if not floating:
        raise UnsupportedError("whole numbers have no layer")
    if op not in OPS or list(numbers) not in _NUMBERS.get(op, ([],)):
        raise _layerless(f"{op} with {', '.join(map(str, numbers))}" if numbers else op)
    yield LayerPass(on_images(op, shape, **parameters), pass_, training)


def activation(op: str, shape: Sequence[int], *numbers: Any, **how: Any) -> Meaning:
    """Return what an activation of ours computes, or its gradient; see :func:`layer_on`."""
    return layer_on(op, shape, *numbers, kind="activation", **how)


def channel_sums(images: Sequence[int], kind: str = "reduction") -> Meaning:
    """Return what the gradient of a bias computes: sums over all but the channels."""
    return layer_on("bias", images, kind=kind, pass_="backward-weights")


#: FLOPs for each element of the result, where they are not one.
_EACH: Final = {
    **dict.fromkeys(("rsqrt", "clamp", "leaky_relu", "prelu", "selu", "sqrt_backward"), 2),
    **dict.fromkeys(("leaky_relu_backward", "prelu_backward", "selu_backward"), 2),
    **dict.fromkeys(("addcdiv", "addcmul", "lerp", "reciprocal_backward"), 3),
    "rsqrt_backward": 4,
}
#: The same of losses, with their sum.
_LOSSES: Final = {
    # A difference, its square or amount; backward a factor of the outer gradient too.
    "mse_loss": 3,
    "mse_loss_backward": 3,
    "l1_loss": 3,
    # Where the difference is small, its square and a factor.
    "smooth_l1_loss": 6,
    "smooth_l1_loss_backward": 5,
    # Two logarithms and what they are multiplied with; backward (x - t) / (x (1 - x)).
    "binary_cross_entropy": 9,
    "binary_cross_entropy_backward": 5,
    # (1 - t) x, less the logarithm of a sigmoid.
    "binary_cross_entropy_with_logits": 8,
}
_ACTIVATIONS: Final = ("threshold", "leaky_relu", "prelu", "selu")
#: Ours for what is called so here, with the same operands.
_SAME: Final = {
    **{name: name for name in ("abs", "neg", "square", "sqrt", "rsqrt", "exp", "log", "mul")},
    "div": "div",
    "lerp": "lerp",
    "maximum": "max",
    "minimum": "min",
    "clamp_min": "max",
    "clamp_max": "min",
    "leaky_relu": "leaky-relu",
    "prelu": "leaky-relu",
    "leaky_relu_backward": "leaky-relu-gradient",
}
#: Powers that are operators of their own.
_POWERS: Final = {2: "square", 0.5: "sqrt", -0.5: "rsqrt"}
#: What any factor stands for that is neither 1 nor -1: it makes no difference to a kernel's time.
_SOME: Final = 0.5


@_counted
def elementwise(
    name: str,
    *operands: Any,
    factor: float = 1,
    rounds: bool = False,
    in_place: bool = False,
    channels: int = 1,
) -> Iterator[Meaning | LayerPass]:
    """Return what arithmetic computes; numbers are operands of one element.

    Args:
        name: PyTorch's, mostly: ``add``, ``leaky_relu_backward``.
        operands: values, numbers, and None for a limit that is none.
        factor: of the second operand of a sum, difference or product that is added.
        rounds: whether it rounds the result.
        in_place: whether it overwrites its first operand.
        channels: which dimension of images.
    """
    values = [operand for operand in operands if isinstance(operand, Value)]
    floating = any(value.floating for value in values)
    each = _LOSSES.get(name, _EACH.get(name, 1)) - (name == "clamp" and None in operands)
    each += name in ("add", "sub", "rsub") and factor != 1
    kind = "activation" if name.startswith(_ACTIVATIONS) else "elementwise"
    yield Meaning(
        kind="loss" if name in _LOSSES else kind,
        flops=each * math.prod(broadcast([value.shape for value in values])) * floating,
    )
    if not floating:
        raise UnsupportedError("whole numbers have no layer")
    if len(values) == 2 == len(operands):
        layer = _known_sum(name, *values, factor=factor, in_place=in_place, channels=channels)
        if layer is not None:
            yield LayerPass(layer, roles=_roles_of_sum(layer, *values))
            return
    yield _arithmetic(name, operands, factor, rounds=rounds)


def _roles_of_sum(layer: Layer, left: Value, right: Value) -> tuple[Binding, ...] | None:
    """Return what such a layer reads: what is added to each channel comes second."""
    roles = layer.reads("forward")
    if roles[0] != "src":  # an update of weights, which are written too
        return None
    larger = left.elements >= right.elements
    return _bindings(roles, (left, right) if larger else (right, left))


def _known_sum(
    name: str, left: Value, right: Value, *, factor: float, in_place: bool, channels: int
) -> Layer | None:
    """Return the layer that models of the catalogue have for the same; None if they have none."""
    if any(value.stored != value.shape for value in (left, right)):
        return None
    large, small = (left, right) if left.elements >= right.elements else (right, left)
    factor = -factor if name == "sub" else factor
    if name == "mul":
        return _scale(large, small, channels % 4)
    if name not in ("add", "sub"):
        return None
    if left.shape == right.shape and factor < 0 and in_place:
        return build_layer("sgd", channels=left.elements, rate=-factor)
    if factor != 1:
        return None
    if left.shape == right.shape:
        return on_images("add", left.shape)
    width = (1, *large.shape)[-1]
    if small.elements == width and small.shape[-1:] == (width,):
        return build_layer("bias", batch=large.elements // width, channels=width)
    each_channel = (1, *large.shape[1:2], *(1 for _ in large.shape[2:]))
    return on_images("bias", large.shape) if small.shape == each_channel else None


def _scale(images: Value, factors: Value, channels: int) -> Layer | None:
    """Return the layer of a factor for each channel of each image; None if it is another one."""
    kept = (0, channels)
    if len(images.shape) != 4 or factors.shape != tuple(
        size if axis in kept else 1 for axis, size in enumerate(images.shape)
    ):
        return None
    sides = [axis for axis in range(4) if axis not in kept]
    return on_images("scale", images.permuted([*kept, *sides]).shape)


def _arithmetic(name: str, operands: Sequence[Any], factor: float, *, rounds: bool) -> LayerPass:
    """Return the layer of arithmetic.

    Raises:
        UnsupportedError: there is none.
    """
    if rounds:
        raise _layerless(f"{name} that rounds")
    op, operands, number = _operator(name, operands, factor)
    operands = operands[: OPS[f"elementwise:{op}"].operand_count]
    values = [operand for operand in operands if isinstance(operand, Value)]
    if len({value.dtype for value in values if value.shape}) > 1:
        raise _layerless(f"{name} of several types")
    shapes = [operand.stored if isinstance(operand, Value) else () for operand in operands]
    if broadcast(shapes) != broadcast([value.shape for value in values]):
        raise _layerless(f"{name} of elements that are repeated")
    # Whichever a factor is, it makes no difference to the time.
    known = op == "power" or number in (1, -1)
    layer = merged_elementwise(op, *shapes, number=number if known else _SOME)
    roles = _bindings(layer.reads("forward"), operands)
    return LayerPass(layer, roles=roles, number=None if known else number)


def _operator(
    name: str, operands: Sequence[Any], factor: float
) -> tuple[str, Sequence[Any], float]:
    """Return our operator, its operands and its number.

    Raises:
        UnsupportedError: there is none.
    """
    if name in ("sub", "rsub"):
        operands = operands if name == "sub" else operands[1::-1]
        name, factor = "add", -factor
    if name in ("add", "addcmul", "addcdiv"):
        if name == "addcmul" and _alike(*operands[1:3]):
            return "add-square", operands, float(factor)
        return name, operands, float(factor)
    if name == "reciprocal":
        return "div", [1.0, *operands], 1.0
    if name == "clamp":
        low, high = operands[1:3]
        op = "clamp" if None not in (low, high) else "max" if high is None else "min"
        return op, [operand for operand in operands if operand is not None], 1.0
    if name == "pow" and not isinstance(operands[1], Value):
        op = _POWERS.get(operands[1], "power")
        return op, operands, float(operands[1]) if op == "power" else 1.0
    if name == "mul" and _alike(*operands[:2]):
        return "square", operands, 1.0
    if name not in _SAME:
        raise _layerless(name)
    return _SAME[name], operands, 1.0


def _alike(left: Any, right: Any) -> bool:
    return isinstance(left, Value) and left.same_as(right)


def sum_of_several(values: Sequence[Value]) -> Meaning:
    """Return what the sum of tensors of one shape computes, one after the other."""
    shape = values[0].shaped(*broadcast([value.shape for value in values]))
    pairs = zip([values[0], *[shape] * len(values)], values[1:], strict=False)
    return together(elementwise("add", *pair) for pair in pairs)


# -----------------------------------------------------------------------------
# Sums over dimensions.

_REDUCED: Final = {"norm": 2, "logsumexp": 4, "var": 4, "var_mean": 4, "std": 4}


@_counted
def reduction(
    op: str,
    source: Value,
    over: Collection[int] | None,
    *,
    channels: int = 1,
    why: str = "",
) -> Iterator[Meaning | LayerPass]:
    """Return what a reduction computes.

    A sum over all but the channels is the gradient of a bias, a mean over all sides of
    images a pooling.

    Args:
        op: ours, or the framework's where we have none.
        source: what is reduced.
        over: dimensions; None where nobody knows.
        channels: which dimension of images.
        why: what it is that has no layer.
    """
    shape, axes = source.shape, range(len(source.shape))
    yield Meaning(kind="reduction", flops=source.elements * _REDUCED.get(op, 1) * source.floating)
    if why or f"reduction:{op}" not in OPS:
        raise _layerless(why or op)
    if over is None:
        raise _layerless(f"{op} over dimensions that are values")
    _check_floating(source)
    summed = {axis % max(1, len(shape)) for axis in over}
    kept = [axis for axis in axes if axis not in summed and shape[axis] != 1]
    if op == "mean" and len(shape) in (4, 5) and summed == {*axes} - {0, channels % len(shape)}:
        planes = [shape[axis] for axis in axes if axis not in summed]
        sizes = [shape[axis] for axis in sorted(summed)]
        yield LayerPass(_pooling_layer(planes, in_size=sizes, kernel=sizes, mode="avg"))
    elif (
        op != "sum"
        or not kept
        or any(axis in summed and shape[axis] != 1 for axis in range(kept[0], kept[-1]))
    ):
        yield LayerPass(merged_reduction(op, shape, summed))
    else:
        layer = build_layer(
            "bias",
            batch=math.prod(shape[: kept[0]]),
            channels=math.prod(shape[kept[0] : kept[-1] + 1]),
            width=math.prod(shape[kept[-1] + 1 :]),
        )
        yield LayerPass(layer, "backward-weights")


# -----------------------------------------------------------------------------
# Steps of an optimizer in one call.


@_counted
def update(
    each: int, weights: Sequence[Value], moved: Sequence[Value], why: str
) -> Iterator[Meaning | LayerPass]:
    """Return what an update of lists computes, of so many FLOPs for each weight.

    Args:
        each: gradients are rescaled in no call that we know of.
        weights: that are updated.
        moved: all that is overwritten.
        why: there is no layer.
    """
    flops = each * sum(value.elements for value in weights)
    yield Meaning(kind="update", flops=flops, writes=sum(value.bytes for value in moved))
    raise UnsupportedError(why)


@_counted
def variable_update(variable: Value, by: Value, *, minus: bool) -> Iterator[Meaning | LayerPass]:
    """Return what moves a variable, which is read and overwritten where it lies."""
    yield Meaning(kind="update", flops=by.elements * by.floating, writes=2 * variable.bytes)
    _check_floating(by)
    if minus:
        yield LayerPass(build_layer("sgd", channels=by.elements, rate=1.0))
    else:
        yield LayerPass(on_images("add", by.shape or (1,)))


# -----------------------------------------------------------------------------
# What computes nothing: whatever is written is read once, or comes from nowhere.


def view() -> Meaning:
    """Return what makes no kernel run."""
    return Meaning(kind="view", reads=0, writes=0)


def random(reads: Sequence[Value] = ()) -> Meaning:
    """Return what draws random numbers."""
    why = "random numbers: generators differ in what they compute"
    return replace(Meaning.unknown(why, "random"), reads=least_bytes(reads))


@_counted
def moved(reads: int | None = None, why: str = "a copy") -> Iterator[Meaning | LayerPass]:
    """Return what moves elements as no layer of ours does: parts, repeated ones, other types."""
    yield Meaning(kind="copy", reads=reads)
    raise _layerless(why)


def part_of(value: Value, results: int | None) -> int:
    """Return the bytes that a copy of all, of some or of repeated elements reads."""
    return least_bytes([value]) if results is None else min(least_bytes([value]), results)


@_counted
def copy(
    source: Value, axes: Sequence[int], reads: int | None = None, why: str = ""
) -> Iterator[Meaning | LayerPass]:
    """Return what copies a tensor to where its dimensions lie in some order, outermost first.

    Args:
        source: what is copied.
        axes: its dimensions.
        reads: bytes; None for all operands.
        why: there is no layer.
    """
    yield Meaning(kind="copy", reads=reads)
    if why:
        raise UnsupportedError(why)
    yield LayerPass(_turned(source, axes), roles=(Binding("src", source),))


def _turned(source: Value, axes: Sequence[int]) -> Layer:
    """Return the layer of such a copy.

    Raises:
        UnsupportedError: of its elements no two lie behind one another, or some several times.
    """
    _check_floating(source)
    sizes = [(source.shape[axis], source.strides[axis]) for axis in axes]
    moving = [stride for size, stride in sizes if size != 1]
    if moving and min(moving) != 1:
        raise UnsupportedError("a copy of repeated or of single elements has no layer")
    return merged_move([size for size, _ in sizes], [stride for _, stride in sizes])


def filled(result: Value) -> Meaning:
    """Return what gives all elements the same value; without elements it makes no kernel run."""
    return _filled(result) if result.elements else view()


@_counted
def _filled(result: Value) -> Iterator[Meaning | LayerPass]:
    yield Meaning(kind="copy", reads=0, dtypes=(result.dtype,))
    _check_floating(result)
    yield LayerPass(build_layer("move:fill", src=(result.elements,)))


@_counted
def among_others(
    source: Value, sizes: Sequence[int], axes: Sequence[int], reads: int, why: str = ""
) -> Iterator[Meaning | LayerPass]:
    """Return what writes one value everywhere, and then a tensor over some of it."""
    yield Meaning(kind="copy", reads=reads)
    if why:
        raise UnsupportedError(why)
    yield LayerPass(build_layer("move:fill", src=(math.prod(sizes),)))
    yield LayerPass(_turned(source, axes))


@_counted
def joined(
    values: Sequence[Value], along: int, *, stacked: bool = False
) -> Iterator[Meaning | LayerPass]:
    """Return what puts tensors behind one another along a dimension; one alone is copied.

    Args:
        values: at least one.
        along: the dimension, a new one of stacked ones.
        stacked: whether they are.
    """
    yield Meaning(kind="copy", reads=least_bytes(values) if stacked else None)
    first, shape = values[0], values[0].shape
    if stacked:
        _check_floating(first)
    along %= len(shape) + stacked
    if len(values) == 1:
        layer = _turned(first, range(len(shape)))
        yield LayerPass(layer, roles=(Binding("src", first),))
        return
    sources = tuple(1 if stacked else value.shape[along] for value in values)
    sizes = math.prod(shape[:along]), sum(sources), *shape[along + (not stacked) :]
    layer = on_images("concat", sizes, sources=sources)
    yield LayerPass(layer, roles=_bindings(layer.reads("forward"), values))


# -----------------------------------------------------------------------------
# Gathers and scatters: what indices say is read or written, and nothing else of a table.


@_counted
def gathered(
    table: Value, indices: Sequence[Value], written: int | None, *, rows: bool
) -> Iterator[Meaning | LayerPass]:
    """Return what reads from a table: as much as it writes, at most all of it.

    Args:
        table: what is read.
        indices: where.
        written: bytes of the result.
        rows: whether whole rows of the first dimension are.
    """
    reads = None if written is None else part_of(table, written) + least_bytes(indices)
    yield Meaning(kind="gather", reads=reads)
    if len(indices) != 1 or not rows or not indices[0].dtype.startswith("int"):
        raise UnsupportedError("gathering has no layer")
    _check_floating(table)
    width = math.prod(table.shape[1:])
    count = indices[0].elements
    yield LayerPass(build_layer("gather:rows", rows=table.shape[0], width=width, count=count))


@_counted
def scattered(
    table: Value | None, others: Sequence[Value], number: int, *, adds: bool, in_place: bool = False
) -> Iterator[Meaning | LayerPass]:
    """Return what writes so many elements; what does not work in place writes all others too.

    Args:
        table: what is written to; None for zeros.
        others: indices and values.
        number: of elements.
        adds: whether they are added.
        in_place: whether the table is overwritten.
    """
    own = number * table.itemsize if table else 0
    kept = own * adds if in_place else least_bytes([table] if table else [])
    yield Meaning(
        kind="gather",
        flops=number if adds else 0,
        reads=least_bytes(others) + kept,
        writes=own if in_place else None,
    )
    raise UnsupportedError("gathering has no layer")


@_counted
def table_gradient(outer: Value, indices: Value, rows: int) -> Iterator[Meaning | LayerPass]:
    """Return what adds each row of an outer gradient to the gradient of a table."""
    yield Meaning(kind="gather", flops=outer.elements)
    count = indices.elements
    yield LayerPass(build_layer("gather:add-rows", rows=rows, width=outer.shape[-1], count=count))
