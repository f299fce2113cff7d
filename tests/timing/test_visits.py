"""Visits joined into a row, from invented samples: which count, and when another one is wanted."""

import pytest

from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Round, Samples, Sampling
from pydlbench.timing.stopping import WarmupOutcome
from pydlbench.timing.visits import joined, more_wanted, taken_again, visit_policy, visit_ratio


def visit(seconds: float, *, contended: bool = False) -> Samples:
    return Samples(
        seconds=(seconds,) * 3,
        all_seconds=(seconds,) * 3,
        discarded=0,
        clock_hz=None,
        contended=contended,
        contention_reason="a slow canary" if contended else None,
        stop_reason="precision",
        stop_detail="",
        warmup=WarmupOutcome(reason="steady", seconds=0.1, detail=""),
        rounds=(Round(index=0, seconds=seconds, clock_hz=None),),
        inner=1,
        retries=0,
        spent_s=0.3,
        confidence=0.95,
    )


def lapped(*visits: Samples) -> dict[int, Samples]:
    return dict(enumerate(visits))


CLEAN = (0.157, 0.158, 0.156, 0.157, 0.159)


def test_a_disturbed_visit_is_left_out_once_there_are_enough_others():
    taken = lapped(*map(visit, CLEAN), visit(0.304, contended=True))
    policy = Policy(budget_s=1.0)
    assert more_wanted(taken, policy, 6, cost_s=2.0)
    before = joined(taken, 6)
    assert (len(before.visits), before.disturbed, before.contended) == (6, 1, False)
    taken[6] = visit(0.155)
    assert not more_wanted(taken, policy, 6, cost_s=2.0)
    row = joined(taken, 6)
    assert row.visits == (*CLEAN, 0.155)
    assert (row.disturbed, row.contended, row.discarded) == (0, False, 3)
    assert len(row.seconds) + row.discarded == len(row.all_seconds)
    assert len(row.rounds) == 6
    assert row.stop_reason == "visits"


def test_what_is_left_out_does_not_depend_on_the_times():
    """The slowest visit stays, and the fastest goes: it is the one that was disturbed."""
    taken = lapped(*map(visit, (*CLEAN, 0.304)), visit(0.1, contended=True))
    assert joined(taken, 6).visits == (*CLEAN, 0.304)


def test_disturbed_visits_that_cannot_be_made_up_for_stay_and_are_counted():
    taken = lapped(*(visit(0.2, contended=lap in (1, 4)) for lap in range(6)))
    taken[6] = taken[7] = taken[8] = visit(0.3, contended=True)
    assert not taken_again(taken.values(), 6)
    row = joined(taken, 6)
    assert (len(row.visits), row.disturbed, row.contended) == (9, 5, True)
    assert row.contention_reason == "a slow canary"


@pytest.mark.parametrize(("disturbed", "contended"), [(2, False), (3, True), (6, True)])
def test_half_of_the_visits_make_the_row_contended(disturbed, contended):
    row = joined(lapped(*(visit(0.2, contended=lap < disturbed) for lap in range(6))), 6)
    assert (row.disturbed, row.contended) == (disturbed, contended)


@pytest.mark.parametrize(("disturbed", "again"), [(0, False), (1, True), (3, True), (4, False)])
def test_none_is_taken_again_where_that_would_not_do(disturbed, again):
    visits = [visit(0.2, contended=lap < disturbed) for lap in range(6)]
    assert taken_again(visits, 6) is again


def test_a_single_visit_is_never_taken_again():
    assert not taken_again([visit(0.2, contended=True)], 1)
    assert joined({0: visit(0.2, contended=True)}).contended


def test_the_ratio_of_visits_leaves_out_what_one_side_lacks():
    whole = lapped(*(visit(0.1 * (1 + lap)) for lap in range(7)))
    hit = {lap: visit(0.2 * (1 + lap), contended=lap == 2) for lap in range(7)}
    ratio = visit_ratio(joined(hit, 6).by_round(), joined(whole, 6).by_round(), 0.95)
    assert (ratio.n, ratio.median) == (6, pytest.approx(2.0))
    assert ratio.interval is not None


def test_a_slow_kernel_has_several_samples_in_a_chunk_of_its_visit():
    """Else each would be preceded by an untimed execution, and by threads that fall asleep."""
    policy = visit_policy(Policy(budget_s=0.66), 6, alone=False)
    sampling = Sampling(policy)
    asked = []
    while (request := sampling.next_request()) is not None:
        seconds = (0.02,) * request.samples
        sampling.feed(Chunk(seconds=seconds, wall_s=0.02 * (request.samples + request.untimed)))
        asked.append((sampling.phase, request.samples, request.untimed))
    # Warm-up needs nothing untimed, as nobody else has run.
    assert [one for one in asked if one[0] == "warm-up"][1:] == [("warm-up", 1, 0)]
    assert asked[-1] == ("done", 5, 1)


def test_a_noisy_kernel_that_takes_turns_ends_its_visit_after_two_chunks():
    sampling = Sampling(visit_policy(Policy(budget_s=6.0), 6, alone=False))
    rounds = 0
    while (request := sampling.next_request()) is not None:
        noisy = tuple(0.001 * (1 + index % 3) for index in range(request.samples))
        sampling.feed(Chunk(seconds=noisy, wall_s=sum(noisy)))
        rounds += sampling.phase in ("rounds", "done")
    # The last chunk of the warm-up is counted as well.
    assert (rounds - 1, sampling.result().stop_reason) == (2, "rounds")
