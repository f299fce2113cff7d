"""The probes' rounds: calibration, warm-up, medians, on times that are made up."""

from __future__ import annotations

import ctypes

import pytest


class Script(ctypes.Structure):
    _fields_ = (
        ("overhead_s", ctypes.c_double),
        ("per_scale_s", ctypes.c_double),
        ("clock_hz", ctypes.c_double),
        ("slow_rounds", ctypes.c_int),
        ("disturbed_every", ctypes.c_int),
        ("unread_every", ctypes.c_int),
    )


class Outcome(ctypes.Structure):
    _fields_ = (
        ("per_second", ctypes.c_double),
        ("median_per_second", ctypes.c_double),
        ("clock_hz", ctypes.c_double),
        ("median_clock_hz", ctypes.c_double),
        ("seconds", ctypes.c_double),
        ("rounds", ctypes.c_int),
        ("all_rounds", ctypes.c_int),
        ("scale", ctypes.c_uint),
        ("log", ctypes.c_char * 64),
        ("error", ctypes.c_char * 128),
    )


@pytest.fixture(scope="module")
def run(cpp_library):
    library = cpp_library
    library.play_rounds.restype = None
    library.play_rounds.argtypes = (
        ctypes.POINTER(Script),
        ctypes.c_double,
        ctypes.c_double,
        ctypes.c_uint,
        ctypes.POINTER(Outcome),
    )

    def call(*, seconds=0.2, work=1e6, most_scale=1 << 24, **script):
        values = {"overhead_s": 0.0, "per_scale_s": 1e-6, "clock_hz": 1.5e9, **script}
        outcome = Outcome()
        library.play_rounds(Script(**values), seconds, work, most_scale, outcome)
        return outcome

    return call


def test_the_rate_is_work_over_time(run):
    found = run(per_scale_s=1e-6, work=3e6)
    assert found.per_second == pytest.approx(3e12)
    assert found.median_per_second == pytest.approx(3e12)
    assert found.clock_hz == found.median_clock_hz == pytest.approx(1.5e9)
    assert found.seconds >= 0.2
    assert found.error == b""


@pytest.mark.parametrize("per_scale_s", [1e-9, 1e-6, 3e-5])
def test_rounds_are_long_against_an_event_and_many(run, per_scale_s):
    found = run(per_scale_s=per_scale_s, seconds=0.2)
    assert 0.6 * 5e-3 <= found.scale * per_scale_s <= 1.4 * 5e-3
    assert found.rounds >= 20
    # A quarter of the time goes by before the first round that counts.
    assert found.all_rounds - found.rounds >= found.rounds / 4


def test_the_launch_does_not_count_for_the_work(run):
    """Ten microseconds of overhead, a thousand times the work of scale 1."""
    found = run(per_scale_s=1e-8, overhead_s=1e-5, work=1.0)
    assert found.per_second == pytest.approx(1e8, rel=0.01)


def test_a_kernel_that_is_long_by_itself_still_has_five_rounds(run):
    found = run(per_scale_s=0.5, seconds=0.2)
    assert found.scale == 1
    assert found.rounds == 5


def test_the_scale_has_a_bound(run):
    found = run(per_scale_s=1e-9, most_scale=1000)
    assert found.scale == 1000
    assert found.per_second == pytest.approx(1e15)


def test_a_disturbed_round_moves_neither_best_nor_median(run):
    found = run(disturbed_every=4)
    assert found.per_second == pytest.approx(1e12)
    assert found.median_per_second == pytest.approx(1e12)


def test_the_clock_of_the_best_round_is_not_that_of_the_slow_ones(run):
    found = run(seconds=0.2, slow_rounds=30)
    assert found.per_second == pytest.approx(1e12)
    assert found.clock_hz == pytest.approx(1.5e9)
    assert 0.75e9 <= found.median_clock_hz <= 1.5e9


def test_rounds_without_a_clock_are_left_out_of_its_median(run):
    found = run(unread_every=3)
    assert found.median_clock_hz == pytest.approx(1.5e9)
    nothing = run(unread_every=1)
    assert nothing.clock_hz == nothing.median_clock_hz == 0
    assert nothing.per_second == pytest.approx(1e12)


def test_events_lie_inside_of_the_stamps(run):
    assert run().log.startswith(b"seLESwseLESw")


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none_is_an_error(run, time):
    found = run(per_scale_s=time)
    assert b"the time between two events reads" in found.error


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_no_time_is_an_error(run, seconds):
    assert b"seconds" in run(seconds=seconds).error
    assert run(seconds=seconds).all_rounds == 0
