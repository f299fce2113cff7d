"""Operators of a framework's step as they are recorded, without their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydlbench.records.record import Record, one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where in a step a call is made.
DIRECTIONS = ("forward", "loss", "backward", "optimizer")
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
    """

    signature: str
    operator: str
    count: int = 1
    direction: Direction = "forward"
    names: tuple[str, ...] = ()
    parts: tuple[float, ...] = ()
    bytes: int = 0
    profiled: float | None = None

    omitted: ClassVar[tuple[str, ...]] = ("profiled",)

    @classmethod
    def of(
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
        found = dict(zip(self.names, self.parts, strict=True))
        rest = self.count - sum(self.parts)
        return {**found, "": rest} if rest > _ROUNDING else found
