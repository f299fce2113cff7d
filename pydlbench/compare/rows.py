"""The rows of a run as a comparison sees them: layers, estimates, steps and breakdowns alike."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydlbench.records.breakdown import LEVELS
from pydlbench.records.measurement import MATERIAL
from pydlbench.records.step import options_text
from pydlbench.store.documents import load
from pydlbench.store.entry import LAYER_COLUMNS, layer_values
from pydlbench.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.records.run import RunRecord
    from pydlbench.store.documents import Loaded
    from pydlbench.store.reader import Reader

# Seconds of an execution, far beyond what any kernel can take and any clock can tell.
_LEAST_S: Final = 1e-15
_MOST_S: Final = 1e15
# The limit is computed.
_LEVELS: Final = tuple(name for name in reversed(LEVELS) if name != "limit")


class Row(NamedTuple):
    """One measured thing; the fields are the first of the store's layer columns, in their order.

    Of a step ``layer`` is the model, ``pass_`` the phase, ``backend`` the framework, ``kind`` what
    it is (``step``, ``estimate``, ``breakdown step``, ``breakdown native`` and so on) and
    ``problem`` everything else that tells it from others, as JSON. Times in seconds.
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
        """Of a whole step what ``problem`` says; nothing of a layer."""
        if self.kind not in ("step", "estimate") and not self.kind.startswith("breakdown "):
            return {}
        try:
            settings = json.loads(self.problem)
        except ValueError:  # a layer of a document that calls itself a step
            return {}
        return settings if isinstance(settings, dict) else {}

    @property
    def options(self) -> str:
        """Of a whole step the options of its model (``--set``) as text; nothing of a layer."""
        options = self.settings.get("options")
        return printable(options_text(options)) if isinstance(options, dict) else ""

    @property
    def ok(self) -> bool:
        """Whether there is a time that can be divided by another one's.

        Documents come from anywhere: their times may be infinite, or so short or so long that no
        float holds the ratio.
        """
        return self.status == "ok" and self.median is not None and _LEAST_S < self.median < _MOST_S


_COLUMNS: Final = LAYER_COLUMNS[: len(Row._fields)]
# The store's tuples are taken as they are.
assert Row._fields == tuple("pass_" if name == "pass" else name for name in _COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs.

    Attributes:
        name: as the user gave it.
        run_id: of the run; empty where a document has none.
        created_utc: when it started.
        device: of its run record.
        environment: likewise.
        command: likewise.
        rows: what it measured.
    """

    name: str
    rows: Sequence[Row]
    run_id: str = ""
    created_utc: str = ""
    device: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """Its processor's name."""
        return str(self.device.get("name") or "")

    def to_dict(self) -> dict[str, Any]:
        """Return what the output says of a side."""
        return {
            "name": self.name,
            "run": self.run_id,
            "created_utc": self.created_utc,
            "machine": self.machine,
            "command": list(self.command),
            "rows": len(self.rows),
        }


def read_side(name: str, store: Reader | None) -> Side:
    """Return a side from a run of a store or a document; of its layers only the columns are read.

    Args:
        name: as the user gave it.
        store: None where there is none.

    Raises:
        UsageError: there is no such run and no such file.
        StoreError: it cannot be read.
    """
    return side_of(name, load(name, store))


def side_of(name: str, loaded: Loaded) -> Side:
    """Return a side from what has been found under a name."""
    threads = loaded.record.device.get("threads")
    known = threads if isinstance(threads, int) else None
    # As Row._make does, without a call in Python for each of 100,000 rows.
    rows = list(map(partial(tuple.__new__, Row), loaded.columns(_COLUMNS)))
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
    """Return a side from what was measured a moment ago.

    Args:
        name: what it is called.
        run: when, where, with what.
        layers: JSON objects of its measurements.
        steps: of its steps.
    """
    measured = [Row._make(layer_values(document)[: len(_COLUMNS)]) for document in layers]
    return _side(name, run, [*measured, *map(row_of_step, steps)])


def _side(name: str, record: RunRecord, rows: Iterable[Row]) -> Side:
    return Side(
        name=name,
        rows=list(map(_checked, rows)),
        run_id=record.id,
        created_utc=record.created_utc,
        device=record.device,
        environment=record.environment,
        command=record.command,
    )


def _checked(row: Row) -> Row:
    """Return a row whose texts steer no terminal, and that has failed if its time is of no use."""
    if not "".join([value for value in row if type(value) is str]).isprintable():
        row = Row._make(printable(value) if isinstance(value, str) else value for value in row)
    return row._replace(status="failed") if row.status == "ok" and not row.ok else row


def _whole(
    document: Mapping[str, Any],
    kind: str,
    median: float | None,
    low: float | None,
    high: float | None,
    **fields: Any,
) -> Row:
    """Return a row for a whole step; what the document does not say is None."""
    values: dict[str, Any] = dict.fromkeys(Row._fields)
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
    return Row(**{**values, **fields})


def _problem(document: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return the settings of a whole step that no column has; ``own`` of one's own model only."""
    settings = {name: document.get(name) for name in fields}
    if document.get("own"):
        settings["own"] = document["own"]
    return json.dumps(settings, sort_keys=True)


def _estimate(document: Mapping[str, Any], threads: int | None) -> Row:
    """The statistical interval only: that between hot and cold caches is the same on both sides."""
    values = document["estimate"]
    middle, half = values.get("time_s"), values.get("half_width_s")
    known = middle is not None and half is not None
    return _whole(
        document,
        "estimate",
        middle,
        middle - half if known else None,
        middle + half if known else None,
        threads=document.get("threads") or threads,  # older ones have the run's
        status="failed" if document.get("missing") else "ok",
        contended=(document.get("disturbed_share") or 0.0) > MATERIAL,
    )


def row_of_step(document: Mapping[str, Any]) -> Row:
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


def _breakdown(document: Mapping[str, Any]) -> list[Row]:
    """Return a row for each level; the step's is what was measured."""
    ends = ("median", "ci_low", "ci_high")
    levels = document.get("levels") or {}
    rounds = (document.get("measured_s") or {}).get("n") or 0
    return [
        _whole(
            document,
            f"breakdown {name}",
            *map(level.get, ends),
            n=level.get("n"),
            # Those of earlier versions do not say where their images came from.
            problem=_problem(
                {**document, "feed": document.get("feed") or "resident"}, ("options", "feed")
            ),
            contended=2 * (document.get("disturbed") or 0) > rounds,
            layout_request=document.get("layout"),
        )
        for name in _LEVELS
        if (level := levels.get(name))
    ]
