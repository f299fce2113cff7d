"""A rung of a step's ladder: a time, divided by layer as far as that is known. Times in seconds.

What no layer can be charged with stays in one piece: a measured step is never spread over layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pydlbench.report.page.markup import plain

__all__ = ["Ladder", "Rung", "Segment", "undivided"]

_WHOLE: Final = "whole"


@dataclass(frozen=True, slots=True)
class Segment:
    """A layer's part: its name, its kind and its seconds."""

    name: str
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung.

    Attributes:
        name: what it is.
        segments: by layer, in the model's order; a single one of kind ``whole`` where the time
            belongs to no layer.
        low: lower end of its interval; None if there is none.
        high: upper end.
        source: the run that it comes from.
    """

    name: str
    segments: tuple[Segment, ...]
    low: float | None = None
    high: float | None = None
    source: int = 1

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(one.seconds for one in self.segments)

    @property
    def divided(self) -> bool:
        """Whether layers can be told apart in it."""
        return not (len(self.segments) == 1 and self.segments[0].kind == _WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The rungs of one step, or of what several layers add up to.

    Attributes:
        title: which step.
        rungs: from what physics needs to what was measured.
        step: whether it is a model's step, every occurrence of a layer counted.
        left: numbers of runs that have rungs which an earlier run has too: these are not in it.
    """

    title: str
    rungs: list[Rung] = field(default_factory=list)
    step: bool = True
    left: list[int] = field(default_factory=list)


def undivided(
    name: str, seconds: float, source: int, low: float | None = None, high: float | None = None
) -> Rung:
    """Return a rung of one piece."""
    segment = Segment("whole step, in one piece", _WHOLE, seconds)
    return Rung(name=plain(name, 40), segments=(segment,), low=low, high=high, source=source)
