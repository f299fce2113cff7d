"""How many repetitions a width takes."""

import random

import pytest

from pydlbench.study.plan import (
    MAX_REPETITIONS,
    MAX_REPETITIONS_FOR_WIDTH,
    planned_repetitions,
    relative_deviation,
    repetitions,
)
from pydlbench.timing.statistics import median


@pytest.mark.parametrize(
    ("known", "count"), [(None, 4), (0.0, 4), (0.01, 4), (0.027, 5), (1, MAX_REPETITIONS)]
)
def test_repetitions_follow_the_scatter_that_is_known(known, count):
    assert repetitions(known) == count


def test_the_planned_width_is_reached():
    rng = random.Random(0)
    sd, width = 0.036, 0.03
    count = repetitions(sd, width)
    errors = [abs(median(rng.gauss(1, sd) for _ in range(count)) - 1) for _ in range(2000)]
    assert sorted(errors)[1900] == pytest.approx(width, rel=0.15)


def test_the_scatter_is_that_of_the_middle_row():
    assert relative_deviation([1.0]) is None
    assert relative_deviation([1.0, 1.0]) == 0
    assert relative_deviation([1.0, 1.02]) == pytest.approx(0.0140, rel=0.01)
    assert planned_repetitions([]) == planned_repetitions([None, 0.0]) == 4
    assert planned_repetitions([0.0, 0.027, None, 5.0]) == 5


def test_who_asks_for_a_width_may_have_more_repetitions():
    assert (repetitions(0.05), repetitions(0.05, 0.03)) == (MAX_REPETITIONS, 17)
    assert repetitions(0.05, 0.001) == MAX_REPETITIONS_FOR_WIDTH
    assert repetitions(None, 0.001) == 4
