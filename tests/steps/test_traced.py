"""From rounds of traced steps to modules, calls and what dominates; planted and invented."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from types import SimpleNamespace

import pytest

from pydlbench.devices.roofline import MemoryLevel
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.trace import ProgramCall, TraceFacts
from pydlbench.steps.traced import Rounds, in_context, limits_of, rounds_wanted, traced_rounds
from pydlbench.timing.chunk import Chunk

CALLS = (
    ("convolution", "conv1", "forward"),
    ("relu", "conv1", "forward"),
    ("convolution", "conv2", "forward"),
    ("convolution_backward", "conv2", "backward"),
    ("convolution", "conv2", "forward"),
)
SECONDS = (0.010, 0.005, 0.020, 0.040, 0.020)


def calls_of(*named):
    return tuple(
        ProgramCall(operator=operator, module=module, direction=direction, signature="")
        for operator, module, direction in named
    )


def rounds_of(*calls_s, between_s=0.005, plain_s=0.1):
    steps_s = [sum(one) + between_s for one in calls_s]
    return Rounds(steps_s, [plain_s] * len(calls_s), calls_s)


def test_modules_calls_and_what_is_between_them_add_up_to_the_step():
    found = in_context(calls_of(*CALLS), rounds_of(*[SECONDS] * 6))
    assert [(one.module, round(one.seconds, 9)) for one in found["modules"]] == [
        ("conv2", 0.080),
        ("conv1", 0.015),
    ]
    table = {(one.operator, one.module): one for one in found["calls"]}
    assert table["convolution", "conv2"].count == 2
    assert table["convolution", "conv2"].in_context_s == pytest.approx(0.040)
    assert table["convolution_backward", "conv2"].share == pytest.approx(0.4)
    assert found["between_calls_s"] == pytest.approx(0.005)
    total = sum(one.share for one in found["modules"]) + found["between_calls_s"] / 0.1
    assert total == pytest.approx(1)


def test_the_largest_module_dominates_with_an_interval_over_rounds():
    slow = [[one * (1 + 0.1 * n) if n else one for one in SECONDS] for n in range(6)]
    for n, one in enumerate(slow):
        one[2] += 0.010 * n
    found = in_context(calls_of(*CALLS), rounds_of(*slow))["dominant"]
    assert found.name == "conv2"
    assert found.ci_low == pytest.approx(0.8)
    assert found.ci_low < found.share < found.ci_high < 1


def test_the_interval_of_a_share_holds_it_where_one_round_moves_the_mean():
    calls = calls_of(("a", "left", "forward"), ("a", "right", "forward"))
    alike = [[0.049, 0.049]] * 4 + [[0.051, 0.051]] * 4
    found = in_context(calls, rounds_of(*alike, [0.09, 0.01], between_s=0.0))["dominant"]
    assert found.name == "left"
    # The mean of the five rounds in the middle; in all rounds but one it is a half.
    assert found.share == pytest.approx(0.58)
    assert (found.ci_low, found.ci_high) == (pytest.approx(0.5), pytest.approx(0.58))


def test_modules_that_take_turns_as_the_largest_are_rivals():
    calls = calls_of(("a", "left", "forward"), ("a", "right", "forward"), ("a", "small", "forward"))
    found = in_context(calls, rounds_of(*[[0.05, 0.04, 0.001], [0.04, 0.049, 0.001]] * 3))
    assert (found["dominant"].name, found["dominant"].rivals) == ("left", ("right",))
    clear = in_context(calls, rounds_of(*[[0.05, 0.04, 0.001]] * 6))["dominant"]
    assert clear.rivals == ()


def test_of_two_rounds_that_differ_a_share_is_anything_and_of_one_it_has_no_interval():
    slow = [one * (1 + (number == 3)) for number, one in enumerate(SECONDS)]
    found = in_context(calls_of(*CALLS), rounds_of(SECONDS, slow))["dominant"]
    assert (found.name, found.ci_low, found.ci_high) == ("conv2", pytest.approx(0.47, abs=0.01), 1)
    found = in_context(calls_of(*CALLS), rounds_of(SECONDS))["dominant"]
    assert (found.name, found.ci_low, found.ci_high) == ("conv2", None, None)


@pytest.mark.parametrize(
    ("count", "limit_s"),
    [
        (4, None),  # in the first cache, which is not probed
        (1000, (1000 * (16 + 8 + 16) - 1000) / 1e9),  # rows, indices and result; from the second
        (50_000, (50_000 * (16 + 8 + 16) - 1000 - 1e6) / 1e8),  # from the memory
        (0, 0.0),  # a view moves nothing
    ],
)
def test_what_only_moves_bytes_is_held_against_the_caches_that_were_probed(count, limit_s):
    table = "float32[99999, 4](4, 1)"
    signature = f"aten.embedding.default({table}, int64[{count}](1))"
    operator, size = "embedding", 16 * 99999 + (8 + 16) * count
    if not count:
        operator, signature = "view", f"aten.view.default({table}, [-1])"
    call = ProgramCall(
        operator=f"aten.{operator}",
        module="words",
        direction="forward",
        signature=signature,
        bytes=size,
    )
    levels = (
        MemoryLevel(name="l1", capacity=1000, bytes_per_s=inf),
        MemoryLevel(name="l2", capacity=1e6, bytes_per_s=1e9),
        MemoryLevel(name="memory", capacity=inf, bytes_per_s=1e8),
    )
    device = SimpleNamespace(
        levels=lambda _: levels, limits=lambda _: SimpleNamespace(measured=1e12)
    )
    probed = []

    def probe(_precisions, _patterns, names):
        probed.extend(names)
        return device

    session = SimpleNamespace(devices=SimpleNamespace(cpu=probe), cache_bytes=lambda: 1e6)
    refused = []
    assert limits_of([call], session, refused)(call) == pytest.approx(limit_s)
    assert ("memory" in probed) is (limit_s is not None and limit_s > 1e-3)

    def refuse(*_, **__):
        raise UnsupportedError("a probe was faster than possible")

    session.devices.cpu = refuse
    assert limits_of([call], session, refused)(call) is None
    assert ["faster than possible" in reason for reason in refused] == [True]


def test_without_a_probe_of_a_cache_all_bytes_come_from_the_memory():
    signature = "aten.relu.default(float32[1000](1))"
    call = ProgramCall(
        operator="aten.relu", module="relu", direction="forward", signature=signature, bytes=8000
    )

    def levels(names):
        rate = 1e8 if "memory" in names else inf
        return (
            MemoryLevel(name="l1", capacity=1000, bytes_per_s=inf),
            MemoryLevel(name="memory", capacity=inf, bytes_per_s=rate),
        )

    device = SimpleNamespace(levels=levels, limits=lambda _: SimpleNamespace(measured=1e12))
    session = SimpleNamespace(
        devices=SimpleNamespace(cpu=lambda *_: device), cache_bytes=lambda: 1e6
    )
    assert limits_of([call], session, [])(call) == pytest.approx(7000 / 1e8)


def test_a_module_has_a_limit_where_nearly_all_of_its_calls_have_one():
    limits = {"convolution": 0.002, "convolution_backward": 0.004}
    found = in_context(
        calls_of(*CALLS), rounds_of(*[SECONDS] * 6), lambda call: limits.get(call.operator)
    )
    known = {one.module: one.limit_s for one in found["modules"]}
    assert known == {"conv2": pytest.approx(0.008), "conv1": None}  # a third of it is the ReLU


class Kernel:
    """Answers with invented rounds, by the way in which a step is traced."""

    def __init__(self, **answers):
        self.answers = answers
        self.ways: list[str] = []
        self.steps = self.plain = 0

    def sample(self, request):
        self.ways.append(request.timing)
        self.steps += request.untimed + request.samples
        answer = self.answers[request.timing]
        if isinstance(answer, Exception):
            raise answer
        traced_s, plain_s, *calls_s = answer
        self.plain += request.plain * request.samples
        seconds = [
            second
            for _ in range(request.samples)
            for second in (
                next(traced_s) if isinstance(traced_s, Iterator) else traced_s,
                *[plain_s] * request.plain,
                *calls_s,
            )
        ]
        return Chunk(seconds=tuple(seconds))


FACTS = TraceFacts(
    calls=calls_of(*CALLS[:2]), sources={"profile": "a profiler", "stamps": "time stamps"}
)
CHEAP = (0.101, 0.1, 0.06, 0.03)
DEAR = (0.110, 0.1, 0.06, 0.03)
STAMPS = (0.095, 0.1, 0.05, 0.03)


def test_a_profiler_that_costs_little_is_taken():
    kernel = Kernel(profile=CHEAP)
    rounds, tracing = traced_rounds(kernel, FACTS)
    assert kernel.plain == len(rounds.plain_s) == 2
    assert tracing.source == "a profiler"
    assert tracing.cost == pytest.approx(1.01)
    assert tracing.notes == ()
    assert set(rounds.traced_s) == {0.101}
    assert tracing.rounds == len(rounds.traced_s) == 12


def test_one_cheap_round_does_not_tell_that_tracing_costs_little():
    times = iter([0.100, 0.105, *[0.106] * 16])
    kernel = Kernel(profile=(times, 0.1, 0.06, 0.03), stamps=STAMPS)
    _, tracing = traced_rounds(kernel, FACTS)
    assert tracing.way == "stamps"


def test_what_tracing_costs_is_of_the_rounds_with_an_untraced_step():
    times = iter([0.101, 0.101, *[0.2] * 16])
    _, tracing = traced_rounds(Kernel(profile=(times, 0.1, 0.06, 0.03)), FACTS)
    assert tracing.traced_s / tracing.untraced_s == pytest.approx(tracing.cost)
    assert tracing.rounds > 2


def test_a_profiler_that_costs_too_much_gives_way_to_time_stamps():
    rounds, tracing = traced_rounds(Kernel(profile=DEAR, stamps=STAMPS), FACTS)
    assert tracing.source == "time stamps"
    assert "1.10 times" in tracing.notes[0]
    assert set(rounds.traced_s) == {0.1}  # the real step, of which stamps time the calls
    assert {tuple(one) for one in rounds.calls_s} == {(0.05, 0.03)}


def test_a_profile_of_other_calls_gives_way_to_time_stamps_and_says_which_call():
    refused = PrimitiveError("call 3 of 9 is conv; the profile has relu")
    _, tracing = traced_rounds(Kernel(profile=refused, stamps=STAMPS), FACTS)
    assert tracing.source == "time stamps"
    assert tracing.notes == ("call 3 of 9 is conv; the profile has relu",)


def test_where_only_a_dear_profiler_is_there_seconds_are_scaled_and_it_is_said():
    facts = TraceFacts(calls=FACTS.calls, sources={"profile": "a profiler"})
    rounds, tracing = traced_rounds(Kernel(profile=DEAR), facts)
    assert rounds.calls_s[0] == pytest.approx([0.06 / 1.1, 0.03 / 1.1])
    assert set(rounds.traced_s) == {0.1}
    assert tracing.traced_s == pytest.approx(0.11)
    assert any("scaled" in one for one in tracing.notes)


def test_calls_that_take_longer_in_a_row_than_the_step_are_said_to():
    slow = (0.15, 0.1, 0.08, 0.04)
    _, tracing = traced_rounds(Kernel(profile=DEAR, stamps=slow), FACTS)
    assert tracing.way == "stamps"
    assert "below zero" in tracing.notes[1]


@pytest.mark.parametrize(
    ("round_s", "rounds"),
    [(0.0, 18), (0.01, 18), (0.25, 10), (0.5, 5), (0.8, 4), (5.0, 4), (7.5, 4), (9.0, 3), (60, 2)],
)
def test_rounds_are_planned_by_what_one_takes(round_s, rounds):
    assert rounds_wanted(round_s) == rounds


def test_choosing_a_way_takes_two_rounds_where_the_profiler_costs_little():
    cheap, dear = Kernel(profile=CHEAP), Kernel(profile=DEAR, stamps=STAMPS)
    assert traced_rounds(cheap, FACTS, briefly=True)[1].way == "profile"
    assert cheap.steps == 3
    assert traced_rounds(dear, FACTS, briefly=True)[1].way == "stamps"
    assert dear.steps == (3 + 2) + 3


def test_choosing_a_way_takes_one_round_of_a_long_step():
    dear, stamps = (1.1, 1.0, 0.6, 0.3), (0.95, 1.0, 0.5, 0.3)
    cheap, both = Kernel(profile=(1.01, 1.0, 0.6, 0.3)), Kernel(profile=dear, stamps=stamps)
    assert traced_rounds(cheap, FACTS, briefly=True)[1].way == "profile"
    assert cheap.steps == 2
    assert traced_rounds(both, FACTS, briefly=True)[1].way == "stamps"
    assert both.steps == (2 + 3) + 2
