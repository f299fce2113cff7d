"""Operators of a framework's step as they are recorded, without their times."""

from __future__ import annotations

from typing import Annotated

from pydlbench.records.record import Record, one_of

__all__ = ["DIRECTIONS", "Direction", "RecordedCall"]

#: Where in a step a call is made.
DIRECTIONS = ("forward", "loss", "backward", "optimizer")
Direction = Annotated[str, one_of(*DIRECTIONS)]


class RecordedCall(Record, frozen=True, kw_only=True):
    """A distinct operator of a step, as often as the framework runs it.

    Attributes:
        signature: canonical text of all that changes its time in this framework, mode and process:
            operator, shapes, strides, types, scalars. Operands can be made up from it, and equal
            texts mean equal operators whatever model they are from.
        operator: its name, in the framework's words: ``aten.convolution_backward``.
        count: how often it is in a step.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        names: of our nodes or of the user's modules that it belongs to, without repetition.
        bytes: of its operands and results together; 0 where nobody has counted them.
    """

    signature: str
    operator: str
    count: int = 1
    direction: Direction = "forward"
    names: tuple[str, ...] = ()
    bytes: int = 0
