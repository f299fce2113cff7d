"""The text of a node of TensorFlow's graph: all that changes its time, and nothing else."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import msgspec

from pydlbench.records.record import Record

#: Bytes of an element where its type's name does not say them.
_SIZES: Final = {"bool": 1}


class NodeTensor(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a node reads or writes.

    Attributes:
        type: TensorFlow's name of the elements' type: ``float32``.
        shape: None where it is not known before the node runs.
        values: of a constant, where they decide what is computed: axes, shapes, factors.
        variable: whether it is a variable, and no value.
    """

    type: str
    shape: tuple[int, ...] | None = None
    values: tuple[Any, ...] | None = None
    variable: bool = False

    @property
    def elements(self) -> int:
        """How many there are; 0 where nobody knows."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many they take; 0 where nobody knows."""
        bits = re.search("[0-9]+", self.type)
        return self.elements * _SIZES.get(self.type, int(bits[0]) // 8 if bits else 0)

    @property
    def floating(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.type.startswith(("float", "bfloat"))


class Node(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A node without its name.

    Attributes:
        op: TensorFlow's name of the operator: ``Conv2D``, ``_FusedMatMul``.
        attributes: by name, as protocol buffers' JSON has them, text as text.
        inputs: in their order, without what only has to be done before.
        outputs: likewise.
        looped: whether it is in a loop or a branch: how often it runs, the graph does not say.
    """

    op: str
    attributes: dict[str, Any]
    inputs: tuple[NodeTensor, ...] = ()
    outputs: tuple[NodeTensor, ...] = ()
    looped: bool = False

    @property
    def text(self) -> str:
        """The signature: JSON without what is as usual, names in alphabetical order."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Node:
        """Return the node of a signature.

        Raises:
            ValueError: it is none.
        """
        return cls.from_dict(json.loads(text))

    @property
    def operator(self) -> str:
        """The public operator that oneDNN's or a fused one stands for: ``Conv2D``."""
        name = self.op
        for start in ("_MklNative", "_Mkl", "_Native", "_Fused", "Fused"):
            # Fused batch normalisation is one operator.
            if name.startswith(start) and not name.startswith("FusedBatchNorm"):
                name = name.removeprefix(start)
        return name

    @property
    def padded(self) -> tuple[int, ...]:
        """Of a convolution that pads its images itself, by its last operand: before and behind.

        For each dimension of the images; empty of any other node.
        """
        values = self.inputs[-1].values if self.operator.startswith("PadWith") else None
        return tuple(int(one) for one in values or ())

    @property
    def bytes(self) -> int:
        """Of operands and results together; a variable that is handed on has none."""
        read = [one for one in self.inputs if not one.variable]
        return sum(one.bytes for one in (*read, *self.outputs))

    def number(self, name: str, default: float = 0.0) -> float:
        """Return an attribute that is a number."""
        found = self.attributes.get(name, {})
        return float(found.get("f", found.get("i", default)))

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of whole numbers."""
        return tuple(int(one) for one in self._list(name, "i"))

    def word(self, name: str, default: str = "") -> str:
        """Return an attribute that is text."""
        return str(self.attributes.get(name, {}).get("s", default))

    def words(self, name: str) -> tuple[str, ...]:
        """Return an attribute that is a list of texts."""
        return tuple(map(str, self._list(name, "s")))

    def flag(self, name: str) -> bool:
        """Return an attribute that is true or false; one that is not there is false."""
        return bool(self.attributes.get(name, {}).get("b", False))

    def _list(self, name: str, kind: str) -> list[Any]:
        found: list[Any] = self.attributes.get(name, {}).get("list", {}).get(kind, [])
        return found


def is_graph_node(signature: str) -> bool:
    """Whether a call's signature is that of a node."""
    return signature.startswith('{"attributes":')
