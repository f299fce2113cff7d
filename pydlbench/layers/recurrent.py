"""Recurrent layers over sequences: LSTM and GRU, one or several, in one direction or both."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import (
    Kind,
    check_pass,
    check_total,
    elements,
    malformed,
    read_name,
    read_number,
    set_integers,
)
from pydlbench.layers.tensors import check_operator

#: Products with the source, and with the state, in each step of a cell.
GATES: Final = {"lstm": 4, "gru": 3}
_FIELD: Final = re.compile("mb|slc|dhc|l|d|t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(Kind):
    """Sequences ``(steps, batch, size)`` through cells that hand their state from step to step.

    With ``x`` the source and ``h`` the state before a step (``src_iter`` before the first one), and
    a matrix of ``weights``, one of ``weights_iter`` and a ``bias`` for each gate:

    - ``lstm``: ``i, f, o = sigmoid(x W + h U + b)`` and ``g = tanh(x W + h U + b)``;
      ``c = f c + i g`` (``src_iter_c`` before the first step) and ``h = o tanh(c)``. Gates lie in
      the order ``i, f, g, o``.
    - ``gru``: ``u, r = sigmoid(x W + h U + b)``, ``o = tanh(x W + r (h U + b') + b)`` and
      ``h = u h + (1 - u) o``, with the reset gate behind the product, as cuDNN and PyTorch have
      it ("linear before reset"). Gates lie in the order ``u, r, o``, and ``b'`` behind them.

    In two directions the second half of the result's columns goes through the sequence from its
    end. Each further layer reads the result of the one before.

    The result are the states of the last layer. backward-data gives the gradients of all that was
    read at once: no library has them apart. What its forward pass kept for it lies in the library's
    own format.

    Sources: S. Hochreiter and J. Schmidhuber, "Long short-term memory", 1997, with the forget gate
    of F. Gers et al., 2000; K. Cho et al., "Learning phrase representations using RNN
    encoder-decoder", 2014; oneDNN's developer guide, "RNN".

    Attributes:
        cell: One of :data:`GATES`.
        layers: One above the other.
        directions: 1, or 2.
        steps: Of a sequence.
        batch: Sequences.
        in_size: Elements of the source in each step.
        hidden: Elements of the state, of each layer and direction.
        name: How to call the layer in tables.

    Raises:
        UsageError: No such cell, a size below one, several layers whose sources differ in size, or
            tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "recurrent"
    passes: ClassVar[tuple[str, ...]] = ("forward", "backward-data")
    multiply_adds: ClassVar[bool] = True
    no_gpu: ClassVar[str] = "cuDNN has recurrent layers beside its graph interface, not within"

    cell: str
    layers: int = 1
    directions: int = 1
    steps: int
    batch: int
    in_size: int
    hidden: int
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_operator(self.cell, GATES)
        sizes = ("layers", "directions", "steps", "batch", "in_size", "hidden")
        set_integers(self, 1, *sizes)
        if self.directions > 2:
            raise UsageError(f"directions={self.directions}: too many; nearest: 2")
        wide = self.directions * self.hidden
        if self.layers > 1 and self.in_size != wide:
            # The matrices of all layers are one tensor.
            raise UsageError(
                f"in_size={self.in_size}: further layers read {wide}; nearest: {wide}, or layers=1"
            )
        check_total(**elements(self.shapes()))

    @property
    def gates(self) -> int:
        """Products with the source in each step, and as many with the state."""
        return GATES[self.cell]

    @property
    def weight_elements(self) -> int:
        """Elements of the matrices and biases."""
        shapes = elements(self.shapes())
        return sum(shapes[role] for role in ("weights", "weights_iter", "bias"))

    def with_batch(self, batch: int) -> Self:
        """Return the same layer for another number of sequences."""
        return replace(self, batch=batch)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by role; matrices lie as (in, gate, out)."""
        each, gates = (self.layers, self.directions), self.gates
        state = (*each, self.batch, self.hidden)
        return {
            "src": (self.steps, self.batch, self.in_size),
            "src_iter": state,
            **({"src_iter_c": state} if self.cell == "lstm" else {}),
            "weights": (*each, self.in_size, gates, self.hidden),
            "weights_iter": (*each, self.hidden, gates, self.hidden),
            "bias": (*each, gates + (self.cell == "gru"), self.hidden),
            "dst": (self.steps, self.batch, self.directions * self.hidden),
        }

    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the roles of what a pass reads: all but the result, backward its gradient too."""
        check_pass(pass_, self.passes, self.kind)
        return tuple(role for role in self.shapes() if role != "dst" or pass_ != "forward")

    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the roles of what a pass writes: backward the gradients of all that was read."""
        check_pass(pass_, self.passes, self.kind)
        if pass_ == "forward":
            return ("dst",)
        return tuple(role for role in self.shapes() if role != "dst")

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:  # noqa: ARG003 - of poolings
        """Whether a descriptor begins with a cell and a colon."""
        return text.startswith(tuple(f"{cell}:" for cell in GATES))

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of poolings
        """Read ``lstm:l1t25mb64slc512dhc512``, as benchdnn; ``d2`` is two directions."""
        cell, _, _ = text.partition(":")
        position = len(cell) + 1
        fields: dict[str, int] = {}
        name = None
        while position < len(text):
            if text[position] == "n":
                name = read_name(text, position)
                break
            found = _FIELD.match(text, position)
            if found is None:
                raise malformed(position, "expected a field (l d t mb slc dhc n)", text[position:])
            field = found.group()
            if field in fields:
                raise malformed(position, f"expected {field} only once", text[position:])
            fields[field], position = read_number(text, found.end(), field, 1)
        for field, meaning in _NEEDED.items():
            if field not in fields:
                raise malformed(len(text), f"expected {field} ({meaning}), which is missing", "")
        return cls(
            cell=cell,
            layers=fields.get("l", 1),
            directions=fields.get("d", 1),
            steps=fields["t"],
            batch=fields.get("mb", 1),
            in_size=fields["slc"],
            hidden=fields["dhc"],
            name=name,
        )

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``lstm:l1t25mb64slc512dhc512``."""
        both = f"d{self.directions}" if self.directions > 1 else ""
        sizes = f"t{self.steps}mb{self.batch}slc{self.in_size}dhc{self.hidden}"
        return f"{self.cell}:l{self.layers}{both}{sizes}"

    def flops(self, pass_: str) -> int:
        """Return the FLOPs of the products, two for a multiply-add; backward twice as many.

        What gates compute beside them is not counted, and neither does DeepBench count it
        (baidu-research/DeepBench, ``code/nvidia/rnn_bench.cu``).
        """
        check_pass(pass_, self.passes, self.kind)
        each = self.gates * self.hidden * (self.in_size + self.hidden)
        products = self.layers * self.directions * self.steps * self.batch * each
        return 2 * products * (1 if pass_ == "forward" else 2)

    def flops_executed(self, pass_: str) -> int:
        """Return the same as :meth:`flops`: nothing is left out."""
        return self.flops(pass_)

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: each operand read once, and each result written once.

        What the forward pass keeps for the backward pass is not counted.
        """
        shapes = elements(self.shapes())
        moved = (*self.reads(pass_), *self.writes(pass_))
        return itemsize * sum(shapes[role] for role in moved)


_NEEDED: Final = {"t": "steps", "slc": "size of the source", "dhc": "size of the state"}
