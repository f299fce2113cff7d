"""Which row of one run belongs to which row of the other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pydlbench.compare.rows import Row
from pydlbench.errors import UsageError
from pydlbench.ops.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.rows import Side


# -----------------------------------------------------------------------------
# What a row is matched by, and what it is called.

# What tells two problems apart, the layer's name aside: the same problem may have several names.
FIELDS: Final = (
    *("kind", "problem", "batch", "pass_", "precision", "device", "backend", "mode", "cache"),
    *("timing", "threads", "fuse", "layout_request", "propagation"),
)
#: Axis in words -> the fields that differ along it; the first that fits is taken, so that what
#: comes with another field stands before it.
AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": ("mode",),
    "backend": ("backend", "mode"),
    "threads": ("threads",),
    "layout": ("layout_request",),
    "cache": ("cache", "timing"),
    "timing": ("timing",),
    "precision": ("precision",),
    "fuse": ("fuse",),
    "propagation": ("propagation",),
    "device": ("device", "threads", "timing"),
}
# A row starts with its name and these fields.
_KEY: Final = 1 + len(FIELDS)
assert Row._fields[:_KEY] == ("layer", *FIELDS)
_DEVICE: Final = Row._fields.index("device")
#: Kinds of rows that are layers, not whole steps.
LAYER_KINDS: Final = frozenset(KINDS)
# Those whose problem says all of what they compute.
_WHOLE: Final = frozenset(kind for kind in LAYER_KINDS if not kind.startswith("pool"))


def key(row: Row) -> tuple[Any, ...]:
    """Return what a row is matched by: its name, its problem and its setting."""
    fields: tuple[Any, ...] = row[:_KEY]
    if row.device == "cpu" and row.pass_ == "forward":  # as most of 100,000 rows may be
        return fields
    device = row.device.partition(":")[0]  # cuda:0 and cuda:1 are the same kind
    # Backward passes know one propagation only.
    propagation = row.propagation if row.pass_ == "forward" else None
    return (*fields[:_DEVICE], device, *fields[_DEVICE + 1 : -1], propagation)


def setting(without: Iterable[str]) -> Callable[[Row], tuple[Any, ...]]:
    """Return what reads a row's key, leaving out an axis's fields."""
    left_out = frozenset(without)
    read = attrgetter(*(name for name in FIELDS if name not in left_out))
    kinds = "device" not in left_out

    place = [name for name in FIELDS if name not in left_out].index("device") if kinds else 0
    forward = "propagation" not in left_out

    def fields_of(row: Row) -> tuple[Any, ...]:
        values = read(row)
        if kinds and row.device != "cpu":  # cuda:0 and cuda:1 are the same kind
            values = (*values[:place], row.device.partition(":")[0], *values[place + 1 :])
        if forward and row.pass_ != "forward":  # backward passes know one propagation only
            values = (*values[:-1], None)
        # A pooling's descriptor does not say whether it is the maximum or the mean, and a step's
        # options not of which model they are.
        return values if row.kind in _WHOLE else (row.layer, *values)

    return fields_of


def grouped(
    rows: Iterable[Row], fields: Callable[[Row], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Row]]:
    """Return rows by what a function of :func:`setting` reads of them."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(fields(row), []).append(row)
    return groups


def describe(row: Row) -> str:
    """Name a row in a line: ``alexnet/conv3 backward-data bf16 torch compiled``."""
    words = [row.layer, "" if row.kind in LAYER_KINDS else row.kind, row.pass_, row.precision]
    if row.backend != "native":
        words += [row.backend, row.mode or ""]
    for value, usual in ((row.cache, "hot"), (row.layout_request, "best"), (row.fuse, "none")):
        words.append("" if value in (usual, None) else str(value))
    return " ".join(filter(None, words))


def axis_value(axis: str, row: Row) -> str:
    """Return a row's value on an axis: ``torch compiled``, ``2 threads``."""
    values = [getattr(row, name) for name in AXES[axis]]
    if axis == "device":
        return str(row.device)
    if axis == "threads":
        return "1 thread" if values[0] == 1 else f"{values[0]} threads"
    return " ".join(str(value) for value in values[: 2 if axis == "backend" else 1] if value)


# -----------------------------------------------------------------------------
# Matching across the one axis along which two runs differ on purpose: two backends, say.

#: The axis, rows that belong together, and what is left of each side.
Across = tuple[str, list[tuple["Row", "Row"]], list["Row"], list["Row"]]
# Rows that an error names.
_SHOWN: Final = 3


def match_across(a: Side, b: Side) -> Across:
    """Match across the one axis along which the sides differ.

    Raises:
        UsageError: they differ in several, or in what no axis is.
    """
    by_axis: dict[str, tuple[list[tuple[Row, Row]], list[Row], list[Row]]] = {}
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
        by_axis[axis] = (
            pairs,
            [row for name, rows in first.items() if name not in second for row in rows],
            [row for name, rows in second.items() if name not in first for row in rows],
        )
    if len(by_axis) == 1:
        axis, (pairs, left_a, left_b) = next(iter(by_axis.items()))
        return axis, pairs, left_a, left_b
    if by_axis:
        counts = " and ".join(
            f"{axis} ({len(matched[0])} rows)" for axis, matched in by_axis.items()
        )
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
            "steps, breakdowns); nearest: pydlbench runs lists the others"
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
        axis, across, left_a, left_b = match_across(a, b)
        pairs = [Pair(*pair) for pair in across]
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
    rows = dict(zip(map(key, side.rows), side.rows, strict=True))
    if len(rows) == len(side.rows):
        return rows
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


def kinds_of(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Return which rows scatter alike: the same kind of layer or step, on the same backend."""
    return np.array(
        [f"{pair.a.kind} {pair.a.backend} {pair.a.mode} {pair.a.cache}" for pair in pairs]
    )
