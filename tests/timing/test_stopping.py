from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from said import says

from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, median_interval
from pydlbench.timing.stopping import (
    AnyOf,
    Budget,
    MaxSamples,
    MedianPrecision,
    SteadyNoise,
    StoppingRule,
    default_rule,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


def samples_until_finished(rule: StoppingRule, values: Iterable[float]) -> int | None:
    for count, value in enumerate(values, 1):
        rule.add_measurement(value)
        if rule.is_finished():
            return count
    return None


def test_precision_stops_a_quiet_kernel_at_the_minimum():
    rule = MedianPrecision(min_samples=10)
    assert samples_until_finished(rule, [1.0, 1.001] * 50) == 10
    assert rule.reason == "precision"


def test_precision_without_samples_is_not_finished():
    assert not MedianPrecision().is_finished()
    assert "0 samples" in MedianPrecision().detail


def test_precision_waits_until_an_interval_exists():
    assert samples_until_finished(MedianPrecision(min_samples=1), [1.0] * 20) == 6


@given(st.integers(0, 1000), st.floats(0.001, 0.05))
def test_precision_never_stops_above_its_width(seed, sigma):
    rng = random.Random(seed)
    values = [rng.gauss(1, sigma) for _ in range(300)]
    n = samples_until_finished(MedianPrecision(), values)
    if n is not None:
        interval = median_interval(values[:n])
        assert interval is not None
        assert interval.half_width(median(values[:n])) <= 0.005


def test_optional_stopping_keeps_most_of_the_coverage():
    rng = random.Random(5)
    covered = stopped = 0
    for _ in range(400):
        values = [rng.gauss(1, 0.01) for _ in range(2000)]
        n = samples_until_finished(MedianPrecision(), values)
        if n is not None:
            stopped += 1
            interval = median_interval(values[:n])
            assert interval is not None
            covered += interval.low <= 1.0 <= interval.high
    assert stopped == 400
    # Asked after every sample, which the procedure does not do: the worst case.
    assert covered / stopped > 0.85


def test_steady_noise_stops_a_bimodal_kernel_that_precision_cannot():
    rng = random.Random(1)
    values = [rng.choice((1.0, 1.4)) * rng.gauss(1, 0.002) for _ in range(1000)]
    assert samples_until_finished(MedianPrecision(), values) is None
    noise = SteadyNoise()
    n = samples_until_finished(noise, values)
    assert n is not None
    assert 128 <= n < 600
    assert noise.reason == "steady-noise"


def test_steady_noise_never_stops_a_drifting_kernel():
    rng = random.Random(2)
    values = [1 + 0.0005 * i + rng.gauss(0, 0.002) for i in range(3000)]
    assert samples_until_finished(SteadyNoise(), values) is None


def test_steady_noise_of_identical_samples_is_steady():
    assert samples_until_finished(SteadyNoise(), [1.0] * 200) == 128


def test_steady_noise_does_not_stop_before_its_minimum():
    assert samples_until_finished(SteadyNoise(min_samples=128), [1.0] * 127) is None
    assert not SteadyNoise().is_finished()


def test_budget_counts_cost_and_keeps_the_floor():
    rule = Budget(1.0, floor_samples=6)
    for _ in range(5):
        rule.add_measurement(0.4, 0.5)
        assert not rule.is_finished()
    rule.add_measurement(0.4, 0.5)
    assert rule.is_finished()
    assert rule.reason == "budget"
    assert says(rule.detail, "3 s of 1 s", "6")


def test_budget_waits_for_the_time():
    assert samples_until_finished(Budget(1.0), [0.1] * 30) in (10, 11)  # 10 x 0.1 rounds


def test_budget_gives_a_sample_longer_than_itself_three():
    rule = Budget(2.0)
    assert samples_until_finished(rule, [5.0] * 10) == 3
    assert says(rule.detail, "budget", "3")


def test_max_samples():
    rule = MaxSamples(7)
    assert samples_until_finished(rule, [1.0] * 10) == 7
    assert says(rule.detail, "7")


def test_any_of_names_the_first_finished_rule():
    rule = AnyOf(MedianPrecision(), MaxSamples(10))
    assert (rule.reason, rule.detail) == ("unfinished", "")
    assert samples_until_finished(rule, [1.0] * 20) == 10
    assert rule.reason == "precision"
    rule = AnyOf(MedianPrecision(), MaxSamples(10))
    assert samples_until_finished(rule, [1.0, 2.0] * 10) == 10
    assert rule.reason == "max-samples"


@pytest.mark.parametrize("seed", range(3))
def test_the_default_rule_ends_on_any_numbers(seed):
    rng = random.Random(seed)
    values = (10 ** rng.uniform(-7, 1) for _ in range(6000))
    assert samples_until_finished(default_rule(Policy()), values) is not None
