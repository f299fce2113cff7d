"""The calls of a recorded step, one by one, as any framework records them."""

from __future__ import annotations

from collections.abc import Iterable

from pydlbench.grouping import group_by
from pydlbench.records.record import Record
from pydlbench.records.trace import ProgramCall, RecordedCall, module_of


class StepCall(Record, frozen=True, kw_only=True):
    """One call of a step.

    Several attributes are also in :class:`~pydlbench.records.trace.RecordedCall`.

    Attributes:
        signature: text that determines what the call computes.
        operator: framework's name of the operator.
        direction: pass of the step that the call is a part of.
        names: modules or nodes that the call belongs to.
        reads: index of the call that produced an operand, and index among the results of that
            call, for each operand; None for a tensor from before the step. Empty if not recorded.
        bytes: bytes of operands and results together.
        profiled: share of this call in the framework's profile.
        trained: indices of trained operands.
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
    def program_call(self) -> ProgramCall:
        """The call as a call of a traced step."""
        return ProgramCall(
            operator=self.operator,
            module=module_of(self.names, self.direction),
            direction=self.direction,
            signature=self.signature,
            bytes=self.bytes,
        )


def distinct_calls(calls: Iterable[StepCall]) -> tuple[RecordedCall, ...]:
    """Return each distinct call once, in the order of first occurrence."""
    recorded = []
    for same in group_by(calls, lambda call: (call.signature, call.direction)).values():
        first = same[0]
        profiled = [call.profiled for call in same if call.profiled is not None]
        recorded.append(
            RecordedCall.from_owners(
                [call.names for call in same],
                signature=first.signature,
                operator=first.operator,
                direction=first.direction,
                bytes=first.bytes,
                profiled=sum(profiled) if profiled else None,
                trained=first.trained,
            )
        )
    return tuple(recorded)
