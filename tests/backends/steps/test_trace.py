"""Calls found again in a profile by order and name, and traced steps beside others."""

from __future__ import annotations

import contextlib

import pytest

from pydlbench.backends.steps.trace import CallEvent, StepTrace, StepTracer, TracedSteps, align
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.trace import ProgramCall
from pydlbench.timing.chunk import ChunkRequest

STEP = ("conv", "relu", "linear")
MS = 1_000_000


def composed(name):
    return name in ("conv2d", "optimizer", "reshape")


def aligned(*events, names=STEP):
    return align(names, [CallEvent(*event) for event in events], composed).seconds


def test_each_call_has_the_seconds_of_its_own_event():
    found = aligned(("linear", 6 * MS, 4 * MS), ("conv", 0, 2 * MS), ("relu", 3 * MS, 1 * MS))
    assert found == [0.002, 0.001, 0.004]


def test_what_is_around_a_call_and_within_it_is_no_call():
    found = aligned(
        ("conv2d", 0, 5 * MS),
        ("conv", 1 * MS, 3 * MS),
        ("relu", 2 * MS, 1 * MS),  # the convolution's own
        ("optimizer", 10 * MS, 90 * MS),
        ("relu", 11 * MS, 1 * MS),
        ("reshape", 13 * MS, 1 * MS),
        ("linear", 20 * MS, 7 * MS),
    )
    assert found == [0.003, 0.001, 0.007]


def test_a_call_that_makes_another_one_first_is_without_its_seconds():
    found = aligned(
        ("relu", 0, 10 * MS),
        ("conv", 1 * MS, 4 * MS),
        ("clamp", 6 * MS, 2 * MS),  # its own kernel
        ("linear", 20 * MS, 1 * MS),
        names=("conv", "relu", "linear"),
    )
    assert found == [0.004, 0.006, 0.001]


def test_a_head_before_a_call_is_part_of_it():
    def seconds(*names):
        events = [
            CallEvent("copy", 1 * MS, 3 * MS),
            CallEvent("linear", 5 * MS, 2 * MS),
            CallEvent("copy", 8 * MS, 1 * MS),
        ]
        found = align(names, events, composed, heads={"linear": "copy"})
        return found.seconds, [(one.start_ns, one.end_ns) for one in found.events]

    assert seconds("linear", "copy") == ([0.005, 0.001], [(1 * MS, 7 * MS), (8 * MS, 9 * MS)])
    # A copy that is a call itself is no head, and one that is neither is refused.
    assert seconds("copy", "linear", "copy")[0] == [0.003, 0.002, 0.001]
    with pytest.raises(PrimitiveError):
        seconds("linear")


def test_a_head_within_a_call_that_is_taken_at_its_end_counts_once():
    events = [
        CallEvent("relu", 0, 10 * MS),
        CallEvent("copy", 1 * MS, 3 * MS),
        CallEvent("linear", 5 * MS, MS),
    ]
    found = align(("linear", "relu"), events, composed, heads={"linear": "copy"})
    assert found.seconds == [0.004, 0.006]


def test_a_call_has_one_head_at_the_most():
    events = [CallEvent("copy", at * MS, MS) for at in (0, 2)] + [CallEvent("linear", 4 * MS, MS)]
    with pytest.raises(PrimitiveError):
        align(("linear",), events, composed, heads={"linear": "copy"})


def test_a_call_that_surrounds_itself_is_the_inner_one():
    found = aligned(
        ("relu", 0, 10 * MS),
        ("conv", 1 * MS, 4 * MS),
        ("relu", 6 * MS, 2 * MS),
        ("linear", 20 * MS, 1 * MS),
    )
    assert found == [0.004, 0.002, 0.001]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (("conv", "linear"), "call 2 of 3 is 1; the profile has linear"),
        (("conv", "relu", "relu", "linear"), "call 3 of 3 is 2; the profile has relu"),
        (("conv", "relu", "linear", "relu"), "call 4 of 3 would be one too many; .* has relu"),
        (("conv", "relu", "matmul"), "call 3 of 3 is 2; the profile has matmul"),
        (("relu", "conv", "linear"), "call 1 of 3 is 0; the profile has relu"),
        (("conv", "relu"), "call 3 of 3 is 2; the profile has nothing more"),
        ((), "call 1 of 3 is 0; the profile has nothing more"),
    ],
    ids=["missing", "extra", "extra behind", "other name", "other order", "ended", "empty"],
)
def test_a_profile_of_other_calls_is_refused_at_the_first_that_differs(events, message):
    with pytest.raises(PrimitiveError, match=message) as refused:
        aligned(*((name, place * MS, MS) for place, name in enumerate(events)))
    assert "nearest: --eval-mode" in str(refused.value)


def test_calls_within_what_is_none_of_the_step_are_not_taken_for_the_steps():
    with pytest.raises(PrimitiveError, match=r"call 1 of 3 is 0; .*matmul"):
        aligned(("matmul", 0, 9 * MS), *((name, n * MS, 100) for n, name in enumerate(STEP, 1)))


def invented(log):
    calls = [
        ProgramCall(operator=one, module="a", direction="forward", signature="") for one in STEP
    ]

    def traced():
        log.append("traced")
        return StepTrace(0.5, [0.1, 0.2, 0.05])

    return StepTracer(calls=calls, ways={"profile": ("an invented profiler", traced)})


def test_each_round_has_a_traced_step_and_another_in_random_order():
    log: list[str] = []
    steps = TracedSteps(invented(log), lambda: log.append("plain"), (0,), contextlib.nullcontext)
    chunk = steps.sample(ChunkRequest(samples=20, untimed=1, timing="profile"))
    rounds = [chunk.seconds[n : n + 5] for n in range(0, 100, 5)]
    assert {(one[0], *one[2:]) for one in rounds} == {(0.5, 0.1, 0.2, 0.05)}
    assert all(0 <= one[1] < 0.5 for one in rounds)
    assert log.pop(0) == "traced"  # untimed
    pairs = [tuple(log[n : n + 2]) for n in range(0, 40, 2)]
    assert set(pairs) == {("traced", "plain"), ("plain", "traced")}
    log.clear()
    chunk = steps.sample(ChunkRequest(samples=20, timing="profile", plain=False))
    assert chunk.seconds == 20 * (0.5, 0.1, 0.2, 0.05)
    assert log == 20 * ["traced"]
    with pytest.raises(UnsupportedError, match="stamps"):
        steps.sample(ChunkRequest(samples=1, timing="stamps"))
