"""A recorded call of PyTorch read from its signature, without PyTorch.

How signatures are written: :mod:`pydlbench.steps.torch.signature`.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONSTANTS: Final = {"inf": math.inf, "nan": math.nan}
_BITS: Final = re.compile(r"[a-z]+([0-9]+)")


# -----------------------------------------------------------------------------
# Arguments of operators: values in tuples, lists and dicts.


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return arguments with each value replaced, lists within lists included."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(one, function) for one in tree])
    if isinstance(tree, dict):
        return {name: mapped(one, function) for name, one in tree.items()}
    return function(tree)


def leaves(tree: Any, kind: type) -> Iterator[Any]:
    """Give all values of one type, in their order."""
    if isinstance(tree, (list, tuple)):
        for one in tree:
            yield from leaves(one, kind)
    elif isinstance(tree, dict):
        yield from leaves(list(tree.values()), kind)
    elif isinstance(tree, kind):
        yield tree


# -----------------------------------------------------------------------------
# What a text says.


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorText:
    """A tensor of a signature; see there.

    Attributes:
        number: among the tensors of the call, from 0.
        dtype: PyTorch's name of its type: ``float32``.
        strides: in elements.
        at: bytes from the beginning of its memory.
        of: the number of the first tensor of the same memory; its own one if it has its own.
        on: its device; None is the call's.
    """

    number: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: int = 0
    of: int = 0
    on: str | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one element.

        Raises:
            UnsupportedError: a type that is not known here.
        """
        bits = _BITS.match(self.dtype)
        if bits is None and self.dtype != "bool":
            raise UnsupportedError(f"{self.dtype}: the size of this type is not known")
        # Of types below a byte, two share one, and PyTorch counts such pairs as elements.
        return 1 if bits is None else max(1, int(bits[1]) // 8)

    @property
    def elements(self) -> int:
        """Elements, those that stand for the same place in memory each."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * self.itemsize

    @property
    def end(self) -> int:
        """The byte of its memory behind its last element."""
        if 0 in self.shape:
            return self.at
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.at + (last + 1) * self.itemsize


@dataclass(frozen=True, slots=True)
class Word:
    """A value of PyTorch's own: a type, a layout, a memory format, a device.

    Attributes:
        kind: ``torch`` for what is an attribute of that module, or ``device``.
        text: its name.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallText:
    """A call read from its signature.

    Attributes:
        name: of the operator's overload: ``aten.add_.Tensor``.
        arguments: by position: numbers, texts, None, lists of them, and :class:`TensorText` and
            :class:`Word`.
        keywords: by name, likewise.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def read_call(text: str) -> CallText:
    """Read a signature.

    Raises:
        UnsupportedError: an argument that no text can tell.
    """
    name, _, rest = text.partition("(")
    try:
        tree = ast.parse(f"call({rest}", mode="eval").body
    except SyntaxError as error:
        # Where a value has no text, its type stands in angle brackets.
        found = rest[rest.find("<") + 1 : rest.find(">")] if "<" in rest else rest[:60]
        raise UnsupportedError(f"{name}: no operand can be made up for {found}") from error
    assert isinstance(tree, ast.Call), text
    reader = _Reader(name)
    arguments = tuple(reader.value(one) for one in tree.args)
    keywords = {str(one.arg): reader.value(one.value) for one in tree.keywords}
    return CallText(name=name, arguments=arguments, keywords=keywords)


class _Reader:
    """Reads the arguments of one call, in their order.

    Args:
        name: of the operator, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0

    def value(self, node: ast.expr) -> Any:
        """Return what an expression says."""
        if isinstance(node, ast.List):
            return [self.value(one) for one in node.elts]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.Attribute):
            return Word("torch", node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            return self._tensor(node.func, node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return Word("device", self.value(node.args[0]))
        raise UnsupportedError(f"{self._name}: no operand can be made up for {ast.unparse(node)}")

    def _tensor(self, typed: ast.Subscript, call: ast.Call) -> TensorText:
        number, self._number = self._number, self._number + 1
        shape = ast.literal_eval(typed.slice)
        assert isinstance(typed.value, ast.Name), ast.unparse(typed)
        more = {str(one.arg): self.value(one.value) for one in call.keywords}
        return TensorText(
            number=number,
            dtype=typed.value.id,
            shape=shape if isinstance(shape, tuple) else (shape,),
            strides=tuple(self.value(one) for one in call.args),
            **{"of": number, **more},
        )
