"""Which row of one run belongs to which row of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydlbench.compare.across import match_across
from pydlbench.compare.keys import axis_value, describe, grouped, key, setting
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.compare.rows import Row, Side

__all__ = ["Matching", "Pair", "match"]

_SHOWN: Final = 3


class Pair(NamedTuple):
    """Two rows that belong together."""

    a: Row
    b: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """What belongs together.

    Attributes:
        pairs: rows that both sides have timed.
        only_a: rows that only the first side has.
        only_b: rows that only the second side has.
        untimed: pairs of which at least one was skipped or failed.
        axis: along which the two sides differ on purpose; None where nothing differs.
        values: what each side has on that axis.
    """

    pairs: Sequence[Pair]
    only_a: Sequence[Row]
    only_b: Sequence[Row]
    untimed: Sequence[Pair]
    axis: str | None = None
    values: tuple[str, str] = ("", "")


def match(a: Side, b: Side) -> Matching:
    """Match two sides' rows by problem and setting.

    Rows of the same name, problem and setting belong together; of what is left, rows of the same
    problem and setting whose names differ (a descriptor and a catalog name). Where no row of one
    side is in the other, and all that differs is one axis, rows are matched across it.

    Raises:
        UsageError: a row could belong to several, or no row of one is in the other.
    """
    pairs, left_a, left_b = _by_name(a, b)
    more, left_a, left_b = _by_problem(a, b, left_a, left_b, setting(()))
    pairs += more
    axis, values = None, ("", "")
    if not pairs:
        axis, found, left_a, left_b = match_across(a, b)
        pairs = [Pair(*pair) for pair in found]
        values = _values(axis, pairs)
    timed = [pair for pair in pairs if pair[0].ok and pair[1].ok]
    return Matching(
        pairs=timed,
        only_a=left_a,
        only_b=left_b,
        untimed=[pair for pair in pairs if not (pair.a.ok and pair.b.ok)]
        if len(timed) < len(pairs)
        else [],
        axis=axis,
        values=values,
    )


def _by_name(a: Side, b: Side) -> tuple[list[Pair], list[Row], list[Row]]:
    first, second = _index(a), _index(b)
    pairs = [Pair(row, second[name]) for name, row in first.items() if name in second]
    if len(pairs) == len(first) == len(second):
        return pairs, [], []
    left_a = [row for name, row in first.items() if name not in second]
    left_b = [row for name, row in second.items() if name not in first]
    return pairs, left_a, left_b


def _index(side: Side) -> dict[tuple[Any, ...], Row]:
    found = dict(zip(map(key, side.rows), side.rows, strict=True))
    if len(found) == len(side.rows):
        return found
    seen: set[tuple[Any, ...]] = set()
    for row in side.rows:
        name = key(row)
        if name in seen:
            raise UsageError(
                f"{side.name}: {describe(row)} is in it twice with the same setting, so that its "
                "partner is not known; nearest: a run in which every row was asked for once"
            )
        seen.add(name)
    raise AssertionError("rows collide that do not")


def _by_problem(
    a: Side,
    b: Side,
    left_a: list[Row],
    left_b: list[Row],
    fields: Callable[[Row], tuple[Any, ...]],
) -> tuple[list[Pair], list[Row], list[Row]]:
    if not left_a or not left_b:
        return [], left_a, left_b
    first, second = grouped(left_a, fields), grouped(left_b, fields)
    pairs = [
        Pair(_only(a, b, first, second, name), _only(b, a, second, first, name))
        for name in first
        if name in second
    ]
    left_a = [row for name, rows in first.items() if name not in second for row in rows]
    left_b = [row for name, rows in second.items() if name not in first for row in rows]
    return pairs, left_a, left_b


def _only(
    side: Side,
    other: Side,
    own: Mapping[tuple[Any, ...], list[Row]],
    others: Mapping[tuple[Any, ...], list[Row]],
    name: tuple[Any, ...],
) -> Row:
    rows = own[name]
    if len(rows) > 1:
        names = ", ".join(describe(row) for row in rows[:_SHOWN])
        raise UsageError(
            f"{side.name}: {names} are {len(rows)} rows of the one problem that {other.name} has "
            f"as {describe(others[name][0])}: which of them is its partner is not known; nearest: "
            "name the layer alike in both runs"
        )
    return rows[0]


def _values(axis: str, pairs: Sequence[Pair]) -> tuple[str, str]:
    first = dict.fromkeys(axis_value(axis, pair.a) for pair in pairs)
    second = dict.fromkeys(axis_value(axis, pair.b) for pair in pairs)
    return "/".join(first), "/".join(second)
