"""Operators of a framework's step as they are recorded, and what else is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from pydlbench.records.record import Record, one_of
from pydlbench.words import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

Direction = Annotated[str, one_of(*DIRECTIONS)]

# Parts of calls sum to their number but for rounding.
_ROUNDING = 1e-6


class RecordedCall(Record, frozen=True, kw_only=True):
    """A distinct operator of a step, as often as the framework runs it.

    Attributes:
        signature: canonical text of all that changes its time in this framework, mode and process:
            operator, shapes, strides, types, scalars. Operands can be made up from it, and equal
            texts mean equal operators whatever model they are from.
        operator: its name, in the framework's words: ``aten.convolution_backward``.
        count: how often it is in a step.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        names: of our nodes (of several that run as one the first and the last, ``conv1..relu1``) or
            of the user's modules that it belongs to, without repetition; ``loss`` for the loss.
        parts: for each name, how many of the calls are its: of one that several share, a part for
            each. Empty where all names have as many.
        bytes: of its operands and results together; 0 where nobody has counted them.
        profiled: share of a step in the framework's own profile, all these calls together; None
            where it has none.
        trained: which of its operands, counted from 0, are trained tensors, in a backward pass. A
            product by one gives a gradient of data; one that lies nowhere (a sum's gradient, which
            is one number for all elements) tells so by nothing else.
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
        cls, owners: Sequence[Sequence[str]], signature: str, operator: str, **how: Any
    ) -> RecordedCall:
        """Return the call of which there are so many.

        Args:
            owners: for each of them, the names that it belongs to.
            signature: of all.
            operator: likewise.
            how: direction, bytes and share of a profile.
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
            **how,
        )

    def shares(self) -> dict[str, float]:
        """Return how many of the calls are whose; those that are nobody's are the empty name's."""
        if not self.names:
            return {"": float(self.count)}
        if not self.parts:
            return dict.fromkeys(self.names, self.count / len(self.names))
        named = dict(zip(self.names, self.parts, strict=True))
        rest = self.count - sum(self.parts)
        return {**named, "": rest} if rest > _ROUNDING else named


class OperatorsFacts(Record, frozen=True, kw_only=True):
    """What is known of the operators besides their times.

    Attributes:
        names: in the order in which ``OperatorsKernel.sample`` returns their times.
        dispatch_s: seconds that a framework needs for an operator that computes nothing, which are
            in the time of each.
        executions: of calls whose libraries log: by signature how often each runs in one, by
            library and primitive: ``{"oneDNN reorder": 2, "oneDNN convolution": 1}``.
        kernels: on a GPU, by signature the names of the kernels that one call launches, by the
            driver; without those of calls that cannot be captured into a graph.
        calls: of a recorded step, each distinct one once, in the order in which they first occur;
            empty where nobody asked.
        order: of a recorded step all calls in their order, each by its place in ``calls``.
        refused: by signature, why a call could not be made ready; its name is not in ``names``.
        batch: of a recorded step; 0 where nobody asked.
        lines: by the user's module, where the user's code made its first call:
            ``my_model.py:15``.
        notes: what a reader has to know.
        types: of an ONNX file; see :class:`~pydlbench.records.step.StepFacts`.
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
    """Return the operator of a call by its signature: ``aten.add`` of ``aten.add.Tensor(...)``."""
    return signature.partition("(")[0].rpartition(".")[0]
