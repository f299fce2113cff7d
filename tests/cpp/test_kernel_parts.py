"""Rotating sets, keeping a device busy for a while, and building plans once."""

from __future__ import annotations

import ctypes

import pytest

HOT, WEIGHTS_COLD, ALL_COLD = range(3)
EVENTS, GRAPH = range(2)
MB = 1 << 20


class Outcome(ctypes.Structure):
    _fields_ = (
        ("executions", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("executed", ctypes.c_int64),
        ("most_ahead", ctypes.c_double),
        ("idle", ctypes.c_double),
        ("objects", ctypes.c_int64),
        ("pending", ctypes.c_int64),
        ("capturing", ctypes.c_int64),
        ("out_of_turn", ctypes.c_int64),
    )


@pytest.fixture(scope="module")
def library(cpp_library: ctypes.CDLL) -> ctypes.CDLL:
    loaded = cpp_library
    loaded.sets_for.restype = loaded.bytes_of_set.restype = ctypes.c_int64
    return loaded


def sets_for(
    library: ctypes.CDLL, cache: int, timing: int, weights: int, others: int, cold: int
) -> int:
    sizes = [ctypes.c_int64(one) for one in (weights, others, cold)]
    return int(library.sets_for(cache, timing, *sizes))


@pytest.mark.parametrize("cold", [0, 1, 3 * MB, 4 * MB, 4 * MB + 1, 100 * MB])
@pytest.mark.parametrize("cache", [WEIGHTS_COLD, ALL_COLD])
def test_the_other_sets_push_each_set_out_of_the_cache(
    library: ctypes.CDLL, cache: int, cold: int
) -> None:
    count = sets_for(library, cache, GRAPH, MB, 3 * MB, cold)
    one = MB if cache == WEIGHTS_COLD else 4 * MB
    assert count >= 2
    assert (count - 1) * one >= cold
    assert count == 2 or (count - 2) * one < cold


@pytest.mark.parametrize("cache", [HOT, WEIGHTS_COLD, ALL_COLD])
def test_one_set_does_where_nothing_is_cold_or_the_cache_is_flushed(
    library: ctypes.CDLL, cache: int
) -> None:
    assert sets_for(library, HOT, GRAPH, MB, MB, 100 * MB) == 1
    assert sets_for(library, cache, EVENTS, MB, MB, 100 * MB) == 1


@pytest.mark.parametrize("timing", [EVENTS, GRAPH])
def test_without_weights_none_can_be_cold(library: ctypes.CDLL, timing: int) -> None:
    assert sets_for(library, WEIGHTS_COLD, timing, 0, MB, MB) == -1
    assert sets_for(library, ALL_COLD, timing, 0, MB, MB) >= 1


def test_tensors_too_small_to_rotate_are_refused(library: ctypes.CDLL) -> None:
    assert sets_for(library, ALL_COLD, GRAPH, 256, 0, 1 << 30) == -1
    assert sets_for(library, ALL_COLD, GRAPH, 256, 0, 1023 * 256) == 1024
    assert sets_for(library, ALL_COLD, GRAPH, 256, 0, 1023 * 256 + 1) == -1


def test_copies_are_aligned(library: ctypes.CDLL) -> None:
    assert library.bytes_of_set(ALL_COLD, ctypes.c_int64(1), ctypes.c_int64(257)) == 256 + 512
    assert library.bytes_of_set(WEIGHTS_COLD, ctypes.c_int64(256), ctypes.c_int64(257)) == 256
    assert library.bytes_of_set(HOT, ctypes.c_int64(256), ctypes.c_int64(257)) == 0


def keep_busy(
    library: ctypes.CDLL, sets: int, each: float, seconds: float, fail_at: int = 0
) -> Outcome:
    outcome = Outcome()
    library.keep_busy(
        sets, ctypes.c_double(each), ctypes.c_double(seconds), fail_at, ctypes.byref(outcome)
    )
    return outcome


@pytest.mark.parametrize("each", [3e-6, 50e-6, 1e-3, 0.3])
@pytest.mark.parametrize("sets", [1, 3, 2000])
def test_the_device_is_kept_busy_for_as_long_as_wanted(
    library: ctypes.CDLL, sets: int, each: float
) -> None:
    seconds = 0.5
    found = keep_busy(library, sets, each, seconds)
    assert found.executions == found.executed
    assert found.executions % sets == 0
    assert found.out_of_turn == 0
    graph = max(each, 0.02) + 2 * sets * each  # seconds that the longest graph takes, and more
    assert seconds <= found.seconds <= seconds + graph
    assert found.most_ahead <= graph + 0.02
    assert found.executions * each == pytest.approx(found.seconds, rel=0.01)
    assert found.idle <= 0.01 * found.seconds
    assert (found.objects, found.pending, found.capturing) == (0, 0, 0)


def test_nothing_is_left_behind_whichever_call_fails(library: ctypes.CDLL) -> None:
    for fail_at in range(1, 1000):
        found = keep_busy(library, 2, 1e-3, 0.1, fail_at)
        assert (found.objects, found.pending, found.capturing) == (0, 0, 0)
        if found.executions >= 0:
            break
    else:
        pytest.fail("it never came to its end")
    # Two executions with their waits, a graph of twenty, five launches of it with theirs.
    assert fail_at > 2 * 2 + 20 + 5


def test_a_plan_is_built_once_and_again_only_if_that_failed(library: ctypes.CDLL) -> None:
    builds = (ctypes.c_int * 6)()
    library.build_plans(6, builds)
    assert list(builds) == [1, 2, 1, 2, 1, 2]
