"""The meaning of a recorded call: layers, FLOPs and least bytes, or why they are unknown.

Frameworks have different names for the same computation. :mod:`pydlbench.calls.seen` parses their
calls; the modules beside this one give the meaning of each family. Nothing is measured, and no
framework is imported. Unknown values are None with a reason, never zero.

FLOPs are algorithmic: two for a multiply-add with padding counted; an addition, multiplication,
division, comparison, root, power, exponential, logarithm or error function counts as one.
Operations per channel, row or tensor are not counted, and integer operations are not FLOPs.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, ParamSpec, Self

from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer, in_place
from pydlbench.words import mixed_precision

_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class LayerPass:
    """A pass of a layer.

    Attributes:
        layer: layer that is computed, without a name.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        training: whether a forward pass keeps data for the gradient.
    """

    layer: Layer
    pass_: str = "forward"
    training: bool = False

    @property
    def propagation(self) -> str:
        """``inference`` or ``training``."""
        return "training" if self.training or self.pass_ != "forward" else "inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The computation of a call, or of a part of it.

    A call that launches no kernel (a view, uninitialised memory) is of kind ``view``: it has no
    layers, no reason for that, no FLOPs and no bytes.

    Attributes:
        kind: ``product``, ``convolution``, ``attention``, ``recurrent``, ``pooling``, ``resize``,
            ``normalisation``, ``softmax``, ``activation``, ``elementwise``, ``reduction``,
            ``update`` (of weights), ``loss``, ``gather``, ``copy``, ``random``, ``view`` or
            ``other``.
        layers: sequence of layer passes that computes the same as the call; layers may repeat.
        layers_missing: why there are no layers; None if there are layers, or none are needed.
        flops: algorithmic FLOPs. For a causal attention only the pairs of query and key that are
            attended to count, as in its layers and unlike in PyTorch's counter.
        product_flops: FLOPs of products and convolutions, as publications and PyTorch's counter
            count; None if ``flops`` is None.
        flops_missing: why the FLOPs are unknown; None if they are known.
        reads: least bytes read, each operand once; None until :func:`complete`.
        writes: bytes of the results; None if unknown.
        note: remark on the numbers, or None.
        dtypes: type of the computation (``bfloat16``): the type of its operands, which may differ
            from the type of the step; several types if they are mixed.
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
        """Return a meaning without counts for a call that has no formula; ``why`` is the reason."""
        return cls(kind=kind, layers_missing=why, flops=None, product_flops=None, flops_missing=why)

    @property
    def bytes(self) -> int | None:
        """Least bytes moved: each operand that is read, once, and each result."""
        return None if self.reads is None or self.writes is None else self.reads + self.writes


def complete(
    part: Meaning, values: Sequence[Value], written: int | None, types: Iterable[str] = ()
) -> Meaning:
    """Return the meaning with bytes and types filled in from the operands.

    Args:
        part: meaning of the call, without bytes.
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


def combine(parts: Iterable[Meaning], **fields: Any) -> Meaning:
    """Return the meaning of several parts in sequence.

    The kind is the kind of the first part that is not a view. The result has layers if all parts
    have layers.

    Args:
        parts: at least one part.
        fields: attributes that replace the combined ones.
    """
    listed = [*parts]
    if len(listed) == 1:
        return replace(listed[0], **fields)

    def first(name: str) -> Any:
        return next((value for part in listed if (value := getattr(part, name))), None)

    def total(name: str) -> int | None:
        counts = [getattr(part, name) for part in listed]
        return None if None in counts else sum(counts)

    layers = () if first("layers_missing") else (step for part in listed for step in part.layers)
    combined: dict[str, Any] = {
        "kind": next((part.kind for part in listed if part.kind != "view"), "view"),
        "layers": tuple(layers),
        **{name: first(name) for name in ("layers_missing", "flops_missing", "note")},
        **{name: total(name) for name in ("flops", "product_flops", "reads", "writes")},
    }
    return Meaning(**combined | fields)


def of_types(part: Meaning, *types: str) -> Meaning:
    """Return the meaning with the types of source, weights and result, by NumPy's names."""
    word = mixed_precision(*types)
    if word is None:
        missing = f"no layer has the types {', '.join(types)}"
        return replace(part, layers=(), layers_missing=missing, dtypes=types[:1])
    return replace(part, dtypes=(word,))


def make_in_place(part: Meaning) -> Meaning:
    """Return the meaning of a call that overwrites its first operand, with in-place layers."""
    if len(part.layers) != 1 or part.layers[0].pass_ != "forward":
        return part
    (step,) = part.layers
    return replace(part, layers=(replace(step, layer=in_place(step.layer)),))


def meaning_rule(rule: Callable[_P, Iterator[Meaning | LayerPass]]) -> Callable[_P, Meaning]:
    """Turn a generator into a function that returns a meaning with its layers.

    The generator first yields the meaning without layers. After that it yields the layers, or
    raises an error that says why there are no layers.
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


def no_layer(what: str) -> UnsupportedError:
    """Return the error that says that a computation has no layer."""
    return UnsupportedError(f"{what} has no layer")


def require_floating(*, floating: bool) -> None:
    """Refuse a layer on integers.

    Raises:
        UnsupportedError: the numbers are not floating-point numbers.
    """
    if not floating:
        raise UnsupportedError("whole numbers have no layer")


def require_loss_operands(what: str, numbers: Value, *others: Value) -> None:
    """Refuse a loss of repeated elements, or of half precision, whose row converts to float32.

    Raises:
        UnsupportedError: the loss is one of these.
    """
    if numbers.dtype != "float32":
        raise no_layer(f"{what} in {numbers.dtype}")
    if any(value.stored_shape != value.shape for value in (numbers, *others)):
        raise no_layer(f"{what} of elements that are repeated")


def row_layer(op: str, shape: Sequence[int], last: int, **parameters: Any) -> Layer:
    """Return a layer that works along rows, which are the last dimensions together.

    Args:
        op: name of the layer's op.
        shape: shape of the tensor.
        last: number of dimensions of a row.
        parameters: parameters of the op.
    """
    begin = len(shape) - last
    batch, channels, *sides = (*shape[:begin], 1, 1)
    height, width = math.prod(sides), math.prod(shape[begin:])
    return build_layer(op, batch=batch, channels=channels, height=height, width=width, **parameters)


# -----------------------------------------------------------------------------
# Tensors that recorded calls read: dtype, shape, strides and the memory that they share.

_FLOAT_PREFIXES: Final = ("float", "bfloat")


def bytes_of_type(dtype: str) -> int:
    """Return the bytes of one element; 0 if unknown, and 1 for four bits.

    Args:
        dtype: name of the type: ``float32``, ``bool``, ``float8_e4m3fn``.
    """
    bits = re.search("[0-9]+", dtype)
    return -(-int(bits[0]) // 8) if bits else int(dtype == "bool")


def is_floating(dtype: str) -> bool:
    """Whether a type has floating-point numbers."""
    return dtype.startswith(_FLOAT_PREFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that a call reads.

    Attributes:
        dtype: NumPy's name of the type: ``float32``, ``bfloat16``.
        shape: size of each dimension.
        strides: distance in memory between neighbours along each dimension, in elements.
        number: index among the tensors of the call, from 0.
        offset: bytes from the start of the memory that holds the tensor.
        storage: number of the first tensor with the same memory, possibly its own
            number.
        device: device of the tensor; None for the device of the call.
        numbers: elements of a constant that determines what is computed; None for other tensors.
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
    def dense(cls, dtype: str, shape: Sequence[int], **fields: Any) -> Self:
        """Return a value in row-major order without gaps."""
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(dtype=dtype, shape=tuple(shape), strides=strides, **fields)

    def with_shape(self, *shape: int) -> Value:
        """Return a dense value of the same type."""
        return Value.dense(self.dtype, shape)

    def permute(self, order: Sequence[int]) -> Value:
        """Return a view with the dimensions in another order."""
        sizes, strides = ([given[axis] for axis in order] for given in (self.shape, self.strides))
        return replace(self, shape=tuple(sizes), strides=tuple(strides))

    def split(self, axis: int, inner: int) -> Value:
        """Return a view with a dimension split into an outer and an inner one."""
        sizes, strides = [*self.shape], [*self.strides]
        sizes[axis : axis + 1] = sizes[axis] // inner, inner
        strides[axis : axis + 1] = strides[axis] * inner, strides[axis]
        return replace(self, shape=tuple(sizes), strides=tuple(strides))

    @property
    def itemsize(self) -> int:
        """Bytes of one element.

        Raises:
            UnsupportedError: the size of the type is not known.
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
        """Whether the elements are floating-point numbers."""
        return is_floating(self.dtype)

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
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory, with broadcast dimensions of size one."""
        sides = zip(self.shape, self.strides, strict=True)
        return tuple(size if stride else min(size, 1) for size, stride in sides)

    @property
    def long_strides(self) -> list[int]:
        """The strides of dimensions of more than one element; others say nothing."""
        return [stride for size, stride in zip(self.shape, self.strides, strict=True) if size != 1]

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
        sizes = (
            min(math.prod(view.stored_shape) * view.itemsize, view.end - view.offset)
            for view in views
        )
        total += min(sum(sizes), extent)
    return total


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common shape of operands, as in NumPy's broadcasting."""
    longest = max(map(len, shapes), default=0)
    aligned = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    # A size of zero makes the result empty.
    return tuple(max(sizes) if min(sizes) else 0 for sizes in zip(*aligned, strict=True))


def dtypes_of(values: Sequence[Value], types: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the type of a computation; several if they are mixed.

    Indices, labels and masks do not count beside floating-point numbers. A tensor without
    dimensions is converted to the type of the others.

    Args:
        values: tensors that the call reads.
        types: further types among the call's arguments.
    """
    dtypes = {value.dtype for value in values if value.shape} or {value.dtype for value in values}
    dtypes |= set(types)
    return tuple(sorted({dtype for dtype in dtypes if is_floating(dtype)} or dtypes))
