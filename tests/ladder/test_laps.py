"""Laps: everything is visited once in random order, with canary and clock beside each visit."""

import random

import pytest

from pydlbench.ladder.laps import Core, RungLaps, Sampled
from pydlbench.timing.chunk import Chunk


class Invented:
    """A kernel that keeps its requests."""

    def __init__(self, seconds, faults=None):
        self.seconds, self.faults, self.requests = seconds, faults, []

    def sample(self, request):
        self.requests.append(request)
        return Chunk(seconds=(self.seconds,) * request.samples, faults=self.faults)


def made(core=None, names=("native", "operators", "step")):
    """Return laps of invented visits, and the visits as they were made."""
    done = []

    def visit(name):
        return lambda: (done.append(name), {name: 1.0})[1]

    visits = {name: visit(name) for name in names}
    return RungLaps(visits, random.Random(0), core), done


def test_each_lap_visits_everything_once_and_in_another_order():
    laps, done = made()
    for _ in range(12):
        laps.take()
    orders = {tuple(done[i : i + 3]) for i in range(0, len(done), 3)}
    assert all(sorted(one) == ["native", "operators", "step"] for one in orders)
    assert len(orders) > 3
    assert len(laps.taken) == 12
    assert laps.taken[0].seconds == {"native": 1.0, "operators": 1.0, "step": 1.0}
    assert laps.taken[0].canary == laps.taken[0].clock_hz == {}


@pytest.mark.parametrize(
    ("shares", "visits", "canary"),
    [
        ([1.0, 0.99], 1, 0.99),
        ([1.0, 0.5, 1.0], 2, 0.5),  # the reading between the two is slow
        ([0.5, 0.6, 0.97, 0.98], 2, 0.6),
        ([1.0, 0.5, 0.4], 2, 0.4),
    ],
)
def test_a_visit_beside_somebody_else_is_made_once_more_and_then_kept(shares, visits, canary):
    left = iter(shares)
    laps, done = made(lambda: Core(next(left), 4e9), names=("step",))
    lap = laps.take()
    assert len(done) == visits
    assert lap.retaken == (("step",) if visits == 2 else ())
    assert lap.canary == {"step": canary}
    assert lap.clock_hz == {"step": 4e9}


def test_the_reading_between_two_visits_belongs_to_both():
    left = iter([Core(1.0, 4.0e9), Core(0.95, 3.0e9), Core(1.0, 2.0e9)])
    laps, done = made(lambda: next(left), names=("native", "step"))
    lap = laps.take()
    assert lap.canary == {"native": 0.95, "step": 0.95}
    assert [lap.clock_hz[name] for name in done] == [3.5e9, 2.5e9]


def test_what_a_visit_has_read_between_its_samples_stands_for_what_was_read_around_it():
    left = iter([Core(1.0, 4e9), Core(0.5, 4e9), Core(0.5, 4e9)])
    done = []
    visits = {"native": lambda: (done.append("native"), {"native": 1.0})[1]}
    laps = RungLaps(visits, random.Random(0), lambda: next(left), inside={"native": 0.98}.get)
    lap = laps.take()
    assert done == ["native"]
    assert lap.retaken == ()
    assert lap.canary == {"native": 0.98}


def test_what_is_visited_next_is_told():
    laps, done = made()
    told = []
    laps.take(told.append)
    assert told == done


@pytest.mark.parametrize(
    ("seconds", "samples", "untimed"), [(0.0009, 20, 20), (0.03, 3, 4), (0.9, 1, 1), (1.9, 1, 0)]
)
def test_short_kernels_get_more_samples_and_long_ones_no_warm_up(seconds, samples, untimed):
    kernel = Invented(seconds, faults=7.0)
    visit = Sampled("step", kernel)
    assert visit() == visit() == {"step": pytest.approx(seconds)}
    first, *others = kernel.requests
    assert first.samples == 1
    assert [(one.samples, one.untimed) for one in others] == [(samples, untimed)] * 2
    assert visit.faults == [7.0, 7.0]
