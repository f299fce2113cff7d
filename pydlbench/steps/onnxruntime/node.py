"""The signature of a node that onnxruntime runs: all that it can be made of again, as text.

``onnx:{"operator":"Conv","version":17,"inputs":[...],...}`` is JSON behind a mark. Values of large
tensors are not in it, although they change the time of a few operators.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from pydlbench.errors import UnsupportedError

_MARK: Final = "onnx:"


class Tensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor that a node reads or writes.

    Attributes:
        dtype: NumPy's name of its type; ``bfloat16`` and the like by ONNX's.
        shape: of it.
        constant: whether it is a weight, which onnxruntime may pack beforehand.
        values: of what is small, in their order.
        bounds: the smallest and the largest value of what is larger, where these are whole numbers:
            indices have to lie in what they index.
        same: the place of the first input that is the same tensor; None if this is the first.
    """

    dtype: str
    shape: tuple[int, ...]
    constant: bool = False
    values: tuple[bool | int | float, ...] | None = None
    bounds: tuple[int, int] | None = None
    same: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of its elements; those of four bits take a byte each."""
        bits = re.search("[0-9]+", self.dtype)  # the first ones: float8_e4m3fn
        each = -(-int(bits[0]) // 8) if bits else int(self.dtype == "bool")
        return each * math.prod(self.shape)


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node with its tensors.

    Attributes:
        operator: ONNX's name of what it computes: ``Conv``.
        domain: of the operator; empty is ONNX's own, ``com.microsoft.nchwc`` onnxruntime's for maps
            in blocks of channels.
        version: of the domain.
        inputs: None is what is left out.
        outputs: likewise.
        attributes: kind (a number of ONNX's) and value by name; of a tensor its bytes in base64.
        lacks: why no such node can be made; empty where one can.
    """

    operator: str
    domain: str = ""
    version: int
    inputs: tuple[Tensor | None, ...] = ()
    outputs: tuple[Tensor | None, ...] = ()
    attributes: dict[str, tuple[int, Any]] = {}
    lacks: str = ""

    @property
    def name(self) -> str:
        """The operator with its domain, ``onnx.Conv``, as it is printed."""
        return f"{self.domain.removeprefix('com.microsoft.') or 'onnx'}.{self.operator}"

    @property
    def signature(self) -> str:
        """Its text."""
        return _MARK + msgspec.json.encode(self, order="sorted").decode()

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, each once."""
        known = [one for one in (*self.inputs, *self.outputs) if one is not None]
        return sum(one.bytes for one in known if one.same is None)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        return self.attributes[name][1] if name in self.attributes else default

    @classmethod
    def of(cls, signature: str) -> Node:
        """Read a text.

        Raises:
            UnsupportedError: it is no node's.
        """
        if not is_node(signature):
            raise UnsupportedError(f"{signature[:60]}: no node of an ONNX file")
        return msgspec.json.decode(signature.removeprefix(_MARK), type=cls)


def is_node(signature: str) -> bool:
    """Whether a signature is a node's."""
    return signature.startswith(_MARK)
