"""Bursts of FMAs around chunks: whether the cores were ours, whatever is being timed."""

import itertools
import random

import pytest

from pydlbench.runner.interleaved import sample_interleaved
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.guards import disturbed_by, judge
from pydlbench.timing.policy import Policy

QUIET, SHARED = (1.0, 0.99), (0.98, 0.51)


def chunk(seconds=1e-3, canary=QUIET):
    return Chunk(seconds=(seconds,) * 10, wall_s=10 * seconds, canary=canary)


@pytest.mark.parametrize(("canary", "disturbed"), [((), False), (QUIET, False), (SHARED, True)])
def test_a_slow_canary_disturbs_its_chunk(canary, disturbed):
    assert (disturbed_by(chunk(canary=canary), 1, Policy()) is not None) is disturbed


def test_a_chunk_beside_a_slow_canary_is_left_out():
    verdict = judge([chunk(), chunk(2e-3, SHARED), chunk()], 1, Policy())
    assert not verdict.contended
    assert verdict.discarded == 10
    assert verdict.keep[1] == (False,) * 10


def test_slow_canaries_all_along_are_contention_and_nothing_is_left_out():
    """The row that took twice its time at one percent, and that no counter flagged."""
    verdict = judge([chunk(2e-3, SHARED)] * 6, 1, Policy())
    assert verdict.contended
    assert verdict.discarded == 0
    assert verdict.reason is not None
    assert "51%" in verdict.reason  # what the canary saw, not the counters that saw nothing


def test_equal_canaries_leave_a_kernel_with_two_modes_alone():
    """Nothing is left out for its time: only for what the cores did beside it."""
    verdict = judge([chunk(), chunk(2e-3), chunk(), chunk(2e-3)], 1, Policy())
    assert not verdict.contended
    assert verdict.discarded == 0


@pytest.mark.parametrize("canary", [(0.0,), (-1.0,), (float("nan"),)])
def test_a_canary_is_positive(canary):
    with pytest.raises(ValueError, match="canary"):
        chunk(canary=canary)


class Machine:
    """Cores that are shared from one moment to another, in calls of kernels and canaries."""

    def __init__(self, shared=()):
        self.shared, self.calls = set(shared), []

    def rest(self):
        self.calls.append("rest")

    def canary(self):
        self.calls.append("canary")
        return 0.5 if len(self.calls) in self.shared else 1.0

    def kernel(self, name, canary=()):
        def sample(request):
            self.calls.append(name)
            seconds = (1e-2,) * request.samples
            return Chunk(seconds=seconds, wall_s=sum(seconds), canary=canary)

        return sample


def in_rounds(machine):
    """What was called from the first canary's rest on: before, kernels are warmed up."""
    return machine.calls[machine.calls.index("canary") - 1 :]


@pytest.fixture
def short():
    return Policy(budget_s=0.2)


def test_canaries_run_around_the_chunks_of_kernels_without_their_own(short):
    machine = Machine()
    (found,) = sample_interleaved(
        [machine.kernel("step")], [short], random.Random(0), machine.rest, machine.canary
    )
    assert not found.contended
    # What ran after one chunk, all threads asleep, is what ran before the next.
    rounds = in_rounds(machine)
    assert rounds[:6] == ["rest", "canary", "step", "rest", "canary", "step"]
    assert rounds.count("canary") == rounds.count("step") + 1
    # Of the warm-up no chunk is judged.
    assert set(machine.calls[1 : -len(rounds)]) == {"step"}


def test_kernels_with_canaries_of_their_own_need_no_rest_behind_them(short):
    machine = Machine()
    sample_interleaved(
        [machine.kernel("own", QUIET), machine.kernel("other")],
        [short, short],
        random.Random(0),
        machine.rest,
        machine.canary,
    )
    rounds = in_rounds(machine)
    behind = {b for a, b in itertools.pairwise(rounds) if a == "own"}
    assert behind == {"rest"}
    behind = [i for i, call in enumerate(rounds) if call == "other"]
    assert all(rounds[i - 1] == rounds[i + 2] == "canary" for i in behind[:-1])


def test_shared_cores_flag_a_kernel_whose_times_agree(short):
    machine = Machine(shared=range(1000))
    (found,) = sample_interleaved(
        [machine.kernel("step")], [short], random.Random(0), machine.rest, machine.canary
    )
    assert found.contended
    assert found.discarded == 0


def test_without_a_canary_nothing_is_asked(short):
    machine = Machine()
    (found,) = sample_interleaved(
        [machine.kernel("step")], [short], random.Random(0), machine.rest, lambda: None
    )
    assert not found.contended
