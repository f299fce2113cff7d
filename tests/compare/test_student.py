"""Quantiles of Student's distribution, against tables and closed forms."""

import math

import numpy as np
import pytest

from pydlbench.compare.statistics import detectable, holm, quantile, quantiles, two_sided


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


def test_one_degree_of_freedom_is_cauchy():
    t = np.array([0.3, 1.0, 5.0])
    expected = [1 - 2 / math.pi * math.atan(x) for x in t]
    assert two_sided(t, np.ones(3, dtype=int)) == pytest.approx(expected)


def test_two_degrees_of_freedom_have_a_closed_form():
    t = np.array([0.5, 2.0, 9.0])
    expected = [1 - x / math.sqrt(2 + x * x) for x in t]
    assert two_sided(t, np.full(3, 2)) == pytest.approx(expected)


def test_quantile_and_tail_are_inverse_for_mixed_degrees():
    freedom = np.array([3, 8, 8, 15])
    t = quantiles(0.99, freedom)
    assert two_sided(-t, freedom) == pytest.approx([0.01] * 4, rel=1e-6)


def test_an_infinite_distance_is_improbable_not_impossible():
    p = two_sided(np.array([math.inf, 0.0, math.nan]), np.array([7, 7, 7]))
    assert 0 < p[0] < 1e-12
    assert p[1] == 1
    assert math.isnan(p[2])


@pytest.mark.parametrize("freedom", [3, 10, 60])
@pytest.mark.parametrize("margin", [0.0, 1.1, 2.5])
def test_what_is_detectable_is_found_as_often_as_it_says(freedom, margin):
    """With estimates of the scatter of its own in each of two samples, like in reality."""
    rng = np.random.default_rng(5)
    p, power, count = 0.001, 0.8, 100_000
    t = quantile(1 - p, freedom)
    own, other = np.sqrt(rng.chisquare(freedom, (2, count)) / freedom)
    sd, margin = 0.01 * own, 0.01 * margin * t
    distance = detectable(p, margin, sd, np.full(count, freedom), power)
    measured = distance + rng.normal(0, 0.01, count)
    found = np.mean(measured > np.maximum(t * 0.01 * other, margin))
    # A margin that is given, whatever the estimate, is the easier one where the estimate is large.
    assert power - 0.006 < found < power + (0.1 if margin else 0.006)


def test_far_beyond_the_quantile_the_margin_is_what_has_to_be_exceeded():
    sd, freedom = np.array([0.001]), np.array([20])
    found = detectable(0.01, 0.1, sd, freedom, 0.8)[0]
    assert found == pytest.approx(0.1 + quantile(0.6, 20) * 0.001, rel=1e-3)


def test_holm_steps_down():
    # The example of the method: the smallest times n, the next times n - 1, never decreasing.
    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_counts_only_what_is_known():
    found = holm(np.array([0.01, math.nan, 0.2]))
    assert found[0] == pytest.approx(0.02)
    assert math.isnan(found[1])
    assert holm(np.array([math.nan])).shape == (1,)


def test_holm_never_passes_one():
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
