"""A profile of a step on a GPU: which call each kernel is of, and why the device was idle between.

The host enqueues, the device executes what it finds in its queue. A profile has both on one time
axis: the host's operators and launches, and the device's kernels, each with its launch's number.
A call takes what its kernels take on the device, and beside that what the host needs to enqueue
them. Before a kernel the device is idle until the host has launched it: then the host is what the
step waits for, in a call (dispatch, launching) or between two (Python, modules, autograd). What is
idle after that is the device's own.

A step begins where the last kernel of the step before it ends, and ends with its own last one, as
steps follow each other in use.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pydlbench.backends.steps.trace import CallEvent, StepTrace, aligned
from pydlbench.errors import PrimitiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: What a step on a GPU has besides the kernels of its calls, in the order of a trace's ``gaps_s``.
IDLE_IN_CALLS: Final = "idle: the host enqueues a call"
IDLE_BETWEEN: Final = "idle: the host is between calls"
IDLE_QUEUED: Final = "idle: the next kernel was launched"
NO_CALL: Final = "kernels of no call"
GAPS: Final = (IDLE_IN_CALLS, IDLE_BETWEEN, IDLE_QUEUED, NO_CALL)


class Span(NamedTuple):
    """When something began and ended, in nanoseconds of the profile's time."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A profile of a step, behind one that is not looked at.

    Attributes:
        step: from the step's first call on the host to its last.
        operators: the host's, of all threads: the backward pass has one of its own.
        launches: the host's calls that put something into the device's queue, by number.
        kernels: what the device did, copies too, each with its launch's number.
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
    """Return what each call of a step took on the device, what was between, and the host's part.

    What calls take and what is between them sums to the step.

    Args:
        profile: of the step.
        names: of its calls in their order, as the profile has them.
        contains: whether an event of such a name may be none of the calls.
        describe: names a call for a message, by its place.
        heads: by name of a call, the event that may stand before it as a part of it.

    Raises:
        PrimitiveError: the profile has other calls, or no kernels.
    """
    step = profile.step
    host = aligned(
        names,
        [each for each in profile.operators if step.begin_ns <= each.start_ns <= step.end_ns],
        contains,
        describe,
        heads,
    )
    own: list[tuple[Span, Span]] = []
    before_ns = None
    for number, span in profile.kernels:
        launch = profile.launches.get(number)
        if launch is None:
            continue
        if launch.begin_ns < step.begin_ns:
            before_ns = span.end_ns if before_ns is None else max(before_ns, span.end_ns)
        elif launch.begin_ns <= step.end_ns:
            own.append((span, launch))
    if not own or before_ns is None:
        raise PrimitiveError(
            "the profile has no kernels of the device: reading them (CUPTI) may not be permitted "
            "here"
        )
    calls = _Calls([Span(each.start_ns, each.end_ns) for each in host.events])
    calls_ns = [0] * len(names)
    gaps_ns = dict.fromkeys(GAPS, 0)
    now_ns = before_ns
    for span, launch in sorted(own):
        if span.end_ns <= now_ns:  # beside another one
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
        calls_s=[each / 1e9 for each in calls_ns],
        gaps_s=[gaps_ns[name] / 1e9 for name in GAPS],
        host_s=host.seconds,
    )


def fitted(
    calls_s: Sequence[float], gaps_s: Sequence[float], step_s: float
) -> tuple[list[float], list[float]]:
    """Return what a step without a trace consists of, from a traced one.

    A trace makes the host slower, and the device idle for longer; kernels take what they take. So
    what they leave of the step is idle, in the proportions of the trace. Where they leave nothing,
    they are the step.

    Args:
        calls_s: of the kernels of each call.
        gaps_s: as :data:`GAPS` names them.
        step_s: of the step without a trace.
    """
    *idle_s, others_s = gaps_s
    busy_s, waiting_s = sum(calls_s) + others_s, sum(idle_s)
    shorter = (step_s - busy_s) / waiting_s if waiting_s and busy_s < step_s else 0.0
    scale = step_s / (busy_s + shorter * waiting_s)
    kernels_s = [scale * each for each in (*calls_s, others_s)]
    return kernels_s[:-1], [*(shorter * each for each in idle_s), kernels_s[-1]]


class _Calls:
    """When the host was in which call.

    Args:
        spans: of the calls, in their order; one may lie within another.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        # Between two neighbouring bounds the innermost call is the same: the one that began last.
        self._bounds = sorted({bound for each in spans for bound in each})
        self._places: list[int | None] = [None] * len(self._bounds)
        outermost_first = sorted(
            range(len(spans)), key=lambda each: (spans[each].begin_ns, -spans[each].end_ns)
        )
        for place in outermost_first:
            begin = bisect.bisect_left(self._bounds, spans[place].begin_ns)
            end = bisect.bisect_left(self._bounds, spans[place].end_ns)
            self._places[begin:end] = [place] * (end - begin)

    def around(self, moment_ns: int) -> int | None:
        """Return the place of the innermost call at a moment; None between calls."""
        number = bisect.bisect_right(self._bounds, moment_ns) - 1
        return self._places[number] if number >= 0 else None

    def covered(self, begin_ns: int, end_ns: int) -> int:
        """Return for how long the host was in calls between two moments."""
        first = bisect.bisect_right(self._bounds, begin_ns)
        last = bisect.bisect_left(self._bounds, end_ns)
        moments = [begin_ns, *self._bounds[first:last], end_ns]
        return sum(
            later - earlier
            for earlier, later in itertools.pairwise(moments)
            if self.around(earlier) is not None
        )
