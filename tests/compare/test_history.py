"""Scatter: of visits, of replicates, of rows of the same kind, against what was planted."""

import math

import numpy as np
import pytest

from pydlbench.compare.scatter import (
    between_runs,
    moderated,
    of_replicates,
    of_visits,
    visits_of,
)
from pydlbench.compare.stored import repeats

ROWS = 200


def kinds(count=ROWS):
    return np.full(count, "conv2d")


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("freedom", [1, 5, 10])
def test_rows_that_scatter_alike_share_their_variance(rng, freedom):
    sums = 4.0 * rng.chisquare(freedom, ROWS)
    variance, total = moderated(sums, np.full(ROWS, float(freedom)), kinds())
    usual = sums < 4 * 2 * (freedom + 3)
    assert np.median(variance) == pytest.approx(4.0, rel=0.25)
    assert np.std(np.log(variance[usual])) < 0.3 * np.std(np.log(sums / freedom))
    assert np.median(total) > 3 * freedom


def test_rows_that_do_not_keep_their_own(rng):
    true = np.exp(rng.normal(0, 3, ROWS))
    sums = true * rng.chisquare(10, ROWS)
    variance, total = moderated(sums, np.full(ROWS, 10.0), kinds())
    assert np.std(np.log(variance / true)) < 0.6
    assert np.median(total) < 15


def test_an_unusual_row_is_not_made_usual(rng):
    sums = rng.chisquare(10, ROWS)
    sums[3] = 1000.0
    variance, total = moderated(sums, np.full(ROWS, 10.0), kinds())
    assert variance[3] == pytest.approx(100)
    assert total[3] == 10


def test_a_row_without_any_is_expected_to_scatter_as_its_kind(rng):
    sums, freedom = rng.chisquare(5, ROWS), np.full(ROWS, 5.0)
    sums[0] = freedom[0] = 0.0
    assert moderated(sums, freedom, kinds())[0][0] == pytest.approx(1.0, rel=0.3)
    alone = np.array(["gemm"] + ["conv2d"] * (ROWS - 1))
    assert math.isnan(moderated(sums, freedom, alone)[0][0])


def test_visits_tell_the_variance_of_a_ratio_of_medians(rng, row):
    logs = rng.normal(0, 0.02, (2, ROWS, 6))
    ratios = np.median(logs[1], axis=1) - np.median(logs[0], axis=1)
    sides = [visits_of([row(visits=np.exp(one).tolist()) for one in logs[side]]) for side in (0, 1)]
    variance, _ = of_visits(sides, kinds())
    assert np.sqrt(np.median(variance)) == pytest.approx(np.std(ratios), rel=0.15)


def test_what_a_lap_has_in_common_is_not_the_rows_own(rng, row):
    logs = rng.normal(0, 0.005, (ROWS, 6)) + rng.normal(0, 0.1, 6)
    visits = visits_of([row(visits=np.exp(one).tolist()) for one in logs])
    variance, _ = of_visits([visits, visits], kinds())
    assert np.sqrt(np.median(variance)) < 0.01


def test_a_single_visit_tells_nothing(row):
    once = visits_of([row(), row()])
    variance, _ = of_visits([once, once], kinds(2))
    assert np.isnan(variance).all()


@pytest.mark.parametrize("own", [0.003, 0.03])
def test_replicates_tell_rows_from_runs(rng, own):
    names = list(range(ROWS))
    runs = []
    for _ in range(12):
        logs = rng.normal(0, own, ROWS) + rng.normal(0, 0.1)
        runs.append(dict(zip(names, np.exp(logs).tolist(), strict=True)))
    found = of_replicates([runs], [names], kinds())
    assert np.sqrt(np.median(found.rows)) == pytest.approx(own, rel=0.15)
    assert math.sqrt(found.run) == pytest.approx(0.1, rel=0.5)
    assert (found.run_freedom, found.count) == (11, 12)


def test_groups_may_differ_as_a_whole():
    """A change between two versions is no scatter between replicates of either."""
    names = list(range(6))
    groups = [
        [{name: time * (1 + 0.001 * ((name + number) % 2)) for name in names} for number in (0, 1)]
        for time in (1.0, 2.0)
    ]
    found = of_replicates(groups, [names, names], kinds(6))
    assert np.sqrt(found.rows).max() < 0.005
    assert found.count == 4


def test_one_run_replicates_nothing():
    found = of_replicates([[{0: 1.0}], []], [[0], [0]], kinds(1))
    assert np.isnan(found.rows).all()
    assert (found.run, found.count) == (None, 0)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.05])
def test_rows_of_two_runs_tell_what_visits_do_not(rng, between):
    rest = rng.normal(0, math.hypot(0.01, between), ROWS)
    rest[:20] += 0.5  # these have changed
    found, freedom = between_runs(rest, np.full(ROWS, 0.01**2))
    assert math.sqrt(found) == pytest.approx(between, rel=0.15, abs=0.004)
    assert freedom == ROWS - 21


def test_a_replicate_differs_in_nothing_but_its_time(side, row):
    one = side("a", [row()])
    assert repeats(one, side("b", [row()]))
    for change in ({"code": "0the"}, {"packages": {"numpy": "3.0"}}, {"code": None}):
        assert not repeats(one, side("b", [row()], environment={**one.environment, **change}))
    assert not repeats(one, side("b", [row()], device={**one.device, "name": "Other 1"}))
