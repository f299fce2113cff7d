"""Quantiles of Student's distribution, against tables and closed forms."""

import math

import numpy as np
import pytest

from pydlbench.compare.statistics import (
    freedom_of,
    pool_variances,
    quantile,
    quantiles,
    scatter_of_means,
    spread_of,
    trimmed_spread,
    two_sided,
    weighted_spread,
)


@pytest.mark.parametrize(
    ("p", "n", "expected"),
    [
        # Tables of Student's t, both tails together.
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 7, 2.365),
        (0.95, 10, 2.228),
        (0.99, 8, 3.355),
        (0.999, 7, 5.408),
        (0.95, 120, 1.980),
    ],
)
def test_quantiles_are_those_of_the_tables(p, n, expected):
    assert quantile(p, n) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    ("freedom", "within"),
    [(1, lambda t: 2 / math.pi * math.atan(t)), (2, lambda t: t / math.sqrt(2 + t * t))],
    ids=["Cauchy", "two"],
)
def test_tails_have_closed_forms(freedom, within):
    t = np.array([0.3, 1.0, 2.0, 5.0, 9.0])
    assert two_sided(t, np.full(5, freedom)) == pytest.approx([1 - within(x) for x in t])


def test_quantile_and_tail_are_inverse_for_mixed_degrees():
    freedom = np.array([3, 8, 8, 15])
    t = quantiles(0.99, freedom)
    assert two_sided(-t, freedom) == pytest.approx([0.01] * 4, rel=1e-6)


def test_an_infinite_distance_is_improbable_not_impossible():
    p = two_sided(np.array([math.inf, 0.0, math.nan]), np.array([7, 7, 7]))
    assert 0 < p[0] < 1e-12
    assert p[1] == 1
    assert math.isnan(p[2])


def test_a_row_is_no_steadier_than_its_kind_and_may_be_less_steady():
    sums, freedom = np.array([0.0, 0.02, 0.16, 0.0]), np.array([1, 2, 1, 0])
    kinds = np.array(["a", "a", "a", "b"])
    sd, known = pool_variances(sums, freedom, kinds)
    shared = math.sqrt(0.18 / 4)
    assert sd[:3] == pytest.approx([shared, shared, 0.4])
    assert known[:3].tolist() == [4, 4, 1]
    assert math.isnan(sd[3])


def test_one_wild_repetition_does_not_move_a_trimmed_mean():
    # Yuen's t for n = 10 and g = 2: h = 6, winsorised values 3, 3, 3, 4, 5, 6, 7, 8, 8, 8.
    values = np.array([[4.0], [1], [8], [2], [7], [3], [1000], [5], [6], [9]])
    spread = trimmed_spread(values)
    assert spread.means == pytest.approx([5.5])
    assert spread.counts.tolist() == [6]
    assert freedom_of([spread]) == 5
    limited = np.array([3, 3, 3, 4, 5, 6, 7, 8, 8, 8])
    assert np.sum(spread.rest**2) == pytest.approx(np.sum((limited - limited.mean()) ** 2))


def test_few_repetitions_and_rows_with_gaps_are_not_trimmed():
    few = np.array([[1.0], [2], [9]])
    assert trimmed_spread(few).means == pytest.approx(spread_of(few).means)
    gaps = np.array([[1.0, 1.0]] * 9 + [[11.0, math.nan]])
    spread = trimmed_spread(gaps)
    assert spread.counts.tolist() == [6, 9]
    assert spread.means == pytest.approx([1.0, 1.0])


def interval(spread):
    """The mean and the half-width of its 95 % interval."""
    (sd,), (freedom,) = scatter_of_means(spread, np.array(["row"]))
    return spread.means[0], quantile(0.95, int(freedom)) * sd


def test_repetitions_of_equal_precision_have_equal_weights():
    rounds = np.array([-0.01, 0.0, 0.01])
    means = np.array([0.1, 0.12, 0.17])
    spread = weighted_spread([mean + rounds for mean in means])
    assert spread.means == pytest.approx([means.mean()])
    assert spread.rest[:, 0] == pytest.approx(means - means.mean())
    assert spread.counts.tolist() == [3]


def test_a_repetition_that_scatters_moves_the_mean_little():
    quiet, loud = np.array([-1e-3, 0, 1e-3]), np.array([0.4, 0.5, 0.9])
    mean, _ = interval(weighted_spread([quiet, quiet + 1e-4, quiet - 1e-4, loud]))
    assert mean == pytest.approx(0, abs=2e-3)


@pytest.mark.parametrize("between", [0.0, 0.01])
def test_the_interval_of_weighted_repetitions_covers_and_is_narrower(between):
    draw, inside, halves = np.random.default_rng(5), 0, []
    for _ in range(200):
        scatter = 0.03 * np.exp(draw.normal(0, 1, 12))
        rounds = [draw.normal(0, between) + s * draw.normal(size=15) for s in scatter]
        mean, half = interval(weighted_spread(rounds))
        inside += abs(mean) < half
        means = np.array([each.mean() for each in rounds])
        halves.append((half, interval(trimmed_spread(means[:, None]))[1]))
    assert inside >= 184
    weighted, equal = np.mean(halves, axis=0)
    assert weighted < 0.9 * equal
