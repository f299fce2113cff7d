"""Matches the rows of two runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UsageError
from pydlbench.grouping import group_by
from pydlbench.ops.table import KINDS
from pydlbench.words import AS_BUILT

if TYPE_CHECKING:
    from pydlbench.compare.rows import Side, SideRow


# -----------------------------------------------------------------------------
# Keys by which rows are matched, and names of rows.

# Fields by which rows are matched besides the name: a problem may have several names.
FIELDS: Final = (
    *("kind", "problem", "batch", "pass_", "precision", "device", "backend", "mode", "cache"),
    *("timing", "threads", "fuse", "layout_request", "propagation"),
)
#: Axis in words -> the fields that differ along it. The first one that fits is taken, so an axis
#: with fewer fields stands before one that includes it. ``options`` are those of a model
#: (``--set``), which may determine its batch, too.
AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": ("mode",),
    "backend": ("backend", "mode"),
    "threads": ("threads",),
    "batch": ("batch",),
    "options": ("options", "batch"),
    "layout": ("layout_request",),
    "cache": ("cache", "timing"),
    "timing": ("timing",),
    "precision": ("precision",),
    "fuse": ("fuse",),
    "propagation": ("propagation",),
    "device": ("device", "threads", "timing"),
}
#: Kinds of rows that are layers, not whole steps.
LAYER_KINDS: Final = frozenset(KINDS)
# Kinds whose problem determines the computation. A pooling's descriptor does not contain whether it
# is the maximum or the mean, and a step's options do not contain the model.
_DETERMINED_KINDS: Final = frozenset(kind for kind in LAYER_KINDS if not kind.startswith("pool"))


def key_without(
    without: Iterable[str], *, named: bool = True
) -> Callable[[SideRow], tuple[Any, ...]]:
    """Return a function that reads the key by which a row is matched.

    Args:
        without: fields to leave out.
        named: whether the layer's name is in every key; otherwise only if the problem does not
            determine the computation.
    """
    omitted = frozenset(without)
    read = attrgetter(*(name for name in FIELDS if name not in omitted))

    def key_of(row: SideRow) -> tuple[Any, ...]:
        if "options" in omitted and row.settings:
            settings = {**row.settings, "options": {}}
            row = row._replace(problem=json.dumps(settings, sort_keys=True))
        if row.device != "cpu":  # cuda:0 and cuda:1 are the same kind
            row = row._replace(device=row.device.partition(":")[0])
        if row.pass_ != "forward":  # backward passes have one propagation only
            row = row._replace(propagation=None)
        fields: tuple[Any, ...] = read(row)
        return (row.layer, *fields) if named or row.kind not in _DETERMINED_KINDS else fields

    return key_of


#: The key by which a row is matched: its name, its problem and its settings.
key: Final = key_without(())


def describe(row: SideRow) -> str:
    """Name a row in a line: ``alexnet/conv3 backward-data bf16 torch compiled``."""
    words = [row.layer, row.options]
    words += ["" if row.kind in LAYER_KINDS else row.kind, row.pass_, row.precision]
    if row.backend != "native":
        words += [row.backend, row.mode or ""]
    for value, usual in (
        (row.cache, "hot"),
        (row.layout_request, AS_BUILT if row.settings.get("own") else "best"),
        (row.fuse, "none"),
    ):
        words.append("" if value in (usual, None) else str(value))
    return " ".join(filter(None, words))


def axis_value(axis: str, row: SideRow) -> str:
    """Return a row's value on an axis: ``torch compiled``, ``2 threads``."""
    if axis == "device":
        return str(row.device)
    if axis == "batch":
        return f"batch {row.batch}"
    if axis == "options":
        return row.options
    values = [getattr(row, name) for name in AXES[axis]]
    if axis == "threads":
        return "1 thread" if values[0] == 1 else f"{values[0]} threads"
    return " ".join(str(value) for value in values[: 2 if axis == "backend" else 1] if value)


# -----------------------------------------------------------------------------
# Matching across the one axis along which two runs differ on purpose, such as the backend.

# Maximum number of rows that an error names.
_MAX_LISTED_ROWS: Final = 3
# Rows by key.
_Groups = dict[tuple[Any, ...], list["SideRow"]]


class Pair(NamedTuple):
    """Two matching rows."""

    a: SideRow
    b: SideRow


class _Pairs(NamedTuple):
    """Matching rows, and the other rows of each side."""

    pairs: list[Pair]
    only_a: list[SideRow]
    only_b: list[SideRow]


def _across(a: Side, b: Side) -> tuple[str, _Pairs]:
    """Match across the one axis along which the sides differ.

    Raises:
        UsageError: they differ in several axes, or in a field that is no axis.
    """
    by_axis: dict[str, _Pairs] = {}
    matched: set[int] = set()
    for axis, names in AXES.items():
        first, second = (group_by(side.rows, key_without(names)) for side in (a, b))
        common = {id(row) for name in first.keys() & second.keys() for row in first[name]}
        if common - matched:
            by_axis[axis] = _pair_rows(first, second, (a, b), axis)
        matched |= common
    if len(by_axis) == 1:
        return next(iter(by_axis.items()))
    if by_axis:
        counts = " and ".join(f"{axis} ({len(by_axis[axis].pairs)} rows)" for axis in by_axis)
        raise UsageError(
            f"{b.name}: differs from {a.name} in {counts}; rows are matched across one axis only; "
            "nearest: measure both with the same setting but one"
        )
    raise UsageError(_nothing_common(a, b))


def _pair_rows(
    first: _Groups, second: _Groups, sides: tuple[Side, Side], axis: str | None = None
) -> _Pairs:
    """Pair the rows of groups that both sides have; each side must have one row in a group."""
    a, b = sides
    pairs = [
        Pair(_only(a, rows, second[name][0], axis), _only(b, second[name], rows[0], axis))
        for name, rows in first.items()
        if name in second
    ]
    return _Pairs(
        pairs,
        [row for name, rows in first.items() if name not in second for row in rows],
        [row for name, rows in second.items() if name not in first for row in rows],
    )


def _only(side: Side, rows: list[SideRow], other: SideRow, axis: str | None) -> SideRow:
    if len(rows) == 1:
        return rows[0]
    if axis is not None:
        values = ", ".join(axis_value(axis, row) for row in rows[:_MAX_LISTED_ROWS])
        raise UsageError(
            f"{side.name}: {rows[0].layer} {rows[0].pass_} is there {len(rows)} times ({values}); "
            f"across {axis} one of them can be compared; nearest: a run with one {axis}"
        )
    names = ", ".join(describe(row) for row in rows[:_MAX_LISTED_ROWS])
    raise UsageError(
        f"{side.name}: {names}: {len(rows)} rows of one problem with the same setting; which of "
        f"them belongs to {describe(other)} is not known; nearest: a run in which every layer was "
        "asked for once, under the same name as in the other run"
    )


def _nothing_common(a: Side, b: Side) -> str:
    if not a.rows or not b.rows:
        empty = a if not a.rows else b
        return (
            f"{empty.name}: nothing was measured in it that can be compared (layers, estimates, "
            "steps, breakdowns); nearest: pydlbench runs lists the others"
        )
    first, second = (_values_by_setting(side) for side in (a, b))
    different = [
        f"{name} ({', '.join(first[name])} against {', '.join(second[name])})"
        if len(first[name]) == len(second[name]) == 1
        else name
        for name in first
        if name in second and first[name].keys().isdisjoint(second[name])
    ]
    where = f"they differ in {', '.join(different)}" if different else "no row has the same setting"
    return (
        f"{b.name}: no row of {a.name} is in it ({describe(a.rows[0])} against "
        f"{describe(b.rows[0])}); {where}; nearest: measure the same in both"
    )


def _values_by_setting(side: Side) -> dict[str, dict[str, None]]:
    """Return the distinct values of a side's rows as text, by setting, including those of steps."""
    values: dict[str, dict[str, None]] = {}
    for row in side.rows:
        settings = row.settings or {"problem": row.problem}
        own = settings.get("own") or {}  # of a user's model
        named = {name: getattr(row, name) for name in ("layer", *FIELDS) if name != "problem"}
        for name, value in {**named, **settings, **own}.items():
            if name != "own" and value is not None:
                plain = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
                setting = name.rstrip("_").removesuffix("_request")
                values.setdefault(setting, {})[plain] = None
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """The rows of two sides, matched.

    Attributes:
        pairs: rows that were timed on both sides.
        only_a: rows that only the first side has.
        only_b: rows that only the second side has.
        untimed: pairs of which at least one was skipped or failed.
        axis: axis along which the two sides differ on purpose; None if there is none.
        values: value of each side on that axis.
    """

    pairs: Sequence[Pair]
    only_a: Sequence[SideRow]
    only_b: Sequence[SideRow]
    untimed: Sequence[Pair]
    axis: str | None = None
    values: tuple[str, str] = ("", "")


def match(a: Side, b: Side) -> Matching:
    """Match two sides' rows by problem and setting.

    Rows with the same name, problem and setting match; then rows with the same problem and setting
    and another name (a descriptor and a catalog name). If no rows match and the sides differ in one
    axis only, rows are matched across it.

    Raises:
        UsageError: a row matches several, or none matches.
    """
    same = _pair_rows(group_by(a.rows, key), group_by(b.rows, key), (a, b))
    rest = replace(a, rows=same.only_a), replace(b, rows=same.only_b)
    unnamed = key_without((), named=False)
    first, second = (group_by(side.rows, unnamed) for side in rest)
    renamed = _pair_rows(first, second, rest)
    matched, axis, values = renamed._replace(pairs=same.pairs + renamed.pairs), None, ("", "")
    if not matched.pairs:
        axis, matched = _across(a, b)
        values = _values(axis, matched.pairs)
    return Matching(
        pairs=[pair for pair in matched.pairs if pair.a.ok and pair.b.ok],
        only_a=matched.only_a,
        only_b=matched.only_b,
        untimed=[pair for pair in matched.pairs if not (pair.a.ok and pair.b.ok)],
        axis=axis,
        values=values,
    )


def _values(axis: str, pairs: Sequence[Pair]) -> tuple[str, str]:
    first = dict.fromkeys(axis_value(axis, pair.a) for pair in pairs)
    second = dict.fromkeys(axis_value(axis, pair.b) for pair in pairs)
    return "/".join(first), "/".join(second)


def kinds_of(rows: Iterable[SideRow]) -> NDArray[Any]:
    """Return the kind of each row; rows of one kind of layer or step and backend scatter alike."""
    return np.array([f"{row.kind} {row.backend} {row.mode} {row.cache}" for row in rows])
