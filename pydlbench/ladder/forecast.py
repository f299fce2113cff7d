"""A step's time from stored rows of its operators; the step is not timed.

    forecast = sum of operators + calls x cost of a call + cost of a step + page faults

The operators come from recording a step (PyTorch's eager mode, users' models in TensorFlow), or are
cut from the model's graph; their times come from the store, or are measured alone (see
:mod:`pydlbench.ladder.rows`). What calls and a step cost besides is calibrated on networks of our
own, of which nothing is forecast. Page faults are those of the step's blocks, played in its order
in processes without a framework; where a framework keeps its pages there is nothing to be played.

On a GPU each operator has two times, the host's and the device's, and the step is the makespan of
both (:mod:`pydlbench.ladder.pipeline`); what calls and a step cost besides, the host pays.

The interval adds up those of the rows, for a machine that is slow today is slow for all of them,
and on a CPU has beside them the residual of the calibration's network whose calls are as long.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.errors import UnsupportedError
from pydlbench.ladder.calibration import counted_faults, fitted, visited_step
from pydlbench.ladder.experiments import keeps_pages
from pydlbench.ladder.operators import listed
from pydlbench.ladder.pipeline import Enqueued, enqueued, period
from pydlbench.ladder.rows import (
    BLOCKS,
    Rows,
    blocks_call,
    faults_call,
    huge_pages_always,
    measure_rows,
    now_utc,
    stored_rows,
)
from pydlbench.records.forecast import (
    CalibratedStep,
    CalibrationRecord,
    ForecastRecord,
    ForecastTerm,
    Place,
)
from pydlbench.words import FRAMEWORK_MODES, GPU_FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from pydlbench.records.forecast import OperatorTime
    from pydlbench.records.operator import OperatorsFacts, RecordedCall
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.store.reader import Reader

__all__ = ["VISITS", "conclude", "forecast_step", "forecasting", "table_of"]

#: Processes that a missing operator is timed in, where nobody says otherwise.
VISITS: Final = 3
#: Networks of ours; see ``models/families/calibration.py``.
_CALIBRATED: Final = (
    *("calibration-thin", "calibration-short"),
    *("calibration-plain", "calibration-units"),
)


def forecast_step(
    case: StepSpec,
    session: Session,
    store: Reader | None,
    *,
    measures: bool = True,
    visits: int = VISITS,
    keep: Callable[[str, dict[str, Any], str], None] = lambda *_: None,
) -> ForecastRecord:
    """Forecast a step from operators that were timed apart; it is not run.

    Args:
        case: the step; on a GPU in PyTorch's eager mode.
        session: whose workers are used.
        store: of the rows; None knows none.
        measures: measure what the store lacks; else it is missing in the sum.
        visits: processes that a missing operator is timed in.
        keep: called with table, document and key of each row that was measured, at once.

    Raises:
        UsageError: no such model or option.
        UnsupportedError: the framework's calls cannot be listed, or not be timed by signature.
        WorkerError: a worker died.
    """
    steps = forecasting(case, session, store, measures=measures, visits=visits)
    while True:
        try:
            found = next(steps)
        except StopIteration as end:
            record: ForecastRecord = end.value
            return record
        keep(table_of(found), found.to_dict(), found.key)


def table_of(found: OperatorTime | CalibrationRecord) -> str:
    """Return the table of the store that something is kept in."""
    return "calibration" if isinstance(found, CalibrationRecord) else "operator"


def forecasting(
    case: StepSpec,
    session: Session,
    store: Reader | None,
    *,
    measures: bool = True,
    visits: int = VISITS,
    tell: Callable[[str], None] = lambda _: None,
) -> Generator[OperatorTime | CalibrationRecord, None, ForecastRecord]:
    """Yield what is measured as soon as it is finished, and return the forecast.

    Arguments and errors: see :func:`forecast_step`; ``tell`` is called with what is done next.
    """
    if case.on_gpu and case.mode != FRAMEWORK_MODES[GPU_FRAMEWORK][0]:
        raise UnsupportedError(
            f"{case.framework} {case.mode}: on a GPU calls are forecast one by one, as PyTorch's "
            "eager mode makes them; nearest: --framework torch --mode eager"
        )
    tell("operators of the step")
    made = _Forecaster(session, store, measures, visits, tell)
    place = made.place(case)
    found, blocks = made.listed(case, place)
    if blocks and case.own is not None:
        rows = yield from made.own_rows(case, place, found.calls, blocks[0])
    else:
        rows = yield from made.rows(case, place, [*found.calls, *blocks])
    calibration = yield from made.calibration(case, place)
    return conclude(case, place, found, blocks, rows, calibration, uncalibrated=made.uncalibrated)


class _Forecaster:
    """What the parts of a forecast share; see :func:`forecast_step`."""

    def __init__(
        self,
        session: Session,
        store: Reader | None,
        measures: bool,
        visits: int,
        tell: Callable[[str], None],
    ) -> None:
        self._session = session
        self._store = store
        self._measures = measures
        self._visits = visits
        self._tell = tell
        self._keeps: bool | None = None
        #: Why there is no calibration, where it was tried.
        self.uncalibrated = ""

    def place(self, case: StepSpec) -> Place:
        """Return where the operators of a step are timed."""
        session = self._session
        described = session.worker(case.framework, case.device).describe()
        if self._keeps is None:
            self._keeps = case.on_gpu or keeps_pages(case, session)
        return Place(
            framework=case.framework,
            mode=str(case.mode),
            precision=case.precision,
            device=case.device,
            threads=len(session.cpus),
            processor=session.processor(case.device),
            library=f"{case.framework} {described['version']}",
            pages="default" if self._keeps else "kept",
        )

    def listed(
        self, case: StepSpec, place: Place
    ) -> tuple[OperatorsFacts, tuple[RecordedCall, ...]]:
        """Return what a step consists of, and the call that stands for its page faults, if any."""
        found = listed(case, self._session)
        if place.pages == "default" or not found.blocks:
            return found, ()
        return found, (blocks_call(found.blocks),)

    def rows(
        self, case: StepSpec, place: Place, calls: Sequence[RecordedCall]
    ) -> Generator[OperatorTime, None, Rows]:
        """Look calls up, and measure those that are not there."""
        rows = Rows(times=stored_rows(self._store, place, calls))
        missing = [one for one in calls if one.signature not in rows.times]
        if missing and self._measures:
            yield from measure_rows(
                case, self._session, place, missing, rows, visits=self._visits, tell=self._tell
            )
        return rows

    def own_rows(
        self, case: StepSpec, place: Place, calls: Sequence[RecordedCall], blocks: RecordedCall
    ) -> Generator[OperatorTime, None, Rows]:
        """Look calls up, and measure those that are not there, of a model of the user's own.

        Its step is run to record its calls: it is run once more in new processes, to count its page
        faults, each of which costs as much as one of large blocks. Where that cannot be told, its
        own blocks are played, as those of other steps are.
        """
        stored = stored_rows(self._store, place, [blocks])
        if stored or not self._measures or huge_pages_always():
            return (yield from self.rows(case, place, [*calls, blocks]))
        large = faults_call()
        rows = yield from self.rows(case, place, [*calls, large])
        self._tell("page faults of the step")
        counts = [counted_faults(case, self._session) for _ in range(self._visits)]
        known = [one for one in counts if one is not None]
        each = rows.times.get(large.signature)
        if each is None or not each.faults or not known:
            played = yield from self.rows(case, place, [blocks])
            return played.joined(rows)
        row = each.of_faults(blocks.signature, known)
        rows.times[row.signature] = row
        rows.fresh.add(row.signature)
        yield row
        return rows

    def calibration(
        self, case: StepSpec, place: Place
    ) -> Generator[OperatorTime | CalibrationRecord, None, CalibrationRecord | None]:
        """Look the calibration of a place up, or calibrate."""
        key = CalibrationRecord.key_of(place, case.phase, list(_CALIBRATED))
        known = self._store.newest([key]) if self._store else {}
        if key in known:
            return CalibrationRecord.from_dict(known[key])
        if not self._measures:
            return None
        steps = []
        for name in _CALIBRATED:
            self._tell(f"calibration, once for all forecasts of this place: {name}")
            step = yield from self._calibrated(name, case, place)
            if step is None:
                return None
            steps.append(step)
        found = fitted(place, case.phase, now_utc(), steps)
        yield found
        return found

    def _calibrated(
        self, name: str, case: StepSpec, place: Place
    ) -> Generator[OperatorTime, None, CalibratedStep | None]:
        """Sum one of our networks, and run its step; None where an operator has no row."""
        # Whatever is forecast, the same step: a calibration is found again by place and phase.
        own = msgspec.structs.replace(
            case, model=name, options={}, own=None, batch=None, feed="resident", layout="nhwc"
        )
        found, blocks = self.listed(own, place)
        calls = found.calls
        # What is calibrated on a GPU is the host's: its seconds are a sum, the step's are none.
        on_gpu = case.on_gpu
        rows = yield from self.rows(own, place, [*calls, *blocks])
        times = rows.times
        missing = [one for one in (*calls, *blocks) if one.signature not in times]
        if missing:
            why = [rows.refused.get(one.signature, "no row") for one in missing]
            self.uncalibrated = f"{name}: {missing[0].operator}: {why[0]}"
            return None
        return CalibratedStep(
            model=name,
            calls=sum(one.count for one in calls),
            operators_s=sum(
                one.count * (row.host_s if on_gpu else row.seconds)
                for one in calls
                for row in (times[one.signature],)
            ),
            faults_s=sum(times[one.signature].seconds for one in blocks) if blocks else None,
            visits_s=tuple(visited_step(own, self._session)[0] for _ in range(self._visits)),
        )


# -----------------------------------------------------------------------------
# The sum and its interval.


def conclude(
    case: StepSpec,
    place: Place,
    found: OperatorsFacts,
    blocks: Sequence[RecordedCall],
    rows: Rows,
    calibration: CalibrationRecord | None,
    *,
    uncalibrated: str = "",
) -> ForecastRecord:
    """Return the forecast of a step from what is known of its calls.

    Args:
        case: the step.
        place: of the rows.
        found: what the step consists of: its calls, its batch, and what was noticed.
        blocks: the call that stands for its page faults, if any.
        rows: of calls and blocks, as far as there are some.
        calibration: None where there is none; nothing is added for calls then.
        uncalibrated: why there is none.
    """
    times, calls = rows.times, found.calls
    on_gpu = place.device != "cpu"
    every = [*calls, *blocks]
    there = [one for one in every if one.signature in times]
    absent = [one for one in calls if one.signature not in times]
    number = sum(one.count for one in calls)

    def summed(which: Sequence[RecordedCall]) -> float:
        return sum(one.count * times[one.signature].seconds for one in which)

    operators_s = summed([one for one in calls if one.signature in times])
    faults_s = summed(blocks) if blocks and all(one.signature in times for one in blocks) else None
    overhead_s = calibration.call_s * number + calibration.step_s if calibration else 0.0
    single = sum(times[one.signature].ci_low is None for one in there)
    device: dict[str, Any] = {}
    if on_gpu:
        seconds, low, high, device = _pipelined(found, rows, calibration)
    else:
        seconds = operators_s + overhead_s + (faults_s or 0.0)
        besides = 0.0
        if calibration is not None and number and seconds > 0:
            besides = calibration.residual_of(seconds / number) * seconds
        ranges = [(one.count, times[one.signature]) for one in there]
        down = sum(n * (row.seconds - row.ci_low) for n, row in ranges if row.ci_low is not None)
        up = sum(n * (row.ci_high - row.seconds) for n, row in ranges if row.ci_high is not None)
        low = max(0.0, seconds - math.hypot(down, besides))
        high = seconds + math.hypot(up, besides)
    dates = sorted(times[one.signature].created_utc for one in there)
    bytes_ = sum(one.count * one.bytes for one in calls)
    reasons = _reasons(absent, rows, blocks)
    if calibration is None:
        because = f": {uncalibrated}" if uncalibrated else ""
        reasons.append(f"what calls cost is not calibrated{because}")
    return ForecastRecord(
        model=case.model,
        options=case.options,
        own=case.own,
        batch=found.batch,
        phase=case.phase,
        layout=case.layout,
        feed=case.feed,
        place=place,
        created_utc=now_utc(),
        seconds=seconds,
        ci_low=low,
        ci_high=high,
        operators_s=operators_s,
        overhead_s=overhead_s,
        faults_s=faults_s,
        **device,
        calls=number,
        stored=sum(one.signature in times.keys() - rows.fresh for one in calls),
        measured=sum(one.signature in rows.fresh for one in calls),
        missing=len(absent),
        missing_calls=sum(one.count for one in absent) / number if number else 0.0,
        missing_bytes=(sum(one.count * one.bytes for one in absent) / bytes_ if bytes_ else None),
        oldest_utc=dates[0] if dates else None,
        newest_utc=dates[-1] if dates else None,
        calibration=calibration,
        terms=_terms(every, rows, seconds),
        status="failed" if reasons else "ok",
        reason="; ".join(reasons) or None,
        types=found.types or None,
        notes=(*found.notes, *_notes(case, place, blocks, there, rows, single)),
    )


def _pipelined(
    found: OperatorsFacts, rows: Rows, calibration: CalibrationRecord | None
) -> tuple[float, float, float, dict[str, float]]:
    """Return an eager step on a GPU, the ends of its interval, and ``host_s`` and ``graph_s``.

    A makespan grows with each of its times: its ends are those of all of them together, the host's
    with the calibration's residual.
    """
    times = rows.times
    call_s, step_s, residual = 0.0, 0.0, 0.0
    if calibration is not None:
        call_s, step_s = calibration.call_s, calibration.step_s
        residual = calibration.residual

    def step(host: Mapping[str, float], device: Mapping[str, float], off: float) -> list[Enqueued]:
        calls = enqueued(found.calls, found.order, host, device, call_s)
        return [one._replace(host_s=one.host_s * off) for one in (Enqueued(step_s, 0.0), *calls)]

    middle = step(
        {name: row.host_s for name, row in times.items()},
        {name: row.seconds for name, row in times.items()},
        1.0,
    )
    low, high = (
        step(
            {name: row.host_ends()[end] for name, row in times.items()},
            {name: _end(row, end) for name, row in times.items()},
            off,
        )
        for end, off in enumerate((max(0.0, 1 - residual), 1 + residual))
    )
    sums = {
        "host_s": sum(one.host_s for one in middle),
        "graph_s": sum(one.device_s for one in middle),
    }
    return period(middle), period(low), period(high), sums


def _end(row: OperatorTime, end: int) -> float:
    """Return an end of a row's interval: 0 is the lower one; its median where it has none."""
    found = (row.ci_low, row.ci_high)[end]
    return row.seconds if found is None else found


def _terms(every: Sequence[RecordedCall], rows: Rows, total_s: float) -> tuple[ForecastTerm, ...]:
    found = []
    for one in every:
        row = rows.times.get(one.signature)
        how: dict[str, Any] = {}
        if row is not None:
            how = {
                "seconds": row.seconds,
                "enqueue_s": row.host_s if row.enqueue_s else None,
                "ci_low": row.ci_low,
                "ci_high": row.ci_high,
                "share": one.count * row.seconds / total_s if total_s > 0 else 0.0,
                "source": "measured" if one.signature in rows.fresh else "stored",
                "created_utc": row.created_utc,
            }
        found.append(
            ForecastTerm(
                operator=one.operator,
                # A list of all blocks, which nobody reads.
                signature="" if one.operator == BLOCKS else one.signature,
                names=one.names,
                count=one.count,
                direction=one.direction,
                **how,
            )
        )
    return tuple(sorted(found, key=lambda term: -term.share))


def _reasons(
    absent: Sequence[RecordedCall],
    rows: Rows,
    blocks: Sequence[RecordedCall],
) -> list[str]:
    """Return which rows a forecast lacks: a sum without them is no forecast."""
    found = []
    if absent:
        few = ", ".join(dict.fromkeys(one.operator for one in absent[:4]))
        profiled = [one.profiled for one in absent if one.profiled is not None]
        share = f" ({sum(profiled):.1%} of a profiled step)" if len(profiled) == len(absent) else ""
        found.append(
            f"{len(absent)} operators have no row{share}: {few}{', ...' * (len(absent) > 4)}"
        )
        why = list(
            dict.fromkeys(
                rows.refused[one.signature] for one in absent if one.signature in rows.refused
            )
        )
        found += why[:2]
    if any(one.signature not in rows.times for one in blocks):
        found.append("page faults have no row")
    return found


def _notes(
    case: StepSpec,
    place: Place,
    blocks: Sequence[RecordedCall],
    there: Sequence[RecordedCall],
    rows: Rows,
    single: int,
) -> tuple[str, ...]:
    found = []
    if case.own is not None:
        found.append("to record its calls the step was run several times, untimed")
        known = [rows.times[one.signature] for one in blocks if one.signature in rows.times]
        found += [
            f"page faults were counted in runs of the step: {row.faults:,.0f}"
            for row in known
            if row.faults is not None and not row.raised_s
        ]
    if place.device == "cpu" and place.pages == "default":
        found.append(
            f"{case.framework} keeps freed pages by itself: no page faults beside those of the "
            "operators"
        )
    elif place.device == "cpu" and not blocks:
        found.append("blocks of this step are not known: no page faults are in the forecast")
    if single:
        found.append(f"{single} rows have a single visit, and add nothing to the interval")
    shared = sum(rows.times[one.signature].disturbed > 0 for one in there)
    if shared:
        found.append(f"somebody else used the cores during a visit of {shared} rows")
    return tuple(found)
