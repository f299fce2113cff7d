"""The canonical text of an operator's call, and the call made of such a text again.

A signature is an expression of Python: ``aten.add.Tensor(float32[8, 4](4, 1), float32[4](1))``. A
tensor is its type, its shape in brackets and its strides in elements in parentheses. Where they
hold, keywords follow: ``at`` bytes behind a 64-byte boundary does it begin, ``of`` the number of
the tensor of this call, counted from 0, whose memory it shares (``at`` counts from the first byte
that any of them has), ``on`` a device that is not the call's own. Values of tensors are not in it,
although they change the time of a few calls (an embedding of one word is faster than of many).
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ParsedCall", "TensorText", "leaves", "mapped", "parse", "signature"]

#: Bytes that PyTorch's allocators align blocks to at least.
ALIGNMENT: Final = 64
_CONSTANTS: Final = {"inf": math.inf, "nan": math.nan}


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
# From a call to its text.


def signature(
    function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], device: str
) -> str:
    """Return the text of a call.

    Args:
        function: the operator's overload.
        arguments: by position.
        keywords: by name.
        device: that the call runs on: ``cpu`` or ``cuda:N``.
    """
    tensors = [one for one in leaves([arguments, keywords], torch.Tensor) if _strided(one)]
    writer = _Writer(tensors, device)
    parts = [writer.text(one) for one in arguments]
    parts += [f"{name}={writer.text(one)}" for name, one in keywords.items()]
    return f"{function}({', '.join(parts)})"


class _Writer:
    """Writes the arguments of one call, in their order.

    Args:
        tensors: all of them.
        device: of the call.
    """

    def __init__(self, tensors: list[torch.Tensor], device: str) -> None:
        self._device = torch.device(device)
        self._starts: dict[int, int] = {}
        for one in tensors:
            storage, begin = one.untyped_storage()._cdata, _begin(one)
            self._starts[storage] = min(begin, self._starts.get(storage, begin))
        self._first: dict[int, int] = {}
        self._number = 0

    def text(self, value: Any) -> str:
        """Write one argument."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.text(one) for one in value)}]"
        if isinstance(value, torch.device):
            return f"torch.device('{value}')"
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        return f"<{type(value).__name__}>"

    def _tensor(self, one: torch.Tensor) -> str:
        number, self._number = self._number, self._number + 1
        if not _strided(one):
            return f"<{str(one.layout).removeprefix('torch.')} tensor>"
        storage = one.untyped_storage()._cdata
        start = self._starts[storage]
        shared = self._first.setdefault(storage, number)
        at = _begin(one) - start + start % ALIGNMENT
        words = [str(stride) for stride in one.stride()]
        words += [f"at={at}"] if at else []
        words += [f"of={shared}"] if shared != number else []
        words += [f"on='{one.device}'"] if one.device != self._device else []
        shape = ", ".join(map(str, one.shape)) or "()"
        return f"{str(one.dtype).removeprefix('torch.')}[{shape}]({', '.join(words)})"


def _begin(tensor: torch.Tensor) -> int:
    """Return the byte of its memory at which a tensor begins."""
    return int(tensor.storage_offset() * tensor.element_size())


def _strided(tensor: torch.Tensor) -> bool:
    """Whether it is plain memory with strides: neither sparse nor oneDNN's own nor nested."""
    return tensor.layout == torch.strided and not tensor.is_nested


# -----------------------------------------------------------------------------
# From a text to a call.


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorText:
    """A tensor of a signature; see there.

    Attributes:
        number: among the tensors of the call, from 0.
        at: bytes from the beginning of its memory.
        of: the number of the first tensor of the same memory; its own one if it has its own.
        on: its device; None is the call's.
    """

    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: int = 0
    of: int = 0
    on: str | None = None

    @property
    def end(self) -> int:
        """The byte of its memory behind its last element."""
        size = self.dtype.itemsize
        if 0 in self.shape:
            return self.at
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.at + (last + 1) * int(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A call read from its signature.

    Attributes:
        function: the operator's overload.
        arguments: by position, :class:`TensorText` for tensors.
        keywords: by name, likewise.
    """

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def parse(text: str) -> ParsedCall:
    """Read a signature.

    Raises:
        UnsupportedError: no such operator here, or an argument that no text can tell.
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
    return ParsedCall(function=_function(name), arguments=arguments, keywords=keywords)


def _function(name: str) -> Any:
    found: Any = torch.ops
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise UnsupportedError(f"{name}: this PyTorch has no such operator") from error
    return found


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
            return getattr(torch, node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            return self._tensor(node.func, node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return torch.device(self.value(node.args[0]))
        raise UnsupportedError(f"{self._name}: no operand can be made up for {ast.unparse(node)}")

    def _tensor(self, typed: ast.Subscript, call: ast.Call) -> TensorText:
        number, self._number = self._number, self._number + 1
        shape = ast.literal_eval(typed.slice)
        assert isinstance(typed.value, ast.Name), ast.unparse(typed)
        more = {str(one.arg): self.value(one.value) for one in call.keywords}
        return TensorText(
            number=number,
            dtype=getattr(torch, typed.value.id),
            shape=shape if isinstance(shape, tuple) else (shape,),
            strides=tuple(self.value(one) for one in call.args),
            **{"of": number, **more},
        )
