"""Simulated runs: how often a row's median lies in the interval that was expected of it."""

import math

import pytest

from pydlbench.compare.expected import expected, occasions
from pydlbench.compare.match import key


def seconds(side):
    return {key(row): row.median for row in side.rows}


@pytest.mark.parametrize("runs_each", [1, 4])
@pytest.mark.parametrize("occasions_known", [3, 4, 8])
def test_nine_of_ten_intervals_hold_in_the_next_run(machine, occasions_known, runs_each):
    """However many runs an occasion has, it is a single later run that is told."""
    here = machine(run_sd=0.06, row_sd=0.03, rows=12)
    inside = count = 0
    for _ in range(150):
        runs = [[here.run() for _ in range(runs_each)] for _ in range(occasions_known)]
        together = [[seconds(run) for run in each] for each in runs]
        intervals = expected(runs[0][0].rows, together)
        following = here.run()
        # Rows of a run share what the machine does then: one in three is looked at.
        for row, interval in list(zip(following.rows, intervals, strict=True))[::3]:
            inside += interval.low <= row.median <= interval.high
            count += 1
    # More than nine of ten: a row that has scattered more than its kind keeps its own scatter.
    assert 0.88 <= inside / count <= 0.98


def test_runs_of_one_occasion_count_once(machine):
    """Runs behind one another say nothing of later ones, however many there are."""
    here = machine(run_sd=0.05)
    runs = [here.run() for _ in range(8)]
    together = [[seconds(run) for run in runs]]
    assert expected(runs[0].rows, together) == [None] * here.rows
    apart = [[seconds(run) for run in runs[start:]] for start in range(3)]
    intervals = expected(runs[0].rows, apart)
    assert {interval.occasions for interval in intervals} == {3}
    assert intervals == expected(runs[0].rows, [[seconds(run)] for run in runs[:3]])


def test_a_row_that_was_disturbed_in_the_first_run_of_an_occasion_counts_with_the_next(machine):
    here = machine()
    runs = [seconds(here.run()) for _ in range(3)]
    disturbed = seconds(here.run())
    rows = here.run().rows
    left_out = key(rows[2])
    known = disturbed.pop(left_out)
    behind = {**dict.fromkeys(disturbed, 1.0), left_out: known}
    intervals = expected(rows, [[run] for run in runs] + [[disturbed, behind]])
    assert {interval.occasions for interval in intervals} == {4}
    assert intervals == expected(rows, [[run] for run in runs] + [[{**disturbed, left_out: known}]])


def test_a_row_without_times_on_enough_occasions_has_no_interval(machine):
    here = machine()
    runs = [seconds(run) for run in (here.run(), here.run(), here.run())]
    rows = here.run().rows
    del runs[1][key(rows[2])]
    intervals = expected(rows, [[run] for run in runs])
    assert [interval is None for interval in intervals] == [
        number == 2 for number in range(here.rows)
    ]


def test_the_interval_is_around_the_mean_of_the_occasions(row):
    rows = [row("net/conv")]
    runs = [[{key(rows[0]): each}] for each in (0.9, 1.0, 1.0 / 0.9)]
    (interval,) = expected(rows, runs)
    assert math.sqrt(interval.low * interval.high) == pytest.approx(1.0)
    # Student's t of two degrees of freedom, of a standard deviation of 0.105.
    assert math.log(interval.high) == pytest.approx(2.920 * 0.10536 * math.sqrt(4 / 3), rel=1e-3)


def test_runs_within_half_an_hour_are_one_occasion():
    times = ["10:29", "09:40", "10:00", "10:30", "11:15"]
    runs = [(f"2030-01-02T{time}:00+00:00", {"row": number}) for number, time in enumerate(times)]
    assert [[run["row"] for run in each] for each in occasions(runs)] == [[1, 2], [0, 3], [4]]
