"""Rounds over several kernels: paired, in changing order, each lost for itself."""

import random
from typing import Any

import pytest

from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Sampling, interleave
from pydlbench.timing.statistics import paired_ratio


def test_rounds_pair_up_and_common_drift_cancels(machine):
    # One machine whose speed wanders by 10 %; b is 2 % faster than a.
    def speed(now: float) -> float:
        return 1 + 0.1 * ((now * 0.7) % 1.0)

    current = {"time": 5.00e-3}
    shared = machine(lambda rng, now: current["time"] * speed(now) * rng.gauss(1, 0.002))
    samplings = [Sampling(Policy(min_rounds=12)) for _ in range(2)]

    def sample(i: int, request: Request) -> Chunk:
        current["time"] = (5.00e-3, 4.90e-3)[i]
        answer: Chunk = shared.answer(request)
        return answer

    interleave(samplings, sample, random.Random(0))
    a, b = (sampling.result() for sampling in samplings)
    ratio = paired_ratio(a.by_round(), b.by_round())
    assert ratio.n >= 10
    assert ratio.median == pytest.approx(5.0 / 4.9, rel=0.01)
    medians = [one.seconds for one in a.rounds]
    assert max(medians) > 1.03 * min(medians)


def scripted(durations: list[float]) -> tuple[list[Sampling], list[tuple[int, str]], Any]:
    samplings = [Sampling() for _ in durations]
    visits: list[tuple[int, str]] = []

    def sample(i: int, request: Request) -> Chunk:
        visits.append((i, samplings[i].phase))
        seconds = (durations[i],) * request.samples
        return Chunk(seconds=seconds, wall_s=durations[i] * request.samples)

    return samplings, visits, sample


def test_all_are_warm_before_the_first_round():
    samplings, visits, sample = scripted([0.005, 0.4, 0.02])
    interleave(samplings, sample, random.Random(1))
    assert all(sampling.done for sampling in samplings)
    phases = [phase for _, phase in visits]
    assert "rounds" not in phases[: len(phases) - phases[::-1].index("warm-up")]
    assert [r.index for r in samplings[0].result().rounds][:3] == [0, 1, 2]


def test_every_round_visits_each_live_kernel_once_in_changing_order():
    samplings, visits, sample = scripted([0.005] * 4)
    interleave(samplings, sample, random.Random(2))
    orders = [i for i, phase in visits if phase == "rounds"]
    rounds = [tuple(orders[k : k + 4]) for k in range(0, len(orders), 4)]
    assert all(sorted(r) == [0, 1, 2, 3] for r in rounds)
    assert len(set(rounds)) > 1


def test_the_order_follows_the_seed():
    runs = []
    for seed in (3, 3, 4):
        samplings, visits, sample = scripted([0.005] * 5)
        interleave(samplings, sample, random.Random(seed))
        runs.append(visits)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_lost_kernel_costs_itself_only():
    samplings, _, sample = scripted([0.005] * 3)

    def dying(i: int, request: Request) -> Chunk | None:
        if i == 1 and samplings[1].phase == "rounds":
            return None
        chunk: Chunk = sample(i, request)
        return chunk

    interleave(samplings, dying, random.Random(0))
    assert [sampling.done for sampling in samplings] == [True, False, True]


def test_nothing_to_do():
    interleave([], lambda _i, _request: None, random.Random(0))
