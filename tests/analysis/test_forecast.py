"""Forecasts: rows by place, sums of invented rows, page faults, and what earlier ones were off."""

import math
from types import SimpleNamespace

import msgspec
import pytest
from breakdown_records import document_of, make_record
from said import says

from pydlbench.analysis import forecast
from pydlbench.analysis.forecast import (
    ASSUMED,
    MIN_SCORED,
    ScoreInterval,
    conclude,
    counted_faults,
    forecast_step,
    interval,
    scaling,
    scored,
)
from pydlbench.analysis.rows import FAULT, Rows, batches, stored_rows
from pydlbench.records.breakdown import Level
from pydlbench.records.estimate import ForecastRecord, OperatorTime, Place, StepFaults
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.records.user_model import UserModelSpec
from pydlbench.report.blocks import TableBlock
from pydlbench.report.estimate import forecast_report
from pydlbench.report.text import as_text
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store
from pydlbench.timing.chunk import Chunk

PLACE = Place(framework="torch", mode="eager", threads=2, processor="CPU", library="torch 2.0")
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
    ("field", "value"),
    [
        ("framework", "tensorflow"),
        ("mode", "compiled"),
        ("precision", "bf16"),
        ("device", "cuda:0"),
        ("threads", 4),
        ("processor", "another CPU"),
        ("library", "torch 2.1"),
    ],
)
def test_rows_of_another_place_are_never_used(store_path, run_record, field, value):
    other = msgspec.structs.replace(PLACE, **{field: value})
    with Store.open(store_path) as store:
        store.begin(run_record, "forecast")
        one = row("a", 1.0, 2.0, place=other)
        store.add(run_record.id, Entry.from_document("operator", one.to_dict(), one.key))
        assert stored_rows(store, PLACE, [call("a")]) == {}
        assert stored_rows(store, other, [call("a"), call("b")]) == {"a": one}


def test_the_newest_row_counts_whatever_run_it_is_from(store_path, run_record):
    later = msgspec.structs.replace(run_record, id=f"{run_record.id}-later")
    with Store.open(store_path) as store:
        for number, run in enumerate((run_record, later)):
            store.begin(run, "forecast")
            one = row("a", 1.0 + number)
            store.add(run.id, Entry.from_document("operator", one.to_dict(), one.key))
        assert stored_rows(store, PLACE, [call("a")])["a"].seconds == 2.0
        store.delete(later.id)
        assert stored_rows(store, PLACE, [call("a")])["a"].seconds == 1.0
    assert stored_rows(None, PLACE, [call("a")]) == {}


def test_operands_lie_in_memory_together_as_far_as_there_is_room():
    gib = 1 << 30
    calls = [call("a", size=gib // 2), call("b", size=gib // 2), call("c", size=2 * gib), call("d")]
    together = list(batches([*calls[:2], FAULT, *calls[2:]]))
    names = [[one.operator for one in batch] for batch in together]
    assert names == [["page fault"], ["of a", "of b"], ["of c"], ["of d"]]


# -----------------------------------------------------------------------------
# The sum.


def test_a_forecast_is_the_sum_of_its_rows_and_faults():
    rows = Rows(
        times={
            "a": row("a", 0.010, 0.012, 0.011),
            "b": row("b", 0.001, 0.001),
            FAULT.signature: row("fault", 2e-6),
        },
        fresh={"b"},
    )
    calls = (call("a", 3, size=10), call("b", 7, size=10))
    faults = StepFaults(
        place=PLACE, step="{}", program="f3", created_utc=WHEN, counts=(3000.0, 1000.0, 2500.0)
    )
    found = conclude(CASE, PLACE, listed_as(calls), rows, faults, known=ScoreInterval(0.1, 12))
    assert found.operators_s == pytest.approx(3 * 0.011 + 7 * 0.001)
    assert found.faults == 2500
    assert found.faults_s == pytest.approx(0.005)
    assert found.seconds == pytest.approx(0.040 + 0.005)
    assert found.ci_low == pytest.approx(found.seconds * math.exp(-0.1))
    assert found.ci_high == pytest.approx(found.seconds * math.exp(0.1))
    assert (found.stored, found.measured, found.missing, found.calls) == (1, 1, 0, 10)
    assert (found.status, found.reason, found.scored) == ("ok", None, 12)
    assert [one.operator for one in found.terms] == ["of a", "of b", "page fault"]
    assert sum(one.share for one in found.terms) == pytest.approx(1)
    assert ForecastRecord.from_dict(found.to_dict()) == found
    blocks = forecast_report(RunRecord(id="", created_utc=WHEN), [found.to_dict()])
    assert says(as_text(blocks), "2,500 page faults 5.00 ms")
    (table,) = (block for block in blocks if isinstance(block, TableBlock))
    each = {cells[0]: cells[table.titles.index("each")] for cells in table.cells}
    assert each == {"of a": "11.0 ms", "of b": "1.00 ms", "page fault": "2.00 us"}


def test_a_forecast_without_all_of_its_rows_says_what_share_has_none():
    rows = Rows(times={"a": row("a", 1.0)}, refused={"b": "no such operator here"})
    calls = (call("a", 3, size=10), call("b", 1, size=70))
    found = conclude(CASE, PLACE, listed_as(calls), rows)
    assert found.faults_s is None
    assert any("page faults" in note for note in found.notes)
    assert found.status == "failed"
    assert found.missing == 1
    assert found.missing_calls == pytest.approx(0.25)
    assert found.missing_bytes == pytest.approx(0.7)
    assert "no such operator here" in found.reason
    assert found.ci_high == pytest.approx(3.0 * (1 + ASSUMED))
    assert [(one.source, one.seconds) for one in found.terms] == [
        ("stored", 1.0),
        ("missing", None),
    ]


# -----------------------------------------------------------------------------
# What is looked up, timed again and counted.


class Worker:
    def describe(self):
        return {"version": "2.0"}


class Session:
    cpus = (0, 1)

    def worker(self, *_):
        return Worker()

    def processor(self, _):
        return "CPU"

    def cache_bytes(self, device):
        return {"cpu": 1000, "cuda:0": 20_000}[device]


@pytest.fixture
def invented(monkeypatch):
    """A step of two calls, one beyond the cache; what its rows take now, and what is asked for."""
    now = {"small": 1e-3, "large": 2e-3, FAULT.signature: 1e-6}
    asked = []

    def measured(*given, **_):
        place, calls, rows = given[2:]
        for one in calls:
            asked.append(one.signature)
            visits = [now[one.signature]] * 2
            disturbed = one.signature in now.get("disturbed", ())
            rows.times[one.signature] = row(
                one.signature, *visits, place=place, disturbed=int(disturbed)
            )
            rows.fresh.add(one.signature)
            yield rows.times[one.signature]

    now |= {"larger": 1e-5, "largest": 1e-5}
    calls = (
        call("small", 2, size=400),
        *(call(name, 1, size=4000) for name in ("large", "larger", "largest")),
    )
    monkeypatch.setattr(forecast, "measure_rows", measured)
    monkeypatch.setattr(forecast, "listed", lambda *_: listed_as(calls))
    monkeypatch.setattr(forecast, "counted_faults", lambda *_: 5000.0)
    return now, asked


@pytest.fixture
def stored(store_path, run_record):
    """A store in which a run has begun, and what keeps the run's documents there."""
    with Store.open(store_path) as store:
        store.begin(run_record, "forecast")

        def keep(table, document, key):
            store.add(run_record.id, Entry.from_document(table, document, key))

        yield store, keep


def test_what_the_store_has_is_not_measured_but_timed_again_and_scaled_by_class(invented, stored):
    now, asked = invented
    store, keep = stored
    first = forecast_step(CASE, Session(), store, keep=keep)
    assert asked == ["small", "large", "larger", "largest", FAULT.signature]
    assert first.seconds == pytest.approx(2e-3 + 2.02e-3 + 5e-3)
    assert (first.measured, first.factors) == (4, {})
    # An hour later the memory is slower by half, and one call of the other class by a tenth.
    for name in ("large", "larger", "largest"):
        now[name] *= 1.5
    now["small"] *= 1.1
    now[FAULT.signature] *= 1.2
    asked.clear()
    again = forecast_step(CASE, Session(), store, keep=keep)
    assert sorted(asked) == ["large", "larger", "largest", FAULT.signature, "small"]
    assert again.factors == pytest.approx({"memory": 1.5, "faults": 1.2})
    assert again.seconds == pytest.approx(2e-3 + 3.03e-3 + 6e-3)
    share = 2e-3 / 9.02e-3
    wider = math.log(again.ci_high / again.seconds) - math.log(first.ci_high / first.seconds)
    assert wider == pytest.approx(share * math.log(1.1))
    assert (again.stored, again.measured) == (4, 0)
    # What was timed again is not kept, and nothing is timed where that is not wanted.
    asked.clear()
    known = forecast_step(CASE, Session(), store, measures=False)
    assert asked == []
    assert known.seconds == pytest.approx(first.seconds)


def test_stored_rows_give_an_answer_before_anything_is_counted_or_timed(invented, stored):
    _, asked = invented
    store, keep = stored
    whole = forecast_step(CASE, Session(), store, keep=keep)
    asked.clear()
    first = next(forecast.forecasts(CASE, Session(), store, keep=keep))
    assert (asked, first.faults, first.missing) == ([], None, 0)
    assert first.seconds == pytest.approx(whole.operators_s)


def test_a_call_that_is_made_forwards_and_backwards_counts_with_both(invented, stored, monkeypatch):
    now, _ = invented
    backwards = msgspec.structs.replace(call("small", 6, size=400), direction="backward")
    calls = (call("small", 2, size=400), backwards, call("large", 1, size=4000))
    monkeypatch.setattr(forecast, "listed", lambda *_: listed_as(calls))
    store, keep = stored
    first = forecast_step(CASE, Session(), store, keep=keep)
    now["small"] *= 1.1
    again = forecast_step(CASE, Session(), store, keep=keep)
    assert again.seconds == first.seconds
    # Of 15 ms the small one takes 8, and page faults 5.
    wider = math.log(again.ci_high / again.seconds) - math.log(first.ci_high / first.seconds)
    assert wider == pytest.approx(8 / 15 * math.log(1.1))


def test_on_a_gpu_classes_of_calls_are_by_its_own_cache(invented, stored):
    now, _ = invented
    step = msgspec.structs.replace(CASE, device="cuda:0")
    store, keep = stored
    forecast_step(step, Session(), store, keep=keep)
    for name in now:
        now[name] *= 1.5
    again = forecast_step(step, Session(), store, keep=keep)
    assert again.factors == pytest.approx({"cache": 1.5})


@pytest.mark.parametrize("free", ["stored", "again"])
def test_a_row_of_no_time_tells_nothing_of_its_class(invented, stored, free):
    now, _ = invented
    store, keep = stored
    now["large"] = 0.0 if free == "stored" else 2e-3
    forecast_step(CASE, Session(), store, keep=keep)
    now["large"] = 2e-3 if free == "stored" else 0.0
    assert forecast_step(CASE, Session(), store).factors == {"faults": 1.0}


def test_what_a_page_fault_costs_is_not_scaled_by_a_disturbed_visit(invented, stored):
    now, _ = invented
    store, keep = stored
    first = forecast_step(CASE, Session(), store, keep=keep)
    now[FAULT.signature] *= 3
    now["disturbed"] = {FAULT.signature}
    again = forecast_step(CASE, Session(), store)
    assert again.faults_s == first.faults_s
    assert again.factors == {"memory": 1.0}
    now["disturbed"] = set()
    calm = forecast_step(CASE, Session(), store)
    assert calm.faults_s == pytest.approx(3 * first.faults_s)


def test_a_step_without_page_faults_does_not_ask_what_one_costs_today(
    invented, stored, monkeypatch
):
    monkeypatch.setattr(forecast, "counted_faults", lambda *_: 0.0)
    _, asked = invented
    store, keep = stored
    forecast_step(CASE, Session(), store, keep=keep)
    asked.clear()
    forecast_step(CASE, Session(), store)
    assert sorted(asked) == ["large", "larger", "largest", "small"]


@pytest.mark.usefixtures("invented")
def test_page_faults_of_other_calls_are_counted_anew(stored, monkeypatch):
    counts = iter([5000.0] * 3 + [7000.0] * 3)
    monkeypatch.setattr(forecast, "counted_faults", lambda *_: next(counts))
    store, keep = stored
    assert forecast_step(CASE, Session(), store, keep=keep).faults == 5000
    assert forecast_step(CASE, Session(), store, keep=keep).faults == 5000
    # The user's file has one call more today; the command line is the same.
    edited = (call("small", 3, size=400), call("large", 1, size=4000))
    monkeypatch.setattr(forecast, "listed", lambda *_: listed_as(edited))
    assert forecast_step(CASE, Session(), store, keep=keep).faults == 7000


@pytest.mark.parametrize(
    ("ratios", "factors", "untold"),
    [
        ({}, {}, 0.0),
        ({"cache": [1.2, 1.4, 1.3]}, {"cache": 1.3}, 0.0),
        ({"cache": [1.2, 1.1]}, {}, 0.5 * math.log(1.2)),
        ({"faults": [1.2]}, {"faults": 1.2}, 0.0),
        ({"memory": [0.5], "cache": [1.0, 1.1, 1.2]}, {"cache": 1.1}, 0.25 * math.log(2)),
    ],
)
def test_three_calls_tell_of_their_class_and_fewer_widen_the_interval(ratios, factors, untold):
    found = scaling(ratios, {"cache": 0.5, "memory": 0.25})
    assert found == (factors, pytest.approx(untold))


@pytest.mark.usefixtures("invented")
def test_nothing_is_kept_of_faults_that_nobody_can_count(monkeypatch):
    monkeypatch.setattr(forecast, "counted_faults", lambda *_: None)
    kept = []
    found = forecast_step(CASE, Session(), None, keep=lambda table, *_: kept.append(table))
    assert kept == ["operator"] * 4
    assert (found.faults, found.faults_s, found.status) == (None, None, "ok")


@pytest.mark.parametrize(("step_s", "steps"), [(1e-3, 8), (0.5, 4), (3.0, 2)])
def test_page_faults_are_counted_in_as_many_steps_as_fit_into_two_seconds(
    monkeypatch, step_s, steps
):
    counts = iter(range(100, 200))
    requests = []

    class Kernel:
        def sample(self, request):
            requests.append(request)
            mine = [next(counts) for _ in range(request.samples)]
            return Chunk(seconds=(step_s,) * request.samples, faults=sum(mine) / len(mine))

    monkeypatch.setattr(forecast, "prepare_step", lambda *_, **__: Kernel())
    worker = SimpleNamespace(close=lambda: None)
    counted = counted_faults(CASE, SimpleNamespace(worker=lambda *_: worker))
    assert sum(request.samples for request in requests) == steps
    assert counted == pytest.approx(100 + (steps - 1) / 2)


# -----------------------------------------------------------------------------
# The interval: what earlier forecasts were off by.


def test_few_scores_tell_no_interval_and_many_hold_nine_of_ten():
    assert interval([0.5] * (MIN_SCORED - 1)) == ScoreInterval(math.log1p(ASSUMED), MIN_SCORED - 1)
    assert interval([-0.5, *[0.1] * (MIN_SCORED - 1)]).reach == 0.5
    errors = [number / 100 * (-1) ** number for number in range(1, 100)]
    assert interval(errors) == ScoreInterval(0.9, 99)


def step_document(seconds, **changes):
    case = {**CASE.to_dict(), "threads": 2, "library": "torch 2.0", **changes}
    return {**case, "status": "ok", "time_s": {"median": seconds}}


def broken_down(measured_s, forecast_s, **changes):
    known = {"batch": 4, "library": "torch 2.0", "measured": Level(median=measured_s, n=6)}
    return document_of(
        make_record(**{"model": "mnist", "forecast_s": forecast_s, **known, **changes})
    )


def test_a_step_scores_its_newest_forecast_once(store_path, run_record):
    def forecast_of(seconds, batch=4):
        rows = Rows(times={"a": row("a", seconds)})
        listed = msgspec.structs.replace(listed_as((call("a"),)), batch=batch)
        return conclude(CASE, PLACE, listed, rows).to_dict()

    check = broken_down(1.0, 0.8, model="other")
    with Store.open(store_path) as store:
        store.begin(run_record, "forecast")
        for table, document in (
            ("step", step_document(7.0)),  # before the forecasts
            ("forecast", forecast_of(5.0)),
            ("forecast", forecast_of(1.1)),
            ("forecast", forecast_of(3.0, batch=8)),
            ("step", step_document(1.0)),
            ("step", step_document(9.0, batch=8, threads=1)),
            ("step", step_document(9.0, mode="compiled")),
            ("breakdown", check),
            ("breakdown", {**check, "model": "exact", "forecast_error": 0.0}),
            ("breakdown", {**check, "device": "cuda:0"}),
            ("breakdown", {**check, "library": "torch 1.0"}),
            ("breakdown", {**check, "forecast_error": None}),
        ):
            store.add(run_record.id, Entry.from_document(table, document))
        wanted = [math.log(0.8), 0.0, math.log(1.1)]
        assert sorted(scored(store, PLACE)) == pytest.approx(wanted)
    assert scored(None, PLACE) == []


@pytest.mark.parametrize("lacks", [(), ("feed",)])
def test_a_breakdown_and_the_forecast_that_it_made_are_one_score(store_path, run_record, lacks):
    """Also one of an earlier version, which does not say where its images came from."""
    broken = {name: value for name, value in broken_down(1.0, 1.1).items() if name not in lacks}
    rows = Rows(times={"a": row("a", 1.1)})
    listed = msgspec.structs.replace(listed_as((call("a"),)), batch=4)
    made = conclude(CASE, PLACE, listed, rows)
    with Store.open(store_path) as store:
        store.begin(run_record, "breakdown")
        for table, document in (
            ("forecast", made.to_dict()),
            ("breakdown", broken),
            ("step", step_document(1.0)),
        ):
            store.add(run_record.id, Entry.from_document(table, document))
        assert scored(store, PLACE) == pytest.approx([math.log(1.1)])
        # A step whose images come from the host is another one.
        fed = Entry.from_document("breakdown", broken_down(1.0, 1.2, feed="host"))
        store.add(run_record.id, fed)
        assert sorted(scored(store, PLACE)) == pytest.approx([math.log(1.1), math.log(1.2)])


def test_a_user_s_file_that_was_edited_scores_no_forecast_of_the_earlier_one(
    store_path, run_record
):
    case = msgspec.structs.replace(CASE, model="a.py:build", own=UserModelSpec(), layout="as-built")
    made = conclude(case, PLACE, listed_as((call("a"),)), Rows(times={"a": row("a", 2.0)}))
    same = {**step_document(1.0), **case.to_dict(), "batch": made.spec.batch}
    edited = {**same, "program": "another"}
    with Store.open(store_path) as store:
        store.begin(run_record, "forecast")
        for table, document in (("forecast", made.to_dict()), ("step", edited)):
            store.add(run_record.id, Entry.from_document(table, document))
        assert scored(store, PLACE) == []
        entry = Entry.from_document("step", {**same, "program": made.program})
        store.add(run_record.id, entry)
        assert scored(store, PLACE) == pytest.approx([math.log(2)])
