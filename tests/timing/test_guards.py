import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from said import says

from pydlbench.timing.chunk import Chunk
from pydlbench.timing.guards import disturbed_by, judge
from pydlbench.timing.policy import Policy

POLICY = Policy()


def chunk(
    seconds: list[float],
    switches: list[int] | None = None,
    wait: float = 0.0001,
    steal: float = 0.0,
    wall: float = 0.0,
) -> Chunk:
    return Chunk(
        seconds=tuple(seconds),
        involuntary=tuple(switches if switches is not None else [0] * len(seconds)),
        run_delay_s=wait,
        steal_s=steal,
        wall_s=wall,
        threads=2,
    )


QUIET = chunk([0.0050] * 10, [0, 1] + [0] * 8)


def test_nothing_is_quiet():
    assert not judge([], 1, POLICY).contended


def test_single_switches_on_an_idle_machine_discard_nothing():
    verdict = judge([QUIET] * 4, 1, POLICY)
    assert (verdict.contended, verdict.discarded, verdict.hit_samples) == (False, 0, 0)


def test_a_kernel_thread_is_no_contention():
    # 0.8 ms of a 50 ms chunk: every fifth chunk of an idle machine looks like this.
    noisy = chunk([0.0050] * 9 + [0.0058], [0] * 9 + [1], wait=0.0009)
    verdict = judge([noisy] * 4, 1, POLICY)
    assert (verdict.contended, verdict.discarded) == (False, 0)


def test_one_burst_is_discarded_with_its_chunk():
    burst = chunk([0.0050] * 9 + [0.0110], [0] * 9 + [5], wait=0.0065)
    assert disturbed_by(burst, 1, POLICY) is not None
    verdict = judge([QUIET, burst, QUIET], 1, POLICY)
    assert (verdict.contended, verdict.discarded) == (False, 10)
    assert verdict.keep[1] == (False,) * 10


def test_one_hit_sample_in_a_good_chunk_is_kept():
    hit = chunk([0.0050] * 9 + [0.0072], [0] * 9 + [1], wait=0.0022)
    verdict = judge([QUIET, hit, QUIET], 1, POLICY)
    assert (verdict.contended, verdict.discarded, verdict.hit_samples) == (False, 0, 1)


def test_no_sample_is_left_out_for_its_time():
    # Slow in three of ten executions by nature, with waits of its own accord in every tenth chunk.
    rng = random.Random(3)
    several = []
    for _ in range(400):
        seconds = [0.0075 if rng.random() < 0.3 else 0.005 for _ in range(8)]
        wait = rng.choice([0.0015, 0.003, 0.006]) if rng.random() < 0.1 else 0.0
        several.append(chunk(seconds, [int(wait > 0)] * 8, wait=wait))
    verdict = judge(several, 1, POLICY)
    assert not verdict.contended
    assert verdict.discarded > 0
    kept = [
        seconds
        for one, row in zip(several, verdict.keep, strict=True)
        for seconds, keep in zip(one.seconds, row, strict=True)
        if keep
    ]
    every = [seconds for one in several for seconds in one.seconds]
    slow = [sum(x > 0.006 for x in some) / len(some) for some in (kept, every)]
    assert slow[0] == pytest.approx(slow[1], rel=0.02)


def test_slow_samples_without_evidence_are_the_kernels_own():
    bimodal = chunk([0.005, 0.009] * 5, [0, 1] * 5, wait=0.0002)
    verdict = judge([bimodal] * 4, 1, POLICY)
    assert (verdict.contended, verdict.discarded) == (False, 0)


def test_evidence_goes_to_the_longest_sample_only():
    mixed = chunk([0.005] * 10 + [0.0068] * 4 + [0.0085], [1] * 15, wait=0.0020)
    verdict = judge([mixed, QUIET], 1, POLICY)
    assert (verdict.hit_samples, verdict.discarded) == (1, 0)


def test_without_wait_counters_switches_are_the_evidence():
    jumping = chunk([0.005, 0.005, 0.009, 0.013], [0, 0, 1, 2], wait=0.0)
    verdict = judge([jumping] * 3, 1, POLICY)
    assert verdict.contended
    sleeping = chunk([0.005, 0.005, 0.009, 0.013], [0, 0, 0, 0], wait=0.0)
    assert not judge([sleeping] * 3, 1, POLICY).contended


def test_a_busy_core_seen_on_two_cores_is_contended_and_all_is_kept():
    # Read with one foreign busy process: half of the wall time waited, whole 4 ms slices.
    busy = chunk([0.0103, 0.0141, 0.0102, 0.0142], [1, 2, 1, 2], wait=0.0277, wall=0.052)
    verdict = judge([busy] * 3, 1, POLICY)
    assert verdict.contended
    assert verdict.discarded == 0
    assert says(verdict.reason or "", "53%", "18")


def test_uniformly_slowed_samples_are_contended_though_none_jumps():
    busy = chunk([0.0176] * 3, [2, 2, 2], wait=0.0285, wall=0.057)
    assert judge([busy] * 3, 1, POLICY).contended


def test_short_samples_of_a_contended_machine_are_kept_and_flagged():
    # 240 of 250 samples look clean, but a quarter of the time was waited for.
    busy = chunk([1e-4] * 240 + [0.0041] * 4, [0] * 240 + [1] * 4, wait=0.016)
    verdict = judge([busy] * 3, 1, POLICY)
    assert verdict.contended
    assert verdict.discarded == 0


def test_many_threads_waiting_at_once_do_not_dilute():
    # The wait is compared with wall time, not with threads times wall time.
    one_of_64 = Chunk(
        seconds=(0.01,) * 5, involuntary=(1,) * 5, run_delay_s=0.02, wall_s=0.05, threads=64
    )
    assert judge([one_of_64] * 3, 1, POLICY).contended


@pytest.mark.parametrize(("ticks", "contended"), [(0, False), (1, False), (2, False), (3, True)])
def test_steal_takes_more_than_a_tick(ticks, contended):
    first = chunk([0.005] * 10, steal=0.01 * ticks)
    verdict = judge([first, QUIET, QUIET], 1, POLICY)
    assert verdict.contended is contended
    assert verdict.discarded == (10 if ticks == 2 else 0)
    if contended:
        assert "another virtual machine was busy" in (verdict.reason or "")


def test_a_few_ticks_in_a_long_run_are_nothing():
    long = [chunk([0.005] * 10, steal=0.01 if i % 13 == 0 else 0.0) for i in range(40)]
    assert not judge(long, 1, POLICY).contended


def test_inner_scales_the_excess():
    # With 40 executions per sample the slow one is 4 ms longer: half of that must be explained.
    unexplained = chunk([1e-4] * 9 + [2e-4], [0] * 9 + [1], wait=0.0019, wall=0.1)
    assert judge([unexplained] * 2, 40, POLICY).hit_samples == 0
    explained = chunk([1e-4] * 9 + [2e-4], [0] * 9 + [1], wait=0.0021, wall=0.1)
    assert judge([explained] * 2, 40, POLICY).hit_samples == 2


def test_a_majority_of_disturbed_time_decides():
    disturbed = chunk([0.005] * 9 + [0.009], [0] * 9 + [1], wait=0.004)
    quiet_majority = judge([disturbed, QUIET, QUIET], 1, POLICY)
    assert (quiet_majority.contended, quiet_majority.discarded) == (False, 10)
    majority = judge([disturbed, disturbed, QUIET], 1, POLICY)
    assert majority.contended
    assert majority.discarded == 0
    assert says(majority.reason or "", "2", "3")


samples = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=12)
chunks = st.builds(
    lambda pairs, wait, ticks: chunk(
        [s for s, _ in pairs], [i for _, i in pairs], wait=wait, steal=0.01 * ticks
    ),
    samples,
    st.floats(0, 1),
    st.integers(0, 5),
)


@given(st.lists(chunks, min_size=1, max_size=8))
def test_never_an_empty_result_and_never_both_discarded_and_contended(several):
    verdict = judge(several, 1, POLICY)
    assert [len(row) for row in verdict.keep] == [len(c.seconds) for c in several]
    total = sum(len(c.seconds) for c in several)
    assert total - verdict.discarded >= total / 2
    assert verdict.contended == (verdict.reason is not None)
    if verdict.contended:
        assert verdict.discarded == 0


@given(st.lists(chunks, min_size=1, max_size=8), st.floats(0.5, 4))
def test_waiting_for_most_of_the_time_is_always_contended(several, factor):
    waiting = [
        chunk(
            list(c.seconds),
            list(c.involuntary),
            wait=factor * max(sum(c.seconds), 0.01),
            wall=sum(c.seconds),
        )
        for c in several
    ]
    assert judge(waiting, 1, POLICY).contended


# Three threads of one process on two CPUs: one of them always waits.
CROWDED = chunk([0.0050] * 8 + [0.0080] * 2, [2] * 10, wait=0.012, wall=0.056)


def with_others(one: Chunk, seconds: float | None) -> Chunk:
    return msgspec.structs.replace(one, others_s=seconds)


def test_a_process_that_waits_for_itself_is_not_contended():
    assert judge([CROWDED] * 10, 1, POLICY).contended  # nobody counted what others took
    verdict = judge([with_others(CROWDED, 0.001)] * 10, 1, POLICY)
    assert (verdict.contended, verdict.discarded) == (False, 0)


@pytest.mark.parametrize("taken", [[0.012, -0.01] * 5, [-0.01] * 10])
def test_ticks_at_both_ends_of_chunks_are_nobody(taken):
    assert not judge([with_others(CROWDED, one) for one in taken], 1, POLICY).contended


@pytest.mark.parametrize("taken", [[0.01] * 10, [0.01] * 9 + [None], [0.1] + [0.0] * 9])
def test_where_others_ran_or_nobody_counted_waits_are_contention(taken):
    assert judge([with_others(CROWDED, one) for one in taken], 1, POLICY).contended


def crowded(wall: float, left: float) -> Chunk:
    """A chunk of three threads on two CPUs of which others can have had ``left`` of each second."""
    one = chunk([wall / 10] * 8 + [1.6 * wall / 10] * 2, [2] * 10, wait=0.3 * wall, wall=wall)
    return msgspec.structs.replace(one, threads=2, cpu_s=(2 - left) * wall, others_s=0.0)


@pytest.mark.parametrize("wall", [0.005, 0.015, 0.035])
def test_a_visit_too_short_for_ticks_is_judged_by_its_cpu_time(wall):
    """Whoever had all CPUs all the time has waited for nobody else."""
    short = [crowded(wall, left=0.01)] * 3
    assert judge(short, 1, POLICY).contended is False
    assert disturbed_by(short[0], 1, POLICY) is None
    # Half a CPU was somebody's, or nobody's: too short to tell, and it counts as somebody's.
    assert judge([crowded(wall, left=0.5)] * 3, 1, POLICY).contended


def test_a_neighbour_who_ran_briefly_has_delayed_nobody_for_longer():
    """Of a wait of 30 % of the time, a tenth can be his."""
    brief = crowded(0.045, left=0.1)
    assert (disturbed_by(brief, 1, POLICY) or "").startswith("waited 4.5 ms of ")


def test_a_burst_is_left_out_whoever_it_was():
    burst = chunk([0.0050] * 9 + [0.0110], [0] * 9 + [5], wait=0.0065)
    chunks = [with_others(QUIET, 0.0), with_others(burst, 0.01), with_others(QUIET, 0.0)]
    assert judge(chunks, 1, POLICY).keep[1] == (False,) * 10


def test_stolen_time_is_contention_although_the_process_was_alone():
    stolen = msgspec.structs.replace(with_others(CROWDED, 0.0), steal_s=0.02)
    assert judge([stolen] * 10, 1, POLICY).contended


def test_a_measurement_of_a_few_ticks_says_nothing_about_others():
    assert judge([with_others(CROWDED, 0.0)] * 2, 1, POLICY).contended
