"""The one estimator, on invented visits and on machines that drift or are disturbed."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydlbench.study.estimate import contrast, estimate
from pydlbench.study.loop import Study
from pydlbench.study.table import Interference, Series, Visit
from pydlbench.timing.policy import Policy


def test_a_row_is_the_median_of_its_rounds_however_many_samples_each_has(series):
    found = estimate(series([1.0, 1.1, 1.2, 1.3, 1.4, 9.0]))
    assert found.median == pytest.approx(1.25)
    assert (found.interval.low, found.interval.high) == (1.0, 9.0)
    assert (found.rounds, found.disturbed, found.contended) == (6, 0, False)
    several = Series(
        [
            Visit(subject="it", round=0, seconds=(1.0,)),
            Visit(subject="it", round=1, seconds=(3.0,) * 99),
        ]
    )
    assert estimate(several).median == 2.0


def test_a_single_round_has_no_interval(series):
    assert estimate(series([1.0])).interval is None
    few = estimate(series([1.0, 1.02]))
    assert (few.interval.low, few.interval.high) == pytest.approx((0.883, 1.137))
    lost = estimate(series([1.0, 1.02], fma=[0.5] * 2))
    assert (lost.interval.low, lost.interval.high) == pytest.approx((0.505, 1.137))


@pytest.mark.parametrize(("disturbed", "contended"), [(0, False), (2, False), (3, True), (6, True)])
def test_interference_flags_and_leaves_out_nothing(series, disturbed, contended):
    times = [2.0 if i < disturbed else 1.0 for i in range(6)]
    found = estimate(series(times, fma=[0.5 if i < disturbed else 0.99 for i in range(6)]))
    assert (found.rounds, found.disturbed, found.contended) == (6, disturbed, contended)
    assert found.median == pytest.approx({0: 1.0, 2: 1.0, 3: 1.5, 6: 2.0}[disturbed])
    assert ("50%" in found.reason) is (disturbed > 0)


@pytest.mark.parametrize(("others", "contended"), [(0.99, False), (1.2, False), (0.9, True)])
def test_interference_that_made_no_difference_makes_no_upper_bound(series, others, contended):
    """Of four rounds two were disturbed; the other two took as long, longer or shorter."""
    fma = [0.5, 0.5, 1.0, 1.0]
    found = estimate(series([1.0, 1.0, others, others], fma=fma))
    assert (found.disturbed, found.contended) == (2, contended)
    ratio = contrast(series([1.0, 1.0, others, others], fma=fma), series([1.0] * 4))
    assert ratio.contended  # of a ratio nobody knows which way it went


def test_what_bursts_have_lost_beside_all_rounds_widens_downwards(series):
    """The time that took twice as long at a spread of one percent, which no counter showed."""
    quiet = estimate(series([2.0, 2.01, 1.99, 2.0, 2.0, 2.0]))
    shared = estimate(series([2.0, 2.01, 1.99, 2.0, 2.0, 2.0], fma=[0.5] * 6))
    assert (shared.median, shared.interval.high) == (quiet.median, quiet.interval.high)
    assert shared.interval.low == pytest.approx(1.0, rel=0.01)
    assert quiet.interval.low == 1.99


def test_what_undisturbed_rounds_say_is_inside(series):
    times = [1.0] * 3 + [1.5] * 12
    slow = [2e9] * 12
    quiet = estimate(series(times))
    found = estimate(series(times, memory=[8e9] * 3 + slow))
    assert quiet.interval.low > 1.0
    assert found.interval.low == 1.0
    assert (found.disturbed, found.contended) == (12, True)
    assert "memory" in found.reason


def test_reads_that_scatter_are_nobody(series):
    found = estimate(series([1.0] * 6, memory=[8e9, 7e9, 6.5e9, 8e9, 7.7e9, 9e9]))
    assert (found.disturbed, found.reason) == (0, "")


@pytest.mark.parametrize(("wait", "disturbed"), [(0.0009, 0), (0.002, 6), (0.008, 6)])
def test_waits_for_a_cpu_beyond_a_kernel_thread_are_interference(series, wait, disturbed):
    found = estimate(series([1.0] * 6, run_delay_s=wait))
    assert found.disturbed == disturbed
    assert found.interval.low == pytest.approx(1 - wait / 0.015 if disturbed else 1.0)


def test_threads_that_wait_for_each_other_are_their_own_doing(series):
    """More threads than CPUs: others have hardly run, as the ticks of all visits say."""
    alone = series([1.0] * 10, run_delay_s=0.008, others_s=0.001)
    assert estimate(alone).disturbed == 0
    beside = series([1.0] * 10, run_delay_s=0.008, others_s=0.012)
    assert estimate(beside).disturbed == 10
    few = series([1.0] * 6, run_delay_s=0.008, others_s=0.0)
    assert estimate(few).disturbed == 6  # a few ticks say nothing about others


@pytest.mark.parametrize(("steal", "disturbed"), [(0.0, 0), (0.01, 0), (0.02, 6)])
def test_stolen_time_takes_more_than_a_tick(series, steal, disturbed):
    assert estimate(series([1.0] * 6, steal_s=steal)).disturbed == disturbed


def test_what_the_backend_saw_is_interference(series):
    found = estimate(series([1.0] * 6, disturbed=range(6)))
    assert (found.contended, found.reason) == (True, "somebody else")


def test_a_contrast_is_the_ratio_of_the_rounds_that_both_were_in(series):
    drift = [1 + 0.1 * i for i in range(9)]
    found = contrast(series([1.5 * x for x in drift]), series(drift))
    assert found.median == pytest.approx(1.5)
    assert found.interval.high - found.interval.low < 1e-9
    assert found.rounds == 9
    fewer = contrast(series(dict.fromkeys(range(3, 20), 2.0)), series([1.0] * 6))
    assert (fewer.rounds, fewer.median) == (3, 2.0)
    assert contrast(series({0: 1.0}), series({1: 1.0})) is None


def test_of_what_both_sides_had_beside_them_a_ratio_is_not_widened(series):
    both = {"fma": [0.5] * 6}
    found = contrast(series([4.0] * 6, **both), series([2.0] * 6, **both))
    assert (found.median, found.interval.low, found.interval.high) == (2.0, 2.0, 2.0)
    assert found.contended
    one_sided = contrast(series([4.0] * 6, **both), series([2.0] * 6))
    assert (one_sided.interval.low, one_sided.interval.high) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("values", "above"),
    [
        ([2.0, 2.01], True),
        ([2.0, 2.3], False),  # two values that far apart tell nothing
        ([2.0], False),
        ([1.6, 1.61, 1.6], True),
        ([1.52, 1.6, 1.7, 1.6, 1.6, 1.6], True),
        ([1.49, 1.6, 1.7, 1.6, 1.6, 1.6], False),
    ],
)
def test_a_ratio_that_is_above_a_limit_beyond_doubt(series, values, above):
    assert contrast(series(values), series([1.0] * len(values))).above(1.5) is above


# -----------------------------------------------------------------------------
# Machines that drift within a second, over half a minute, and in episodes.


def episodes(seed, length, share, factor):
    rng = random.Random(seed)
    phases = [rng.random() * length / share for _ in range(50)]
    period = length / share

    def state(now):
        slow = (now + phases[0]) % period < length
        return factor if slow else 1.0

    return state


def wave(seed, period, height):
    shift = random.Random(seed).random()
    return lambda now: 1 + height * math.sin(2 * math.pi * (now / period + shift))


@pytest.mark.parametrize(
    ("name", "law", "pause"),
    [
        ("1 s", lambda seed: wave(seed, 1.0, 0.05), 0.13),
        ("30 s", lambda seed: wave(seed, 30.0, 0.05), 4.0),
        ("episodes", lambda seed: episodes(seed, 0.2, 0.2, 1.3), 0.37),
    ],
)
def test_intervals_hold_on_machines_that_drift(machine, name, law, pause):
    """A pair that differs by 4 %, in six rounds with a process's start between them."""
    held = {"row": 0, "ratio": 0}
    widths = []
    for seed in range(60):
        host = machine(state=law(seed), noise=0.004, seed=seed)
        study = Study(random.Random(seed))
        policy = Policy(budget_s=0.5)
        a, b = host.subject("a", 2e-3, policy=policy), host.subject("b", 2.08e-3, policy=policy)
        for number in range(6):
            study.take([a, b], first=number)
            host.now += pause
        ratio = contrast(study.table.series("b"), study.table.series("a"))
        row = estimate(study.table.series("a"))
        held["ratio"] += ratio.interval.low <= 1.04 <= ratio.interval.high
        held["row"] += row.interval.low <= 2e-3 <= row.interval.high
        widths.append((ratio.interval.high - ratio.interval.low) / 2 / ratio.median)
    assert held["ratio"] >= 0.85 * 60, name
    assert held["row"] >= 0.85 * 60, name
    if name == "30 s":
        assert sorted(widths)[30] < 0.02  # what a pair shares cancels


@settings(max_examples=50, deadline=None)
@given(
    times=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=20),
    fma=st.floats(0.05, 1.1),
)
def test_the_interval_holds_the_median_and_interference_never_narrows(times, fma):
    def built(share):
        return Series(
            [
                Visit(
                    subject="it",
                    round=number,
                    seconds=(seconds,),
                    interference=Interference(fma=share if number % 2 else None),
                )
                for number, seconds in enumerate(times)
            ]
        )

    quiet, beside = estimate(built(None)), estimate(built(fma))
    assert beside.median == quiet.median
    assert beside.interval.low <= quiet.interval.low <= quiet.median
    assert quiet.median <= quiet.interval.high <= beside.interval.high
