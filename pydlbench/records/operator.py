"""Recorded operators of a framework's step, and facts about them besides their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from pydlbench.records.record import Record, one_of
from pydlbench.words import DIRECTIONS

Direction = Annotated[str, one_of(*DIRECTIONS)]

# Tolerance of the sum of parts against the number of calls.
_ROUNDING = 1e-6


class RecordedCall(Record, frozen=True, kw_only=True):
    """A distinct operator of a step with its number of calls.

    Attributes:
        signature: canonical text of all that changes its time in this framework, mode and process:
            operator, shapes, strides, types, scalars. Operands can be created from it, and equal
            texts mean equal operators in any model.
        operator: the framework's name of the operator: ``aten.convolution_backward``.
        count: calls in a step.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        names: nodes of the catalogue's model (the first and the last of a fused group,
            ``conv1..relu1``) or modules of the user's model that it belongs to, without repetition;
            ``loss`` for the loss.
        parts: number of calls for each name; a call that several names share is split among them.
            Empty where all names have equally many.
        bytes: size of its operands and results together; 0 where it is not known.
        profiled: share of all these calls in the framework's own profile of the step; None if
            there is no profile.
        trained: positions, from 0, of operands that are trained tensors, in a backward pass. A
            product with one of them gives a gradient of data. This cannot be seen otherwise where
            an operand has stride 0 (a sum's gradient, one number for all elements).
    """

    signature: str
    operator: str
    count: int = 1
    direction: Direction = "forward"
    names: tuple[str, ...] = ()
    parts: tuple[float, ...] = ()
    bytes: int = 0
    profiled: float | None = None
    trained: tuple[int, ...] = ()

    omitted: ClassVar[tuple[str, ...]] = ("profiled",)
    unlisted: ClassVar[tuple[str, ...]] = ("trained",)

    @classmethod
    def from_owners(
        cls, owners: Sequence[Sequence[str]], signature: str, operator: str, **fields: Any
    ) -> RecordedCall:
        """Return the record of equal calls.

        Args:
            owners: for each call, the names that it belongs to.
            signature: signature of all calls.
            operator: operator of all calls.
            fields: direction, bytes and share of a profile.
        """
        parts: dict[str, float] = {}
        for names in owners:
            for name in names:
                parts[name] = parts.get(name, 0.0) + 1 / len(names)
        alike = len(set(parts.values())) <= 1 and all(owners)
        return cls(
            signature=signature,
            operator=operator,
            count=len(owners),
            names=tuple(parts),
            parts=() if alike else tuple(parts.values()),
            **fields,
        )

    def shares(self) -> dict[str, float]:
        """Return the number of calls by name; calls without a name have an empty one."""
        if not self.names:
            return {"": float(self.count)}
        if not self.parts:
            return dict.fromkeys(self.names, self.count / len(self.names))
        named = dict(zip(self.names, self.parts, strict=True))
        rest = self.count - sum(self.parts)
        return {**named, "": rest} if rest > _ROUNDING else named


class OperatorsFacts(Record, frozen=True, kw_only=True):
    """Facts about operators besides their times.

    Attributes:
        names: names or signatures of the operators, in the order in which
            ``OperatorsKernel.sample`` returns their times.
        dispatch_s: time of an operator that computes nothing, which is part of each operator's
            time.
        executions: primitives that libraries log in one call, by signature:
            ``{"oneDNN reorder": 2, "oneDNN convolution": 1}``.
        kernels: on a GPU, names of the kernels that one call launches, by signature; without calls
            that cannot be captured into a graph.
        calls: distinct calls of a recorded step, in the order in which they first occur; empty if
            not requested.
        order: all calls of a recorded step in their order, as indices into ``calls``.
        refused: why a call could not be prepared, by signature; its name is not in ``names``.
        batch: batch of a recorded step; 0 if not requested.
        lines: source line of the first call in the user's code, by module: ``my_model.py:15``.
        notes: remarks for the reader.
        types: types of an ONNX file; see :class:`~pydlbench.records.step.StepFacts`.
    """

    names: tuple[str, ...] = ()
    dispatch_s: float = 0.0
    executions: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    kernels: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    calls: tuple[RecordedCall, ...] = ()
    order: tuple[int, ...] = ()
    refused: dict[str, str] = msgspec.field(default_factory=dict)
    batch: int = 0
    lines: dict[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    types: str = ""


def operator_of(signature: str) -> str:
    """Return the operator in a signature: ``aten.add`` from ``aten.add.Tensor(...)``."""
    return signature.partition("(")[0].rpartition(".")[0]
