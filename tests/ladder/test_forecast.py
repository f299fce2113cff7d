"""Forecasts: rows by place, sums and intervals of invented rows, and the calibration."""

import itertools
import math

import msgspec
import pytest

from pydlbench.ladder import forecast
from pydlbench.ladder.calibration import fitted
from pydlbench.ladder.forecast import _Forecaster, conclude
from pydlbench.ladder.rows import Rows, batches, blocks_call, faults_call, stored_rows
from pydlbench.records.forecast import (
    CalibratedStep,
    CalibrationRecord,
    ForecastRecord,
    OperatorTime,
    Place,
)
from pydlbench.records.operator import OperatorsFacts, RecordedCall
from pydlbench.records.own import OwnSpec
from pydlbench.records.step import StepSpec
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

PLACE = Place(
    framework="torch",
    mode="eager",
    threads=2,
    processor="CPU",
    library="torch 2.0",
    pages="kept",
)
CASE = StepSpec(model="mnist", batch=4)
WHEN = "2030-01-02T03:04:05+00:00"


def row(signature, *visits, place=PLACE, **how):
    return OperatorTime(
        signature=signature,
        operator=f"of {signature}",
        place=place,
        created_utc=WHEN,
        visits_s=visits,
        **how,
    )


def listed_as(calls):
    return OperatorsFacts(calls=calls, batch=8)


def call(signature, count=1, size=0):
    return RecordedCall(signature=signature, operator=f"of {signature}", count=count, bytes=size)


def calibration(call_s=1e-5, step_s=2e-3, residual=0.05, place=PLACE):
    step = CalibratedStep(model="x", calls=1, operators_s=1.0, faults_s=None, visits_s=(1.0,))
    steps = (msgspec.structs.replace(step, residual=-residual),)
    return CalibrationRecord(
        place=place,
        phase="forward",
        created_utc=WHEN,
        call_s=call_s,
        step_s=step_s,
        residual=residual,
        steps=steps,
    )


# -----------------------------------------------------------------------------
# Rows: their intervals, and by what they are found.


@pytest.mark.parametrize(
    ("visits", "interval"),
    [
        ((3.0,), (None, None)),
        ((3.0, 1.0), (1.0, 3.0)),
        ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (1.0, 6.0)),
        (tuple(map(float, range(1, 10))), (2.0, 8.0)),
    ],
)
def test_the_interval_of_a_row_is_that_of_its_visits(visits, interval):
    one = row("a", *visits)
    assert (one.ci_low, one.ci_high) == interval
    assert OperatorTime.from_dict(one.to_dict()) == one


@pytest.mark.parametrize(
    ("visits", "raised", "interval"),
    [
        ((3.0, 4.0, 3.5), (1.0, 1.5, 9.0), (1.5, 4.0)),
        # What the allocator keeps may have been larger in the step's own state.
        ((3.0, 4.0, 3.5), (5.0,), (3.0, 5.0)),
        ((3.0,), (1.0,), (1.0, 3.0)),
    ],
)
def test_page_faults_reach_from_one_state_of_the_allocator_to_the_other(visits, raised, interval):
    one = row("a", *visits, raised_s=raised)
    assert (one.ci_low, one.ci_high) == interval
    assert one.seconds == row("a", *visits).seconds
    assert OperatorTime.from_dict(one.to_dict()) == one


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("framework", "tensorflow"),
        ("mode", "compiled"),
        ("precision", "bf16"),
        ("device", "cuda:0"),
        ("threads", 4),
        ("processor", "another CPU"),
        ("library", "torch 2.1"),
        ("pages", "default"),
    ],
)
def test_rows_of_another_place_are_never_used(store_path, run_record, field, value):
    other = msgspec.structs.replace(PLACE, **{field: value})
    with Store.open(store_path) as store:
        store.begin(run_record, "forecast")
        one = row("a", 1.0, 2.0, place=other)
        store.add(run_record.id, Entry.of("operator", one.to_dict(), one.key))
        assert stored_rows(store, PLACE, [call("a")]) == {}
        assert stored_rows(store, other, [call("a"), call("b")]) == {"a": one}


def test_the_newest_row_counts_whatever_run_it_is_from(store_path, run_record):
    later = msgspec.structs.replace(run_record, id=f"{run_record.id}-later")
    with Store.open(store_path) as store:
        for number, run in enumerate((run_record, later)):
            store.begin(run, "forecast")
            one = row("a", 1.0 + number)
            store.add(run.id, Entry.of("operator", one.to_dict(), one.key))
        assert stored_rows(store, PLACE, [call("a")])["a"].seconds == 2.0
        store.delete(later.id)
        assert stored_rows(store, PLACE, [call("a")])["a"].seconds == 1.0
    assert stored_rows(None, PLACE, [call("a")]) == {}


def test_operands_lie_in_memory_together_as_far_as_there_is_room():
    gib = 1 << 30
    calls = [call("a", size=gib // 2), call("b", size=gib // 2), call("c", size=2 * gib), call("d")]
    together = list(batches([*calls[:2], blocks_call([1]), *calls[2:]]))
    names = [[one.operator for one in batch] for batch in together]
    assert names == [["page faults"], ["of a", "of b"], ["of c"], ["of d"]]


# -----------------------------------------------------------------------------
# The sum.


def test_a_forecast_is_the_sum_of_its_rows_calls_and_faults():
    rows = Rows(
        times={
            "a": row("a", 0.010, 0.012, 0.011),
            "b": row("b", 0.001, 0.001),
            blocks_call([9]).signature: row("blocks", 0.004, 0.006),
        },
        fresh={"b"},
    )
    calls = (call("a", 3, size=10), call("b", 7, size=10))
    found = conclude(CASE, PLACE, listed_as(calls), [blocks_call([9])], rows, calibration())
    assert found.operators_s == pytest.approx(3 * 0.011 + 7 * 0.001)
    assert found.overhead_s == pytest.approx(10 * 1e-5 + 2e-3)
    assert found.faults_s == pytest.approx(0.005)
    assert found.seconds == pytest.approx(0.040 + 0.0021 + 0.005)
    # Rows are slow together; the calibration is wrong by itself.
    half = math.hypot(3 * 0.001 + 0.001, 0.05 * found.seconds)
    assert found.ci_low == pytest.approx(found.seconds - half)
    assert found.ci_high == pytest.approx(found.seconds + half)
    assert (found.stored, found.measured, found.missing, found.calls) == (1, 1, 0, 10)
    assert (found.status, found.reason) == ("ok", None)
    assert [one.operator for one in found.terms] == ["of a", "of b", "page faults"]
    assert sum(one.share for one in found.terms) == pytest.approx(1 - 0.0021 / found.seconds)
    assert ForecastRecord.from_dict(found.to_dict()) == found


def test_page_faults_that_were_counted_cost_as_much_as_those_that_were_played():
    played = row("large", 0.004, 0.006, raised_s=(0.001,), faults=1000.0)
    found = played.of_faults("mine", [1000.0, 3000.0])
    assert found.visits_s == pytest.approx((0.005, 0.015))
    # How many there are differs from process to process, and the interval is of that.
    assert (found.ci_low, found.ci_high) == pytest.approx((0.005, 0.015))
    assert (found.signature, found.faults, found.raised_s) == ("mine", 2000.0, ())
    assert played.of_faults("none", [0.0]).seconds == 0.0
    with pytest.raises(ValueError, match="no page faults were timed"):
        row("a", 1.0).of_faults("mine", [1.0])


@pytest.mark.parametrize("always", [False, True])
def test_a_model_of_one_s_own_has_its_page_faults_counted_once(
    monkeypatch, store_path, run_record, always
):
    asked = []

    def measured(*given, **_):
        calls, rows = given[3:]
        for one in calls:
            asked.append(one.signature)
            faults = 1000.0 if one.operator == "page faults" else None
            rows.times[one.signature] = row(one.signature, 0.010, 0.010, faults=faults)
            rows.fresh.add(one.signature)
            yield rows.times[one.signature]

    counts = iter([2000.0, 4000.0])
    monkeypatch.setattr(forecast, "measure_rows", measured)
    monkeypatch.setattr(forecast, "counted_faults", lambda *_: next(counts))
    monkeypatch.setattr(forecast, "huge_pages_always", lambda: always)
    case, own = msgspec.structs.replace(CASE, own=OwnSpec()), blocks_call([9])

    def rows_of(made):
        steps = made.own_rows(case, PLACE, [call("a")], own)
        kept = []
        while True:
            try:
                kept.append(next(steps))
            except StopIteration as end:
                return end.value, kept

    with Store.open(store_path) as store:
        store.begin(run_record, "forecast")
        first, kept = rows_of(_Forecaster(None, store, True, 2, lambda _: None))
        for one in kept:
            store.add(run_record.id, Entry.of("operator", one.to_dict(), one.key))
        played = own.signature if always else faults_call().signature
        assert asked == ["a", played]
        assert first.times[own.signature].seconds == pytest.approx(0.010 if always else 0.030)
        # What was counted is a row like any other, and found again when nothing is measured.
        again, _ = rows_of(_Forecaster(None, store, False, 2, lambda _: None))
        assert again.times[own.signature] == first.times[own.signature]
        assert again.fresh == set()


def test_a_forecast_without_all_of_its_rows_says_what_share_has_none():
    rows = Rows(times={"a": row("a", 1.0)}, refused={"b": "no such operator here"})
    calls = (call("a", 3, size=10), call("b", 1, size=70))
    found = conclude(CASE, PLACE, listed_as(calls), [blocks_call([9])], rows, None)
    assert found.faults_s is None
    assert "page faults" in found.reason
    assert found.status == "failed"
    assert found.missing == 1
    assert found.missing_calls == pytest.approx(0.25)
    assert found.missing_bytes == pytest.approx(0.7)
    assert "no such operator here" in found.reason
    assert "not calibrated" in found.reason
    assert (found.ci_low, found.ci_high) == (3.0, 3.0)
    assert [(one.source, one.seconds) for one in found.terms] == [
        ("stored", 1.0),
        *[("missing", None)] * 2,
    ]


# -----------------------------------------------------------------------------
# Calibration: costs that were planted are found, and none is below zero.


def planted(call_s, step_s, off=()):
    sizes = ((1e-4, 10), (1e-3, 200), (3e-2, 40), (1e-1, 25))
    return [
        CalibratedStep(
            model=f"n{number}",
            calls=calls,
            operators_s=seconds,
            faults_s=seconds / 10 if number % 2 else None,
            visits_s=(
                (seconds * (1.1 if number % 2 else 1) + call_s * calls + step_s) * (1 + error),
            ),
        )
        for number, ((seconds, calls), error) in enumerate(
            itertools.zip_longest(sizes, off, fillvalue=0.0)
        )
    ]


@pytest.mark.parametrize(("call_s", "step_s"), [(2e-6, 1e-5), (0.0, 1e-4), (3e-6, 0.0)])
def test_planted_costs_are_found(call_s, step_s):
    found = fitted(PLACE, "forward", WHEN, planted(call_s, step_s))
    assert found.call_s == pytest.approx(call_s, abs=1e-12)
    assert found.step_s == pytest.approx(step_s, abs=1e-10)
    assert found.residual == pytest.approx(0, abs=1e-9)
    assert CalibrationRecord.from_dict(found.to_dict()) == found


def test_costs_are_never_below_zero_and_what_they_do_not_fit_is_the_residual():
    found = fitted(PLACE, "forward", WHEN, planted(0.0, 0.0, off=(-0.2, -0.2, -0.1, 0.1)))
    assert found.call_s >= 0
    assert found.step_s >= 0
    assert found.residual >= 0.1
    assert found.residual == max(abs(one.residual) for one in found.steps)


@pytest.mark.parametrize(("call_s", "residual"), [(1e-6, 0.9), (9e-6, 0.9), (2e-3, 0.02)])
def test_a_step_has_the_residual_of_the_network_whose_calls_are_as_long(call_s, residual):
    known = {10e-6: -0.9, 1e-3: 0.02}  # residuals by seconds of a call
    steps = tuple(
        CalibratedStep(
            model="x",
            calls=10,
            operators_s=10 * mean,
            faults_s=None,
            visits_s=(10 * mean,),
            residual=one,
        )
        for mean, one in known.items()
    )
    assert msgspec.structs.replace(calibration(), steps=steps).residual_of(call_s) == residual


def test_a_single_step_fits_nothing():
    with pytest.raises(ValueError, match="1 steps"):
        fitted(PLACE, "forward", WHEN, planted(0.0, 0.0)[:1])


def test_a_calibration_that_lacks_a_row_says_which_and_why(monkeypatch):
    def rows(_, case, place, calls):  # noqa: ARG001 - as in there
        yield from ()
        return Rows(refused={"a": "no memory"})

    seen = []

    def listing(_, case, place):  # noqa: ARG001 - as in there
        seen.append((case.model, case.layout))
        return listed_as((call("a"),)), ()

    monkeypatch.setattr(_Forecaster, "rows", rows)
    monkeypatch.setattr(_Forecaster, "listed", listing)
    made = _Forecaster(None, None, True, 1, lambda _: None)
    case = msgspec.structs.replace(CASE, layout="nchw")
    with pytest.raises(StopIteration) as end:
        next(made.calibration(case, PLACE))
    assert end.value.value is None
    # The key has no layout: what is calibrated depends on none either.
    assert [layout for _, layout in seen] == ["nhwc"]
    found = conclude(case, PLACE, listed_as(()), [], Rows(), None, uncalibrated=made.uncalibrated)
    assert found.status == "failed"
    assert "of a: no memory" in found.reason
