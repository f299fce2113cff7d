"""A recorded step of PyTorch, replayed: its calls in their order, and nothing else.

Each call reads the results of earlier ones, works in place where the step does, and memory is freed
where the step frees it. There are no modules, no autograd and no code of the optimizer: one
function of straight-line code with a line for each call. What remains is the cost of starting a
call from Python, which is measured beside it (:func:`call_cost`).
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pydlbench.backends.steps.timed_calls import TimedCall, dispatch_s
from pydlbench.backends.steps.trace import StepTrace
from pydlbench.backends.torch.steps.recording import DispatchedCall, Recording, StorageSlot, record
from pydlbench.calls.seen.aten import leaves
from pydlbench.errors import UnsupportedError


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
