"""Loads a run from a store or from the JSON document of a command."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydlbench.errors import PydlbenchError, UsageError, nearest_file
from pydlbench.records.record import SCHEMA_VERSION, SCHEMA_VERSIONS
from pydlbench.records.run import RunInfo, RunRecord
from pydlbench.store.entry import LAYER_COLUMNS, UNTIMED, Entry, layer_values, without_controls
from pydlbench.store.place import machine_name, user_path
from pydlbench.store.store import Reader

# A run of 100,000 layers with their candidates is smaller than this.
_MAX_BYTES = 1 << 28

# The first of these fields that a document has identifies the command that wrote it.
_COMMAND_BY_FIELD = {
    "findings": "diagnose",
    "protocol": "step",
    "steps": "step",
    "forecasts": "forecast",
    "breakdowns": "breakdown",
    "estimate": "estimate",
    "levels": "breakdown",
    "framework": "breakdown",
    "recorded": "trace",
}


# Commands that write a list, with the field of that list.
_LIST_FIELDS = {"forecast": "forecasts", "breakdown": "breakdowns", "trace": "recorded"}
# Commands whose document is a single entry, with its table; for others it is ``findings``.
_SINGLE_TABLES = {"estimate": "estimate", "fleet": "fleet"}


class Loaded:
    """A run with its entries, which are read on first use.

    Args:
        info: summary of the run, as in a list of runs.
        record: time, device, environment and command of the run.
        source: store that holds the run, or all entries of a file with their samples.

    Attributes:
        info: summary of the run.
        record: time, device, environment and command of the run.
    """

    def __init__(self, info: RunInfo, record: RunRecord, source: Reader | list[Entry]) -> None:
        self.info = info
        self.record = record
        self._source = source

    @cached_property
    def entries(self) -> list[Entry]:
        """All entries with their raw samples, if any."""
        return self.table(None, samples=True)

    @property
    def store(self) -> Reader | None:
        """The store of the run; None for a file."""
        return None if isinstance(self._source, list) else self._source

    def table(
        self,
        table: str | None,
        *,
        samples: bool = False,
        places: Collection[int] | None = None,
    ) -> list[Entry]:
        """Return the entries of a table; see ``Store.entries``."""
        if not isinstance(self._source, list):
            return self._source.entries(self.info.id, table, samples=samples, places=places)
        entries = [entry for entry in self._source if table in (None, entry.table)]
        return entries if places is None else [entries[place] for place in sorted(set(places))]

    def columns(self, names: Sequence[str] = LAYER_COLUMNS) -> list[tuple[Any, ...]]:
        """Return the columns of the run's layers; see ``Store.columns``."""
        if not isinstance(self._source, list):
            return self._source.columns(self.info.id, names=names)
        rows = [layer_values(entry.document) for entry in self._source if entry.table == "layer"]
        places = [LAYER_COLUMNS.index(name) for name in names]
        return [tuple(row[place] for place in places) for row in rows]


def load(text: str, store: Reader | None) -> Loaded:
    """Return a run.

    A text with a slash or the ending ``.json`` is a path. Any other text names a run of the store,
    or a file if the store has no such run.

    Args:
        text: an argument of ``Store.find``, or a path.
        store: store with runs; None if there is no store.

    Raises:
        UsageError: there is no such run and no such file, or the file was not written by
            ``--json``.
    """
    path = user_path(text)
    if "/" in text or path.suffix == ".json":
        return _from_file(path, text)
    try:
        if store is None:
            raise UsageError(f"run {text}: no runs are stored yet; start with: pydlbench layers")
        info = store.find(text)
    except UsageError:
        if path.is_file():
            return _from_file(path, text)
        raise
    return Loaded(info, store.record(info.id), store)


def _from_file(path: Path, text: str) -> Loaded:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise UsageError(f"{text}: more than {_MAX_BYTES >> 20} MiB; nearest: the run itself")
        document = without_controls(
            json.loads(data.decode("utf-8-sig"))
        )  # some editors put a mark in front
    except (OSError, RuntimeError) as error:
        if isinstance(error, RecursionError):
            raise UsageError(f"{text}: nested too deeply for results of a run") from error
        near = nearest_file(path, ".json")
        reason = error.strerror if isinstance(error, OSError) else "a loop of links"
        raise UsageError(f"{text}: cannot be read ({reason}){near}") from error
    except ValueError as error:
        if isinstance(error, PydlbenchError):
            raise
        raise UsageError(
            f"{text}: not JSON ({error}); give a file that --json FILE wrote"
        ) from error
    try:
        known = SCHEMA_VERSIONS.get(_kind(document), SCHEMA_VERSION)
        if document["schema_version"] > known:
            raise UsageError(
                f"{text}: its schema is version {document['schema_version']} and this pydlbench "
                f"knows {known}; update pydlbench"
            )
        record = RunRecord.from_dict(document["run"])
        entries = list(_entries(document))
    except PydlbenchError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{text}: not the results of a run ({_lacking(document, error)}); give a file that a "
            "command wrote with --json FILE"
        ) from error
    info = RunInfo(
        id=record.id,
        created_utc=record.created_utc,
        kind=_kind(document),
        status="interrupted" if document.get("interrupted") else "done",
        command=record.command,
        machine=machine_name(record.device),
        measurements=sum(entry.table not in UNTIMED for entry in entries),
    )
    return Loaded(info, record, entries)


def _lacking(document: object, error: Exception) -> str:
    """Return why a document is not the results of a run."""
    if not isinstance(document, dict):
        return "not an object"
    if isinstance(error, KeyError):
        return f"without {error.args[0]}"
    return " ".join(str(error).split()) or type(error).__name__


def _kind(document: Mapping[str, Any]) -> str:
    """Return the command that wrote a document, from the fields of the document."""
    if isinstance(document.get("kind"), str):  # a sweep, or what export wrote
        return str(document["kind"])
    for name, kind in _COMMAND_BY_FIELD.items():
        if name in document:
            return kind
    return "layers"


def _entries(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the entries of a document, as the command stores them."""
    kind = _kind(document)
    for row in document.get("measurements", ()):
        yield Entry.from_document("layer", row)
    if kind == "sweep":
        yield from _swept(document)
        return
    shared = {"schema_version", "kind", "run", "interrupted", "measurements"}
    rest = {name: value for name, value in document.items() if name not in shared}
    if kind == "step" and "protocol" in document:
        yield Entry.from_document("protocol", rest)
    elif kind == "step":
        for row in document["steps"]:
            # The samples are in the document as well, as they are when it is read from a store.
            yield Entry("step", dict(row), Entry.from_document("step", row).samples)
        for plain in document.get("agreements", ()):
            yield Entry.from_document("agreement", plain)
    elif kind in _LIST_FIELDS:
        listed = document.get(_LIST_FIELDS[kind], [rest])
        for plain in listed if isinstance(listed, list) else [listed]:
            yield Entry.from_document(kind, plain)
    elif kind != "layers":
        yield Entry(_SINGLE_TABLES.get(kind, "findings"), rest)


def _swept(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the entries of a sweep's document other than layers."""
    for name, table in (
        ("estimates", "estimate"),
        ("agreements", "agreement"),
        ("protocols", "protocol"),
        ("breakdowns", "breakdown"),
        ("findings", "findings"),
    ):
        for plain in document.get(name, ()):
            yield Entry.from_document(table, plain)
    for row in document.get("steps", ()):
        yield Entry("step", dict(row), Entry.from_document("step", row).samples)
