"""What a store holds: entries, and what is known of a run without reading its documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.results.records import Measurement

__all__ = ["ANSWERED", "BEING_WRITTEN", "STATUSES", "TABLES", "UNTIMED", "Entry", "RunInfo"]

#: Kinds of entries: a timed layer; the estimate of a step (computed, not measured); a timed
#: framework step, two frameworks' results held against each other, a published script's numbers;
#: a cross-check; what ``diagnose`` found.
TABLES: Final = ("layer", "estimate", "step", "agreement", "protocol", "check", "findings")
#: Those that were not timed.
UNTIMED: Final = ("estimate", "agreement")
#: What a run can be. ``killed`` is never stored: it is a ``running`` one whose process is gone.
STATUSES: Final = ("running", "done", "interrupted", "failed", "killed")
#: Statuses of rows that need not be measured again.
ANSWERED: Final = ("ok", "skipped")


#: Why a run is left alone, with its id to be put in.
BEING_WRITTEN: Final = (
    "is being written; wait for its end, or, if its process has gone on another host or in another "
    "container: pydlbench runs end {}"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished thing.

    Attributes:
        table: one of :data:`TABLES`.
        document: its JSON object; NaN and infinities are allowed. Without ``samples_s``: of
            layers, which have thousands, they are only read when they are asked for; of steps
            they stand in the document all the same when it is read.
        samples: raw samples in seconds.
        key: what it answers, see :func:`pydlbench.results.store.case_key`; a later entry of the
            same run with the same key takes its place.
    """

    table: str
    document: dict[str, Any]
    samples: tuple[float, ...] | None = None
    key: str | None = None

    @classmethod
    def of(cls, table: str, document: Mapping[str, Any], key: str | None = None) -> Self:
        """Return an entry for a JSON object, its ``samples_s`` taken out."""
        plain = dict(document)
        samples = plain.pop("samples_s", None)
        return cls(table, plain, None if samples is None else tuple(samples), key)

    @classmethod
    def of_layer(cls, row: Measurement, key: str | None = None) -> Self:
        """Return an entry for a measurement, with its samples if it has some."""
        return cls.of("layer", row.to_dict(), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as a list shows it.

    Attributes:
        id: its name, unique in a store.
        created_utc: ISO 8601 time of its start, in UTC.
        kind: the command: ``layers``, ``model``, ``e2e``, ``check``, ``diagnose`` or ``sweep``.
        status: one of :data:`STATUSES`.
        command: the command line.
        machine: short name of the CPU or GPU.
        tags: in alphabetical order.
        measurements: how many entries were measured: all but :data:`UNTIMED` ones.
    """

    id: str
    created_utc: str
    kind: str
    status: str
    command: tuple[str, ...]
    machine: str
    tags: tuple[str, ...] = ()
    measurements: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of ``runs --json``."""
        return {
            "id": self.id,
            "created_utc": self.created_utc,
            "kind": self.kind,
            "status": self.status,
            "machine": self.machine,
            "measurements": self.measurements,
            "tags": list(self.tags),
            "command": list(self.command),
        }
