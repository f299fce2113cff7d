"""The runs that a page is made of, as records; what cannot be read is said and left out.

Documents may come from other tools or versions, or be damaged: a row with a value of another type,
or with a number that is none, is left out as a whole, and its run says so with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from pydlbench.compare.rows import side_of
from pydlbench.records.check import CheckResult
from pydlbench.records.diagnosis import Diagnosis
from pydlbench.records.documents import AgreementRow, PlayedProtocol
from pydlbench.records.estimate import StepEstimate
from pydlbench.records.forecast import ForecastRecord
from pydlbench.records.measurement import Measurement, TimeSummary
from pydlbench.records.record import Record
from pydlbench.records.step import StepRecord
from pydlbench.report.columns import device_name
from pydlbench.report.e2e import StepRow
from pydlbench.report.page.plain import UNREADABLE, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.compare.rows import Side
    from pydlbench.records.fleet import FleetVerdict
    from pydlbench.records.run import RunInfo, RunRecord
    from pydlbench.store.documents import Loaded


def finite(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer that no float can hold
        return None


def positive(value: Any) -> float | None:
    """Return a finite number above zero, or None."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def mapping(value: Any) -> dict[str, Any]:
    """Return an object; an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; anything else is left out."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def require_usable(record: Record, ok: bool) -> None:
    """Raise a ValueError where a record, which has the right types, holds what nobody can draw.

    Args:
        record: a row or a step; its numbers have to be finite.
        ok: whether it says that it has a time.
    """
    for name in record.__struct_fields__:
        if name != "samples_s":  # of thousands: those that are drawn are looked at when they are
            _require_finite(name, getattr(record, name))
    time = getattr(record, "time", None)
    if ok and not (isinstance(time, TimeSummary) and min(time.median, time.min) > 0):
        raise ValueError("it has no usable time")


def _require_finite(name: str, value: Any) -> None:
    if isinstance(value, Record):
        for part in value.__struct_fields__:
            _require_finite(f"{name}.{part}", getattr(value, part))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _require_finite(f"{name}.{key}", one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _require_finite(name, one)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and finite(value) is None:
        raise ValueError(f"{name} is not a finite number")


class _Ratio(msgspec.Struct):
    """What the page reads of ``Measurement.ratio``, which is a mapping of anything."""

    to: str
    median: float
    ci_low: float | None
    ci_high: float | None


class _Cause(msgspec.Struct):
    """What it reads of each of ``Measurement.causes``."""

    cause: str
    seconds: float
    share: float


def _read_row(document: Mapping[str, Any]) -> Measurement:
    """Read a row.

    Raises:
        ValueError: a value is not of its type, or of no use.
    """
    data = {name: value for name, value in document.items() if name != "samples_s"}
    # A page has no room for them, and they may be many.
    row = Measurement.from_dict({**data, "candidates": None})
    require_usable(row, row.status == "ok")
    if row.status == "ok" and row.batch <= 0:
        raise ValueError("batch is not positive")
    if row.ratio is not None:
        msgspec.convert(row.ratio, _Ratio)
    msgspec.convert(row.causes, tuple[_Cause, ...])
    return row


# -----------------------------------------------------------------------------
# Which rows of a large run are on a page: those of the layers that take longest.
#
# A page of fifty thousand rows would take a browser minutes, and nobody would read it. What is
# chosen is chosen by the columns of the store, so that no document is read for nothing; a layer
# comes with all of its rows, so that backends, batches and precisions stay beside each other.

#: Timed rows of a run: every layer of the largest model, hot and cold, is fewer.
MOST_ROWS: Final = 800
#: Rows without a time.
MOST_UNTIMED: Final = 200
#: What a choice is made by, of the store's columns.
COLUMNS: Final = ("status", "median", "layer", "kind", "pass")


class Choice(NamedTuple):
    """The rows of a page.

    Attributes:
        places: their lines among the columns; None is all of them.
        left_timed: timed rows that are not among them.
        left_untimed: rows without a time that are not.
    """

    places: list[int] | None
    left_timed: int = 0
    left_untimed: int = 0


def choose(columns: Sequence[tuple[Any, ...]]) -> Choice:
    """Return what of a run is shown.

    Args:
        columns: :data:`COLUMNS` of each row, perhaps of a document with other things than numbers
            in it.
    """
    if len(columns) <= MOST_ROWS:
        return Choice(None)
    layers: dict[tuple[Any, ...], list[int]] = {}
    slowest: dict[tuple[Any, ...], float] = {}
    untimed = []
    for place, (status, seconds, *rest) in enumerate(columns):
        if status != "ok" or not isinstance(seconds, float) or not 0 < seconds < inf:
            untimed.append(place)
            continue
        name = tuple(rest)
        if name in layers:
            layers[name].append(place)
            if seconds > slowest[name]:
                slowest[name] = seconds
        else:
            layers[name], slowest[name] = [place], seconds
    kept: list[int] = []
    for name in sorted(layers, key=lambda one: -slowest[one]):
        if kept and len(kept) + len(layers[name]) > MOST_ROWS:
            break
        kept += layers[name][: MOST_ROWS - len(kept)]
    timed = sum(map(len, layers.values()))
    places = sorted([*kept, *untimed[:MOST_UNTIMED]])
    return Choice(places, timed - len(kept), max(0, len(untimed) - MOST_UNTIMED))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """One run.

    Attributes:
        number: from 1, as the page refers to it.
        info: what a list shows of it: its command, its status, its tags.
        record: when, where, with which libraries.
        rows: layers, with their samples.
        estimates: of steps, from their layers.
        steps: of frameworks.
        checks: of steps; some with a reason in the place of a record.
        findings: what ``diagnose`` found, of each step.
        forecasts: of steps; some are the documents that say why there is none.
        agreements: of frameworks on the same numbers.
        protocols: of published scripts.
        troubles: what could not be read, a line each.
        left_timed: timed rows that the run has besides ``rows``.
        left_untimed: rows without a time that it has besides.
        side: all of it, as a comparison sees it; None where that cannot be read.
        fleet: what is said of its nodes, where it is of a fleet.
    """

    number: int
    info: RunInfo
    record: RunRecord
    rows: tuple[Measurement, ...] = ()
    estimates: tuple[StepEstimate, ...] = ()
    steps: tuple[StepRow, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    findings: tuple[Diagnosis, ...] = ()
    forecasts: tuple[ForecastRecord | Mapping[str, Any], ...] = ()
    agreements: tuple[AgreementRow, ...] = ()
    protocols: tuple[PlayedProtocol, ...] = ()
    troubles: tuple[str, ...] = ()
    left_timed: int = 0
    left_untimed: int = 0
    side: Side | None = None
    fleet: FleetVerdict | None = None

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
    def forecast_records(self) -> tuple[ForecastRecord, ...]:
        """The forecasts that have a time."""
        return tuple(one for one in self.forecasts if isinstance(one, ForecastRecord))

    @property
    def machine(self) -> str:
        """The processor's product name."""
        return device_name(self.record.device)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that it is about."""
        found = dict.fromkeys(one.model for one in self.estimates)
        found |= dict.fromkeys(one.model for one in self.checks)
        found |= dict.fromkeys(one.model for one in self.forecast_records)
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


def level_name(level: Any) -> str:
    """Return what the page calls a level of the memory."""
    found = plain(level, 30)
    return {"llc": "last-level cache", "l2": "L2 cache"}.get(found, found)


def node_name(layer: str) -> str:
    """Return a layer's name without its model: ``conv3``, ``conv1/bias``."""
    return layer.partition("/")[2] or layer


def read_run(loaded: Loaded, number: int = 1, fleet: FleetVerdict | None = None) -> PageRun:
    """Read what a store or a JSON document holds of a run.

    Args:
        loaded: of ``pydlbench.store.documents.load``, with samples where they are there.
        number: of the run on the page.
        fleet: what is said of its nodes, where it is of a fleet.
    """
    found: dict[str, list[Any]] = {}
    troubles: dict[str, int] = {}
    choice = choose(loaded.columns(COLUMNS))
    entries = loaded.table("layer", samples=True, places=choice.places)
    for table in _READERS:
        entries += [] if table == "layer" else loaded.table(table, samples=True)
    for entry in entries:
        try:
            value = _READERS[entry.table](entry.document, entry.samples)
            found.setdefault(entry.table, []).append(value)
        except UNREADABLE as error:
            why = f"{entry.table} {type(error).__name__}: {plain(error, 100)}"
            troubles[why] = troubles.get(why, 0) + 1
    record = msgspec.structs.replace(
        loaded.record,
        device=mapping(loaded.record.device),
        environment=mapping(loaded.record.environment),
    )
    return PageRun(
        number=number,
        info=loaded.info,
        record=record,
        rows=tuple(found.get("layer", ())),
        estimates=tuple(found.get("estimate", ())),
        steps=tuple(found.get("step", ())),
        checks=tuple(found.get("check", ())),
        findings=tuple(found.get("findings", ())),
        forecasts=tuple(found.get("forecast", ())),
        agreements=tuple(found.get("agreement", ())),
        protocols=tuple(found.get("protocol", ())),
        troubles=tuple(f"{count} entries cannot be read: {why}" for why, count in troubles.items()),
        left_timed=choice.left_timed,
        left_untimed=choice.left_untimed,
        side=_side(number, loaded),
        fleet=fleet,
    )


def _side(number: int, loaded: Loaded) -> Side | None:
    """Return the run as a comparison sees it; None where a document's values are in the way."""
    try:
        return side_of(f"run {number}", loaded)
    except UNREADABLE:
        return None


def _layer(document: Mapping[str, Any], samples: Sequence[float] | None) -> Measurement:
    # As they are: there are thousands, and those that are drawn are looked at when they are.
    given = samples if samples is not None else document.get("samples_s")
    kept = tuple(given) if isinstance(given, (list, tuple)) else None
    return msgspec.structs.replace(_read_row(document), samples_s=kept)


def usable_samples(given: Any) -> tuple[float, ...]:
    """Return the samples that are times, in seconds."""
    if not isinstance(given, (list, tuple)):
        return ()
    return tuple(number for one in given if (number := positive(one)) is not None)


def _step(document: Mapping[str, Any], samples: Sequence[float] | None) -> StepRow:
    kept = usable_samples(samples or document.get("samples_s"))
    record = StepRecord.from_dict({**document, "samples_s": kept})
    require_usable(record, record.status == "ok")
    flops = finite(document.get("flops"))
    flops = None if flops is None else int(flops)
    return StepRow(record=record, title=record.case.model, flops=flops)


def _diagnosis(document: Mapping[str, Any], _samples: Sequence[float] | None) -> Diagnosis:
    found = Diagnosis.from_dict(document)
    require_usable(found, ok=False)
    require_usable(found.step, found.step.status == "ok")
    return found


def _check(document: Mapping[str, Any], _samples: Sequence[float] | None) -> CheckResult:
    found = CheckResult.from_dict(document)
    if found.status != "ok":
        return found
    record = found.record
    if record is None or positive(record.measured.median) is None:
        raise ValueError("no usable time")
    if any(positive(one.median) is None for one in record.rungs.known().values()):
        raise ValueError("no usable rung")
    return found


def _forecast(
    document: Mapping[str, Any], _samples: Sequence[float] | None
) -> ForecastRecord | Mapping[str, Any]:
    if "forecast_s" not in document:
        return document
    found = ForecastRecord.from_dict(document)
    require_usable(found, ok=False)
    if positive(found.seconds) is None:
        raise ValueError("no usable time")
    return found


def _estimate(document: Mapping[str, Any], _samples: Sequence[float] | None) -> StepEstimate:
    found = StepEstimate.from_dict(document)
    require_usable(found, ok=False)
    timed = tuple(one for one in found.layers if one.time_s > 0)
    return msgspec.structs.replace(found, layers=timed)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Sequence[float] | None], Any]]] = {
    "layer": _layer,
    "estimate": _estimate,
    "step": _step,
    "agreement": lambda document, _samples: AgreementRow.from_dict(document),
    "protocol": lambda document, _samples: PlayedProtocol.from_dict(document),
    "check": _check,
    "findings": _diagnosis,
    "forecast": _forecast,
}
