"""Tensors that recorded calls read: dtype, shape, strides and the memory that they share."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from pydlbench.errors import UnsupportedError

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
