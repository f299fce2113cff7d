"""The GPU sampler against a recording fake: order of calls, time-outs, clean-up, clock."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Play = Callable[..., dict[str, Any]]

_CACHE = {"hot": 0, "weights-cold": 1, "all-cold": 2}
_TIMING = {"events": 0, "graph": 1}

RUN = ["work 0", "wait"]
COUNT = ["begin capture", "work 0", "end capture", "destroy captured"]
FIRST_RUN = [*RUN, *COUNT]
BEFORE = ["close", "stamp first", "event first"]
AFTER = ["event last", "stamp last", "open", "wait", "timed out?", "elapsed", "clock"]


class _Scenario(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("cache", "timing", "sets", "prefetches")),
        *((name, ctypes.c_int) for name in ("samples", "inner", "untimed", "launch_times")),
        *((name, ctypes.c_double) for name in ("seconds", "elapsed", "clock_seconds")),
        *((name, ctypes.c_int) for name in ("fail_at", "fail_after_effect", "gate_timeouts")),
        *(
            (name, ctypes.c_int)
            for name in (
                *("queue", "again", "uncapturable", "kernels", "ungated", "known_launches"),
            )
        ),
    )


@pytest.fixture(scope="session")
def library(cpp_library):
    """The sampler and its fake."""
    cpp_library.play_scenario.restype = ctypes.c_char_p
    return cpp_library


@pytest.fixture
def play(library):
    """Return a function that plays a scenario; unless told otherwise one hot sample on events."""

    def run(cache: str = "hot", timing: str = "events", **changes: float) -> dict[str, Any]:
        values = {"sets": 1, "samples": 1, "inner": 1, "seconds": 1e-3, **changes}
        scenario = _Scenario(cache=_CACHE[cache], timing=_TIMING[timing], **values)
        text = library.play_scenario(ctypes.byref(scenario)).replace(b"nan", b"NaN")
        answer: dict[str, Any] = json.loads(text)
        assert answer["faults"] == []
        return answer

    return run


def _kept(trace: Sequence[str]) -> list[str]:
    """Leave out what happens when everything is taken down."""
    return [call for call in trace if not call.startswith("destroy")]


def test_a_hot_sample_on_events_is_gated_and_nothing_else(play):
    answer = play(samples=2)
    one = [*BEFORE, "work 0", *AFTER]
    assert answer["trace"] == [*FIRST_RUN, *one, *one]
    assert answer["seconds"] == pytest.approx([1e-3, 1e-3])
    assert answer["error"] == ""
    # The fake's host takes as long to capture a launch as to make it.
    assert answer["wall_seconds"] == pytest.approx(3 * 1e-3 + 4 * 2e-6)


def test_inner_executions_share_a_gate_and_its_time(play):
    answer = play(inner=3)
    assert answer["trace"] == [*FIRST_RUN, *BEFORE, *(["work 0"] * 3), *AFTER]
    assert answer["seconds"] == pytest.approx([1e-3])


def test_an_execution_of_many_kernels_shares_its_gate_with_fewer_others(play):
    answer = play(inner=5, kernels=300)
    two, one = ([*BEFORE, *(["work 0"] * count), *AFTER] for count in (2, 1))
    assert answer["trace"] == [*FIRST_RUN, *two, *two, *one]
    assert answer["seconds"] == pytest.approx([1e-3])


def test_an_execution_of_more_kernels_than_the_queue_takes_has_no_gate(play):
    answer = play(samples=2, kernels=769)
    assert "close" not in answer["trace"]
    assert "timed out?" not in answer["trace"]
    assert answer["trace"].count("elapsed") == 2


@pytest.mark.parametrize(("kernels", "gates"), [(256, 1), (257, 0)])
def test_a_graph_of_more_nodes_than_are_known_to_wait_has_no_gate(play, kernels, gates):
    assert play(timing="graph", kernels=kernels)["trace"].count("close") == gates


@pytest.mark.parametrize("timing", _TIMING)
def test_without_a_gate_nothing_is_held_back(play, timing):
    answer = play(timing=timing, samples=2, ungated=1)
    assert answer["error"] == ""
    assert not {"close", "timed out?"} & set(answer["trace"])
    assert answer["trace"].count("elapsed") == 2


def test_launches_that_cannot_be_counted_are_supposed_to_be_many(play):
    answer = play(inner=5, kernels=60, uncapturable=1)
    two, one = ([*BEFORE, *(["work 0"] * count), *AFTER] for count in (2, 1))
    refused = ["begin capture", "work 0", "abandon capture"]
    assert answer["trace"] == [*RUN, *refused, *two, *two, *one]


def test_work_whose_launches_are_known_is_never_captured(play):
    answer = play(inner=5, known_launches=300)
    two, one = ([*BEFORE, *(["work 0"] * count), *AFTER] for count in (2, 1))
    assert answer["trace"] == [*RUN, *two, *two, *one]
    # What the host needs for a launch, whatever it is held back for.
    assert answer["enqueue_s"] == pytest.approx([2e-6])
    times = play(launch_times=3, known_launches=2)
    assert "begin capture" not in times["trace"]
    assert math.isnan(times["times"][2])
    assert "events" in play(timing="graph", known_launches=2)["error"]


ONE = [*BEFORE, "work 0", *AFTER]


@pytest.mark.parametrize(
    ("words", "trace"),
    [
        ({"untimed": 2}, [*FIRST_RUN, "work 0", "work 0", "wait", *ONE]),
        ({"again": 1}, ONE),  # only the first chunk begins with an ungated run
        (
            {"cache": "all-cold", "prefetches": 2, "samples": 2},
            [*FIRST_RUN, *["flush", "wait", *ONE] * 2],
        ),
        (
            {"cache": "weights-cold", "prefetches": 2},
            [*FIRST_RUN, "flush", "prefetch 1", "prefetch 2", "wait", *ONE],
        ),
    ],
    ids=["untimed", "a later chunk", "all-cold", "weights-cold"],
)
def test_what_comes_before_the_gate(play, words, trace):
    assert play(**words)["trace"] == trace


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        # On events, a cold sample is one execution.
        ({"cache": "weights-cold", "inner": 2}, "inner must be 1"),
        ({"cache": "all-cold", "inner": 2}, "inner must be 1"),
        ({"cache": "all-cold", "timing": "graph", "sets": 1}, "two sets"),
        ({"samples": 0}, "samples"),
        ({"inner": 0}, "inner"),
        ({"untimed": -1}, "untimed"),
        ({"sets": 0}, "operands"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(play, words, reason):
    answer = play(**words)
    assert reason in answer["error"]
    assert answer["trace"] == []


def test_sets_rotate_from_sample_to_sample(play):
    answer = play("all-cold", sets=3, samples=4)
    works = [call for call in answer["trace"] if call.startswith("work")]
    assert works[2:] == ["work 0", "work 1", "work 2", "work 0"]


def test_many_executions_take_several_gates_whose_times_add_up(play):
    answer = play(inner=1800)
    timed = answer["trace"][len(FIRST_RUN) :]
    rounds = [len(list(group)) for key, group in itertools.groupby(timed) if key == "work 0"]
    assert rounds == [768, 768, 264]
    assert answer["trace"].count("close") == 3
    assert answer["seconds"] == pytest.approx([1e-3])
    assert answer["clock_hz"] == pytest.approx([2e9])


def _graph(works: Sequence[int]) -> list[str]:
    """Calls that make a graph of executions on these sets."""
    n = len(works)
    return [
        "begin capture",
        *(f"work {index}" for index in works),
        *["end capture", f"instantiate {n}", "upload", f"launch {n}", "wait"],
    ]


def test_a_graph_is_made_once_and_launched_once_before_it_counts(play):
    answer = play(timing="graph", inner=4, samples=2)
    one = [*BEFORE, "launch 4", *AFTER]
    assert _kept(answer["trace"]) == [*_kept(FIRST_RUN), *_graph([0] * 4), *one, *one]
    assert answer["seconds"] == pytest.approx([0.75e-3, 0.75e-3])
    assert answer["alive"] == 0


def test_untimed_executions_of_a_graph_are_launches_of_it(play):
    answer = play(timing="graph", inner=4, untimed=5)
    one = [*BEFORE, "launch 4", *AFTER]
    twice = ["launch 4", "wait", "launch 4", "wait"]
    assert _kept(answer["trace"]) == [*_kept(FIRST_RUN), *_graph([0] * 4), *twice, *one]


@pytest.mark.parametrize("cache", ["weights-cold", "all-cold"])
def test_a_cold_graph_goes_through_all_sets_and_flushes_nothing(play, cache):
    answer = play(cache, timing="graph", sets=3, inner=4, prefetches=2)
    one = [*BEFORE, "launch 6", *AFTER]
    assert _kept(answer["trace"]) == [*_kept(FIRST_RUN), *_graph([0, 1, 2, 0, 1, 2]), *one]
    assert answer["seconds"] == pytest.approx([0.75e-3])


def test_a_long_graph_is_launched_in_parts_that_end_with_the_last_set(play):
    answer = play("all-cold", timing="graph", sets=3, inner=1500)
    launches = [call for call in answer["trace"] if call.startswith("launch")]
    assert launches == ["launch 255"] * 6 + ["launch 225"] * 2
    assert answer["seconds"] == pytest.approx([0.75e-3])


@pytest.mark.parametrize("timing", _TIMING)
@pytest.mark.parametrize("timeouts", [1, 2, 3])
def test_a_timed_out_sample_is_repeated_and_counted(play, timing, timeouts):
    answer = play(timing=timing, gate_timeouts=timeouts)
    assert answer["error"] == ""
    assert answer["gate_timeouts"] == timeouts
    assert answer["trace"].count("close") == timeouts + 1
    assert answer["trace"].count("elapsed") == 1
    assert answer["seconds"] == pytest.approx([1e-3 if timing == "events" else 0.75e-3])


@pytest.mark.parametrize("timing", _TIMING)
def test_a_gate_that_keeps_timing_out_is_a_failure(play, timing):
    answer = play(timing=timing, gate_timeouts=4)
    assert answer["error"].startswith("launch gate: timed out 4 times")
    assert answer["trace"].count("close") == 4
    assert "elapsed" not in answer["trace"]
    assert (answer["closed"], answer["capturing"], answer["pending"]) == (0, 0, 0)


def test_a_full_launch_queue_leads_to_shorter_rounds(play):
    answer = play(inner=100, queue=40)
    # 100 and 50 executions are too many for the queue; 25 are not.
    assert answer["gate_timeouts"] == 2
    assert answer["error"] == ""
    assert answer["seconds"] == pytest.approx([1e-3])
    assert answer["trace"].count("elapsed") == 4


@pytest.mark.parametrize("elapsed", [float("nan"), float("inf"), -1e-6])
def test_an_elapsed_time_that_is_none_is_not_reported(play, elapsed):
    answer = play(elapsed=elapsed)
    assert answer["error"].startswith("CUDA events: an elapsed time of")
    assert answer["seconds"] == []
    assert (answer["closed"], answer["pending"]) == (0, 0)


_SHAPES = [
    pytest.param({}, id="hot"),
    pytest.param({"inner": 2, "untimed": 2}, id="hot-inner"),
    pytest.param({"cache": "weights-cold", "prefetches": 2, "sets": 2}, id="weights-cold"),
    pytest.param({"timing": "graph", "inner": 2, "untimed": 3}, id="graph"),
    pytest.param({"cache": "all-cold", "timing": "graph", "sets": 3}, id="cold-graph"),
    pytest.param({"launch_times": 2, "seconds": 1.0}, id="launch-times"),
]


@pytest.mark.parametrize("after_effect", [0, 1])
@pytest.mark.parametrize("shape", _SHAPES)
def test_whatever_throws_leaves_nothing_behind(play, shape, after_effect):
    shape = {"samples": 2, **shape}
    complete = play(**shape)
    noexcept = {"open", "drain", "abandon capture", "destroy captured", "destroy executable"}
    calls = [call for call in complete["trace"] if call not in noexcept]
    assert len(calls) > 15
    for number, call in enumerate(calls, start=1):
        broken = play(**shape, fail_at=number, fail_after_effect=after_effect)
        assert broken["error"] == f"injected {'after' if after_effect else 'into'} {call}"
        assert (broken["closed"], broken["capturing"], broken["pending"]) == (0, 0, 0), call
        assert broken["alive"] == 0, call
        assert broken["seconds"] == [], call

        healed = play(**shape, fail_at=number, fail_after_effect=after_effect, again=1)
        assert healed["seconds"] == complete["seconds"], call
        assert healed["times"] == pytest.approx(complete["times"]), call
        assert healed["alive"] == 0, call


def test_an_error_behind_a_closed_gate_opens_it_before_it_waits(play):
    # Calls 1 to 5 run and count; 6 to 8 close the gate, stamp and record; 9 is the work.
    answer = play(fail_at=9)
    assert answer["trace"] == [*FIRST_RUN, *BEFORE, "work 0", "open", "drain"]


def test_an_error_in_a_capture_abandons_it(play):
    answer = play(timing="graph", inner=3, fail_at=8)
    assert answer["trace"] == [*FIRST_RUN, "begin capture", *["work 0"] * 2, "abandon capture"]


def test_four_times_of_one_execution(play):
    answer = play("all-cold", launch_times=5, seconds=1e-4, prefetches=1)
    # 2 ms of 100 us executions; the fake's host takes 2 us to enqueue one, its graphs save 25 %.
    assert answer["times"] == pytest.approx([1e-4, 1e-4, 0.75e-4, 2e-6, 1.02e-4])
    assert "flush" not in answer["trace"]
    assert "begin capture" in answer["trace"]
    works = [len(list(g)) for key, g in itertools.groupby(answer["trace"]) if key == "work 0"]
    assert max(works) == 20


def test_a_work_that_cannot_be_captured_has_no_time_in_a_graph(play):
    answer = play(launch_times=4, seconds=1e-4, uncapturable=1)
    assert answer["error"] == ""
    single, event, graph, host, wall = answer["times"]
    assert math.isnan(graph)
    assert (single, event, host, wall) == pytest.approx((1e-4, 1e-4, 2e-6, 1.02e-4))
    assert (answer["capturing"], answer["pending"], answer["alive"]) == (0, 0, 0)
    assert answer["trace"].count("begin capture") == 2  # to be counted, and as a graph
    # Sampled in a graph, it is a failure.
    assert "not while a stream" in play(timing="graph", uncapturable=1)["error"]


def test_slow_executions_are_repeated_less_often(play):
    def looked(**words: float) -> int:
        return play(launch_times=20, **words)["trace"].count("elapsed")

    # One to find out how long it takes, then three per repetition.
    assert looked(seconds=1e-3) == 1 + 3 * 20
    assert looked(seconds=1.0) == 1 + 3 * 3


def test_a_loop_of_short_executions_cannot_fill_the_launch_queue(play):
    answer = play(launch_times=1, seconds=1e-6)
    works = [len(list(g)) for key, g in itertools.groupby(answer["trace"]) if key == "work 0"]
    assert max(works) == 32


# --- the clock -----------------------------------------------------------------------------------


def test_long_samples_have_a_clock_each_and_short_ones_share_one(play):
    assert play(samples=3, clock_seconds=200e-6)["clock_hz"] == pytest.approx([2e9] * 3)
    assert play(samples=3, clock_seconds=100e-6)["clock_hz"] == pytest.approx([2e9])
    assert play(samples=3, clock_seconds=50e-6)["clock_hz"] == []
    assert play(samples=3, clock_seconds=-1)["clock_hz"] == []


def _pair(
    library: ctypes.CDLL, first: Sequence[tuple[int, int]], last: Sequence[tuple[int, int]]
) -> tuple[float, float] | None:
    numbers = ctypes.c_uint64 * (2 * len(first))
    out = (ctypes.c_double * 2)()
    found = library.pair_stamps(
        numbers(*itertools.chain(*first)), numbers(*itertools.chain(*last)), len(first), out
    )
    return (out[0], out[1]) if found else None


NOW = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("first", "last", "interval"),
    [
        pytest.param([(100, NOW)], [(1_900_100, NOW + 1_000_000)], (1.9e6, 1e-3), id="plain"),
        pytest.param(
            [(5, NOW), (100, NOW)],
            [(1_700_005, NOW + 1_000_000), (1_900_100, NOW + 1_000_000)],
            (1.7e6, 1e-3),
            id="SM 0 goes first",
        ),
        pytest.param(
            [(0, 0), (100, NOW)],
            [(1_700_000, NOW + 1_000_000), (1_900_100, NOW + 1_000_000)],
            (1.9e6, 1e-3),
            id="no block on SM 0 the first time",
        ),
        pytest.param([(100, NOW), (0, 0)], [(0, 0), (1_900_100, NOW)], None, id="none in common"),
        pytest.param([(0, 0)], [(0, 0)], None, id="nothing written"),
        pytest.param([(2**64 - 50, NOW)], [(1_000_000, NOW + 500_000)], None, id="wrapped"),
        pytest.param([(100, NOW)], [(1_900_100, NOW)], None, id="no time passed"),
        pytest.param([(100, NOW)], [(1_900_100, NOW - 1)], None, id="time ran backwards"),
        pytest.param([(100, NOW)], [(1_100, NOW + 1_000_000)], None, id="1 MHz: reset between"),
        pytest.param([(100, NOW)], [(9_000_100, NOW + 1_000_000)], None, id="9 GHz"),
        pytest.param(
            [(10, NOW), (100, NOW)],
            [(1_000, NOW + 1_000_000), (1_900_100, NOW + 1_000_000)],
            (1.9e6, 1e-3),
            id="a reset SM is passed over",
        ),
        pytest.param([(0, NOW)], [(9_000, NOW + 1_024)], (9e3, 1.024e-6), id="too short to judge"),
    ],
)
def test_both_stamps_come_from_the_same_multiprocessor(library, first, last, interval):
    found = _pair(library, first, last)
    assert found == (None if interval is None else pytest.approx(interval))


@pytest.mark.parametrize(
    ("intervals", "readings"),
    [
        pytest.param([(4e5, 2e-4), (9e5, 5e-4)], [2e9, 1.8e9], id="long enough each"),
        pytest.param([(4e5, 2e-4), (0, 0)], [2e9], id="one is missing"),
        pytest.param([(1e5, 1e-4), (3e5, 2e-4)], [4 / 3 * 1e9], id="sums, not a mean of rates"),
        pytest.param([(1e5, 1e-4), (1e5, 0.9e-4)], [], id="too short together"),
        pytest.param([(0, 0)], [], id="none"),
        pytest.param([(1e9, 1e-3), (2e6, 1e-3)], [2e9], id="an impossible one is left out"),
        pytest.param([(1e6, 1e-4), (1e6, 1e-4)], [], id="10 GHz"),
    ],
)
def test_readings_of_a_chunk(library, intervals, readings):
    numbers = (ctypes.c_double * (2 * len(intervals)))(*itertools.chain(*intervals))
    hz = (ctypes.c_double * len(intervals))()
    count = library.read_clocks(numbers, len(intervals), hz)
    assert hz[:count] == pytest.approx(readings)


# --- the gate's kernel ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "ticket"),
    [(0, 1, 1), (6, 7, 7), (6, 9, 7), (2**32 - 1, 0, 0), (2**32 - 1, 2, 1)],
)
def test_a_gate_holds_until_its_ticket_is_called(library, before, after, ticket):
    assert _poll(library, before, after, ticket, opens=5, step=10, timeout=1000) == 5


def test_a_gate_that_was_opened_before_lets_everything_through(library):
    assert _poll(library, 7, 7, 6, opens=50, step=10, timeout=1000) == 1


def test_a_gate_gives_up_when_its_time_is_over(library):
    # The clock is read once before the first poll, and after every poll that finds it closed.
    assert _poll(library, 0, 1, 1, opens=50, step=10, timeout=100) == -10
    # The same where the nanosecond timer wraps around meanwhile.
    assert _poll(library, 0, 1, 1, opens=50, step=10, timeout=100, start=2**64 - 35) == -10


def _poll(
    library: ctypes.CDLL,
    before: int,
    after: int,
    ticket: int,
    *,
    opens: int,
    step: int,
    timeout: int,
    start: int = NOW,
) -> int:
    counts = map(ctypes.c_uint32, (before, after, ticket))
    times = map(ctypes.c_uint64, (start, step, timeout))
    return int(library.poll_gate(*counts, opens, *times))
