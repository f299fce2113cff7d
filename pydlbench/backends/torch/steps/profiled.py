"""A traced step of PyTorch: by its profiler, or by time stamps between its recorded calls.

On a GPU the profiler also records the device's kernels, through NVIDIA's CUPTI.
"""

import contextlib
import dataclasses
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler import profile as HostProfile  # noqa: N812 - a class
from torch.profiler import profile, record_function, supported_activities

from pydlbench.backends.frameworks.device_clock import StepRuntime, nvtx_range
from pydlbench.backends.steps.device import GAPS, DeviceProfile, Span, trace_of
from pydlbench.backends.steps.timed_calls import TimedCall, dispatch_s
from pydlbench.backends.steps.trace import CallEvent, StepTrace, StepTracer, align
from pydlbench.backends.torch.steps.recording import DispatchedCall, Recording, StorageSlot, record
from pydlbench.calls.seen.aten import leaves
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.trace import ProgramCall

#: Autograd's own detached tensors; recordings leave them out, too.
_DETACH: Final = ("aten::detach", "detach")
#: The view that ``aten::reshape`` makes unless a dispatch mode is active.
_VIEWS: Final = ("aten::_reshape_alias",)
#: ``torch.tensor`` copies a value to the device, which no recording has, and then lifts it.
_HEADS: Final = {"aten::lift_fresh": "aten::_to_copy"}
_OPERATOR: Final = re.compile(r"\w+::\w+")
#: A call of CUDA's runtime or driver, which may be made outside of any operator.
_RUNTIME: Final = re.compile(r"cu(da)?[A-Z]")
#: Marks the second step in a profile of two, which is the one that counts.
MARK: Final = "pydlbench::step"
#: Marks a call that is profiled alone.
_CALL: Final = "pydlbench::call"


def tracer(
    recording: Recording, run: Callable[[], Any], runtime: StepRuntime | None = None
) -> StepTracer:
    """Return the tracer of a step.

    Args:
        recording: recording of the step.
        run: runs the step once.
        runtime: runtime of the GPU that the step runs on; None on a CPU.

    Raises:
        UnsupportedError: on a GPU, the profiler is switched off.
    """
    names = [name_in_profile(call.function) for call in recording.calls if not call.implied]
    calls = [call.program_call for call in recording.in_order()]
    profiling = by_profiler(names, calls, run, runtime)
    if runtime is not None:
        return profiling
    source = "time stamps around each recorded call, run without modules and autograd"
    stamps = source, ReplayedStep(recording).trace
    return dataclasses.replace(profiling, ways={**profiling.ways, "stamps": stamps})


def by_profiler(
    names: Sequence[str],
    calls: Sequence[ProgramCall],
    run: Callable[[], Any],
    runtime: StepRuntime | None = None,
) -> StepTracer:
    """Return the tracer that runs a step under PyTorch's profiler.

    Args:
        names: names of the step's calls in their order, as the profile has them.
        calls: calls of the step, in the same order as ``names``.
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
    """A step under the profiler; see :func:`by_profiler`."""

    def __init__(
        self, names: Sequence[str], calls: Sequence[ProgramCall], run: Callable[[], Any]
    ) -> None:
        self._names, self._calls, self._run = names, calls, run

    def trace(self) -> StepTrace:
        """Run the step under the profiler, whose start and stop are outside of the step's time.

        ``torch.profiler`` imports PyTorch's compiler when it starts for the first time, which takes
        seconds; the autograd profiler behind it does not.
        """
        with HostProfile(use_kineto=True) as profiler:
            start = time.perf_counter()
            results = self._run()
            seconds = time.perf_counter() - start
        del results
        calls = align(self._names, events_of(profiler), contains, self._describe)
        return StepTrace(seconds, calls.seconds)

    def trace_on(self, runtime: StepRuntime) -> StepTrace:
        """Run the step on a GPU under the profiler, right after another one."""
        profiled = _profile_second(self._run, runtime, "step in context")
        return trace_of(profiled, self._names, contains, self._describe, _HEADS)

    def between_events(self, runtime: StepRuntime) -> float:
        """Run the step on a GPU right after another one; return its seconds on the device."""
        self._run()
        start = runtime.record()
        self._run()
        end = runtime.record()
        runtime.wait()
        return runtime.between(start, end)

    def _describe(self, place: int) -> str:
        call = self._calls[place]
        return f"{self._names[place]} of {call.module}, {call.direction}"


def kernel_seconds(
    runtime: StepRuntime, calls: Sequence[tuple[Callable[[], Any], Callable[[], Any]]]
) -> Sequence[float]:
    """Return the seconds of each call's kernels on a GPU.

    Args:
        runtime: runtime of the GPU.
        calls: pairs of a call that is not counted and the call after it. All pairs run twice, and
            the second time counts: in that case the device is as busy before as during it.
    """

    def run() -> None:
        for first, call in calls:
            first()
            with record_function(_CALL):
                call()

    profiled = _profile_second(run, runtime, "calls alone")
    return trace_of(profiled, [_CALL] * len(calls), lambda _: True).calls_s


def _profile_second(run: Callable[[], Any], runtime: StepRuntime, shown_as: str) -> DeviceProfile:
    """Run a function twice on a GPU under the profiler; return the profile of the second time."""
    # If CUPTI is torn down after a profile, it may miss the kernels of the next one: on an H200 a
    # breakdown had none. While attached, it makes launches 50 % slower; but by then all steps have
    # been timed, and calls alone wait at the sampler's gate.
    os.environ["TEARDOWN_CUPTI"] = "0"
    profiler = profile(activities=supported_activities())
    profiler.start()
    run()
    with record_function(MARK), nvtx_range(shown_as):
        run()
    runtime.wait()
    profiler.stop()
    return device_profile(kineto_events(profiler.profiler))


def name_in_profile(function: Any) -> str:
    """Return an operator's name in the profiler, ``aten::convolution``; see :func:`plain_name`."""
    schema = getattr(function, "_schema", None)
    return str(function) if schema is None else plain_name(schema.name)


def plain_name(name: str) -> str:
    """Return an operator's name without the differences that an active dispatch mode causes.

    While a step is recorded, composite operators call some operators out of place that they
    otherwise call in place (``aten::linear`` adds its bias so), and make views by another name.
    """
    if name in _VIEWS:
        return "aten::view"
    return name[:-1] if re.search(r"[^_]_$", name) else name


@functools.cache
def contains(name: str) -> bool:
    """Whether the calls inside an event may have been recorded instead of it.

    True for events that are not operators (autograd's nodes, an optimizer's step), and for
    operators that PyTorch decomposes above autograd: ``aten::conv2d``.
    """
    if name in _DETACH or not _OPERATOR.fullmatch(name):
        return True
    operators = torch._C._dispatch_get_all_op_names()
    overloads = [op for op in operators if op.partition(".")[0] in (name, f"{name}_")]
    key = "CompositeImplicitAutograd"
    composite = (torch._C._dispatch_has_kernel_for_dispatch_key(op, key) for op in overloads)
    return not overloads or any(composite)


def events_of(profiler: HostProfile) -> list[CallEvent]:
    """Return the events of the thread that ran the step.

    On a CPU, autograd runs the backward pass on that thread, too.
    """
    events = kineto_events(profiler)
    thread = next((event.start_thread_id() for event in events), 0)
    return [
        CallEvent(plain_name(event.name()), event.start_ns(), event.duration_ns())
        for event in events
        if event.start_thread_id() == thread
    ]


def kineto_events(profiler: HostProfile) -> list[Any]:
    """Return all events of a profiler that has ended, as PyTorch's library Kineto records them."""
    return list(profiler.kineto_results.events())


def device_profile(events: Iterable[Any]) -> DeviceProfile:
    """Return a profile of a marked step on a GPU, from the profiler's own events.

    Kineto's host events are operators, or calls of CUDA's runtime, which are linked to an operator.
    Device events have the number of the call that launched them.

    Args:
        events: events of class ``_KinetoEvent``, of all threads and of the device.

    Raises:
        PrimitiveError: no step is marked.
    """
    step: Span | None = None
    operators: list[CallEvent] = []
    launches: dict[int, Span] = {}
    kernels: list[tuple[int, Span]] = []
    for event in events:
        span = Span(event.start_ns(), event.start_ns() + event.duration_ns())
        on_host = event.device_type() == DeviceType.CPU
        if event.name() == MARK:
            step = span if on_host else step
        elif not on_host:
            if not event.is_user_annotation():  # the device's copy of a mark on the host
                kernels.append((event.correlation_id(), span))
        elif event.linked_correlation_id() or _RUNTIME.match(event.name()):
            launches[event.correlation_id()] = span
        else:
            name = plain_name(event.name())
            operators.append(CallEvent(name, span.begin_ns, event.duration_ns()))
    if step is None:
        raise PrimitiveError("the profile has no marked step")
    return DeviceProfile(step=step, operators=operators, launches=launches, kernels=kernels)


# -----------------------------------------------------------------------------
# A recorded step of PyTorch, replayed: its calls in their order, and nothing else.


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Call operators as autograd itself does: without recording them for a backward pass."""
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


# -----------------------------------------------------------------------------
# From a recording to a function.


def compose(
    recording: Recording, stamp: Callable[[], None] | None = None
) -> Callable[[], tuple[Any, ...]]:
    """Return a function that runs all calls once.

    It returns the values that outlive the step (gradients); the caller keeps them until the next
    call, as a step does. It changes the weights of the recorded step.

    Args:
        recording: recording of a step.
        stamp: function that is called right before and right after each recorded call, if given.

    Raises:
        UnsupportedError: the recording cannot be run again.
    """
    if recording.opaque is not None:
        raise UnsupportedError(f"the recorded calls cannot be run again: {recording.opaque}")
    writer = _ReplayWriter(recording, stamp)
    for call in recording.calls:
        writer.add(call)
    return writer.function()


class _ReplayWriter:
    """Writes the function of a replayed step, line by line.

    Args:
        recording: recording of a step.
        stamp: see :func:`compose`.
    """

    def __init__(self, recording: Recording, stamp: Callable[[], None] | None) -> None:
        self._given = recording.given
        self._names: dict[str, Any] = {
            f"v{slot}": tensor for slot, tensor in recording.given.items()
        }
        self._stamps = stamp is not None
        self._names["stamp"] = stamp
        self._operators: dict[Any, str] = {}
        self._lines: list[str] = []
        self._alive: dict[int, None] = {}

    def add(self, call: DispatchedCall) -> None:
        """Write a call, and free the values that are freed after it."""
        name = self._operators.setdefault(call.function, f"f{len(self._operators)}")
        self._names[name] = call.function
        arguments = [self._text(value) for value in call.arguments]
        arguments += [f"{key}={self._text(value)}" for key, value in call.keywords.items()]
        target = self._target(call.results)
        stamps = ["stamp()"] if self._stamps and not call.implied else []
        self._lines += [*stamps, f"{target}{name}({', '.join(arguments)})", *stamps]
        freed = [slot for slot in call.freed if slot in self._alive]
        for slot in freed:
            del self._alive[slot]
        if freed:
            self._lines.append(" = ".join(f"v{slot}" for slot in freed) + " = None")

    def function(self) -> Callable[[], tuple[Any, ...]]:
        """Compile the lines to a function, which returns all values that are still alive."""
        self._lines.append(f"return ({''.join(f'v{slot}, ' for slot in self._alive)})")
        text = "def step():\n" + "\n".join(f"    {line}" for line in self._lines)
        exec(compile(text, "<recorded step>", "exec"), self._names)  # noqa: S102 - our own lines
        run: Callable[[], tuple[Any, ...]] = self._names["step"]
        return run

    def _target(self, results: Any) -> str:
        """Return the left side of a line, which assigns new values; empty if there are none."""
        if isinstance(results, StorageSlot):
            return f"{self._result(results)} = " if self._is_new(results) else ""
        if isinstance(results, (list, tuple)) and any(map(self._is_new, results)):
            return ", ".join(map(self._result, results)) + ", = "
        return ""

    def _is_new(self, result: Any) -> bool:
        return isinstance(result, StorageSlot) and result.number not in self._given

    def _result(self, result: Any) -> str:
        if not self._is_new(result):
            return "_"
        self._alive[result.number] = None
        return f"v{result.number}"

    def _text(self, value: Any) -> str:
        """Return the text of an argument: the name of a value, or of a constant."""
        if isinstance(value, StorageSlot):
            return f"v{value.number}"
        if isinstance(value, (list, tuple)) and any(True for _ in leaves(value, StorageSlot)):
            return f"[{', '.join(map(self._text, value))}]"
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name


# -----------------------------------------------------------------------------
# The replayed step under the clock.


class ReplayedStep:
    """A recorded step whose calls are run with time stamps between them.

    Args:
        recording: recording of the step.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._times: list[float] = []
        #: Values that outlive the step, gradients among them.
        self.results: tuple[Any, ...] = ()

    @functools.cached_property
    def _run(self) -> Callable[[], tuple[Any, ...]]:
        return compose(self._recording, lambda: self._times.append(time.perf_counter()))

    def trace(self) -> StepTrace:
        """Run all calls once, and note when each begins and ends."""
        run = self._run
        self._times.clear()
        with below_autograd():
            start = time.perf_counter()
            # A step drops the gradients of the previous one first.
            self.results = ()
            self.results = run()
            seconds = time.perf_counter() - start
        begins_and_ends = zip(self._times[::2], self._times[1::2], strict=True)
        return StepTrace(seconds, [end - begin for begin, end in begins_and_ends])


def call_cost() -> float:
    """Return the seconds of an empty call in a replayed step."""
    first = torch.ones(1)

    def chain(length: int) -> TimedCall:
        def step() -> None:
            value = first
            for _ in range(length):
                value = torch.relu(value)

        recording = record(step, naming=lambda _: contextlib.nullcontext(), parameters={})
        return TimedCall(compose(recording))

    with below_autograd():
        return dispatch_s(chain)
