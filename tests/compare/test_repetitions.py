"""Which stored runs count as independent repetitions of a run."""

import dataclasses

import msgspec
import pytest
from invented_rows import measurement
from invented_runs import REPEATABLE

from pydlbench.compare.rows import key, read_side
from pydlbench.compare.stored import compare_sides, repetitions
from pydlbench.errors import UsageError
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

TORCH = {"backend": "torch", "mode": "eager"}


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


def keep(store, name, time, median=0.05, **changes):
    """Store a run of one row that began at a time of the day."""
    record = msgspec.structs.replace(REPEATABLE, id=name, created_utc=f"2030-01-02T{time}:00+00:00")
    store.begin(record, "layers")
    row = measurement(median=median, **changes)
    store.add(record.id, Entry.from_document("layer", row.to_dict()))
    store.finish(record, "done")
    return read_side(name, store)


def medians(store, side, apart=()):
    """What repetitions of a run took, in thousandths of a second."""
    keys = {key(row) for row in side.rows}
    return [round(1e3 * next(iter(run.values()))) for run in repetitions(store, side, keys, apart)]


def test_rows_that_a_run_lacks_are_those_of_another_within_half_an_hour(store):
    keep(store, "whole", "09:00", 0.003)
    whole = store.record("whole").id
    row = measurement(median=0.004, **TORCH)
    store.add(whole, Entry.from_document("layer", row.to_dict()))
    keep(store, "part", "09:20", 0.005)
    own = keep(store, "own", "12:00", 0.009)
    keys = {key(each) for each in read_side("whole", store).rows}
    runs = repetitions(store, own, keys)
    assert sorted(sorted(run.values()) for run in runs) == [[0.004, 0.005], [0.009]]


def test_runs_within_half_an_hour_of_each_other_count_once(store):
    for number, time in enumerate(["09:40", "10:00", "10:29", "10:30", "11:15"], start=1):
        keep(store, f"run{number}", time, number / 1e3)
    own = keep(store, "own", "12:00", 0.009)
    assert medians(store, own) == [9, 5, 4, 2]
    assert medians(store, own, {"own"}) == [5, 4, 2]


def test_what_ran_just_before_or_after_a_run_is_no_repetition_of_it(store):
    keep(store, "before", "10:00", 0.001)
    own = keep(store, "own", "10:20", 0.009)
    keep(store, "after", "10:40", 0.002)
    keep(store, "later", "10:50", 0.003)
    assert medians(store, own) == [9, 3]


def test_a_disturbed_run_gives_way_to_the_one_before_it(store):
    keep(store, "quiet", "10:00", 0.001)
    keep(store, "disturbed", "10:20", 0.002, contended=True)
    assert medians(store, keep(store, "own", "12:00", 0.009)) == [9, 1]


def test_a_run_without_a_time_that_can_be_read_still_has_repetitions(store):
    own = keep(store, "own", "12:00", 0.009)
    keep(store, "later", "12:10", 0.001)
    for text in ("", "yesterday"):
        assert medians(store, dataclasses.replace(own, created_utc=text)) == [9, 1]


def test_runs_of_a_quarter_of_an_hour_are_not_enough_to_tell_a_scatter(store):
    for number in range(5):
        keep(store, f"run{number}", f"10:{3 * number:02d}")
    a, b = keep(store, "a", "12:00"), keep(store, "b", "14:00")
    found = compare_sides(a, b, store)
    assert found.replicates == 0
    assert found.assumed_sd is not None


def test_runs_of_two_backends_are_not_one_group(store):
    """In runs of one environment one takes 50 ms, the other 150 ms: neither varies."""
    for hour in range(5):
        keep(store, f"native{hour}", f"{2 * hour:02d}:00", 0.05 + 1e-5 * hour)
        keep(store, f"torch{hour}", f"{2 * hour + 1:02d}:00", 0.15 + 3e-5 * hour, **TORCH)
    a, b = keep(store, "a", "20:00"), keep(store, "b", "21:00", 0.15, **TORCH)
    found = compare_sides(a, b, store)
    assert (found.replicates, found.assumed_sd) == (12, None)
    (row,) = found.rows
    assert (row.verdict, row.estimate.ratio) == ("SLOWER", pytest.approx(3.0))
    assert row.estimate.resolution < 1.1


def test_a_run_is_not_compared_with_itself(store):
    own = keep(store, "own", "12:00")
    with pytest.raises(UsageError, match="the same run"):
        compare_sides(own, read_side("last", store), store)
