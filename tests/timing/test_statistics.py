import math
import random
import statistics as stdlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.timing.statistics import (
    interval_ranks,
    median,
    median_interval,
    middle_rounds,
    quantile,
)

times = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@given(times)
def test_median_is_the_standard_librarys(values):
    assert median(values) == pytest.approx(stdlib.median(values), rel=1e-12)


def test_summands_of_the_rounds_in_the_middle_add_up_to_their_sums():
    # Each round another summand is slow: no median sees it, and every sum does.
    rounds = [[2.0 if number == turn else 1.0 for number in range(5)] for turn in range(5)]
    found = middle_rounds([one for each in rounds for one in each], 5)
    assert sum(found) == pytest.approx(6.0)


def test_one_slow_round_does_not_move_the_summands():
    usual = [1.0, 3.0]
    assert middle_rounds([*usual, 50.0, 70.0, *usual], 2) == usual
    assert middle_rounds([1.0, 3.0, 2.0, 4.0], 2) == [1.5, 3.5]
    assert middle_rounds(usual, 2) == usual


@pytest.mark.parametrize(("values", "width"), [([], 2), ([1.0, 2.0, 3.0], 2)])
def test_what_is_no_round_is_refused(values, width):
    with pytest.raises(ValueError, match=f"no rounds of {width}"):
        middle_rounds(values, width)


@given(st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=60))
def test_quartiles_are_the_standard_librarys_inclusive_ones(values):
    q1, q2, q3 = stdlib.quantiles(values, n=4, method="inclusive")
    found = [quantile(values, q) for q in (0.25, 0.5, 0.75)]
    assert found == pytest.approx([q1, q2, q3], rel=1e-9)


@given(times, st.floats(0, 1))
def test_quantiles_stay_inside_the_samples(values, q):
    assert min(values) <= quantile(values, q) <= max(values)


@given(times)
def test_the_interval_is_around_the_median(values):
    interval = median_interval(values)
    assert (interval is None) is (len(values) == 1)
    if interval is not None:
        assert 0 <= interval.low <= median(values) <= interval.high
        assert len(values) < 6 or (min(values) <= interval.low and interval.high <= max(values))


def exact_tail(n: int, k: int) -> float:
    return sum(math.comb(n, i) for i in range(k + 1)) / 2**n


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_ranks_are_the_narrowest_with_enough_coverage(confidence):
    for n in (*range(1, 40), 100, 501, 1000):
        ranks = interval_ranks(n, confidence)
        if ranks is None:
            assert 1 - 2 * exact_tail(n, 0) < confidence, n
            continue
        low, high, reached = ranks
        assert low + high == n - 1
        assert reached == pytest.approx(1 - 2 * exact_tail(n, low), abs=1e-9)
        assert reached >= confidence - 1e-9
        narrower_exists = low + 1 <= (n - 1) // 2
        assert not narrower_exists or 1 - 2 * exact_tail(n, low + 1) < confidence, n


def test_published_ranks():
    # Conover, Practical Nonparametric Statistics: n = 10 gives x(2), x(9) at 97.9 %.
    assert interval_ranks(10, 0.95) == (1, 8, pytest.approx(0.978515625))
    assert interval_ranks(6, 0.95) == (0, 5, pytest.approx(0.96875))
    assert interval_ranks(6, 0.96875) == (0, 5, pytest.approx(0.96875))


@pytest.mark.parametrize(
    ("values", "signed", "ends"),
    [
        ([3.0, 1.0, 2.0, 4.0], False, (0.28, 4.72)),
        ([1.0, 2.0], False, (0.0, 7.85)),  # no time is negative
        ([1.0, 2.0], True, (-4.85, 7.85)),
    ],
)
def test_few_values_are_taken_for_normal(values, signed, ends):
    interval = median_interval(values, signed=signed)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx(ends)


def test_large_counts_follow_the_normal_approximation():
    ranks = interval_ranks(40_000, 0.95)
    assert ranks is not None
    assert ranks[0] == pytest.approx(20_000 - 1.96 * math.sqrt(40_000) / 2, abs=2)


@pytest.mark.parametrize("n", [6, 10, 25, 60])
def test_coverage_by_simulation_on_a_skewed_distribution(n):
    rng = random.Random(20)
    runs, covered = 3000, 0
    _, _, promised = interval_ranks(n, 0.95)
    for _ in range(runs):
        interval = median_interval([rng.lognormvariate(0, 1) for _ in range(n)])
        assert interval is not None
        covered += interval.low <= 1.0 <= interval.high
    # Four standard errors around what the binomial formula promises, on both sides.
    error = 4 * math.sqrt(promised * (1 - promised) / runs)
    assert covered / runs == pytest.approx(promised, abs=error)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_coverage_by_simulation_of_few_values(n):
    rng = random.Random(4)
    runs, normal, skewed = 10_000, 0, 0
    for _ in range(runs):
        logs = [rng.gauss(0, 0.05) for _ in range(n)]
        interval = median_interval([1 + log for log in logs])
        beside = median_interval([math.exp(log) for log in logs])
        assert interval is not None
        assert beside is not None
        normal += interval.low <= 1.0 <= interval.high
        skewed += beside.low <= 1.0 <= beside.high
    # Four standard errors. Of lognormal values of this spread it holds in at least 94.98 % (of
    # 2,000,000), of such with a sigma of 1 in at least 93.9 %.
    error = 4 * math.sqrt(0.95 * 0.05 / runs)
    assert normal / runs == pytest.approx(0.95, abs=error)
    assert skewed / runs == pytest.approx(0.95, abs=error)


def test_no_values_have_no_median_and_no_interval():
    assert median_interval([]) is None
    with pytest.raises(ValueError, match="no values"):
        median([])
