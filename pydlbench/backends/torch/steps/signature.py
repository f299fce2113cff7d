"""The canonical text of an operator's call, and the call read from such a text.

A signature is an expression of Python: ``aten.add.Tensor(float32[8, 4](4, 1), float32[4](1))``. A
tensor is its type, its shape in brackets and its strides in elements in parentheses. Keywords
follow if they apply: ``at`` is the offset in bytes from a 64-byte boundary; ``of`` is the number of
the tensor of this call, counted from 0, whose memory it shares (in that case ``at`` counts from the
first byte of all that share it); ``on`` is a device other than the call's device. Packed
weights of a quantized operator are the list of what they were packed from. Values of tensors
are left out, although they change the time of a few calls (an embedding of one word is faster than
of many).
"""

from dataclasses import dataclass
from typing import Any, Final

import torch

from pydlbench.calls.seen.aten import TorchName, Unrecorded, leaves, map_leaves, read_call
from pydlbench.errors import UnsupportedError

#: Minimum alignment of blocks by PyTorch's allocators, in bytes.
ALIGNMENT: Final = 64


# -----------------------------------------------------------------------------
# From a call to its text.


def signature(
    function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], device: str
) -> str:
    """Return the text of a call.

    Args:
        function: the operator's overload.
        arguments: positional arguments.
        keywords: keyword arguments by name.
        device: device that the call runs on: ``cpu`` or ``cuda:N``.
    """
    arguments, keywords = map_leaves((arguments, keywords), unpacked)
    tensors = list(filter(strided, leaves([arguments, keywords], torch.Tensor)))
    writer = _SignatureWriter(tensors, device)
    parts = [writer.text(value) for value in arguments]
    parts += [f"{name}={writer.text(value)}" for name, value in keywords.items()]
    return f"{function}({', '.join(parts)})"


class _SignatureWriter:
    """Writes the arguments of one call, in their order.

    Args:
        tensors: all tensors of the call.
        device: device of the call.
    """

    def __init__(self, tensors: list[torch.Tensor], device: str) -> None:
        self._device = torch.device(device)
        self._starts: dict[int, int] = {}
        for tensor in tensors:
            storage, begin = tensor.untyped_storage()._cdata, first_byte(tensor)
            self._starts[storage] = min(begin, self._starts.get(storage, begin))
        self._first: dict[int, int] = {}
        self._number = 0

    def text(self, value: Any) -> str:
        """Write one argument."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, torch.device):
            return f"torch.device('{value}')"
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        return f"<{type(value).__name__}>"

    def _tensor(self, tensor: torch.Tensor) -> str:
        number, self._number = self._number, self._number + 1
        if not strided(tensor):
            return f"<{str(tensor.layout).removeprefix('torch.')} tensor>"
        storage = tensor.untyped_storage()._cdata
        start = self._starts[storage]
        shared = self._first.setdefault(storage, number)
        at = first_byte(tensor) - start + start % ALIGNMENT
        words = [str(stride) for stride in tensor.stride()]
        words += [f"at={at}"] if at else []
        words += [f"of={shared}"] if shared != number else []
        words += [f"on='{tensor.device}'"] if tensor.device != self._device else []
        shape = ", ".join(map(str, tensor.shape)) or "()"
        return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]({', '.join(words)})"


def unpacked(value: Any) -> Any:
    """Return the weights and settings in an argument that packs them; others unchanged.

    A convolution's are in the order of the arguments of ``aten::convolution``.
    """
    if not (isinstance(value, torch.ScriptObject) and value._has_method("unpack")):
        return value
    names = ("stride", "padding", "dilation", "transpose", "output_padding", "groups")
    settings = names if value._has_method("stride") else ()
    return [*value.unpack(), *(getattr(value, name)() for name in settings)]


def first_byte(tensor: torch.Tensor) -> int:
    """Return the offset of a tensor in its memory, in bytes."""
    return int(tensor.storage_offset() * tensor.element_size())


def strided(tensor: torch.Tensor) -> bool:
    """Whether a tensor is plain memory with strides: neither sparse nor opaque nor nested."""
    return tensor.layout == torch.strided and not tensor.is_nested


# -----------------------------------------------------------------------------
# From a text to a call.


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A call read from its signature.

    Attributes:
        function: the operator's overload.
        arguments: positional arguments, with a :class:`~pydlbench.calls.meaning.Value` for each
            tensor.
        keywords: keyword arguments by name, with a :class:`~pydlbench.calls.meaning.Value` for each
            tensor.
    """

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def parse(text: str, *, made_up: bool = True) -> ParsedCall:
    """Read a signature.

    Args:
        text: the signature.
        made_up: whether operands are to be made up for the call.

    Raises:
        UnsupportedError: this PyTorch has no such operator, or an argument has no text.
    """
    words = read_call(text)
    lost = [each.kind for each in leaves([words.arguments, words.keywords], Unrecorded)]
    lost += [each.dtype for each in words.values if each.dtype.startswith(("qint", "quint"))]
    if made_up and lost:
        raise UnsupportedError(f"{words.name}: no operand can be made up for {lost[0]}")
    return ParsedCall(
        function=_function(words.name),
        arguments=map_leaves(words.arguments, _value),
        keywords=map_leaves(words.keywords, _value),
    )


def _function(name: str) -> Any:
    function: Any = torch.ops
    try:
        for part in name.split("."):
            function = getattr(function, part)
    except AttributeError as error:
        raise UnsupportedError(f"{name}: this PyTorch has no such operator") from error
    return function


def _value(word: Any) -> Any:
    """Return the device, type or layout that a word names; other values unchanged."""
    if not isinstance(word, TorchName):
        return word
    return torch.device(word.text) if word.kind == "device" else getattr(torch, word.text)
