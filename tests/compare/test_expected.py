"""Simulated runs: how often a row's median lies in the interval that was expected of it."""

import math

import pytest

from pydlbench.compare.rows import key
from pydlbench.compare.stored import predict


def seconds(side):
    return {key(row): row.median for row in side.rows}


@pytest.mark.parametrize("runs_known", [3, 4, 8])
def test_nine_of_ten_intervals_hold_in_the_next_run(machine, runs_known):
    here = machine(run_sd=0.06, row_sd=0.03, rows=12)
    inside = count = 0
    for _ in range(150):
        runs = [here.run() for _ in range(runs_known)]
        intervals = predict(runs[0].rows, list(map(seconds, runs)))
        following = here.run()
        # Rows of a run share what the machine does then: one in three is looked at.
        for row, interval in list(zip(following.rows, intervals, strict=True))[::3]:
            inside += interval.low <= row.median <= interval.high
            count += 1
    # More than nine of ten: a row that has scattered more than its kind keeps its own scatter.
    assert 0.88 <= inside / count <= 0.98


def test_a_row_without_times_in_enough_runs_has_no_interval(machine):
    here = machine()
    runs = [seconds(run) for run in (here.run(), here.run(), here.run())]
    rows = here.run().rows
    del runs[1][key(rows[2])]
    intervals = predict(rows, runs)
    assert [interval is None for interval in intervals] == [
        number == 2 for number in range(here.rows)
    ]


def test_the_interval_is_around_the_mean_of_the_runs(row):
    rows = [row("net/conv")]
    runs = [{key(rows[0]): each} for each in (0.9, 1.0, 1.0 / 0.9)]
    (interval,) = predict(rows, runs)
    assert interval.occasions == 3
    assert math.sqrt(interval.low * interval.high) == pytest.approx(1.0)
    # Student's t of two degrees of freedom, of a standard deviation of 0.105.
    assert math.log(interval.high) == pytest.approx(2.920 * 0.10536 * math.sqrt(4 / 3), rel=1e-3)
