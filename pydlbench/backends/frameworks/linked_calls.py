"""Groups of calls that a compiler runs as one, as functions of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydlbench.calls.groups import CallGroup


class LinkedCalls:
    """A group of calls as one function; a call reads operands or results of earlier calls.

    Args:
        group: links between the group's calls, and the group's results.
        calls: functions of the calls, which return lists of results.
        places: for each call, positions of its operands among the operands that links refer to.
    """

    def __init__(
        self,
        group: CallGroup,
        calls: Sequence[Callable[..., list[Any]]],
        places: Sequence[Sequence[int]],
    ) -> None:
        self._calls, self._results = calls, group.results
        links = {(call, operand): (source, result) for call, operand, source, result in group.links}
        self._sources = [
            [links.get((number, place)) for place in positions]
            for number, positions in enumerate(places)
        ]

    def unlinked(self, operands: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the operands of all calls that are not results of other calls.

        Args:
            operands: all operands, by call.
        """
        return [
            operand
            for sources, items in zip(self._sources, operands, strict=True)
            for source, operand in zip(sources, items, strict=True)
            if source is None
        ]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the results of the group, given its unlinked operands."""
        given, results = iter(operands), list[list[Any]]()
        for call, sources in zip(self._calls, self._sources, strict=True):
            read = [
                next(given) if source is None else results[source[0]][source[1]]
                for source in sources
            ]
            results.append(call(*read))
        return [results[call][result] for call, result in self._results]
