"""A recorded step of PyTorch, run again as a chain: its calls in their order, and nothing else.

Each call reads what earlier ones have written, in place where the step works in place, and memory
is given back where the step gives it back. There are neither modules nor autograd, nor a line of
the optimizer's: one function of straight-line code, a line for each call. What stays is what
starting a call from Python costs, which is measured beside it (:func:`call_cost`).
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from pydlbench.backends.torch.steps.recording import StorageSlot, record
from pydlbench.calls.seen.aten import leaves
from pydlbench.errors import UnsupportedError
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydlbench.backends.torch.steps.recording import DispatchedCall, Recording


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Call operators as autograd calls them: what it would do about them is left out."""
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


# -----------------------------------------------------------------------------
# From a recording to a function.


def compose(
    recording: Recording, stamp: Callable[[], None] | None = None
) -> Callable[[], tuple[Any, ...]]:
    """Return a function that runs all calls once.

    What outlives the step (gradients) is what the function returns: whoever calls it keeps that
    until the next call, as a step does. Weights are those that were recorded, and change.

    Args:
        recording: of a step.
        stamp: called right before and right after each recorded call; None for nothing.

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
    """Writes the function line by line.

    Args:
        recording: of a step.
        stamp: see :func:`compose`.
    """

    def __init__(self, recording: Recording, stamp: Callable[[], None] | None) -> None:
        self._given = recording.given
        self._known: dict[str, Any] = {f"v{slot}": each for slot, each in recording.given.items()}
        self._stamps = stamp is not None
        self._known["stamp"] = stamp
        self._operators: dict[Any, str] = {}
        self._lines: list[str] = []
        self._alive: dict[int, None] = {}

    def add(self, call: DispatchedCall) -> None:
        """Write a call, and what is freed after it."""
        name = self._operators.setdefault(call.function, f"f{len(self._operators)}")
        self._known[name] = call.function
        words = [self._text(each) for each in call.arguments]
        words += [f"{key}={self._text(each)}" for key, each in call.keywords.items()]
        target = self._target(call.results)
        stamps = ["stamp()"] if self._stamps and not call.implied else []
        self._lines += [*stamps, f"{target}{name}({', '.join(words)})", *stamps]
        gone = [each for each in call.freed if each in self._alive]
        for slot in gone:
            del self._alive[slot]
        if gone:
            self._lines.append(" = ".join(f"v{slot}" for slot in gone) + " = None")

    def function(self) -> Callable[[], tuple[Any, ...]]:
        """Return what was written as a function that returns what is still there."""
        self._lines.append(f"return ({''.join(f'v{slot}, ' for slot in self._alive)})")
        text = "def chain():\n" + "\n".join(f"    {line}" for line in self._lines)
        exec(compile(text, "<recorded step>", "exec"), self._known)  # noqa: S102 - our own lines
        run: Callable[[], tuple[Any, ...]] = self._known["chain"]
        return run

    def _target(self, results: Any) -> str:
        """Return the left side of a line: the new values; nothing where there are none."""
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
        """Return an argument's text: a value, or a constant by a name of its own."""
        if isinstance(value, StorageSlot):
            return f"v{value.number}"
        if isinstance(value, (list, tuple)) and any(True for _ in leaves(value, StorageSlot)):
            return f"[{', '.join(map(self._text, value))}]"
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        name = f"c{len(self._known)}"
        self._known[name] = value
        return name


# -----------------------------------------------------------------------------
# The chain under the clock.


class Chain:
    """A recorded step that notes when each of its calls begins and ends.

    Args:
        recording: of the step.
    """

    def __init__(self, recording: Recording) -> None:
        self._times: list[float] = []
        self._call = compose(recording, self._stamp)
        self._kept: tuple[Any, ...] = ()

    def _stamp(self) -> None:
        self._times.append(time.perf_counter())

    def run(self) -> tuple[float, list[float]]:
        """Run all calls once; return their seconds, and when each began and ended, in turn."""
        self._times.clear()
        with below_autograd():
            start = time.perf_counter()
            # A step drops the gradients of the one before as its first act.
            self._kept = ()
            self._kept = self._call()
            seconds = time.perf_counter() - start
        return seconds, list(self._times)


# Calls in a chain that computes nothing, and how often it is run.
_LENGTH: Final = 64
_REPEATS: Final = 25


def call_cost() -> float:
    """Return what a call in a chain costs that computes nothing, in seconds."""
    first = torch.ones(1)

    def step() -> None:
        value = first
        for _ in range(_LENGTH):
            value = torch.relu(value)

    call = compose(record(step, naming=lambda _: contextlib.nullcontext(), parameters={}))
    seconds = []
    with below_autograd():
        for _ in range(_REPEATS + 1):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) / _LENGTH
