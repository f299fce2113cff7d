"""Calls of a recorded step in their places, whatever framework has recorded it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.records.operator import RecordedCall
from pydlbench.records.record import Record
from pydlbench.records.trace import ProgramCall, module_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class StepCall(Record, frozen=True, kw_only=True):
    """A call of a step.

    Attributes:
        signature: its own; see :class:`~pydlbench.records.operator.RecordedCall`.
        operator: its name, in the framework's words.
        direction: see :class:`~pydlbench.records.operator.RecordedCall`.
        names: the modules or nodes that it belongs to.
        reads: by which call, counted from 0, and its how manieth result each of its tensors was
            made; None of what was there before the step. Empty where nobody asks.
        bytes: of operands and results together.
        profiled: see :class:`~pydlbench.records.operator.RecordedCall`; of this call alone.
        trained: see :class:`~pydlbench.records.operator.RecordedCall`.
    """

    signature: str
    operator: str
    direction: str
    names: tuple[str, ...]
    reads: tuple[tuple[int, int] | None, ...] = ()
    bytes: int = 0
    profiled: float | None = None
    trained: tuple[int, ...] = ()

    @property
    def in_place(self) -> ProgramCall:
        """The call as a traced step has it."""
        return ProgramCall(
            operator=self.operator,
            module=module_of(self.names, self.direction),
            direction=self.direction,
            signature=self.signature,
            bytes=self.bytes,
        )


def distinct(calls: Iterable[StepCall]) -> tuple[RecordedCall, ...]:
    """Return each distinct call once, in the order in which they first occur."""
    alike: dict[tuple[str, str], list[StepCall]] = {}
    for call in calls:
        alike.setdefault((call.signature, call.direction), []).append(call)
    recorded = []
    for (text, direction), same in alike.items():
        profiled = [each.profiled for each in same if each.profiled is not None]
        recorded.append(
            RecordedCall.from_owners(
                [each.names for each in same],
                signature=text,
                operator=same[0].operator,
                direction=direction,
                bytes=same[0].bytes,
                profiled=sum(profiled) if profiled else None,
                trained=same[0].trained,
            )
        )
    return tuple(recorded)
