"""How far a sweep is, with an invented clock."""

from __future__ import annotations

import io

import pytest

from pydlbench.cli.sweep_output import format_span
from pydlbench.cli.sweep_running import SweepProgress
from pydlbench.runner.sweep import Job, Row
from pydlbench.runner.sweep_forecast import Span


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def job(rows: int) -> Job:
    found = tuple(Row(fields={}, label=f"row {index}") for index in range(rows))
    return Job(kind="layers", table=1, place="", words=(), rows=found)


@pytest.fixture
def clock():
    return Clock()


def make(clock, jobs, spans, **options):
    return SweepProgress(io.StringIO(), jobs, spans, now=clock, every_s=30.0, **options)


def test_what_is_left_is_counted_in_forecast_seconds(clock):
    jobs = [job(2), job(1)]
    # A second each, and ten for the last one.
    progress = make(clock, jobs, [Span(2, 2), Span(10, 10)])
    progress(jobs[0], 0, "first")
    assert progress.left_s() is None
    clock.now = 3.0
    progress(jobs[0], 1, "second")
    assert progress.left_s() == pytest.approx(3.0 * 11)


def test_parts_of_a_row_count(clock):
    jobs = [job(1)]
    progress = make(clock, jobs, [Span(4, 4)])
    progress(jobs[0], 0, "a")
    clock.now = 1.0
    progress(jobs[0], 0.25, "b")
    assert progress.left_s() == pytest.approx(3.0)


def test_rows_of_an_earlier_attempt_take_no_time(clock):
    jobs = [job(4)]
    progress = make(clock, jobs, [Span(4, 4)])
    progress(jobs[0], 2, "")  # they are there already
    progress(jobs[0], 2, "third")
    assert progress.left_s() is None
    clock.now = 5.0
    progress(jobs[0], 3, "fourth")
    assert progress.left_s() == pytest.approx(5.0)


def test_where_there_is_no_terminal_a_line_comes_now_and_then(clock, capsys):
    jobs = [job(3)]
    progress = make(clock, jobs, [Span(3, 3)])
    for done, now in enumerate((0.0, 31.0, 40.0)):
        clock.now = now
        progress(jobs[0], done, f"row {done}")
    progress.close()
    err = capsys.readouterr().err
    assert err == "1 of 3 rows; row 1; about 62 s left\n"


def test_quiet_says_nothing(clock, capsys):
    jobs = [job(2)]
    progress = make(clock, jobs, [Span(1, 1)], quiet=True)
    clock.now = 99.0
    progress(jobs[0], 1, "x")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (Span(0.01, 0.5), "10.0 ms to 500 ms"),
        (Span(3, 40), "3.0 to 40 s"),
        (Span(60, 600), "1.0 to 10 min"),
        (Span(1800, 36000), "0.5 to 10 h"),
    ],
)
def test_intervals_have_one_unit(span, text):
    assert format_span(span) == text
