"""The rows of a run in one form for comparisons, and the matching of the rows of two runs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UsageError
from pydlbench.grouping import group_by
from pydlbench.ops.table import KINDS
from pydlbench.records.breakdown import LEVELS
from pydlbench.records.measurement import MATERIAL
from pydlbench.records.run import RunRecord
from pydlbench.records.step import options_text
from pydlbench.store.documents import Loaded, load
from pydlbench.store.entry import LAYER_COLUMNS, layer_values
from pydlbench.store.store import Reader
from pydlbench.units import printable
from pydlbench.words import AS_BUILT

# Valid seconds of an execution, far beyond any kernel and the resolution of any clock.
_MIN_SECONDS: Final = 1e-15
_MAX_SECONDS: Final = 1e15
# Levels that are compared: the limit is computed, not measured.
_MEASURED_LEVELS: Final = tuple(name for name in reversed(LEVELS) if name != "limit")


class SideRow(NamedTuple):
    """One measured layer or step; the fields are the first of the store's layer columns, in order.

    For a step ``layer`` is the model, ``pass_`` the phase, ``backend`` the framework, ``kind`` its
    kind (``step``, ``estimate``, ``breakdown step``, ``breakdown native`` and so on) and
    ``problem`` all its other settings, as JSON. Times in seconds.
    """

    layer: str
    kind: str
    problem: str
    batch: int | None
    pass_: str
    precision: str
    device: str
    backend: str
    mode: str | None
    cache: str | None = None
    timing: str | None = None
    threads: int | None = None
    fuse: str | None = None
    layout_request: str | None = None
    propagation: str | None = None
    status: str = "ok"
    median: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    clock_hz: float | None = None
    contended: bool | int | None = None
    algorithm: str | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of a step in ``problem``; empty for a layer."""
        if self.kind not in ("step", "estimate") and not self.kind.startswith("breakdown "):
            return {}
        try:
            settings = json.loads(self.problem)
        except ValueError:  # a foreign row of kind "step" whose problem is a layer's
            return {}
        return settings if isinstance(settings, dict) else {}

    @property
    def options(self) -> str:
        """The options of a step's model (``--set``) as text; empty for a layer."""
        options = self.settings.get("options")
        return printable(options_text(options)) if isinstance(options, dict) else ""

    @property
    def ok(self) -> bool:
        """Whether the row has a time whose ratio to another one is a finite number.

        Times in foreign documents may be infinite, or too short or too long for that, and their
        intervals may end before they begin.
        """
        if self.status != "ok" or self.median is None:
            return False
        high = self.median if self.ci_high is None else self.ci_high
        low = high if self.ci_low is None else self.ci_low
        return all(_MIN_SECONDS < end < _MAX_SECONDS for end in (self.median, high)) and low <= high


_COLUMNS: Final = LAYER_COLUMNS[: len(SideRow._fields)]
# Rows are built from the store's tuples.
assert SideRow._fields == tuple("pass_" if name == "pass" else name for name in _COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs.

    Attributes:
        name: name of the run as the user gave it.
        run_id: id of the run; empty where a document has none.
        created_utc: start of the run.
        device: device of the run's record.
        environment: environment of the run's record.
        command: command line of the run's record.
        rows: rows of the run.
    """

    name: str
    rows: Sequence[SideRow]
    run_id: str = ""
    created_utc: str = ""
    device: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """The name of its processor."""
        return str(self.device.get("name") or "")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a side."""
        return {
            "name": self.name,
            "run": self.run_id,
            "created_utc": self.created_utc,
            "machine": self.machine,
            "command": list(self.command),
            "rows": len(self.rows),
        }


def read_side(name: str, store: Reader | None) -> Side:
    """Return a side from a stored run or a document.

    Args:
        name: name of the run or file, as the user gave it.
        store: the store; None if there is none.

    Raises:
        UsageError: there is no such run and no such file.
        StoreError: it cannot be read.
    """
    return side_of(name, load(name, store))


def side_of(name: str, loaded: Loaded) -> Side:
    """Return a side from a loaded run; only the columns of its layers are read."""
    rows = msgspec.convert(loaded.columns(_COLUMNS), list[SideRow])
    rows += [_estimate(entry.document, loaded.record.threads) for entry in loaded.table("estimate")]
    rows += [row_of_step(entry.document) for entry in loaded.table("step")]
    for entry in loaded.table("breakdown"):
        rows += _breakdown(entry.document)
    return _side(name, loaded.record, rows)


def side_of_documents(
    name: str,
    run: RunRecord,
    layers: Iterable[Mapping[str, Any]] = (),
    steps: Iterable[Mapping[str, Any]] = (),
) -> Side:
    """Return a side from new measurements.

    Args:
        name: name of the side.
        run: record of the run.
        layers: JSON objects of its measurements.
        steps: JSON objects of its steps.
    """
    measured = [SideRow._make(layer_values(document)[: len(_COLUMNS)]) for document in layers]
    return _side(name, run, [*measured, *map(row_of_step, steps)])


def _side(name: str, record: RunRecord, rows: Iterable[SideRow]) -> Side:
    return Side(
        name=name,
        rows=list(map(_sanitize, rows)),
        run_id=record.id,
        created_utc=record.created_utc,
        device=record.device,
        environment=record.environment,
        command=record.command,
    )


def _sanitize(row: SideRow) -> SideRow:
    """Return a row without control characters in its texts, and failed if its time is invalid."""
    if not "".join([value for value in row if type(value) is str]).isprintable():
        row = SideRow._make(printable(value) if isinstance(value, str) else value for value in row)
    return row._replace(status="failed") if row.status == "ok" and not row.ok else row


def _whole(
    document: Mapping[str, Any],
    kind: str,
    median: float | None,
    low: float | None,
    high: float | None,
    **fields: Any,
) -> SideRow:
    """Return the row of a whole step; fields that the document lacks are None."""
    values: dict[str, Any] = {
        "layer": str(document.get("model")),
        "kind": kind,
        "problem": _problem(document, ("options",)),
        "batch": document.get("batch"),
        "pass_": document.get("phase"),
        "precision": document.get("precision"),
        "device": document.get("device") or "cpu",
        "backend": document.get("framework") or "native",
        "mode": document.get("mode"),
        "threads": document.get("threads"),
        "status": document.get("status") or "ok",
        "median": median,
        "ci_low": low,
        "ci_high": high,
        "contended": document.get("contended"),
    }
    return SideRow(**values | fields)


def _problem(document: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return the settings of a whole step without a column.

    ``own`` is only there for a user's model, ``swaps`` only for a step with swapped kernels.
    """
    settings = {name: document.get(name) for name in fields}
    for name in ("own", "swaps"):
        if document.get(name):
            settings[name] = document[name]
    return json.dumps(settings, sort_keys=True)


def _estimate(document: Mapping[str, Any], threads: int | None) -> SideRow:
    """Return the row of an estimate, with its statistical interval.

    The interval between hot and cold caches is the same on both sides.
    """
    values = document["estimate"]
    time, half = values.get("time_s"), values.get("half_width_s")
    known = time is not None and half is not None
    return _whole(
        document,
        "estimate",
        time,
        time - half if known else None,
        time + half if known else None,
        threads=document.get("threads") or threads,  # older documents: those of the run
        status="failed" if document.get("missing") else "ok",
        contended=(document.get("disturbed_share") or 0.0) > MATERIAL,
    )


def row_of_step(document: Mapping[str, Any]) -> SideRow:
    """Return the row of a step's document."""
    time = document.get("time_s") or {}
    fields = ("options", "cast", "feed", "fetch", "dropout", "running_statistics")
    return _whole(
        document,
        "step",
        time.get("median"),
        time.get("ci_low"),
        time.get("ci_high"),
        problem=_problem(document, fields),
        layout_request=document.get("layout"),
        n=time.get("n"),
    )


def _breakdown(document: Mapping[str, Any]) -> list[SideRow]:
    """Return a row for each measured level."""
    ends = ("median", "ci_low", "ci_high")
    levels = document.get("levels") or {}
    rounds = (document.get("measured_s") or {}).get("n") or 0
    return [
        _whole(
            document,
            f"breakdown {name}",
            *map(level.get, ends),
            n=level.get("n"),
            # Earlier versions had no ``feed``.
            problem=_problem(
                {**document, "feed": document.get("feed") or "resident"}, ("options", "feed")
            ),
            contended=2 * (document.get("disturbed") or 0) > rounds,
            layout_request=document.get("layout"),
        )
        for name in _MEASURED_LEVELS
        if (level := levels.get(name))
    ]


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
