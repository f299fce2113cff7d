"""A step's operators grouped by what they belong to: nodes, modules at any depth, loss, optimizer.

A call belongs to the names that it has; one that several names have is divided among them. Parts
that consist of the same calls are alike: they are one, with their number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.check import OperatorRow

# Parts of calls are sums of fractions.
_DIGITS = 6
#: What operators outside of any module belong to.
MODEL = "(model)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step, or several that are alike.

    Attributes:
        name: a node, a module, ``loss``, ``optimizer`` or ``feed``; of several the first.
        kind: ``layer`` if there is one in it; else that of its operators.
        count: how many are alike.
        weights: by number of the row, how many of its executions are in one of them.
        seconds: of one.
        native_s: what the native library needs for one; None if unknown.
    """

    name: str
    kind: str
    count: int
    weights: Mapping[int, float]
    seconds: float
    native_s: float | None

    @property
    def total_s(self) -> float:
        """Seconds of all that are alike."""
        return self.count * self.seconds


def parts_of(
    rows: Sequence[OperatorRow], native: Mapping[str, float], depth: int | None = None
) -> list[Part]:
    """Return the parts of a step, in the order in which they first occur.

    Args:
        rows: its operators.
        native: seconds of native layers by name; what is not in it is unknown.
        depth: join modules below this level, and nodes with the same path; None joins none.
    """
    owners: dict[str, dict[int, float]] = {}
    below: dict[str, dict[str, None]] = {}
    for number, row in enumerate(rows):
        for name, share in row.owners().items():
            key = _joined(name, depth)
            weights = owners.setdefault(key, {})
            weights[number] = weights.get(number, 0.0) + share
            below.setdefault(key, {})[name] = None
    alike: dict[frozenset[tuple[int, float]], list[str]] = {}
    for name, weights in owners.items():
        key_of_all = frozenset((one, round(share, _DIGITS)) for one, share in weights.items())
        alike.setdefault(key_of_all, []).append(name)
    return [
        Part(
            name=same[0],
            kind=_kind({rows[number].kind for number in owners[same[0]]}),
            count=len(same),
            weights=owners[same[0]],
            seconds=sum(n * rows[number].seconds for number, n in owners[same[0]].items()),
            native_s=_native([one for name in same for one in below[name]], native, len(same)),
        )
        for same in alike.values()
    ]


def _joined(name: str, depth: int | None) -> str:
    """Return the module at a level of a path: ``features.4`` of ``features.4.block.1``."""
    if not name:
        return MODEL
    if depth is None:
        return name
    pieces = re.split(r"([./])", name.partition("..")[0])
    return "".join(pieces[: 2 * depth - 1])


def _kind(kinds: set[str]) -> str:
    return "layer" if "layer" in kinds else min(kinds)


def _native(names: Sequence[str], native: Mapping[str, float], count: int) -> float | None:
    known = [native[name] for name in names if name in native]
    return sum(known) / count if len(known) == len(names) else None


# -----------------------------------------------------------------------------
# The step as the tree of its modules.


@dataclass(slots=True)
class Module:
    """A module, or a node's path, with all that is below it.

    Attributes:
        name: its path; empty for the whole step.
        seconds: of all operators in it, in a step.
        native_s: what native layers need for the same; None where not all of it is known.
        children: what it consists of, in the order in which they first occur.
    """

    name: str
    seconds: float
    native_s: float | None
    children: list[Module]


def module_tree(rows: Sequence[OperatorRow], native: Mapping[str, float]) -> Module:
    """Return a step as the tree of its modules; loss and optimizer are beside the first ones.

    Args:
        rows: its operators.
        native: seconds of native layers by name.
    """
    seconds: dict[str, float] = {}
    for row in rows:
        for name, share in row.owners().items():
            seconds[name] = seconds.get(name, 0.0) + share * row.seconds
    return _module("", 1, seconds, native)


def _module(
    name: str, depth: int, seconds: Mapping[str, float], native: Mapping[str, float]
) -> Module:
    below: dict[str, dict[str, float]] = {}
    for one, time in seconds.items():
        below.setdefault(_joined(one, depth), {})[one] = time
    # What a module computes itself, besides its children, has its own name; a single child is it.
    alone = set(below) == {name} or (bool(name) and len(seconds) == 1)
    children = (
        []
        if alone
        else [
            _module(key, depth + 1, some, native) if key != name else _leaf(key, some, native)
            for key, some in below.items()
        ]
    )
    return Module(name, sum(seconds.values()), _native([*seconds], native, 1), children)


def _leaf(name: str, seconds: Mapping[str, float], native: Mapping[str, float]) -> Module:
    return Module(name, sum(seconds.values()), _native([*seconds], native, 1), [])
