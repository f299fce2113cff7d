import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from said import says

from pydlbench.errors import UsageError
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.policy import Policy, estimate_policy, gpu_policy
from pydlbench.timing.procedure import Sampling
from pydlbench.timing.statistics import median_interval


def test_quiet_kernel_stops_by_precision(machine, quiet_kernel):
    samples = machine(quiet_kernel(5e-3)).drive(Sampling())
    assert samples.stop_reason == "precision"
    assert not samples.contended
    assert samples.inner == 1
    assert samples.warmup.steady
    assert len(samples.rounds) >= 3
    assert samples.median == pytest.approx(5e-3, rel=0.005)
    interval = median_interval(samples.seconds)
    assert interval is not None
    assert interval.half_width(samples.median) <= 0.005
    assert samples.clock_hz == 4.3e9
    assert samples.spent_s < 0.5


@pytest.mark.parametrize("mean", [2e-4, 5e-3, 0.04, 0.2])
def test_an_idle_machine_is_practically_never_contended(mean, machine, quiet_kernel):
    flagged = 0
    for seed in range(60):
        ticks = lambda rng: int(rng.random() < 0.02)  # noqa: E731 - a name for the argument below
        idle = machine(quiet_kernel(mean), seed=seed, steal_ticks=ticks)
        flagged += idle.drive(Sampling()).contended
    assert flagged == 0


@pytest.mark.product
@pytest.mark.parametrize("slice_s", [0.003, 0.004, 0.008, 0.016, 0.04])
@pytest.mark.parametrize("mean", [2e-4, 1e-3, 6e-3, 0.012, 0.05, 0.3])
def test_one_busy_process_is_always_contended_and_all_is_kept(mean, slice_s, machine, quiet_kernel):
    for seed in range(3):
        busy = machine(quiet_kernel(mean), seed=seed, slice_s=slice_s)
        samples = busy.drive(Sampling())
        assert samples.contended
        assert samples.discarded == 0
        assert samples.seconds == samples.all_seconds
        assert samples.retries <= 4
        assert "waited for a CPU" in (samples.contention_reason or "")


def test_contention_is_seen_without_wait_counters_too(machine, quiet_kernel):
    busy = machine(quiet_kernel(6e-3), slice_s=0.008, counters=False)
    assert busy.drive(Sampling()).contended


def test_a_passing_disturbance_is_outvoted(machine, quiet_kernel):
    # Busy during the first two rounds after warm-up (calibration 10 ms, warm-up 3 x 55 ms).
    passing = machine(quiet_kernel(5e-3), slice_s=0.004, busy_from=0.17, busy_until=0.30)
    samples = passing.drive(Sampling())
    assert not samples.contended
    assert samples.discarded > 0
    assert samples.median == pytest.approx(5e-3, rel=0.005)
    assert max(samples.seconds) < 1.3 * 5e-3


def test_drifting_kernel_runs_to_its_budget(machine):
    drifting = machine(lambda rng, now: 5e-3 * (1 + 0.3 * now) * rng.gauss(1, 0.001))
    samples = drifting.drive(Sampling())
    assert samples.stop_reason == "budget"
    assert not samples.contended
    medians = [one.seconds for one in samples.rounds]
    assert max(medians) > 1.3 * min(medians)
    assert 2.0 <= samples.spent_s < 2.2


def test_bimodal_kernel_stops_by_steady_noise_and_keeps_both_modes(machine):
    bimodal = machine(lambda rng, _now: rng.choice((2e-3, 3e-3)) * rng.gauss(1, 0.002))
    samples = bimodal.drive(Sampling())
    assert samples.stop_reason == "steady-noise"
    assert not samples.contended
    slow = sum(x > 2.5e-3 for x in samples.seconds) / len(samples.seconds)
    assert slow == pytest.approx(0.5, abs=0.1)


def test_slow_kernel_gets_six_samples(machine):
    rough = machine(lambda rng, _now: rng.uniform(0.6, 0.9))
    samples = rough.drive(Sampling())
    assert len(samples.seconds) == 6
    assert samples.stop_reason == "budget"
    assert says(samples.stop_detail, "6")
    assert median_interval(samples.seconds) is not None
    assert samples.warmup.reason == "limit"


def test_kernel_longer_than_the_budget_gets_three_and_says_so(machine):
    samples = machine(lambda rng, _now: rng.uniform(5, 6)).drive(Sampling())
    assert len(samples.seconds) == 3
    assert median_interval(samples.seconds) is None
    assert samples.stop_reason == "budget"


def test_tiny_kernel_is_repeated_inside_a_sample(machine, quiet_kernel):
    samples = machine(quiet_kernel(1e-6, 0.01), idle_switch_hz=0.0).drive(Sampling())
    assert samples.inner * 1e-6 >= 100e-6
    assert samples.inner <= 400
    assert samples.median == pytest.approx(1e-6, rel=0.01)


def test_a_kernel_that_speeds_up_is_recalibrated():
    sampling = Sampling()
    sampling.feed(Chunk(seconds=(1e-4 * 0.9,)))  # cold: 90 us
    second = sampling.next_request()
    assert second == Request(samples=1, inner=2, untimed=0)
    sampling.feed(Chunk(seconds=(2e-6,)))
    third = sampling.next_request()
    assert third is not None
    assert third.inner in (60, 61)  # 1.2 x 100 us over 2 us, rounded up
    sampling.feed(Chunk(seconds=(2e-6,)))
    assert sampling.phase == "warm-up"


def test_a_clock_that_reads_zero_does_not_stall():
    sampling = Sampling()
    for _ in range(200):
        request = sampling.next_request()
        if request is None:
            break
        assert request.samples <= sampling.policy.max_samples
        sampling.feed(Chunk(seconds=(0.0,) * min(request.samples, 50), wall_s=0.05))
    assert sampling.done
    assert sampling.result().inner == 10**10


def test_requests_fill_a_chunk_and_refill_the_caches():
    sampling = Sampling()
    sampling.feed(Chunk(seconds=(1e-3,)))
    assert sampling.next_request() == Request(samples=50, inner=1, untimed=2)
    slow = Sampling()
    slow.feed(Chunk(seconds=(0.4,)))
    assert slow.next_request() == Request(samples=1, inner=1, untimed=0)


def test_a_small_budget_shortens_the_chunks(machine, quiet_kernel):
    samples = machine(quiet_kernel(1e-4, 0.3)).drive(Sampling(Policy(budget_s=0.03)))
    assert samples.stop_reason == "budget"
    assert len(samples.rounds) >= 3
    assert samples.spent_s < 0.06


def test_interrupted_result_and_no_result():
    sampling = Sampling()
    with pytest.raises(RuntimeError, match="no samples yet"):
        sampling.result()
    sampling.feed(Chunk(seconds=(0.02,)))
    while sampling.phase == "warm-up":
        sampling.feed(Chunk(seconds=(0.02, 0.02)))
    sampling.feed(Chunk(seconds=(0.02, 0.03), clock_hz=(4e9, 4.2e9)), round_index=7)
    samples = sampling.result()
    assert samples.stop_reason == "interrupted"
    assert tuple(samples.seconds) == (0.02, 0.03)
    assert samples.by_round() == {7: 0.025}
    assert samples.cycles_by_round() == {7: pytest.approx(0.025 * 4.1e9)}


def test_feeding_a_done_sampling_is_an_error(machine, quiet_kernel):
    sampling = Sampling()
    machine(quiet_kernel(5e-3)).drive(sampling)
    assert sampling.next_request() is None
    with pytest.raises(RuntimeError, match="done"):
        sampling.feed(Chunk(seconds=(1.0,)))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    mean=st.floats(2e-4, 3.0),
    sigma=st.floats(0, 0.4),
    slice_s=st.sampled_from([0.0, 0.004, 0.016]),
    until=st.floats(0, 3),
    steal=st.floats(0, 1),
)
def test_it_always_ends_with_a_result_that_adds_up(seed, mean, sigma, slice_s, until, steal):
    rng = random.Random(seed)
    sampling = Sampling()
    now, chunks, request = 0.0, 0, sampling.next_request()
    while request is not None:
        work = [mean * max(0.1, rng.gauss(1, sigma)) for _ in range(request.samples)]
        hit = [int(slice_s > 0 and now < until and rng.random() < 0.5) for _ in work]
        wall = sum(work) + slice_s * sum(hit)
        now += wall
        chunks += 1
        assert chunks < 300
        sampling.feed(
            Chunk(
                seconds=tuple(
                    (w + slice_s * h) / request.inner for w, h in zip(work, hit, strict=True)
                ),
                involuntary=tuple(hit),
                run_delay_s=slice_s * sum(hit),
                steal_s=0.01 * int(rng.random() < steal),
                wall_s=wall,
            )
        )
        request = sampling.next_request()
    samples = sampling.result()
    assert samples.seconds
    assert len(samples.seconds) + samples.discarded == len(samples.all_seconds)
    assert samples.stop_reason in ("precision", "steady-noise", "budget", "max-samples")
    assert samples.contended == (samples.contention_reason is not None)
    assert samples.retries <= sampling.policy.max_retries
    assert samples.rounds


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"confidence": 1.0}, r"--confidence 1: outside .* nearest: 0\.999"),
        ({"confidence": 0.1}, r"nearest: 0\.5"),
        ({"budget_s": 0.0}, "--budget 0: not a positive"),
        ({"budget_s": float("nan")}, "--budget nan"),
        ({"half_width": 0.0}, "half_width"),
        ({"min_rounds": 0}, "min_rounds 0"),
    ],
)
def test_policy_refuses_bad_constants(constants, message):
    with pytest.raises(UsageError, match=message):
        Policy(**constants)  # type: ignore[arg-type]


def test_a_kernel_alone_finds_its_caches_as_it_left_them():
    alone, interleaved = Sampling(alone=True), Sampling()
    for sampling in (alone, interleaved):
        sampling.feed(Chunk(seconds=(0.01,)))
    assert interleaved.next_request() == Request(samples=5, inner=1, untimed=0)
    for sampling in (alone, interleaved):
        while sampling.phase == "warm-up":
            sampling.feed(Chunk(seconds=(0.01,) * 5))
    assert interleaved.next_request() == Request(samples=5, inner=1, untimed=1)
    assert alone.next_request() == Request(samples=5, inner=1, untimed=0)


def test_a_short_kernel_wakes_the_threads_even_alone():
    sampling = Sampling(alone=True)
    sampling.feed(Chunk(seconds=(0.001,)))
    assert sampling.next_request() == Request(samples=50, inner=1, untimed=2)


def test_where_a_sample_costs_more_than_it_shows_chunks_are_sized_by_their_wall_time():
    """Cold caches on a GPU: a flush and a gate of 150 us around a kernel of 2 us."""
    policy = gpu_policy(Policy(), "events", "all-cold")
    sampling = Sampling(policy, alone=True)
    rng = random.Random(1)
    asked = []
    while request := sampling.next_request():
        asked.append(request.samples)
        seconds = tuple(2e-6 * rng.uniform(0.998, 1.002) for _ in range(request.samples))
        sampling.feed(Chunk(seconds=seconds, wall_s=1e-4 + 150e-6 * request.samples))
    samples = sampling.result()
    assert samples.warmup.steady
    assert samples.stop_reason == "precision"
    assert all(count * 150e-6 <= policy.chunk_s for count in asked)
    assert max(asked) * 150e-6 > policy.chunk_s / 2
    assert samples.spent_s < policy.budget_s / 2


def test_a_spent_budget_waits_for_the_rounds_that_a_ratio_needs(machine, quiet_kernel):
    policy = Policy(budget_s=0.5, half_width=1e-9, chunk_s=0.1)
    few = machine(quiet_kernel(0.09)).drive(Sampling(policy))
    enough = machine(quiet_kernel(0.09)).drive(
        Sampling(Policy(budget_s=0.5, half_width=1e-9, chunk_s=0.1, least_rounds=8))
    )
    assert len(few.rounds) < 8
    assert len(enough.rounds) == 8


def test_a_kernel_that_needs_three_budgets_for_them_stays_without(machine):
    policy = Policy(budget_s=0.2, half_width=1e-9, least_rounds=8)
    samples = machine(lambda _rng, _now: 0.19).drive(Sampling(policy))
    assert 3 <= len(samples.rounds) < 8


def test_a_summand_is_sampled_less_than_a_kernel_of_its_own():
    own = Policy(budget_s=0.25)
    summand = estimate_policy(own)
    assert summand.half_width == 0.02
    assert summand.chunk_s < own.chunk_s
    assert summand.min_samples == own.floor_samples
    assert summand.warmup_limit_s == 0.5
    assert (summand.budget_s, summand.confidence) == (own.budget_s, own.confidence)
    assert estimate_policy(Policy(half_width=0.05)).half_width == 0.05
