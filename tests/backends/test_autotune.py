"""The choice among candidates, on invented ones: no library, no clock."""

import itertools

import pytest

from pydlbench.backends import autotune
from pydlbench.backends.autotune import KernelCandidate
from pydlbench.errors import (
    DeviceLostError,
    InsufficientMemoryError,
    PrimitiveError,
    UnsupportedError,
)
from pydlbench.verification.verify import Verdict

EFFORT = autotune.CPU_EFFORT


class Invented:
    """A kernel of a known time; ``time`` may be a function of the executions so far by all."""

    executions = itertools.count()

    def __init__(self, time, order=None):
        self.time = time if callable(time) else lambda _: time
        self.runs = []
        self.order = order if order is not None else []

    def seconds(self, samples, untimed=0):
        self.runs.append((samples, untimed))
        self.order.append(self)
        return [self.time(next(Invented.executions)) for _ in range(samples)]

    @property
    def probes(self):
        """Samples of each request that had no untimed execution before it."""
        return [samples for samples, untimed in self.runs if not untimed]

    @property
    def turns(self):
        return len(self.runs) - len(self.probes)


@pytest.fixture(autouse=True)
def _from_zero():
    Invented.executions = itertools.count()


def verdict(detail=None):
    return Verdict(
        status="failed" if detail else "ok",
        rel_error=0.0,
        tolerance=1e-6,
        detail=detail or "all recomputed",
        unwritten=0,
        points=1,
        checksums=0,
    )


class Search(autotune.Autotuner):
    """Of invented kernels; ``wrong`` and ``broken`` say by number what fails how."""

    def __init__(self, kernels, wrong=None, broken=None, **words):
        made = [
            KernelCandidate(one, algorithm=f"a{n}", layout="nhwc") for n, one in enumerate(kernels)
        ]
        super().__init__(made, EFFORT, **words)
        self.wrong = wrong or {}
        self.broken = broken or {}
        self.verified = []
        self.bests = []

    def runnable(self, candidate):
        if error := self.broken.get(self.candidates.index(candidate)):
            raise error
        return candidate.source

    def verify(self, candidate):
        number = self.candidates.index(candidate)
        self.verified.append(number)
        found = self.wrong.get(number)
        if isinstance(found, Exception):
            raise found
        return verdict(found)

    def release_probed(self, candidate, best):  # noqa: ARG002 - the best is what is looked at
        self.bests.append(best)

    def won(self):
        return self.candidates.index(self.tune())


def search(times, **words):
    return Search([Invented(time) for time in times], **words)


def test_the_fastest_wins_and_carries_its_verdict():
    one = search([0.003, 0.001, 0.002])
    chosen = one.tune()
    assert chosen is one.candidates[1]
    assert chosen.verdict == verdict()
    assert one.bests == [0.003, 0.001, 0.001]


def test_what_a_clock_reads_as_free_is_chosen_like_any_other():
    one = search([0.0, 0.0, 0.002])
    assert one.tune().time == 0.0


def test_a_hopeless_one_runs_once():
    late = 1.01 * (autotune.HOPELESS_FACTOR * 0.004 + EFFORT.hopeless_s)
    one = search([0.004, late])
    one.tune()
    assert one.candidates[1].source.runs == [(1, 0)]
    assert one.candidates[1].times == [late]
    assert one.candidates[0].source.runs == [(1, 0), (1, 0)]  # nobody else is left


def test_a_probe_goes_on_for_those_only_that_are_not_clearly_slower():
    # As fast, slower by a tenth, by a quarter, by three quarters.
    one = search([0.001, 0.0011, 0.00125, 0.00175], finals=False)
    assert one.won() == 0
    samples = [sum(one.candidates[number].source.probes) for number in range(4)]
    # The first execution of each, and a sixth of a probe, half of one, all of it.
    assert samples == [1 + 3 + 7 + 10, 1 + 3 + 7 + 10, 1 + 3 + 7, 1 + 3]


def test_who_is_slower_by_chance_in_the_first_stage_is_not_lost():
    # A third more, which is what somebody else on the cores does, and then the fastest.
    unlucky = Invented(lambda execution: 0.0013 if execution < 8 else 0.0009)
    one = Search([Invented(0.001), unlucky], finals=False)
    assert one.won() == 1


def test_a_first_execution_that_only_woke_the_threads_is_not_held_against_it():
    cold_first = Invented(lambda execution: 0.002 if execution == 2 else 0.00005)
    slow = Invented(0.005)  # is executed twice
    one = Search([slow, cold_first])
    assert one.won() == 1
    assert set(one.candidates[1].times) == {0.00005}


def test_a_thorough_probe_times_and_verifies_the_hopeless_too():
    one = search([0.001, 1.0], thorough=True)
    assert one.won() == 0
    assert one.candidates[1].source.runs == [(1, 0), (5, 0)]
    assert len(one.candidates[1].times) == 5
    assert one.verified == [0, 1, 0]


def test_a_slow_candidate_costs_few_executions():
    """Two in its probe, three in the finals; nothing untimed, as its caches do not matter."""
    one = search([2.0, 2.0])
    one.tune()
    assert one.candidates[0].source.runs == [(1, 0)] * 5


def test_one_that_is_alone_only_has_to_run():
    one = search([0.001])
    one.tune()
    assert one.candidates[0].source.runs == [(1, 0)]
    assert one.verified == [0]


def test_only_finalists_are_in_the_finals():
    near = (1 + EFFORT.final_margin) / 2
    one = search([0.001, 0.001 * near, 0.0011 * EFFORT.final_margin])
    one.tune()
    turns = [candidate.source.turns for candidate in one.candidates]
    assert turns[0] == turns[1] > 0
    assert turns[2] == 0


@pytest.mark.parametrize(("words", "count"), [({}, EFFORT.finalists), ({"finalists": 2}, 2)])
def test_at_most_so_many_are_in_the_finals(words, count):
    one = search([0.001 + 1e-6 * i for i in range(7)], **words)
    one.tune()
    assert [c.source.turns > 0 for c in one.candidates] == [i < count for i in range(7)]


def test_a_single_finalist_needs_no_finals():
    one = search([0.001, 0.01])
    assert one.won() == 0
    assert one.candidates[0].source.turns == 0


def test_the_fastest_wrong_one_is_disqualified_and_the_next_wins():
    one = search([0.001, 0.00102, 0.00104], wrong={0: "an unwritten tile"})
    assert one.won() == 1
    wrong, _, other = one.candidates
    assert (wrong.status, wrong.reason) == ("failed", "an unwritten tile")
    assert (other.status, other.verdict) == ("ok", None)


def test_a_slow_right_one_wins_when_all_finalists_are_wrong():
    one = search([0.001, 0.00101, 0.005, 0.02], wrong={0: "wrong", 1: "wrong"})
    assert one.won() == 2
    assert [c.status for c in one.candidates] == ["failed", "failed", "ok", "ok"]


def test_all_wrong_is_a_failure_with_each_reason_once():
    one = search([0.001, 0.00101, 0.005], wrong={0: "NaN", 1: "NaN", 2: "off by one"})
    with pytest.raises(PrimitiveError, match=r"right result: NaN; off by one$"):
        one.tune()
    assert {c.status for c in one.candidates} == {"failed"}


def test_what_nobody_has_is_unsupported_and_what_one_fails_at_is_a_failure():
    refusal = UnsupportedError("no such engine")
    with pytest.raises(UnsupportedError, match=r"^no such engine$"):
        search([1, 1], broken={0: refusal, 1: refusal}).tune()
    with pytest.raises(PrimitiveError, match="engine; refused"):
        search([1, 1], broken={0: refusal, 1: PrimitiveError("refused")}).tune()


def test_what_cannot_be_made_costs_the_candidate_not_the_case():
    one = search([0.001, 0.00101], broken={0: PrimitiveError("oneDNN refused")})
    assert one.won() == 1
    assert one.candidates[0].reason == "oneDNN refused"


def test_a_failure_in_the_finals_costs_the_candidate_not_the_case():
    one = search([0.001, 0.00101, 0.00102], wrong={1: PrimitiveError("run-time error")})
    first_runnable = one.runnable

    def out_of_memory(candidate):
        if candidate is one.candidates[0] and candidate.times:
            raise InsufficientMemoryError("cannot allocate 1000 bytes")
        return first_runnable(candidate)

    one.runnable = out_of_memory
    assert one.won() == 2
    reasons = [candidate.reason for candidate in one.candidates]
    assert reasons == ["cannot allocate 1000 bytes", "run-time error", None]


def test_one_that_fails_in_its_turn_costs_itself_only():
    def gives_up(execution):
        if execution > 60:
            raise PrimitiveError("gave up")
        return 0.001

    one = Search([Invented(gives_up), Invented(0.00101)])
    assert one.won() == 1
    assert one.candidates[0].reason == "gave up"


def test_the_finals_undo_a_drift_between_probes():
    """The machine slows down by 10 %, step by step; who was probed first must not profit."""
    order = []

    def drifting(base):
        return lambda execution: base * (1 + 0.1 * min(execution, 400) / 400)

    one = Search([Invented(drifting(0.001), order), Invented(drifting(0.00097), order)])
    one.candidates[0].source.time = lambda e: 0.00096 if e < 21 else drifting(0.001)(e)
    assert one.won() == 1
    # Turns alternate, and so does who begins.
    first, second = (candidate.source for candidate in one.candidates)
    assert order[8:14] == [first, second, second, first, first, second]


def test_the_times_of_the_finals_replace_those_of_the_probes():
    one = Search([Invented(lambda e: 0.00099 if e < 21 else 0.001), Invented(0.00101)])
    one.tune()
    assert set(one.candidates[0].times) == {0.001}


def test_the_listing_has_the_fastest_first_and_failures_last():
    one = search([0.003, 0.001, 0.002], wrong={1: "NaN"}, thorough=True)
    one.candidates[0].details = {"workspace_bytes": 64, "notes": ["a note"]}
    listed = one.listing(one.tune())
    assert [entry["algorithm"] for entry in listed] == ["a2", "a0", "a1"]
    assert [entry["chosen"] for entry in listed] == [True, False, False]
    assert [entry["status"] for entry in listed] == ["ok", "ok", "failed"]
    assert [entry["workspace_bytes"] for entry in listed] == [None, 64, None]
    assert listed[1]["notes"] == ["a note"]
    assert listed[2]["reason"] == "NaN"
    assert listed[2]["correct"]["status"] == "failed"
    assert listed[2]["seconds"]


@pytest.mark.parametrize("where", ["broken", "wrong"])
@pytest.mark.parametrize("thorough", [False, True])
def test_a_lost_device_ends_the_search(where, thorough):
    lost = {0: DeviceLostError("an illegal memory access")}
    with pytest.raises(DeviceLostError):
        search([0.001, 0.00101], thorough=thorough, **{where: lost}).tune()
