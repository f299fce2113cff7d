"""A step of PyTorch traced: by its profiler, or by time stamps between its recorded calls."""

from __future__ import annotations

import functools
import re
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from pydlbench.backends.steps.trace import Event, StepTracer, Trace, align
from pydlbench.backends.torch.chain import Chain
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.torch.recording import Recording

#: Autograd's own copy of a tensor's head; a recorder leaves it out, too.
_DETACH: Final = ("aten::detach", "detach")
#: What ``aten::reshape`` calls where nobody records.
_VIEWS: Final = ("aten::_reshape_alias",)
_OPERATOR: Final = re.compile(r"\w+::\w+")


def tracer(recording: Recording, run: Callable[[], Any]) -> StepTracer:
    """Return what runs a step traced.

    Args:
        recording: of the step.
        run: runs it once.
    """
    traced = _Traced(recording, run)
    stamped = "time stamps around each recorded call, run without modules and autograd"
    return StepTracer(
        calls=traced.calls,
        ways={
            "profile": (f"PyTorch {torch.__version__}'s profiler", traced.profiled),
            "stamps": (stamped, traced.stamped),
        },
    )


class _Traced:
    """A recorded step that is run traced."""

    def __init__(self, recording: Recording, run: Callable[[], Any]) -> None:
        self._recording, self._run = recording, run
        made = [one for one in recording.calls if not one.implied]
        self._names = [name_in_profile(one.function) for one in made]
        self.calls = [one.in_place for one in recording.in_order()]

    def profiled(self) -> Trace:
        """Run the step under the profiler: starting and ending it is outside the step's seconds."""
        profiler = profile(activities=[ProfilerActivity.CPU])
        profiler.start()
        start = time.perf_counter()
        found = self._run()
        seconds = time.perf_counter() - start
        profiler.stop()
        del found
        return Trace(seconds, align(self._names, events_of(profiler), contains, self._describe))

    def stamped(self) -> Trace:
        """Run the recorded calls and note when each begins and ends."""
        seconds, times = self._chain.run()
        begins_and_ends = zip(times[::2], times[1::2], strict=True)
        return Trace(seconds, [end - begin for begin, end in begins_and_ends])

    @functools.cached_property
    def _chain(self) -> Chain:
        return Chain(self._recording)

    def _describe(self, place: int) -> str:
        one = self.calls[place]
        return f"{self._names[place]} of {one.module}, {one.direction}"


def check_traceable(mode: str) -> None:
    """Refuse modes whose calls PyTorch's profiler does not tell apart.

    Raises:
        UnsupportedError: a compiled one.
    """
    if mode != "eager":
        raise UnsupportedError(
            f"torch {mode}: its kernels are the compiler's own, which the profiler does not tell "
            "apart; nearest: --mode eager"
        )


def name_in_profile(function: Any) -> str:
    """Return what the profiler calls an operator: ``aten::convolution``; see :func:`_plain`."""
    schema = getattr(function, "_schema", None)
    return str(function) if schema is None else _plain(schema.name)


def _plain(name: str) -> str:
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
    overloads = [one for one in every if one.partition(".")[0] in (name, f"{name}_")]
    key = "CompositeImplicitAutograd"
    composed = (torch._C._dispatch_has_kernel_for_dispatch_key(one, key) for one in overloads)
    return not overloads or any(composed)


def events_of(profiler: profile) -> list[Event]:
    """Return what ran on the thread that ran the step.

    Of a CPU's step autograd runs the backward pass on that thread, too.
    """
    events = profiler.profiler.kineto_results.events()
    thread = next((one.start_thread_id() for one in events), 0)
    return [
        Event(_plain(one.name()), one.start_ns(), one.duration_ns())
        for one in events
        if one.start_thread_id() == thread
    ]
