"""What starting a call costs between parts of a step, which is in their times but not in a step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallCost"]

# The median of so many calls counts, the last ones: so few that it follows the machine.
_RECENT = 31


class CallCost:
    """The cost of a call, measured where it arises: after each part.

    A call of nothing, made in a loop, finds all of its code and data in the nearest cache. Between
    parts, which have put their tensors there, it was seen to take four times as long. After which
    of them makes less of a difference: the last calls are taken together.

    Args:
        call: makes a call of nothing and returns its seconds.
        share: of these, that are of starting it; the rest is of an operator, as steps have them.
    """

    def __init__(self, call: Callable[[], float], share: float = 1.0) -> None:
        self._call = call
        self._share = share
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def seconds(self) -> float:
        """Make the call once more; return what it costs by the last ones."""
        self._recent.append(self._call())
        return self.latest

    @property
    def latest(self) -> float:
        """What the last calls cost, in seconds; there was one."""
        return self._share * median(self._recent)
