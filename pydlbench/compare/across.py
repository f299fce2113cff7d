"""Matching across the one axis along which two runs differ on purpose: two backends, say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pydlbench.compare.keys import AXES, FIELDS, axis_value, describe, grouped, setting
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.compare.rows import Row, Side

__all__ = ["Across", "match_across"]

#: The axis, rows that belong together, and what is left of each side.
Across = tuple[str, list[tuple["Row", "Row"]], list["Row"], list["Row"]]
_SHOWN: Final = 3


def match_across(a: Side, b: Side) -> Across:
    """Match across the one axis along which the sides differ.

    Raises:
        UsageError: they differ in several, or in what no axis is.
    """
    found: dict[str, tuple[list[tuple[Row, Row]], list[Row], list[Row]]] = {}
    matched: set[int] = set()
    for axis, names in AXES.items():
        fields = setting(names)

        def named(row: Row, fields: Callable[[Row], tuple[Any, ...]] = fields) -> tuple[Any, ...]:
            return (row.layer, fields(row))

        first, second = grouped(a.rows, named), grouped(b.rows, named)
        common = [name for name in first if name in second]
        fresh = [name for name in common if not matched.issuperset(map(id, first[name]))]
        if not fresh:
            continue
        matched.update(id(row) for name in common for row in first[name])
        pairs = [
            (_one_value(axis, a, first[name]), _one_value(axis, b, second[name])) for name in common
        ]
        found[axis] = (
            pairs,
            [row for name, rows in first.items() if name not in second for row in rows],
            [row for name, rows in second.items() if name not in first for row in rows],
        )
    if len(found) == 1:
        axis, (pairs, left_a, left_b) = next(iter(found.items()))
        return axis, pairs, left_a, left_b
    if found:
        counts = " and ".join(f"{axis} ({len(one[0])} rows)" for axis, one in found.items())
        raise UsageError(
            f"{b.name}: differs from {a.name} in {counts}; rows are matched across one axis only; "
            "nearest: measure both with the same setting but one"
        )
    raise UsageError(_nothing_common(a, b))


def _one_value(axis: str, side: Side, rows: list[Row]) -> Row:
    if len(rows) > 1:
        values = ", ".join(axis_value(axis, row) for row in rows[:_SHOWN])
        raise UsageError(
            f"{side.name}: {rows[0].layer} {rows[0].pass_} is there {len(rows)} times ({values}); "
            f"across {axis} one of them can be compared; nearest: a run with one {axis}"
        )
    return rows[0]


def _nothing_common(a: Side, b: Side) -> str:
    if not a.rows or not b.rows:
        empty = a if not a.rows else b
        return (
            f"{empty.name}: nothing was measured in it that can be compared (layers, estimates, "
            "steps, cross-checks); nearest: pydlbench runs lists the others"
        )
    names = ("layer", *FIELDS)
    strange = [
        name.rstrip("_").removesuffix("_request")
        for name in names
        if {_plain(row, name) for row in a.rows}.isdisjoint({_plain(row, name) for row in b.rows})
    ]
    where = f"they differ in {', '.join(strange)}" if strange else "no row has the same setting"
    return (
        f"{b.name}: no row of {a.name} is in it ({describe(a.rows[0])} against "
        f"{describe(b.rows[0])}); {where}; nearest: measure the same layers in both"
    )


def _plain(row: Row, name: str) -> str:
    return json.dumps(getattr(row, name))
