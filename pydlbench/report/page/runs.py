"""The runs that a page is made of, as records; what cannot be read is said and left out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.report.page.choice import COLUMNS, choose
from pydlbench.report.page.cleaning import clean_measurement, finite, mapping, positive
from pydlbench.report.page.markup import plain
from pydlbench.results.heading import device_name
from pydlbench.results.store.entry import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.endtoend import StepRecord
    from pydlbench.results import Measurement, RunRecord
    from pydlbench.results.store import Loaded

__all__ = ["CheckEntry", "PageRun", "StepEntry", "node_name", "read_run", "usable_samples"]

# What reading an object that is not what it says it is raises.
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntry:
    """A framework's step.

    Attributes:
        record: the step.
        flops: algorithmic, of a step; 0 where the document does not say.
    """

    record: StepRecord
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEntry:
    """A cross-check in one framework and mode.

    Attributes:
        document: its JSON object.
        record: the same as a record; None unless its status is ``ok``.
    """

    document: Mapping[str, Any]
    record: CheckRecord | None = None

    @property
    def who(self) -> str:
        """Framework and mode, and whatever of the step is not as by default."""
        words = [self.document.get("framework"), self.document.get("mode")]
        for name, usual in (("layout", "nhwc"), ("feed", "resident")):
            words += [one for one in [self.document.get(name)] if one not in (None, usual)]
        return plain(" ".join(map(str, words)), 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """One run.

    Attributes:
        number: from 1, as the page refers to it.
        record: when, where, with which libraries.
        kind: the command.
        status: ``done``, ``interrupted``...
        tags: of the store.
        rows: layers, with their samples.
        estimates: objects of ``model --json``.
        steps: of frameworks.
        checks: of the ladder.
        findings: objects of ``diagnose --json``.
        agreements: of frameworks on the same numbers, objects of ``e2e --agree``.
        protocols: objects of ``e2e --protocol``.
        troubles: what could not be read, a line each.
        left_timed: timed rows that the run has besides ``rows``.
        left_untimed: rows without a time that it has besides.
    """

    number: int
    record: RunRecord
    kind: str
    status: str = "done"
    tags: tuple[str, ...] = ()
    rows: tuple[Measurement, ...] = ()
    estimates: tuple[Mapping[str, Any], ...] = ()
    steps: tuple[StepEntry, ...] = ()
    checks: tuple[CheckEntry, ...] = ()
    findings: tuple[Mapping[str, Any], ...] = ()
    agreements: tuple[Mapping[str, Any], ...] = ()
    protocols: tuple[Mapping[str, Any], ...] = ()
    troubles: tuple[str, ...] = ()
    left_timed: int = 0
    left_untimed: int = 0

    @property
    def whole(self) -> bool:
        """Whether all rows of the run are on the page: only then may they be added up."""
        return not (self.left_timed or self.left_untimed)

    @property
    def part(self) -> str:
        """A sentence on what of a large run is on the page; nothing where that is all of it."""
        if not self.left_timed:
            return ""
        shown = len(self.timed)
        return (
            f"Of the run's {shown + self.left_timed} timed rows the page has {shown}, those of the "
            "layers that take longest."
        )

    @property
    def timed(self) -> tuple[Measurement, ...]:
        """Rows with a time."""
        return tuple(row for row in self.rows if row.ok)

    @property
    def machine(self) -> str:
        """The processor's product name."""
        return device_name(self.record.device)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that it is about."""
        found = dict.fromkeys(str(one.get("model")) for one in self.estimates)
        found |= dict.fromkeys(str(one.document.get("model")) for one in self.checks)
        found |= dict.fromkeys(one.record.case.model for one in self.steps)
        found |= dict.fromkeys(row.layer.partition("/")[0] for row in self.rows if "/" in row.layer)
        return tuple(found)

    @property
    def representative(self) -> tuple[Measurement, ...]:
        """Timed rows for figures: with hot caches, where a run has rows with cold ones besides.

        The others are the same layers again; the tables have them.
        """
        hot = tuple(row for row in self.timed if row.cache == "hot")
        return hot or self.timed

    def within(self, count: int) -> str:
        """Return ``", run 2"`` where a page has several runs, else nothing."""
        return f", run {self.number}" if count > 1 else ""


def node_name(layer: str) -> str:
    """Return a layer's name without its model: ``conv3``, ``conv1/bias``."""
    return layer.partition("/")[2] or layer


def read_run(loaded: Loaded, number: int = 1) -> PageRun:
    """Read what a store or a JSON document holds of a run.

    Args:
        loaded: of ``results.store.load``, with samples where they are there.
        number: of the run on the page.
    """
    found: dict[str, list[Any]] = {}
    troubles: dict[str, int] = {}
    readers = {"layer": _layer, "step": _step, "check": _check}
    choice = choose(loaded.columns(COLUMNS))
    entries = loaded.table("layer", samples=True, places=choice.places)
    for table in TABLES:
        entries += [] if table == "layer" else loaded.table(table, samples=True)
    for entry in entries:
        try:
            reader = readers.get(entry.table)
            document = entry.document
            value = document if reader is None else reader(document, entry.samples)
            found.setdefault(entry.table, []).append(value)
        except _UNREADABLE as error:
            why = f"{entry.table} {type(error).__name__}: {plain(error, 100)}"
            troubles[why] = troubles.get(why, 0) + 1
    record = dataclasses.replace(
        loaded.record,
        device=mapping(loaded.record.device),
        environment=mapping(loaded.record.environment),
    )
    return PageRun(
        number=number,
        record=record,
        kind=loaded.info.kind,
        status=loaded.info.status,
        tags=tuple(loaded.info.tags),
        rows=tuple(found.get("layer", ())),
        estimates=tuple(found.get("estimate", ())),
        steps=tuple(found.get("step", ())),
        checks=tuple(found.get("check", ())),
        findings=tuple(found.get("findings", ())),
        agreements=tuple(found.get("agreement", ())),
        protocols=tuple(found.get("protocol", ())),
        troubles=tuple(f"{count} entries cannot be read: {why}" for why, count in troubles.items()),
        left_timed=choice.left_timed,
        left_untimed=choice.left_untimed,
    )


def _layer(document: Mapping[str, Any], samples: Sequence[float] | None) -> Measurement:
    # As they are: there are thousands, and those that are drawn are looked at when they are.
    given = samples if samples is not None else document.get("samples_s")
    kept = tuple(given) if isinstance(given, (list, tuple)) else None
    return dataclasses.replace(clean_measurement(document), samples_s=kept)


def usable_samples(given: Any) -> tuple[float, ...]:
    """Return the samples that are times, in seconds."""
    if not isinstance(given, (list, tuple)):
        return ()
    return tuple(number for one in given if (number := positive(one)) is not None)


def _step(document: Mapping[str, Any], samples: Sequence[float] | None) -> StepEntry:
    from pydlbench.endtoend import StepRecord

    data = dict(document)
    data["samples_s"] = usable_samples(samples or data.get("samples_s"))
    if positive(mapping(data.get("time_s")).get("median")) is None:
        data["time_s"] = None
        if data.get("status") == "ok":
            data["status"], data["reason"] = "failed", "its record has no usable time"
    record = StepRecord.from_dict(data)
    return StepEntry(record=record, flops=int(finite(data.get("flops")) or 0))


def _check(document: Mapping[str, Any], _samples: Sequence[float] | None) -> CheckEntry:
    if document.get("status", "ok") != "ok":
        return CheckEntry(document=document)
    from pydlbench.crosscheck import CheckRecord

    record = CheckRecord.from_dict(document)
    median = positive(record.measured.median)
    numbers = (record.estimate_s, record.native_low_s, record.native_high_s)
    if median is None or any(finite(one) is None for one in numbers):
        raise ValueError("no usable time")
    return CheckEntry(document=document, record=record)
