"""A step's time from stored rows of its operators; the step is not timed.

    forecast = sum of operators + page faults x cost of a page fault

The operators come from recording a step (PyTorch's eager mode, users' models in TensorFlow), or
from the model's graph. Their times come from the store, or are measured alone (see
:mod:`pydlbench.analysis.rows`). The machine may be faster or slower today than when a row was
stored: a few rows are timed again, and all rows of their class are scaled by the change. Page
faults are counted in an untimed step; the cost of one is a row like others.

On a GPU each operator has two times, the host's and the device's, and the step is the makespan of
both (:mod:`pydlbench.analysis.pipeline`).

The interval covers the errors of earlier forecasts (:func:`interval`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from pydlbench.analysis.mapped import kind_of, listed
from pydlbench.analysis.pipeline import enqueued, period
from pydlbench.analysis.rows import FAULT, Rows, measure_rows, now_utc, stored_rows
from pydlbench.errors import UnsupportedError
from pydlbench.grouping import group_by, sum_by
from pydlbench.records.estimate import (
    ForecastRecord,
    ForecastTerm,
    OperatorTime,
    Place,
    StepFaults,
)
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall, program_hash
from pydlbench.runner.session import Session
from pydlbench.steps.run import prepare_step
from pydlbench.store.store import Reader
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.timing.statistics import median
from pydlbench.units import holding
from pydlbench.words import FRAMEWORK_MODES, GPU_FRAMEWORK

#: Default number of processes in which a missing operator is timed.
VISITS: Final = 3
# Stored rows that are timed again before a forecast, and the number of them in a class up to which
# the class is not scaled.
_MAX_TIMED_AGAIN: Final = 10
_UNSCALED_ROWS: Final = 2
_FAULTS: Final = "faults"
# Seconds between two forecasts from the rows so far.
_ANSWER_PERIOD_S: Final = 5.0
# Untimed steps before page faults are counted, in which the allocator adapts; and the least and
# most steps and the seconds of counting: two steps in a row may differ by a half.
_UNCOUNTED: Final = 2
_MIN_COUNTED, _MAX_COUNTED, _COUNTING_S = 2, 8, 2.0


def forecast_step(
    spec: StepSpec, session: Session, store: Reader | None, **how: Any
) -> ForecastRecord:
    """Forecast a step from operators that were timed alone; see :func:`forecasts`."""
    *_, record = forecasts(spec, session, store, **how)
    return record


def forecasts(
    spec: StepSpec,
    session: Session,
    store: Reader | None,
    *,
    measures: bool = True,
    visits: int = VISITS,
    keep: Callable[[str, dict[str, Any], str], None] = lambda *_: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[ForecastRecord]:
    """Forecast a step from operators that were timed alone; the step is not timed.

    Yields:
        The forecast from the stored rows, if there are any; that from the rows so far, every few
        seconds; then the complete one.

    Args:
        spec: the step; on a GPU in PyTorch's eager mode.
        session: session whose workers are used.
        store: store with the rows; None if there are no stored rows.
        measures: measure rows that the store lacks; else they are missing in the sum.
        visits: processes in which a missing operator is timed.
        keep: called with table, document and key of each row as soon as it is measured.
        tell: called with the name of what comes next.

    Raises:
        UsageError: no such model or option.
        UnsupportedError: the framework's calls cannot be listed, or not be timed by signature.
        WorkerError: a worker died.
    """
    if spec.on_gpu and spec.mode != FRAMEWORK_MODES[GPU_FRAMEWORK][0]:
        raise UnsupportedError(
            f"{spec.framework} {spec.mode}: on a GPU calls are forecast one by one, as PyTorch's "
            "eager mode makes them; nearest: --framework torch --mode eager"
        )
    tell("operators of the step")
    forecaster = _Forecaster(spec, session, store, measures, visits, keep, tell)
    steps = listed(spec, session)
    known = interval(scored(store, forecaster.place))
    rows = forecaster.stored(steps.calls)
    if rows.times:
        yield conclude(spec, forecaster.place, steps, rows, known=known)
    faults = None if spec.on_gpu else forecaster.faults(program_of(steps))
    calls = [*steps.calls, *_faulting(faults)]
    rows.times |= forecaster.stored(_faulting(faults)).times
    due = 0.0
    for _ in forecaster.measured(calls, rows):
        if time.monotonic() > due:
            yield conclude(spec, forecaster.place, steps, rows, faults, known=known)
            due = time.monotonic() + _ANSWER_PERIOD_S
    factors, untold = forecaster.factors(calls, rows)
    known = known._replace(reach=known.reach + untold)
    yield conclude(spec, forecaster.place, steps, rows, faults, factors=factors, known=known)


def class_of(call: RecordedCall, cache_bytes: int) -> str:
    """Return the class of a call: calls of a class change alike when the machine changes.

    Page faults are a class of their own.

    Args:
        call: a call with the bytes of its operands and results.
        cache_bytes: size of the last-level cache.
    """
    if call.signature == FAULT.signature:
        return _FAULTS
    return "cache" if call.bytes <= cache_bytes / 2 else "memory"


def program_of(steps: OperatorsFacts) -> str:
    """Return the hash of a step's recorded calls, without what is fed to it."""
    own = (call for call in steps.calls if kind_of(call) != "feed")
    return program_hash((call.signature, call.direction) for call in own for _ in range(call.count))


def scaling(
    ratios: Mapping[str, Sequence[float]], shares: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Return the factor of the rows of each class, and the additional error of the sum.

    If only one call or two of a class were timed again, their change may not be that of the class:
    the class is not scaled, and the change widens the interval instead. Page faults have a single
    row.

    Args:
        ratios: seconds now over stored seconds of the calls that were timed again, by class.
        shares: shares of the step of the stored rows, by class.

    Returns:
        Factors by class; and the logarithm of a ratio, to be added to half of the interval.
    """
    factors = {
        name: median(values)
        for name, values in ratios.items()
        if len(values) > _UNSCALED_ROWS or name == _FAULTS
    }
    untold = sum(
        shares[name] * max(abs(math.log(ratio)) for ratio in values)
        for name, values in ratios.items()
        if name not in factors
    )
    return factors, untold


def counted_faults(spec: StepSpec, session: Session) -> float | None:
    """Run a step in a process of its own, and count its page faults.

    The number of fresh blocks depends on the memory that the process has given back before, so the
    step is prepared like one that is timed. Its time only determines the number of runs.

    Args:
        spec: the step, on a CPU.
        session: its worker is ended before and after.

    Returns:
        The mean number of page faults of a step; None if they cannot be counted.

    Raises:
        UnsupportedError: the framework does not support the step.
        WorkerError: the worker died.
    """
    worker = session.worker(spec.framework, spec.device)
    worker.close()
    try:
        kernel = prepare_step(spec, session, preparation=StepPreparation(checks=False))
        first = kernel.sample(ChunkRequest(samples=_MIN_COUNTED, untimed=_UNCOUNTED))
        if first.faults is None:
            return None
        counted = min(_MAX_COUNTED, int(_COUNTING_S / max(first.seconds)))
        more = counted - _MIN_COUNTED
        if more <= 0:
            return first.faults
        second = kernel.sample(ChunkRequest(samples=more)).faults or 0.0
        return (_MIN_COUNTED * first.faults + more * second) / counted
    finally:
        worker.close()


def _faulting(faults: StepFaults | None) -> list[RecordedCall]:
    """Return the page faults of a step as a call; an empty list if they were not counted."""
    if faults is None or not faults.counts:
        return []
    return [msgspec.structs.replace(FAULT, count=round(median(faults.counts)))]


class _Forecaster:
    """Collects rows, their scaling and page faults; see :func:`forecast_step`."""

    def __init__(
        self,
        spec: StepSpec,
        session: Session,
        store: Reader | None,
        measures: bool,
        visits: int,
        keep: Callable[[str, dict[str, Any], str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._keep = keep
        self._spec, self._session, self._store = spec, session, store
        self._measures, self._visits, self._tell = measures, visits, tell
        described = session.worker(spec.framework, spec.device).describe()
        self.place = Place(
            framework=spec.framework,
            mode=str(spec.mode),
            precision=spec.precision,
            device=spec.device,
            threads=len(session.cpus),
            processor=session.processor(spec.device),
            library=f"{spec.framework} {described['version']}",
        )

    def stored(self, calls: Sequence[RecordedCall]) -> Rows:
        """Return the stored rows of calls."""
        return Rows(times=stored_rows(self._store, self.place, calls))

    def measured(self, calls: Sequence[RecordedCall], rows: Rows) -> Iterator[OperatorTime]:
        """Measure the missing rows of calls; yield each once it is stored and in ``rows``."""
        missing = [call for call in calls if call.signature not in rows.times]
        if missing and self._measures:
            measured = measure_rows(
                *(self._spec, self._session, self.place, missing, rows),
                visits=self._visits,
                tell=self._tell,
            )
            for row in measured:
                self._keep("operator", row.to_dict(), row.key)
                yield row

    def factors(self, calls: Sequence[RecordedCall], rows: Rows) -> tuple[dict[str, float], float]:
        """Time the largest stored rows again, and scale all rows by the change.

        Returns:
            See :func:`scaling`.
        """
        # The same call may occur forward and backward.
        taken_s = sum_by(
            (call.signature, call.count * rows.times[call.signature].seconds)
            for call in calls
            if call.signature in rows.times
        )
        stored = [
            call
            for call in {call.signature: call for call in calls}.values()
            if call.signature in rows.times.keys() - rows.fresh
            # A row shorter than the cost of its call has no ratio.
            if taken_s[call.signature] > 0
        ]
        stored.sort(key=lambda call: -taken_s[call.signature])
        if not stored or not self._measures:
            return {}, 0.0
        self._tell("stored operators again")
        again = Rows()
        chosen = stored[:_MAX_TIMED_AGAIN]
        list(
            measure_rows(self._spec, self._session, self.place, chosen, again, visits=1)
        )  # not stored: a single visit is worse than the stored row
        cache_bytes = self._session.cache_bytes(self._spec.device)
        timed = [
            call
            for call in chosen
            if call.signature in again.times and again.times[call.signature].seconds > 0
            # Page faults have no other row: a disturbed one does not scale them.
            if call.signature != FAULT.signature or not again.times[call.signature].disturbed
        ]
        ratios = {
            name: [
                again.times[call.signature].seconds / rows.times[call.signature].seconds
                for call in same
            ]
            for name, same in group_by(timed, lambda call: class_of(call, cache_bytes)).items()
        }
        whole_s = sum(taken_s.values())
        shares = sum_by(
            (class_of(call, cache_bytes), taken_s[call.signature] / whole_s) for call in stored
        )
        factors, untold = scaling(ratios, shares)
        for call in stored:
            if factor := factors.get(class_of(call, cache_bytes)):
                row = rows.times[call.signature]
                visits = tuple(factor * seconds for seconds in row.visits_s)
                rows.times[call.signature] = msgspec.structs.replace(row, visits_s=visits)
        return factors, untold

    def faults(self, program: str) -> StepFaults | None:
        """Return the stored page faults of the step, or count them in processes of their own."""
        step = json.dumps(self._spec.to_dict(), sort_keys=True)
        record = StepFaults(
            place=self.place, step=step, program=program, created_utc=now_utc(), counts=()
        )
        known = self._store.newest([record.key]) if self._store else {}
        if known:
            return StepFaults.from_dict(known[record.key])
        if not self._measures:
            return None
        self._tell("page faults of the step")
        counts = [counted_faults(self._spec, self._session) for _ in range(self._visits)]
        record = msgspec.structs.replace(
            record, counts=tuple(count for count in counts if count is not None)
        )
        if record.counts:
            self._keep("faults", record.to_dict(), record.key)
        return record


# -----------------------------------------------------------------------------
# The sum and its interval.


def conclude(
    spec: StepSpec,
    place: Place,
    step: OperatorsFacts,
    rows: Rows,
    faults: StepFaults | None = None,
    *,
    factors: Mapping[str, float] | None = None,
    known: ScoreInterval | None = None,
) -> ForecastRecord:
    """Return the forecast of a step from the rows of its calls.

    Args:
        spec: the step.
        place: framework, mode, device and so on that the rows belong to.
        step: calls, batch and notes of the step.
        rows: rows of the step's calls and of a page fault, if known.
        faults: page faults of the step; None if they were not counted.
        factors: factors of the stored rows, by class.
        known: interval from the errors of earlier forecasts; None if there are none.
    """
    times, calls = rows.times, step.calls
    absent = [call for call in calls if call.signature not in times]
    there = [call for call in calls if call.signature in times]
    number = sum(call.count for call in calls)
    operators_s = sum(call.count * times[call.signature].seconds for call in there)
    counted = median(faults.counts) if faults is not None and faults.counts else None
    cost = times.get(FAULT.signature)
    faults_s = None if counted is None or cost is None else counted * cost.seconds
    seconds = operators_s + (faults_s or 0.0)
    device: dict[str, Any] = {}
    if spec.on_gpu:
        seconds, device = _pipelined(step, rows)
    known = known or interval([])
    every = list(there)
    if faults_s:
        every += _faulting(faults)
    dates = sorted(times[call.signature].created_utc for call in there)
    bytes_ = sum(call.count * call.bytes for call in calls)
    unknown = sum(call.count * call.bytes for call in absent)
    reasons = _reasons(absent, rows)
    return ForecastRecord(
        spec=msgspec.structs.replace(spec, batch=step.batch),
        place=place,
        program=program_of(step),
        created_utc=now_utc(),
        seconds=seconds,
        ci_low=seconds * math.exp(-known.reach),
        ci_high=seconds * math.exp(known.reach),
        operators_s=operators_s,
        faults=counted,
        faults_s=faults_s,
        scored=known.scored,
        factors=factors or {},
        **device,
        calls=number,
        stored=sum(call.signature in times.keys() - rows.fresh for call in calls),
        measured=sum(call.signature in rows.fresh for call in calls),
        missing=len(absent),
        missing_calls=sum(call.count for call in absent) / number if number else 0.0,
        missing_bytes=unknown / bytes_ if bytes_ else None,
        oldest_utc=dates[0] if dates else None,
        newest_utc=dates[-1] if dates else None,
        terms=_terms([*every, *absent], rows, seconds),
        status="failed" if reasons else "ok",
        reason="; ".join(reasons) or None,
        types=step.types or None,
        notes=(*step.notes, *_notes(spec, there, rows, faults_s)),
    )


def _pipelined(step: OperatorsFacts, rows: Rows) -> tuple[float, dict[str, Any]]:
    """Return the time of an eager step on a GPU, and the fields ``host_s`` and ``graph_s``."""
    host = {name: row.host_s for name, row in rows.times.items()}
    device = {name: row.seconds for name, row in rows.times.items()}
    calls = enqueued(step.calls, step.order, host, device)
    sums = {
        "host_s": sum(call.host_s for call in calls),
        "graph_s": sum(call.device_s for call in calls),
    }
    return period(calls), sums


def _terms(every: Sequence[RecordedCall], rows: Rows, total_s: float) -> tuple[ForecastTerm, ...]:
    terms = []
    for call in every:
        row = rows.times.get(call.signature)
        how: dict[str, Any] = {}
        if row is not None:
            how = {
                "seconds": row.seconds,
                "enqueue_s": row.host_s if row.enqueue_s else None,
                "ci_low": row.ci_low,
                "ci_high": row.ci_high,
                "share": call.count * row.seconds / total_s if total_s > 0 else 0.0,
                "source": "measured" if call.signature in rows.fresh else "stored",
                "created_utc": row.created_utc,
            }
        terms.append(
            ForecastTerm(
                operator=call.operator,
                signature=call.signature,
                names=call.names,
                count=call.count,
                direction=call.direction,
                **how,
            )
        )
    return tuple(sorted(terms, key=lambda term: -term.share))


def _reasons(absent: Sequence[RecordedCall], rows: Rows) -> list[str]:
    """Return the rows that a forecast lacks: a sum without them is no forecast."""
    if not absent:
        return []
    few = ", ".join(dict.fromkeys(each.operator for each in absent[:4]))
    profiled = [each.profiled for each in absent if each.profiled is not None]
    share = f" ({sum(profiled):.1%} of a profiled step)" if len(profiled) == len(absent) else ""
    refused = (rows.refused.get(each.signature) for each in absent)
    return [
        f"{len(absent)} operators were not measured{share}: {few}{', ...' * (len(absent) > 4)}",
        *list(dict.fromkeys(filter(None, refused)))[:2],
    ]


def _notes(
    spec: StepSpec, there: Sequence[RecordedCall], rows: Rows, faults_s: float | None
) -> list[str]:
    single = sum(rows.times[call.signature].ci_low is None for call in there)
    shared = sum(rows.times[call.signature].disturbed > 0 for call in there)
    notes = {
        "the host's time in modules and autograd, beside its calls, is not included": spec.on_gpu,
        "to record its calls the step was run several times, untimed": spec.own is not None,
        "page faults were not counted: they are not in the forecast": (
            faults_s is None and not spec.on_gpu
        ),
        f"{single} rows were measured in a single process": single,
        f"other processes used the cores while {shared} rows were measured": shared,
    }
    return holding(notes)


#: Share of steps that shall lie within the interval of their forecast.
LEVEL: Final = 0.9
#: Half of the interval, as a fraction, while fewer than :data:`MIN_SCORED` forecasts were scored:
#: the largest error of an earlier method for five users' models.
ASSUMED: Final = 0.17
#: Minimum number of scored forecasts: the largest of fewer errors does not reach :data:`LEVEL`.
MIN_SCORED: Final = 9
# Maximum number of documents of each table that are read for scores.
_MAX_DOCUMENTS: Final = 200
# Fields that identify a step in the documents of forecasts, steps and breakdowns.
_STEP: Final = ("model", "options", "own", "swaps", "batch", "phase", "layout", "feed")
_PLACE: Final = ("framework", "mode", "precision", "device", "threads", "library")


class ScoreInterval(NamedTuple):
    """Half of an interval, as the logarithm of a ratio, and the number of scores behind it."""

    reach: float
    scored: int


def interval(errors: list[float]) -> ScoreInterval:
    """Return the interval that contains the next error with probability :data:`LEVEL`.

    Among n errors and the next one, all ranks of the next one are equally likely. So it is at most
    the error of rank ``LEVEL * (n + 1)`` with that probability (split conformal prediction).

    Args:
        errors: logarithms of forecast over measured time.
    """
    ordered = sorted(map(abs, errors))
    if len(ordered) < MIN_SCORED:
        return ScoreInterval(math.log1p(ASSUMED), len(ordered))
    place = min(len(ordered), math.ceil(LEVEL * (len(ordered) + 1)))
    return ScoreInterval(ordered[place - 1], len(ordered))


def scored(store: Reader | None, place: Place) -> list[float]:
    """Return the errors of forecasts whose step was timed or broken down later.

    Args:
        store: store with the forecasts; None if there are no stored forecasts.
        place: forecasts with another framework, mode, precision, device, number of threads or
            library are not used.

    Returns:
        Logarithms of forecast over measured time, one for the newest forecast of each step.
    """
    if store is None:
        return []
    # Steps on a GPU have no number of threads.
    names = [name for name in _PLACE if name != "threads" or place.device == "cpu"]
    wanted = [str(getattr(place, name)) for name in names]

    def here(document: Mapping[str, Any]) -> bool:
        return [str(document.get(name)) for name in names] == wanted

    errors: dict[str, float] = {}
    for _, document in store.documents("breakdown", _MAX_DOCUMENTS):
        error = document.get("forecast_error")
        if here(document) and error is not None and error > -1.0:
            errors.setdefault(_key(document), math.log1p(error))
    timed: dict[str, tuple[int, float]] = {}
    for number, document in store.documents("step", _MAX_DOCUMENTS):
        seconds = (document.get("time_s") or {}).get("median")
        if here(document) and seconds:
            timed.setdefault(_key(document), (number, seconds))
    for number, document in store.documents("forecast", _MAX_DOCUMENTS):
        later, seconds = timed.get(_key(document), (0, 0.0))
        if document.get("status") == "ok" and here(document) and number < later:
            errors.setdefault(_key(document), math.log(document["forecast_s"] / seconds))
    return list(errors.values())


def _key(document: Mapping[str, Any]) -> str:
    """Return a text that identifies a step; missing fields have their default.

    A user's file may have changed since: its steps are also identified by their calls.
    """
    names = _STEP if document.get("own") is None else (*_STEP, "program")
    # Breakdowns of earlier versions have no feed.
    known = {**document, "feed": document.get("feed") or "resident"}
    return json.dumps([known.get(name) or None for name in names], sort_keys=True)
