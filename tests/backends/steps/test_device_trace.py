"""Which call a kernel is of, and why the device was idle: by invented profiles, in microseconds."""

import pytest

from pydlbench.backends.steps.device import (
    GAPS,
    IDLE_BETWEEN,
    IDLE_IN_CALLS,
    IDLE_QUEUED,
    NO_CALL,
    DeviceProfile,
    Span,
    fit_to_step,
    trace_of,
)
from pydlbench.backends.steps.trace import CallEvent
from pydlbench.errors import PrimitiveError

# A step before this one ends on the device at 10; its launch was at 1.
BEFORE = ((1, 2), (5, 10))


def traced(operators, *launched, begin=3, end=1000, before=(BEFORE,)):
    """Trace a step of (name, begin, end) and (launch, kernel)."""
    pairs = [*before, *launched]
    profile = DeviceProfile(
        step=Span(begin * 1000, end * 1000),
        operators=[CallEvent(name, at * 1000, (to - at) * 1000) for name, at, to in operators],
        launches={number: span(launch) for number, (launch, _) in enumerate(pairs)},
        kernels=[(number, span(kernel)) for number, (_, kernel) in enumerate(pairs)],
    )
    names = [name for name, *_ in operators if name != "outer"]
    found = trace_of(profile, names, lambda name: name == "outer")
    gaps = dict(zip(GAPS, found.gaps_s, strict=True))
    assert found.step_s == pytest.approx(sum(found.calls_s) + sum(found.gaps_s))
    return found, {name: round(seconds * 1e6) for name, seconds in gaps.items() if seconds}


def microseconds(values):
    return [round(one * 1e6) for one in values]


def span(pair):
    return Span(pair[0] * 1000, pair[1] * 1000)


def test_kernels_in_a_row_leave_no_gap():
    found, gaps = traced([("conv", 3, 5), ("relu", 5, 7)], ((4, 5), (10, 30)), ((6, 7), (30, 35)))
    assert microseconds(found.calls_s) == [20, 5]
    assert microseconds(found.host_s) == [2, 2]
    assert not gaps
    assert found.step_s == pytest.approx(25e-6)


def test_what_the_device_waits_for_is_told_apart():
    # Idle from 10: between calls until 20, in the call until its launch ends at 26, then in queue.
    found, gaps = traced([("conv", 20, 30)], ((24, 26), (29, 40)))
    assert microseconds(found.calls_s) == [11]
    assert gaps == {IDLE_BETWEEN: 10, IDLE_IN_CALLS: 6, IDLE_QUEUED: 3}


def test_what_no_call_launches_is_of_none():
    found, gaps = traced([("conv", 3, 5), ("relu", 8, 9)], ((4, 5), (10, 12)), ((6, 7), (12, 16)))
    assert microseconds(found.calls_s) == [2, 0]
    assert gaps == {NO_CALL: 4}


def test_kernels_beside_each_other_are_counted_once():
    found, gaps = traced(
        [("conv", 3, 5), ("relu", 5, 7)], ((4, 5), (10, 30)), ((6, 7), (20, 36)), ((6, 7), (21, 25))
    )
    assert microseconds(found.calls_s) == [20, 6]
    assert not gaps


def test_a_composed_operator_is_no_call_and_another_threads_are():
    found, gaps = traced([("outer", 3, 9), ("conv", 4, 6), ("relu", 6, 8)], ((5, 6), (10, 14)))
    assert microseconds(found.calls_s) == [4, 0]
    assert not gaps


@pytest.mark.parametrize(
    ("launched", "before"), [((), (BEFORE,)), ((((4, 5), (10, 30)),), ())], ids=["step", "before"]
)
def test_a_profile_without_the_devices_kernels_is_refused(launched, before):
    with pytest.raises(PrimitiveError, match="CUPTI"):
        traced([("conv", 3, 5)], *launched, before=before)


def test_a_trace_that_slows_the_host_leaves_kernels_as_they_are():
    calls_s, gaps_s = fit_to_step([30e-6, 10e-6], [6e-6, 3e-6, 3e-6, 8e-6], step_s=54e-6)
    assert calls_s == pytest.approx([30e-6, 10e-6])
    assert gaps_s == pytest.approx([3e-6, 1.5e-6, 1.5e-6, 8e-6])  # the last one is kernels, too


@pytest.mark.parametrize("idle_s", [0.0, 5e-6])
@pytest.mark.parametrize("step_s", [36e-6, 45e-6, 46e-6])
def test_where_kernels_leave_nothing_they_are_the_step(idle_s, step_s):
    calls_s, gaps_s = fit_to_step([30e-6, 10e-6], [idle_s, 0.0, 0.0, 5e-6], step_s)
    assert calls_s[0] == pytest.approx(3 * calls_s[1])
    assert gaps_s[0] == pytest.approx(max(0.0, step_s - 45e-6) if idle_s else 0.0)
    assert sum(calls_s) + sum(gaps_s) == pytest.approx(step_s)
