"""Who is the fastest, and the ratios of what the rounds took."""

import itertools

import pytest

from pydlbench.study.estimate import clock_beside, ratios, saved_s


def test_the_fastest_has_ratio_one(series):
    best, found = ratios({3: series([2.0] * 9), 5: series([1.0] * 9)})
    assert best == 5
    assert (found[5].median, found[5].interval.low, found[5].interval.high) == (1, 1, 1)
    assert (found[3].median, found[3].rounds) == (2, 9)


def test_the_fastest_is_that_of_shared_rounds_not_of_the_machines_best_hour(series):
    # The second one went on while the machine was twice as fast.
    first = series([1.0] * 9)
    second = series([1.2] * 9 + [0.6] * 20)
    best, found = ratios({0: first, 1: second})
    assert best == 0
    assert found[1].median == pytest.approx(1.2)


def test_of_three_that_beat_each_other_in_turn_nobody_is_ahead_beyond_its_interval(series):
    """The fastest by its median is 0.998x of another one in the rounds that they share."""
    turns = ((1.0, 1.002, 1.004), (1.002, 1.004, 1.0), (1.004, 1.0, 1.002))
    rows = [[turns[i % 3][who] for i in range(12)] for who in range(3)]
    assert len({series(one).median for one in rows}) == 1
    for order in itertools.permutations(range(3)):
        _, found = ratios({number: series(rows[who]) for number, who in enumerate(order)})
        assert all(one.interval.high >= 1 for one in found.values())


def test_the_least_violated_reference_is_taken_where_none_is_without_fault(series):
    # 1 beats 0 by a little in most of their rounds, 2 beats 1 by more, 0 beats 2 by most.
    shared = {
        0: {**dict.fromkeys(range(9), 1.0), **dict.fromkeys(range(9, 18), 1.0)},
        1: {**dict.fromkeys(range(9), 0.99), **dict.fromkeys(range(18, 27), 1.0)},
        2: {**dict.fromkeys(range(9, 18), 1.5), **dict.fromkeys(range(18, 27), 0.9)},
    }
    best, found = ratios({index: series(one) for index, one in shared.items()})
    assert best == 0
    assert found[1].median == pytest.approx(0.99)
    assert found[2].median == pytest.approx(1.5)


def test_who_is_not_eligible_is_compared_with_the_others(series):
    three = {0: series([1.0] * 9), 1: series([2.0] * 9), 2: series([3.0] * 9)}
    best, found = ratios(three, {1, 2})
    assert best == 1
    assert [found[index].median for index in range(3)] == pytest.approx([0.5, 1, 1.5])


def test_without_a_common_round_medians_are_compared(series):
    _, found = ratios({0: series({0: 1.0}), 1: series({1: 3.0})})
    assert (found[1].median, found[1].interval, found[1].rounds) == (3, None, 0)


DRIFT = [1 + 0.1 * i for i in range(9)]


@pytest.mark.parametrize(
    ("default", "kept", "faults", "saved"),
    [
        ([10 * x for x in DRIFT], [7 * x for x in DRIFT], (5000, 2), 0.3 * 14),
        # Rounds that disagree.
        ([10.0] * 3, [9.0, 9.8, 10.5], (5000, 2), 0),
        ([10.0] * 12, [9.0, 9.8, 10.5] * 4, (5000, 2), 0),
        # Without fewer faults the other process is faster for another reason.
        ([10.0] * 9, [7.0] * 9, (0, 0), 0),
        ([10.0] * 9, [7.0] * 9, (None, None), 3),
        # No common round.
        ({0: 10.0}, {1: 1.0}, (None, None), 0),
        # Three rounds that are faster by chance, and three that are much faster.
        ([10.0] * 3, [9.9, 9.5, 9.8], (None, None), 0),
        ([10.0] * 3, [7.0, 7.1, 7.2], (None, None), 2.9),
    ],
)
def test_kept_pages_save_time_if_the_rounds_agree(series, default, kept, faults, saved):
    pair = series(default, faults=faults[0]), series(kept, faults=faults[1])
    assert saved_s(*pair) == pytest.approx(saved)


def test_the_clock_is_that_of_the_rounds_that_both_were_in(series):
    own = series([1.0] * 3)
    other = series([1.0] * 5, clocks=(3e9, None, 3.2e9, 1e9, 1e9))
    assert clock_beside(own, other) == pytest.approx(3.1e9)
    assert clock_beside(own, series([1.0] * 5)) is None
    assert clock_beside(series({7: 1.0}), other) is None
