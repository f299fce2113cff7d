"""Statistics of nodes: what is found, and what is not."""

import math

import numpy as np
import pytest
from invented_fleet import fleet

from pydlbench.fleet.effects import (
    FAST,
    SAME,
    SLOW,
    UNCLEAR,
    against_others,
    detectable,
    false_discovery,
    judge,
    moderated,
)

ONE = np.zeros(1000, dtype=int)


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_fleet_has_at_most_one_false_flag_in_a_thousand(seed):
    effects = judge(fleet(np.random.default_rng(seed)), ONE, 0.03)
    flags = np.isin(effects.verdict, (SLOW, FAST))
    assert flags.sum() <= effects.verdict.size / 1000


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_are_5_percent_slower_are_found(seed):
    slow = dict.fromkeys(range(0, 1000, 50), 1.05)
    effects = judge(fleet(np.random.default_rng(100 + seed), slow=slow), ONE, 0.03)
    found = (effects.verdict == SLOW).any(axis=1)
    assert found[list(slow)].mean() >= 0.99
    found[list(slow)] = False
    assert found.sum() <= 1


def test_a_node_that_is_slow_in_one_metric_only_is_found_there_and_nowhere_else():
    log_s = fleet(np.random.default_rng(3), noise=0.003, rounds=6)
    log_s[:, 7, 4] += math.log(1.08)
    effects = judge(log_s, ONE, 0.03)
    assert effects.verdict[7, 4] == SLOW
    assert effects.log[7, 4] == pytest.approx(math.log(1.08), abs=0.03)
    assert (effects.verdict[7, [0, 1, 2, 3]] != SLOW).all()
    assert effects.verdict[7, -1] != SLOW


def test_two_nodes_can_be_told_apart_and_which_of_them_is_the_slow_one():
    rng = np.random.default_rng(5)
    log_s = fleet(rng, nodes=2, metrics=3, rounds=8, noise=0.002, slow={0: 1.0, 1: 1.05})
    effects = judge(log_s, np.zeros(2, dtype=int), 0.03)
    assert (effects.verdict[1] == SLOW).all()
    assert (effects.verdict[0] == FAST).all()
    assert effects.log[0] == pytest.approx(-effects.log[1])


def test_a_single_disturbed_round_is_no_slow_node():
    rng = np.random.default_rng(6)
    log_s = rng.normal(0, 0.005, (3, 200, 2))
    log_s[1, 11] += 0.3
    effects = judge(log_s, np.zeros(200, dtype=int), 0.03)
    assert (effects.verdict[11] == UNCLEAR).all()
    assert (effects.verdict != SLOW).all()


def test_a_single_round_is_no_slow_node():
    """Whether it was disturbed only other rounds of the same node could tell."""
    log_s = np.random.default_rng(6).normal(0, 0.005, (3, 200, 2))
    log_s[:2, 11] = np.nan
    log_s[2, 11] += 0.3
    effects = judge(log_s, np.zeros(200, dtype=int), 0.03)
    assert effects.log[11] == pytest.approx(0.3, abs=0.05)
    assert (effects.verdict[11] == UNCLEAR).all()
    assert (effects.verdict != SLOW).all()


def test_margins_are_margins():
    """A node that is certainly slower, but by less than the margin, is none to be sent back."""
    log_s = np.random.default_rng(7).normal(0, 0.001, (5, 100, 1))
    log_s[:, 0] += 0.02
    assert judge(log_s, np.zeros(100, dtype=int), 0.03).verdict[0, 0] == SAME
    assert judge(log_s, np.zeros(100, dtype=int), 0.01).verdict[0, 0] == SLOW


def test_ratios_are_to_the_median_of_the_others_of_a_kind():
    values = np.log(np.array([[[1.0], [2.0], [4.0], [8.0], [16.0], [np.nan]]]))
    own = against_others(values, np.array([0, 0, 0, 1, 1, 1]))
    ratios = np.exp(own[0, :, 0])
    expected = [1 / math.sqrt(8), 2 / 2, 4 / math.sqrt(2), 0.5, 2.0]
    assert ratios[:5] == pytest.approx(expected)
    assert math.isnan(ratios[5])


@pytest.mark.parametrize("count", [2, 5, 6])
def test_medians_of_others_are_those_that_numpy_finds(count):
    values = np.random.default_rng(count).normal(size=(2, count, 3))
    found = against_others(values, np.zeros(count, dtype=int))
    for node in range(count):
        rest = np.median(np.delete(values, node, axis=1), axis=1)
        np.testing.assert_allclose(found[:, node], values[:, node] - rest)


def test_what_is_missing_is_no_zero_and_a_lonely_node_has_no_verdict():
    log_s = np.zeros((3, 4, 2))
    log_s[:, 3] = np.nan
    log_s[1:, 2, 1] = np.nan
    effects = judge(log_s, np.array([0, 0, 0, 0]), 0.03)
    assert effects.rounds.tolist() == [[3, 3, 3], [3, 3, 3], [3, 1, 3], [0, 0, 0]]
    assert (effects.verdict[3] == UNCLEAR).all()
    alone = judge(np.zeros((3, 1, 2)), np.array([0]), 0.03)
    assert (alone.verdict == UNCLEAR).all()
    assert np.isnan(alone.log).all()


def test_equal_variances_are_pooled_and_unequal_ones_are_not():
    rng = np.random.default_rng(8)
    equal = 4.0 * rng.chisquare(2, 4000) / 2
    variance, freedom = moderated(equal, np.full(4000, 2))
    usual = np.median(variance)
    assert usual == pytest.approx(4.0, rel=0.1)
    assert np.median(freedom) > 40
    true = 4.0 * 6 / rng.chisquare(6, 4000)  # a scaled inverse chi-squared distribution
    _, freedom = moderated(true * rng.chisquare(2, 4000) / 2, np.full(4000, 2))
    # 6 and the own 2; without the nodes that are judged by themselves the others look more alike.
    assert 8 <= np.median(freedom) <= 12


def test_two_nodes_have_one_node_s_worth_of_scatter():
    variance, freedom = moderated(np.array([2.0, 2.0]), np.array([2, 2]))
    assert variance.tolist() == [2.0, 2.0]
    assert freedom.tolist() == [2, 2]


def test_a_variance_far_beyond_the_others_counts_as_it_is():
    own = np.full(100, 1.0) * np.random.default_rng(9).chisquare(3, 100) / 3
    own[5] = 1000.0
    variance, freedom = moderated(own, np.full(100, 3))
    assert variance[5] == 1000.0
    assert freedom[5] == 3
    assert variance.max(where=np.arange(100) != 5, initial=0) < 5


def test_rates_of_false_discoveries_are_those_of_benjamini_and_hochberg():
    p = np.array([0.01, np.nan, 0.04, 0.03, 0.5])
    found = false_discovery(p)
    assert found[[0, 2, 3, 4]] == pytest.approx([0.04, 0.04 * 4 / 3, 0.04 * 4 / 3, 0.5])
    assert math.isnan(found[1])


def test_what_is_said_to_be_found_is_found():
    """The slowdown that a fleet says it would find is planted in fleets like it, and found."""
    rng = np.random.default_rng(10)

    def clean():
        return rng.normal(0, 0.01, (4, 300, 1))

    size = detectable(judge(clean(), np.zeros(300, dtype=int), 0.03), 0.03)[0]
    hits = 0
    for _ in range(100):
        log_s = clean()
        log_s[:, 0] += math.log1p(size)
        hits += judge(log_s, np.zeros(300, dtype=int), 0.03).verdict[0, 0] == SLOW
    assert hits >= 95
