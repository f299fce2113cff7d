"""A traced step: how long each call took in the step itself, beside a step without a trace.

A framework's profiler tells when its operators ran. Which of its events is which call of the
recorded step follows from order and name, and nothing else: :func:`align` refuses a profile in
which they differ, for all calls behind the first difference would be taken for others.

Knows no framework: what it needs of one is a :class:`StepTracer`.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.backends.host_clock import Account
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.trace import TraceFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pydlbench.records.operator import OperatorsFacts
    from pydlbench.records.trace import ProgramCall
    from pydlbench.timing.chunk import Chunk, Request


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A span of a profile: its name, when it began and how long it took, in nanoseconds."""

    name: str
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


def align(
    names: Sequence[str],
    events: Sequence[CallEvent],
    contains: Callable[[str], bool],
    describe: Callable[[int], str] = str,
) -> list[float]:
    """Return the seconds of each call of a step, from a profile of one execution of it.

    An event within a call is that call's own. An event that is not the next call is looked into:
    after calls that are in it, it may be a call itself, without their seconds, or only surround
    one of its own name.

    Args:
        names: of the calls in their order, as the profile has them.
        events: of one thread, in any order.
        contains: whether an event of such a name may be none of the calls.
        describe: names a call for a message, by its place.

    Raises:
        PrimitiveError: the profile has other calls; with the first that differs.
    """
    return aligned(names, events, contains, describe).seconds


def aligned(
    names: Sequence[str],
    events: Sequence[CallEvent],
    contains: Callable[[str], bool],
    describe: Callable[[int], str] = str,
    heads: Mapping[str, str] | None = None,
) -> Alignment:
    """Return which event each call of a step is, and its seconds; see :func:`align`.

    Args:
        names: of the calls in their order, as the profile has them.
        events: of one thread, in any order.
        contains: whether an event of such a name may be none of the calls.
        describe: names a call for a message, by its place.
        heads: by name of a call, the event that may stand before it as a part of it.
    """
    alignment = Alignment(names, contains, describe, heads or {})
    for event in sorted(events, key=lambda each: (each.start_ns, -each.duration_ns)):
        alignment.enter(event)
    alignment.finish()
    return alignment


@dataclass(slots=True)
class _Span:
    """An event that has not ended yet.

    Attributes:
        event: itself.
        place: of the call that was next when it began.
        called: whether it is that call.
        inner_ns: what calls take that are in it.
    """

    event: CallEvent
    place: int
    called: bool
    inner_ns: int = 0


class Alignment:
    """Events taken for calls one by one; see :func:`align`.

    Attributes:
        seconds: of the calls in their order, as far as they were found.
        events: that the calls are.
    """

    def __init__(
        self,
        names: Sequence[str],
        contains: Callable[[str], bool],
        describe: Callable[[int], str],
        heads: Mapping[str, str],
    ) -> None:
        self._names, self._contains, self._describe = names, contains, describe
        self._heads = heads
        self._head: CallEvent | None = None  # of the next call
        self.seconds: list[float] = []
        self.events: list[CallEvent] = []
        self._around: list[_Span] = []

    def enter(self, event: CallEvent) -> None:
        """Take the next event in order of their beginnings, the longer first."""
        self._leave(event.start_ns)
        if self._around and self._around[-1].called:
            return
        called = self._is_next(event)
        self._around.append(_Span(event, len(self.seconds), called))
        if called:
            self._take(event, event.duration_ns)

    def finish(self) -> None:
        """End all events; there are as many as calls."""
        self._leave(math.inf)
        if len(self.seconds) < len(self._names):
            self._refuse(len(self.seconds), "nothing more")

    def _take(self, event: CallEvent, own_ns: int) -> None:
        """Take an event for the next call, which takes so long."""
        if self._head is not None:
            own_ns += self._head.duration_ns
            begin_ns = self._head.start_ns
            event = CallEvent(event.name, begin_ns, event.end_ns - begin_ns)
            self._head = None
        self.seconds.append(own_ns / 1e9)
        self.events.append(event)

    def _is_next(self, event: CallEvent) -> bool:
        place = len(self.seconds)
        return place < len(self._names) and event.name == self._names[place]

    def _leave(self, until_ns: float) -> None:
        """End the events that have ended by then, the innermost first."""
        while self._around and self._around[-1].event.end_ns <= until_ns:
            span = self._around.pop()
            if not span.called:
                self._end(span)
            if self._around:
                inner_ns = span.event.duration_ns if span.called else span.inner_ns
                self._around[-1].inner_ns += inner_ns

    def _end(self, span: _Span) -> None:
        """Take an event for the call behind those that are in it, if it is that one."""
        if self._is_next(span.event):
            self._take(span.event, span.event.duration_ns - span.inner_ns)
            span.inner_ns = span.event.duration_ns
            return
        if self._head is None and self._is_head(span.event):
            self._head = span.event
            span.inner_ns = span.event.duration_ns
            return
        # What is within a call that is still to be taken is that call's own.
        own = not all(self._contains(each.event.name) for each in self._around)
        if not (own or self._contains(span.event.name) or self._repeated(span)):
            self._refuse(span.place, span.event.name)

    def _is_head(self, event: CallEvent) -> bool:
        """Whether an event is the next call's part that stands before it."""
        place = len(self.seconds)
        return place < len(self._names) and self._heads.get(self._names[place]) == event.name

    def _repeated(self, span: _Span) -> bool:
        """Whether an event only surrounds another one of its name, which was taken."""
        last = len(self.seconds) - 1
        return last >= span.place and self._names[last] == span.event.name

    def _refuse(self, place: int, event: str) -> None:
        expected = "would be one too many"
        if place < len(self._names):
            expected = f"is {self._describe(place)}"
        raise PrimitiveError(
            f"the profile is not of the recorded step: call {place + 1} of {len(self._names)} "
            f"{expected}; the profile has {event}"
        )


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One traced execution.

    Attributes:
        step_s: its seconds, by our clock; on a GPU by the device's.
        calls_s: of each call in it; on a GPU those of its kernels.
        gaps_s: on a GPU, what else the device did and why it was idle, see ``device_trace``.
        host_s: on a GPU, of the host in each call.
    """

    step_s: float
    calls_s: Sequence[float]
    gaps_s: Sequence[float] = ()
    host_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class StepTracer:
    """What runs a step traced.

    Attributes:
        calls: of the step, in their order.
        ways: how it can be traced, by :data:`~pydlbench.records.trace.TRACES`: whose times they
            are, and what runs the step so once.
        untimed: executions right before a traced one; the one without a trace has as many.
        gaps: what a trace's ``gaps_s`` are, in words.
        plain: runs the step once without a trace, and returns its seconds as the trace has them;
            None by the host's clock, from its call to its return.
        operators: see :class:`~pydlbench.records.trace.TraceFacts`.
        compiled: likewise.
    """

    calls: Sequence[ProgramCall]
    ways: Mapping[str, tuple[str, Callable[[], StepTrace]]]
    untimed: int = 0
    gaps: Sequence[str] = ()
    plain: Callable[[], float] | None = None
    operators: OperatorsFacts | None = None
    compiled: bool = False


class TracedSteps:
    """A step that is traced in each round, beside one that is not, in random order.

    A request's ``timing`` names the way. The chunk has for each round the seconds of the traced
    step, of the other one, of each call in the traced one, and on a GPU of its gaps and of the
    host in each call.

    Args:
        tracer: runs it traced.
        run: runs it once without; whatever it returns is dropped.
        cpus: those that the process is pinned to.
        guard: makes the context in which both are run.
        seed: of the order.
    """

    def __init__(
        self,
        tracer: StepTracer,
        run: Callable[[], Any],
        cpus: Sequence[int],
        guard: Callable[[], AbstractContextManager[Any]],
        seed: int = 0,
    ) -> None:
        self.tracer = tracer
        self._run, self._cpus, self._guard = run, tuple(cpus), guard
        self._order = random.Random(seed)  # noqa: S311 - an order, no secret

    @property
    def facts(self) -> TraceFacts:
        """What is known of the step: its calls, and how they can be timed."""
        sources = {way: source for way, (source, _) in self.tracer.ways.items()}
        return TraceFacts(
            calls=tuple(self.tracer.calls),
            sources=sources,
            gaps=tuple(self.tracer.gaps),
            operators=self.tracer.operators,
            compiled=self.tracer.compiled,
        )

    def sample(self, request: Request) -> Chunk:
        """Run the requested rounds, after those that do not count.

        Raises:
            UnsupportedError: it cannot be traced in that way.
            PrimitiveError: the profile is not of the recorded step.
        """
        if request.timing not in self.tracer.ways:
            raise UnsupportedError(f"a step is not traced by {request.timing} here")
        trace = self.tracer.ways[request.timing][1]
        seconds: list[float] = []
        with self._guard():
            for _ in range(request.untimed):
                self._round(trace)
            with Account(self._cpus) as account:
                for _ in range(request.samples):
                    seconds += self._round(trace)
        return account.chunk(seconds, faults=account.faults / (2 * request.samples))

    def _round(self, trace: Callable[[], StepTrace]) -> list[float]:
        if self._order.random() < 0.5:
            traced = trace()
            plain_s = self._plain()
        else:
            plain_s = self._plain()
            traced = trace()
        return [traced.step_s, plain_s, *traced.calls_s, *traced.gaps_s, *traced.host_s]

    def _plain(self) -> float:
        if self.tracer.plain is not None:
            return self.tracer.plain()
        for _ in range(self.tracer.untimed):
            self._run()
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start
