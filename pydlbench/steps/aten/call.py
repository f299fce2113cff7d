"""A recorded call as the rules see it, and what a rule finds: our layers, FLOPs, least bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.models.work import Work
from pydlbench.ops.table import build_layer
from pydlbench.steps.aten.text import TensorText, Word, leaves, read_call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pydlbench.ops.op import Layer
    from pydlbench.records.operator import RecordedCall

_FLOATS: Final = ("float", "bfloat")
_TYPES: Final = (*_FLOATS, "bool", "complex", "int", "uint")


class Call:
    """A recorded call, read.

    Attributes:
        operator: without namespace, overload and the underscore of what works in place.
        in_place: whether it overwrites its first operand.
        arguments: by position; see :class:`~pydlbench.steps.aten.text.CallText`.
        keywords: by name.
        tensors: all operands, in their order.
        backward: whether it is a part of the backward pass.

    Args:
        recorded: the call.

    Raises:
        UnsupportedError: the signature is no call of PyTorch's, or an operand that has no text.
    """

    def __init__(self, recorded: RecordedCall) -> None:
        name = recorded.signature.partition("(")[0]
        if name.count(".") != 2:
            raise UnsupportedError(f"{recorded.operator}: no recorded call of PyTorch's")
        said = read_call(recorded.signature)
        namespace, operator, _ = name.split(".")
        self.operator = operator.rstrip("_") if namespace == "aten" else f"{namespace}.{operator}"
        self.in_place = operator.endswith("_")
        self.arguments, self.keywords = said.arguments, said.keywords
        self.tensors: tuple[TensorText, ...] = tuple(
            leaves([said.arguments, said.keywords], TensorText)
        )
        self.backward = recorded.direction == "backward"
        self._node = recorded.names[0] if recorded.names else ""
        self._bytes = recorded.bytes

    def get(self, index: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place and its name; PyTorch leaves defaults out."""
        if index < len(self.arguments):
            return self.arguments[index]
        return self.keywords.get(name, default)

    @property
    def results(self) -> int | None:
        """Bytes of all results, what was overwritten among them; None if nobody has counted."""
        found = self._bytes - sum(one.bytes for one in self.tensors)
        return found if self._bytes and found >= 0 else None

    @property
    def floating(self) -> bool:
        """Whether there is a floating-point operand."""
        return any(one.dtype.startswith(_FLOATS) for one in self.tensors)

    def dtypes(self, of: Sequence[TensorText] | None = None) -> tuple[str, ...]:
        """Return the type in which it is computed, by PyTorch's name; several where they are mixed.

        Beside floating-point numbers, indices, labels and masks have none. A tensor without
        dimensions takes the type of the others. A type that the call asks for is one of them.

        Args:
            of: the operands that decide; None for all.
        """
        operands = self.tensors if of is None else of
        asked = leaves([self.arguments, self.keywords], Word)
        found = {one.dtype for one in operands if one.shape} or {one.dtype for one in operands}
        found |= {one.text for one in asked if one.text.startswith(_TYPES)}
        return tuple(sorted({one for one in found if one.startswith(_FLOATS)} or found))

    def work(self, layer: Layer, pass_: str = "forward", *, training: bool = False) -> Work:
        """Return a pass of a layer as a part of this call."""
        propagation = "training" if training or pass_ != "forward" else "inference"
        return Work(node=self._node, layer=layer, pass_=pass_, propagation=propagation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a rule knows of a call.

    Attributes:
        kind: of operator.
        work: our layers that compute the same, in their order.
        lacks: why there is no layer.
        flops: None where there is no formula.
        product_flops: of these, in products and convolutions.
        unknown: why there is no formula.
        read: bytes; None for all operands.
        written: bytes; None for all results.
        note: of what a reader must know.
        typed: the operands whose type is that of what is computed; None for all.
    """

    kind: str
    work: tuple[Work, ...] = ()
    lacks: str = ""
    flops: int | None = None
    product_flops: int = 0
    unknown: str = ""
    read: int | None = None
    written: int | None = None
    note: str | None = None
    typed: Sequence[TensorText] | None = None

    @classmethod
    def of(cls, kind: str, make: Callable[[], Iterable[Work]], **more: Any) -> Found:
        """Return what a call computes, with the reason where its layers cannot be made.

        Args:
            kind: of operator.
            make: returns the layers, or raises what says why there are none.
            more: further attributes.
        """
        try:
            return cls(kind=kind, work=tuple(make()), **more)
        except PydlbenchError as error:
            return cls(kind=kind, lacks=str(error), **more)


def least_bytes(tensors: Collection[TensorText]) -> int:
    """Return the bytes of some operands, each byte of memory counted once.

    An element that several indices stand for (stride 0, windows that overlap) is one, and so are
    two equal views. Of views of one memory that overlap otherwise, what lies between their first
    and last byte bounds the sum.
    """
    total = 0
    for memory in dict.fromkeys(one.of for one in tensors):
        views = {
            (one.at, one.shape, one.strides, one.itemsize): one
            for one in tensors
            if one.of == memory
        }
        distinct = sum(_distinct(one) for one in views.values())
        extent = max(one.end for one in views.values()) - min(one.at for one in views.values())
        total += min(distinct, extent)
    return total


def _distinct(one: TensorText) -> int:
    """Return the bytes of a view, without those that it has several times."""
    if 0 in one.shape:
        return 0
    elements = 1
    for size, stride in zip(one.shape, one.strides, strict=True):
        elements *= size if stride else 1
    return min(elements * one.itemsize, one.end - one.at)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that operands have together; see NumPy's broadcasting."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(one)) + one for one in shapes]
    # A size of zero makes the result empty.
    return tuple(max(sizes) if min(sizes) else 0 for sizes in zip(*padded, strict=True))


def on_images(op: str, shape: Sequence[int], **parameters: Any) -> Layer:
    """Return a memory-bound layer on a tensor: missing sides are 1, and one too many is width.

    Args:
        op: of the layer.
        shape: of the tensor; one dimension is channels.
        parameters: of the operation.

    Raises:
        UsageError: a layer that cannot be.
    """
    batch, channels, *rest = shape if len(shape) > 1 else (1, *shape, *[1] * (1 - len(shape)))
    height = rest.pop(0) if len(rest) > 1 else 1
    return build_layer(
        op,
        batch=batch,
        channels=channels,
        height=height,
        width=math.prod(rest),
        **parameters,
    )
