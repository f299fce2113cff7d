"""The profile of a step on a GPU: the call of each kernel, and the causes of idle time.

The host enqueues work, and the device executes its queue. A profile has both on one time axis: the
host's operators and launches, and the device's kernels, each with the number of its launch. The
device time of a call is the time of its kernels; the host's time to enqueue them is kept beside it.
Until the host has launched the next kernel, an idle device waits for the host, either in a call
(dispatch, launch) or between two calls (Python, modules, autograd). Idle time after the launch is
caused by the device itself.

A step begins when the last kernel of the previous step ends, and ends with its own last kernel, as
in a loop of steps.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydlbench.backends.steps.trace import CallEvent, StepTrace, align
from pydlbench.errors import PrimitiveError

#: Parts of a step on a GPU besides the kernels of its calls, in the order of ``gaps_s``.
IDLE_IN_CALLS: Final = "idle: the host enqueues a call"
IDLE_BETWEEN: Final = "idle: the host is between calls"
IDLE_QUEUED: Final = "idle: the next kernel was launched"
NO_CALL: Final = "kernels of no call"
GAPS: Final = (IDLE_IN_CALLS, IDLE_BETWEEN, IDLE_QUEUED, NO_CALL)


class Span(NamedTuple):
    """An interval in nanoseconds of the profile's time axis."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The profile of a step that follows an untimed one.

    Attributes:
        step: interval from the start of the step's first call on the host to the end of its last.
        operators: the host's events in all threads: the backward pass may have its own thread.
        launches: the host's calls that enqueue work on the device, by number.
        kernels: the device's kernels and copies, each with the number of its launch.
    """

    step: Span
    operators: Sequence[CallEvent]
    launches: Mapping[int, Span]
    kernels: Sequence[tuple[int, Span]]


def trace_of(
    profile: DeviceProfile,
    names: Sequence[str],
    contains: Callable[[str], bool],
    describe: Callable[[int], str] = str,
    heads: Mapping[str, str] | None = None,
) -> StepTrace:
    """Return the device time of each call of a step, its gaps, and the host's time in each call.

    Calls and gaps sum to the step.

    Args:
        profile: profile of the step.
        names: see :func:`~pydlbench.backends.steps.trace.align`.
        contains: see :func:`~pydlbench.backends.steps.trace.align`.
        describe: see :func:`~pydlbench.backends.steps.trace.align`.
        heads: see :func:`~pydlbench.backends.steps.trace.align`.

    Raises:
        PrimitiveError: the profile has other calls, or no kernels.
    """
    step = profile.step
    host = align(
        names,
        [event for event in profile.operators if step.begin_ns <= event.start_ns <= step.end_ns],
        contains,
        describe,
        heads,
    )
    launched: list[tuple[Span, Span]] = []
    before_ns = None
    for number, span in profile.kernels:
        launch = profile.launches.get(number)
        if launch is None:
            continue
        if launch.begin_ns < step.begin_ns:
            before_ns = span.end_ns if before_ns is None else max(before_ns, span.end_ns)
        elif launch.begin_ns <= step.end_ns:
            launched.append((span, launch))
    if not launched or before_ns is None:
        raise PrimitiveError(
            "the profile has no kernels of the device: reading them (CUPTI) may not be permitted "
            "here"
        )
    calls = _CallSpans([Span(event.start_ns, event.end_ns) for event in host.events])
    calls_ns = [0] * len(names)
    gaps_ns = dict.fromkeys(GAPS, 0)
    now_ns = before_ns
    for span, launch in sorted(launched):
        if span.end_ns <= now_ns:  # entirely beside another kernel
            continue
        if span.begin_ns > now_ns:
            launched_ns = min(max(launch.end_ns, now_ns), span.begin_ns)
            within_ns = calls.covered(now_ns, launched_ns)
            gaps_ns[IDLE_IN_CALLS] += within_ns
            gaps_ns[IDLE_BETWEEN] += launched_ns - now_ns - within_ns
            gaps_ns[IDLE_QUEUED] += span.begin_ns - launched_ns
            now_ns = span.begin_ns
        place = calls.around(launch.begin_ns)
        if place is None:
            gaps_ns[NO_CALL] += span.end_ns - now_ns
        else:
            calls_ns[place] += span.end_ns - now_ns
        now_ns = span.end_ns
    return StepTrace(
        step_s=(now_ns - before_ns) / 1e9,
        calls_s=[call_ns / 1e9 for call_ns in calls_ns],
        gaps_s=[gaps_ns[name] / 1e9 for name in GAPS],
        host_s=host.seconds,
    )


def fit_to_step(
    calls_s: Sequence[float], gaps_s: Sequence[float], step_s: float
) -> tuple[list[float], list[float]]:
    """Return the calls and gaps of a step without a trace, estimated from a traced one.

    A trace slows the host down, which leaves the device idle for longer; kernels take the same
    time. The rest of the step is idle time, split as in the trace. If the kernels leave no rest,
    they are scaled to the step.

    Args:
        calls_s: seconds of the kernels of each call in the traced step.
        gaps_s: seconds of the traced step's other parts, in the order of :data:`GAPS`.
        step_s: seconds of the step without a trace.
    """
    *idle_s, others_s = gaps_s
    busy_s, waiting_s = sum(calls_s) + others_s, sum(idle_s)
    idle_scale = (step_s - busy_s) / waiting_s if waiting_s and busy_s < step_s else 0.0
    scale = step_s / (busy_s + idle_scale * waiting_s)
    kernels_s = [scale * kernel_s for kernel_s in (*calls_s, others_s)]
    return kernels_s[:-1], [*(idle_scale * gap_s for gap_s in idle_s), kernels_s[-1]]


class _CallSpans:
    """The call that the host was in at each moment.

    Args:
        spans: intervals of the calls, in their order; one may lie within another.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        # Between two neighbouring bounds the innermost call is the same: the one that began last.
        self._bounds = sorted({bound for span in spans for bound in span})
        self._places: list[int | None] = [None] * len(self._bounds)
        outermost_first = sorted(
            range(len(spans)), key=lambda place: (spans[place].begin_ns, -spans[place].end_ns)
        )
        for place in outermost_first:
            begin = bisect.bisect_left(self._bounds, spans[place].begin_ns)
            end = bisect.bisect_left(self._bounds, spans[place].end_ns)
            self._places[begin:end] = [place] * (end - begin)

    def around(self, moment_ns: int) -> int | None:
        """Return the index of the innermost call at a moment; None between calls."""
        number = bisect.bisect_right(self._bounds, moment_ns) - 1
        return self._places[number] if number >= 0 else None

    def covered(self, begin_ns: int, end_ns: int) -> int:
        """Return the nanoseconds between two moments that the host spent in calls."""
        first = bisect.bisect_right(self._bounds, begin_ns)
        last = bisect.bisect_left(self._bounds, end_ns)
        moments = [begin_ns, *self._bounds[first:last], end_ns]
        return sum(
            later - earlier
            for earlier, later in itertools.pairwise(moments)
            if self.around(earlier) is not None
        )
