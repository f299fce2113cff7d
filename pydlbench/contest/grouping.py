"""Which cases compete with each other."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.backends.case import Case

__all__ = ["groups"]


def groups(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yield cases that differ in backend and mode only, together; in the order of their first.

    A case that is asked for twice competes with others, not with itself: it opens another group.
    """
    found: list[list[Case]] = []
    open_: dict[Case, list[Case]] = {}
    for case in cases:
        problem = dataclasses.replace(case, backend="native", mode=None)
        group = open_.get(problem)
        if group is None or case in group:
            group = open_[problem] = []
            found.append(group)
        group.append(case)
    yield from found
