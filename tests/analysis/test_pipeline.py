"""The makespan of a step on a GPU: against its closed formula, and its bounds."""

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.analysis.pipeline import Enqueued, enqueued, makespan, period
from pydlbench.records.trace import RecordedCall

seconds = st.floats(0, 1e-2)
launched = st.floats(1e-7, 1e-2)
steps = st.lists(st.builds(Enqueued, seconds, launched, st.just(False)), min_size=1, max_size=30)


def sums(calls):
    return sum(one.host_s for one in calls), sum(one.device_s for one in calls)


@given(steps)
def test_it_is_the_longest_way_from_the_first_enqueueing_to_the_last_execution(calls):
    host = list(accumulate(one.host_s for one in calls))
    device = list(accumulate(one.device_s for one in reversed(calls)))[::-1]
    assert makespan(calls) == pytest.approx(max(map(sum, zip(host, device, strict=True))))


@given(steps, st.integers(1, 40))
def test_it_lies_between_the_longer_stage_and_both_in_turn(calls, depth):
    host, device = sums(calls)
    found = makespan(calls, depth)
    assert max(host, device) <= found * (1 + 1e-12)
    assert found <= (host + device) * (1 + 1e-12)
    # Less room makes nothing faster.
    assert makespan(calls) <= found * (1 + 1e-12)


@given(steps, st.data())
def test_nothing_gets_faster_where_a_call_takes_longer(calls, data):
    place = data.draw(st.integers(0, len(calls) - 1))
    longer = [*calls]
    host, device, waits = calls[place]
    longer[place] = Enqueued(host + data.draw(seconds), device + data.draw(seconds), waits)
    assert makespan(calls) <= makespan(longer) * (1 + 1e-12)


@given(steps)
def test_many_steps_in_a_row_are_as_fast_as_their_slower_stage(calls):
    host, device = sums(calls)
    assert period(calls, 500) == pytest.approx(max(host, device), rel=0.02, abs=1e-5)


@given(steps)
def test_where_the_host_waits_for_every_call_both_stages_add_up(calls):
    waiting = [one._replace(waits=True) for one in calls]
    assert makespan(waiting) == pytest.approx(sum(sums(calls)))


def test_a_view_is_enqueued_and_takes_no_room():
    kernel, view = Enqueued(1.0, 10.0), Enqueued(1.0, 0.0)
    assert makespan([kernel, view, view], depth=1) == 11.0
    # The second kernel waits for room until the first one begins, and is behind it anyway.
    assert makespan([kernel, kernel], depth=1) == 21.0


def test_a_full_queue_holds_the_host_back():
    short, long = Enqueued(0.0, 10.0), Enqueued(9.0, 1.0)
    assert makespan([short, short, short, long]) == 31.0
    # The host may begin with the last call when the second one begins, not before.
    assert makespan([short, short, short, long], depth=2) == 31.0
    assert makespan([short, short, Enqueued(15.0, 1.0)], depth=1) == 26.0


def test_calls_come_in_the_order_of_the_step():
    calls = [
        RecordedCall(signature="a", operator="aten.convolution", count=2),
        RecordedCall(signature="b", operator="aten._local_scalar_dense"),
        RecordedCall(signature="c", operator="aten.relu"),
    ]
    found = enqueued(calls, (0, 2, 1, 0), {"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0})
    convolution = Enqueued(1.0, 3.0)
    assert found == [convolution, Enqueued(2.0, 4.0, waits=True), convolution]
    assert math.isclose(makespan(found), 1.0 + 3.0 + 4.0 + 1.0 + 3.0)
