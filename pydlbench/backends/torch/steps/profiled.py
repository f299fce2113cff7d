"""A step of PyTorch traced: by its profiler, or by time stamps between its recorded calls.

On a GPU the profiler tells of the device's kernels, too, through NVIDIA's CUPTI.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from pydlbench.backends.frameworks.device_clock import marked
from pydlbench.backends.steps.device_trace import GAPS, DeviceProfile, Span, trace_of
from pydlbench.backends.steps.trace import CallEvent, StepTrace, StepTracer, align
from pydlbench.backends.torch.steps.replayed_step import Chain
from pydlbench.errors import PrimitiveError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydlbench.backends.frameworks.device_clock import StepRuntime
    from pydlbench.backends.torch.steps.recording import Recording
    from pydlbench.records.trace import ProgramCall

#: Autograd's own copy of a tensor's head; a recorder leaves it out, too.
_DETACH: Final = ("aten::detach", "detach")
#: What ``aten::reshape`` calls where nobody records.
_VIEWS: Final = ("aten::_reshape_alias",)
#: ``torch.tensor`` copies a value to the device, unseen by a recorder, and then lifts it.
_HEADS: Final = {"aten::lift_fresh": "aten::_to_copy"}
_OPERATOR: Final = re.compile(r"\w+::\w+")
#: A call of CUDA's runtime or driver, which an operator need not stand behind.
_RUNTIME: Final = re.compile(r"cu(da)?[A-Z]")
#: Marks the step that is looked at in a profile of two.
MARK: Final = "pydlbench::step"
#: Marks a call by itself in such a profile.
_CALL: Final = "pydlbench::call"


def tracer(
    recording: Recording, run: Callable[[], Any], runtime: StepRuntime | None = None
) -> StepTracer:
    """Return what runs a step traced.

    Args:
        recording: of the step.
        run: runs it once.
        runtime: of the GPU that it runs on; None on a CPU.

    Raises:
        UnsupportedError: on a GPU, the profiler is switched off.
    """
    names = [name_in_profile(each.function) for each in recording.calls if not each.implied]
    calls = [each.program_call for each in recording.in_order()]
    made = by_profiler(names, calls, run, runtime)
    if runtime is not None:
        return made
    stamped = "time stamps around each recorded call, run without modules and autograd"
    stamps = stamped, _Stamped(recording).trace
    return dataclasses.replace(made, ways={**made.ways, "stamps": stamps})


def by_profiler(
    names: Sequence[str],
    calls: Sequence[ProgramCall],
    run: Callable[[], Any],
    runtime: StepRuntime | None = None,
) -> StepTracer:
    """Return what runs a step under PyTorch's profiler.

    Args:
        names: of the step's calls in their order, as the profile has them.
        calls: the same.
        run: runs the step once.
        runtime: see :func:`tracer`.

    Raises:
        UnsupportedError: see :func:`tracer`.
    """
    traced = _Profiled(names, calls, run)
    source = f"PyTorch {torch.__version__}'s profiler"
    if runtime is None:
        return StepTracer(calls=calls, ways={"profile": (source, traced.trace)})
    if os.environ.get("PYDLBENCH_PROFILER") == "0":
        raise UnsupportedError(
            "PYDLBENCH_PROFILER=0: on a GPU only the profiler tells which call a kernel is of"
        )
    trace = functools.partial(traced.trace_on, runtime)
    return StepTracer(
        calls=calls,
        ways={"profile": (f"{source}, device and host", trace)},
        gaps=GAPS,
        plain=functools.partial(traced.between_events, runtime),
    )


class _Profiled:
    """A step that is run under the profiler; see :func:`by_profiler`."""

    def __init__(
        self, names: Sequence[str], calls: Sequence[ProgramCall], run: Callable[[], Any]
    ) -> None:
        self._names, self._calls, self._run = names, calls, run

    def trace(self) -> StepTrace:
        """Run the step under the profiler: starting and ending it is outside the step's seconds."""
        profiler = profile(activities=[ProfilerActivity.CPU])
        profiler.start()
        start = time.perf_counter()
        results = self._run()
        seconds = time.perf_counter() - start
        profiler.stop()
        del results
        return StepTrace(seconds, align(self._names, events_of(profiler), contains, self._describe))

    def trace_on(self, runtime: StepRuntime) -> StepTrace:
        """Run the step under the profiler, on a GPU and right behind another one."""
        profiled = _behind_another(self._run, runtime, "step in context")
        return trace_of(profiled, self._names, contains, self._describe, _HEADS)

    def between_events(self, runtime: StepRuntime) -> float:
        """Run the step on a GPU behind another one, and return its seconds there."""
        self._run()
        start = runtime.record()
        self._run()
        end = runtime.record()
        runtime.wait()
        return runtime.between(start, end)

    def _describe(self, place: int) -> str:
        call = self._calls[place]
        return f"{self._names[place]} of {call.module}, {call.direction}"


class _Stamped:
    """A recorded step whose calls are run with time stamps between them."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def trace(self) -> StepTrace:
        """Run the recorded calls and note when each begins and ends."""
        seconds, times = self._chain.run()
        begins_and_ends = zip(times[::2], times[1::2], strict=True)
        return StepTrace(seconds, [end - begin for begin, end in begins_and_ends])

    @functools.cached_property
    def _chain(self) -> Chain:
        return Chain(self._recording)


def kernel_seconds(
    runtime: StepRuntime, calls: Sequence[tuple[Callable[[], Any], Callable[[], Any]]]
) -> Sequence[float]:
    """Return the seconds of each call's kernels on a GPU.

    Args:
        runtime: of the GPU.
        calls: made one after the other, each behind the one that comes first in its pair; twice,
            of which the second time counts: the device is as busy before it as in it.
    """

    def run() -> None:
        for first, call in calls:
            first()
            with record_function(_CALL):
                call()

    profiled = _behind_another(run, runtime, "calls alone")
    return trace_of(profiled, [_CALL] * len(calls), lambda _: True).calls_s


def _behind_another(run: Callable[[], Any], runtime: StepRuntime, shown_as: str) -> DeviceProfile:
    """Run something twice on a GPU under the profiler; return the profile of the second time."""
    # Torn down behind a profile, CUPTI may miss the kernels of the next: on an H200 a breakdown
    # had none. Attached, it makes launches half as slow again: behind all timed steps, and of calls
    # alone behind the gate of the sampler.
    os.environ["TEARDOWN_CUPTI"] = "0"
    profiler = profile(activities=supported_activities())
    profiler.start()
    run()
    with record_function(MARK), marked(shown_as):
        run()
    runtime.wait()
    profiler.stop()
    return device_profile(kineto_events(profiler))


def name_in_profile(function: Any) -> str:
    """Return what the profiler calls an operator: ``aten::convolution``; see :func:`plain_name`."""
    schema = getattr(function, "_schema", None)
    return str(function) if schema is None else plain_name(schema.name)


def plain_name(name: str) -> str:
    """Return an operator's name, the same for those that PyTorch takes for each other.

    Beside a recorder operators that are composed of others call some of those not in place, which
    they call in place otherwise (``aten::linear`` adds its bias so), and make views by another
    name.
    """
    if name in _VIEWS:
        return "aten::view"
    return name[:-1] if re.search(r"[^_]_$", name) else name


@functools.cache
def contains(name: str) -> bool:
    """Whether an event may have calls in it that were recorded in its place.

    That is so of what is no operator (autograd's nodes, an optimizer's step), and of operators that
    PyTorch composes of others above autograd: ``aten::conv2d``.
    """
    if name in _DETACH or not _OPERATOR.fullmatch(name):
        return True
    every = torch._C._dispatch_get_all_op_names()
    overloads = [each for each in every if each.partition(".")[0] in (name, f"{name}_")]
    key = "CompositeImplicitAutograd"
    composed = (torch._C._dispatch_has_kernel_for_dispatch_key(each, key) for each in overloads)
    return not overloads or any(composed)


def events_of(profiler: profile) -> list[CallEvent]:
    """Return what ran on the thread that ran the step.

    Of a CPU's step autograd runs the backward pass on that thread, too.
    """
    events = kineto_events(profiler)
    thread = next((each.start_thread_id() for each in events), 0)
    return [
        CallEvent(plain_name(each.name()), each.start_ns(), each.duration_ns())
        for each in events
        if each.start_thread_id() == thread
    ]


def kineto_events(profiler: profile) -> list[Any]:
    """Return all events of a profiler that has ended, as Kineto has them."""
    return list(profiler.profiler.kineto_results.events())


def device_profile(events: Iterable[Any]) -> DeviceProfile:
    """Return a profile of a marked step on a GPU, from the profiler's own events.

    Kineto's events of the host are operators, or calls of CUDA's runtime, which are linked to an
    operator; those of the device have the number of the call that launched them.

    Args:
        events: ``_KinetoEvent``, of all threads and of the device.

    Raises:
        PrimitiveError: no step is marked.
    """
    step: Span | None = None
    operators: list[CallEvent] = []
    launches: dict[int, Span] = {}
    kernels: list[tuple[int, Span]] = []
    for each in events:
        span = Span(each.start_ns(), each.start_ns() + each.duration_ns())
        on_host = each.device_type() == DeviceType.CPU
        if each.name() == MARK:
            step = span if on_host else step
        elif not on_host:
            if not each.is_user_annotation():  # the device's copy of a name that the host gave
                kernels.append((each.correlation_id(), span))
        elif each.linked_correlation_id() or _RUNTIME.match(each.name()):
            launches[each.correlation_id()] = span
        else:
            operators.append(CallEvent(plain_name(each.name()), span.begin_ns, each.duration_ns()))
    if step is None:
        raise PrimitiveError("the profile has no marked step")
    return DeviceProfile(step=step, operators=operators, launches=launches, kernels=kernels)
