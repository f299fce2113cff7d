"""A traced step: the time of each call in the step itself, beside a step without a trace.

A framework's profiler has the times of its operators. Its events are matched with the calls of the
recorded step by order and name only, so that :func:`align` refuses a profile in which these differ:
all calls after the first difference could be mistaken for others.

Independent of the framework, which provides a :class:`StepTracer`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pydlbench.backends.host_clock import HostCounters
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.trace import OperatorsFacts, ProgramCall, TraceFacts
from pydlbench.timing.chunk import Chunk, ChunkRequest


@dataclass(frozen=True, slots=True)
class CallEvent:
    """An event of a profile: its name, start and duration in nanoseconds."""

    name: str
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """The end of the event."""
        return self.start_ns + self.duration_ns


def align(
    names: Sequence[str],
    events: Sequence[CallEvent],
    contains: Callable[[str], bool],
    describe: Callable[[int], str] = str,
    heads: Mapping[str, str] | None = None,
) -> Alignment:
    """Match the events of a profile of one execution with the calls of the step.

    An event within a call belongs to that call. An event that is not the next call is searched:
    after the calls in it, it may be a call itself, whose time excludes theirs, or it may only
    surround a call of its own name.

    Args:
        names: names of the calls in their order, as the profile has them.
        events: events of one thread, in any order.
        contains: returns whether an event of this name need not be a call.
        describe: returns the text that names a call in a message, given its index.
        heads: events that may precede a call as a part of it, by the name of the call.

    Raises:
        PrimitiveError: the profile has other calls; the message names the first difference.
    """
    alignment = Alignment(names, contains, describe, heads or {})
    for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
        alignment.enter(event)
    alignment.finish()
    return alignment


@dataclass(slots=True)
class _Span:
    """An event that has not ended yet.

    Attributes:
        event: the event.
        place: index of the next expected call when the event began.
        is_call: whether the event is that call.
        inner_ns: total time of the calls inside the event.
    """

    event: CallEvent
    place: int
    is_call: bool
    inner_ns: int = 0


class Alignment:
    """The calls of a step found in a profile, event by event; see :func:`align`.

    Attributes:
        seconds: times of the calls found so far, in their order.
        events: events of the same calls.
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
        """Enter the next event, in order of starts; of events with one start the longer first."""
        self._leave(event.start_ns)
        if self._around and self._around[-1].is_call:
            return
        is_call = self._is_next(event)
        self._around.append(_Span(event, len(self.seconds), is_call))
        if is_call:
            self._take(event, event.duration_ns)

    def finish(self) -> None:
        """End all events, and check that each call was found."""
        self._leave(math.inf)
        if len(self.seconds) < len(self._names):
            self._refuse(len(self.seconds), "nothing more")

    def _take(self, event: CallEvent, own_ns: int) -> None:
        """Match an event with the next call, which takes ``own_ns`` and what precedes it."""
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
        """End the events that have ended by a moment, the innermost first."""
        while self._around and self._around[-1].event.end_ns <= until_ns:
            span = self._around.pop()
            if not span.is_call:
                self._end(span)
            if self._around:
                inner_ns = span.event.duration_ns if span.is_call else span.inner_ns
                self._around[-1].inner_ns += inner_ns

    def _end(self, span: _Span) -> None:
        """Match an event with the call after its inner calls, or check that it may be skipped."""
        if self._is_next(span.event):
            self._take(span.event, span.event.duration_ns - span.inner_ns)
            span.inner_ns = span.event.duration_ns
            return
        if self._head is None and self._is_head(span.event):
            self._head = span.event
            span.inner_ns = span.event.duration_ns
            return
        # An outer event that must be a call, but has not ended yet, owns everything inside it.
        in_open_call = not all(self._contains(outer.event.name) for outer in self._around)
        if not (in_open_call or self._contains(span.event.name) or self._repeated(span)):
            self._refuse(span.place, span.event.name)

    def _is_head(self, event: CallEvent) -> bool:
        """Whether an event is a part of the next call that precedes it."""
        place = len(self.seconds)
        return place < len(self._names) and self._heads.get(self._names[place]) == event.name

    def _repeated(self, span: _Span) -> bool:
        """Whether an event only surrounds a call of its own name."""
        last = len(self.seconds) - 1
        return last >= span.place and self._names[last] == span.event.name

    def _refuse(self, place: int, event: str) -> None:
        expected = "would be one too many"
        if place < len(self._names):
            expected = f"is {self._describe(place)}"
        raise PrimitiveError(
            f"the profile is not of the recorded step: call {place + 1} of {len(self._names)} "
            f"{expected}; the profile has {event}. A step that makes other calls each time (as "
            "with drop path) cannot be traced; nearest: --eval-mode, or a callable that seeds it"
        )


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One traced execution.

    Attributes:
        step_s: seconds of the step, by the host's clock; on a GPU by the device's clock.
        calls_s: seconds of each call; on a GPU the seconds of its kernels.
        gaps_s: on a GPU, other kernels and the device's idle time by cause, see ``device_trace``.
        host_s: on a GPU, the host's seconds in each call.
    """

    step_s: float
    calls_s: Sequence[float]
    gaps_s: Sequence[float] = ()
    host_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class StepTracer:
    """Runs a step traced.

    Attributes:
        calls: calls of the step, in their order.
        ways: ways to trace, by :data:`~pydlbench.records.trace.TRACES`: the source of the times,
            and a function that runs the step once and traces it.
        untimed: number of executions right before a traced one; an execution without a trace is
            preceded by as many.
        gaps: names of a trace's ``gaps_s``.
        plain: runs the step without a trace, and returns the seconds of one by the clock of the
            trace; None if the host's clock times it from its call to its return.
        operators: see :class:`~pydlbench.records.trace.TraceFacts`.
        compiled: see :class:`~pydlbench.records.trace.TraceFacts`.
    """

    calls: Sequence[ProgramCall]
    ways: Mapping[str, tuple[str, Callable[[], StepTrace]]]
    untimed: int = 0
    gaps: Sequence[str] = ()
    plain: Callable[[], float] | None = None
    operators: OperatorsFacts | None = None
    compiled: bool = False


class TracedSteps:
    """A traced step in each round, and one without a trace if wanted, in random order.

    A request's ``timing`` names the way to trace. The chunk has for each round the seconds of the
    traced step, of the step without a trace if there is one, and of each call in the traced one; on
    a GPU also its gaps and the host's seconds in each call.

    Args:
        tracer: runs the step traced.
        run: runs the step once without a trace; its results are dropped.
        cpus: CPUs that the process is pinned to.
        guard: makes the context in which both steps are run.
        seed: seed of the random order.
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
        """The calls of the step, and the ways to trace them."""
        sources = {way: source for way, (source, _) in self.tracer.ways.items()}
        return TraceFacts(
            calls=tuple(self.tracer.calls),
            sources=sources,
            gaps=tuple(self.tracer.gaps),
            operators=self.tracer.operators,
            compiled=self.tracer.compiled,
        )

    def sample(self, request: ChunkRequest) -> Chunk:
        """Run the requested rounds, after as many traced steps as are to be untimed.

        Raises:
            UnsupportedError: the step cannot be traced in this way.
            PrimitiveError: the profile is not of the recorded step.
        """
        if request.timing not in self.tracer.ways:
            raise UnsupportedError(f"a step is not traced by {request.timing} here")
        trace = self.tracer.ways[request.timing][1]
        seconds: list[float] = []
        with self._guard():
            for _ in range(request.untimed):
                trace()
            with HostCounters(self._cpus) as account:
                for _ in range(request.samples):
                    seconds += self._round(trace, plain=request.plain)
        return account.chunk(
            seconds, faults=account.faults / (request.samples * (1 + request.plain))
        )

    def _round(self, trace: Callable[[], StepTrace], *, plain: bool) -> list[float]:
        first = self._order.random() < 0.5
        plain_s = [self._plain()] if plain and first else []
        traced = trace()
        plain_s += [self._plain()] if plain and not first else []
        return [traced.step_s, *plain_s, *traced.calls_s, *traced.gaps_s, *traced.host_s]

    def _plain(self) -> float:
        if self.tracer.plain is not None:
            return self.tracer.plain()
        for _ in range(self.tracer.untimed):
            self._run()
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start
