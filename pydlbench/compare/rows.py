"""The rows of a run in one form for comparisons: layers, estimates, steps and breakdowns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from pydlbench.records.breakdown import LEVELS
from pydlbench.records.measurement import MATERIAL
from pydlbench.records.run import RunRecord
from pydlbench.records.step import options_text
from pydlbench.store.documents import Loaded, load
from pydlbench.store.entry import LAYER_COLUMNS, layer_values
from pydlbench.store.reader import Reader
from pydlbench.units import printable

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
    cache: str | None
    timing: str | None
    threads: int | None
    fuse: str | None
    layout_request: str | None
    propagation: str | None
    status: str
    median: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None
    clock_hz: float | None
    contended: bool | int | None
    algorithm: str | None

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

        Times in foreign documents may be infinite, or too short or too long for that.
        """
        valid = self.median is not None and _MIN_SECONDS < self.median < _MAX_SECONDS
        return self.status == "ok" and valid


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
    threads = loaded.record.device.get("threads")
    known = threads if isinstance(threads, int) else None
    # Equivalent to SideRow._make, without a Python call for each of 100,000 rows.
    rows = list(map(partial(tuple.__new__, SideRow), loaded.columns(_COLUMNS)))
    rows += [_estimate(entry.document, known) for entry in loaded.table("estimate")]
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
    values: dict[str, Any] = dict.fromkeys(SideRow._fields)
    values.update(
        layer=str(document.get("model")),
        kind=kind,
        problem=_problem(document, ("options",)),
        batch=document.get("batch"),
        pass_=document.get("phase"),
        precision=document.get("precision"),
        device=document.get("device") or "cpu",
        backend=document.get("framework") or "native",
        mode=document.get("mode"),
        threads=document.get("threads"),
        status=document.get("status") or "ok",
        median=median,
        ci_low=low,
        ci_high=high,
        contended=document.get("contended"),
    )
    return SideRow(**{**values, **fields})


def _problem(document: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return the settings of a whole step without a column; ``own`` only for a user's model."""
    settings = {name: document.get(name) for name in fields}
    if document.get("own"):
        settings["own"] = document["own"]
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
