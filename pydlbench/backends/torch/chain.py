"""A recorded step of PyTorch, run again as a chain: its calls in their order, and nothing else.

Each call reads what earlier ones have written, in place where the step works in place, and memory
is given back where the step gives it back. There are neither modules nor autograd, nor a line of
the optimizer's: one function of straight-line code, a line for each call. What stays is what
starting a call from Python costs, which is measured beside it (:func:`call_cost`).
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from pydlbench.backends.torch.recording import Slot, record
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.seen.aten import leaves
from pydlbench.records.step import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.backends.torch.recording import Call, Recording


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Call operators as autograd calls them: what it would do about them is left out."""
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


# -----------------------------------------------------------------------------
# From a recording to a function.


def compose(
    recording: Recording, keep: Sequence[int] = (), stamp: Callable[[], None] | None = None
) -> Callable[[], tuple[Any, ...]]:
    """Return a function that runs all calls once.

    What outlives the step (gradients) is what the function returns: whoever calls it keeps that
    until the next call, as a step does. Weights are those that were recorded, and change.

    Args:
        recording: of a step.
        keep: values that are returned too, in front of the others, in this order.
        stamp: called right before and right after each recorded call; None for nothing.

    Raises:
        UnsupportedError: the recording cannot be run again.
    """
    if recording.opaque is not None:
        raise UnsupportedError(f"the recorded calls cannot be run again: {recording.opaque}")
    writer = _Writer(recording, frozenset(keep), stamp)
    for call in recording.calls:
        writer.add(call)
    return writer.function(keep)


class _Writer:
    """Writes the function line by line.

    Args:
        recording: of a step.
        keep: values that nothing frees.
        stamp: see :func:`compose`.
    """

    def __init__(
        self, recording: Recording, keep: frozenset[int], stamp: Callable[[], None] | None
    ) -> None:
        self._given = recording.given
        self._keep = keep
        self._known: dict[str, Any] = {f"v{slot}": one for slot, one in recording.given.items()}
        self._stamps = stamp is not None
        self._known["stamp"] = stamp
        self._operators: dict[Any, str] = {}
        self._lines: list[str] = []
        self._alive: dict[int, None] = {}

    def add(self, call: Call) -> None:
        """Write a call, and what is freed after it."""
        name = self._operators.setdefault(call.function, f"f{len(self._operators)}")
        self._known[name] = call.function
        words = [self._text(one) for one in call.arguments]
        words += [f"{key}={self._text(one)}" for key, one in call.keywords.items()]
        target = self._target(call.results)
        stamps = ["stamp()"] if self._stamps and not call.implied else []
        self._lines += [*stamps, f"{target}{name}({', '.join(words)})", *stamps]
        gone = [one for one in call.freed if one in self._alive and one not in self._keep]
        for slot in gone:
            del self._alive[slot]
        if gone:
            self._lines.append(" = ".join(f"v{slot}" for slot in gone) + " = None")

    def function(self, keep: Sequence[int]) -> Callable[[], tuple[Any, ...]]:
        """Return what was written as a function that returns what is still there."""
        left = [*keep, *(one for one in self._alive if one not in keep)]
        self._lines.append(f"return ({''.join(f'v{slot}, ' for slot in left)})")
        text = "def chain():\n" + "\n".join(f"    {line}" for line in self._lines)
        exec(compile(text, "<recorded step>", "exec"), self._known)  # noqa: S102 - our own lines
        found: Callable[[], tuple[Any, ...]] = self._known["chain"]
        return found

    def _target(self, results: Any) -> str:
        """Return the left side of a line: the new values; nothing where there are none."""
        if isinstance(results, Slot):
            return f"{self._result(results)} = " if self._is_new(results) else ""
        if isinstance(results, (list, tuple)) and any(map(self._is_new, results)):
            return ", ".join(map(self._result, results)) + ", = "
        return ""

    def _is_new(self, result: Any) -> bool:
        return isinstance(result, Slot) and result.number not in self._given

    def _result(self, result: Any) -> str:
        if not self._is_new(result):
            return "_"
        self._alive[result.number] = None
        return f"v{result.number}"

    def _text(self, value: Any) -> str:
        """Return an argument's text: a value, or a constant by a name of its own."""
        if isinstance(value, Slot):
            return f"v{value.number}"
        if isinstance(value, (list, tuple)) and any(True for _ in leaves(value, Slot)):
            return f"[{', '.join(map(self._text, value))}]"
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        name = f"c{len(self._known)}"
        self._known[name] = value
        return name


# -----------------------------------------------------------------------------
# The chain under the clock.


class Chain:
    """A recorded step as an operator that can be timed.

    Args:
        recording: of the step.
        wait: returns when the device has done everything that was called.
    """

    def __init__(self, recording: Recording, wait: Callable[[], None] = lambda: None) -> None:
        self._call = compose(recording)
        self._wait = wait
        self._left: tuple[Any, ...] = ()

    def call(self) -> None:
        """Make all calls once; those on a GPU may not have finished."""
        # A step drops the gradients of the one before as its first act.
        self._left = ()
        self._left = self._call()

    def run(self) -> float:
        """Run all calls once; see ``backends.steps.operators.TimedOperator``."""
        with below_autograd():
            start = time.perf_counter()
            self.call()
            self._wait()
            return time.perf_counter() - start


class StampedChain:
    """A recorded step that notes when each of its calls begins and ends.

    Args:
        recording: of the step.
    """

    def __init__(self, recording: Recording) -> None:
        self._times: list[float] = []
        self._call = compose(recording, stamp=self._stamp)
        self._left: tuple[Any, ...] = ()

    def _stamp(self) -> None:
        self._times.append(time.perf_counter())

    def run(self) -> tuple[float, list[float]]:
        """Run all calls once; return their seconds, and when each began and ended, in turn."""
        self._times.clear()
        with below_autograd():
            start = time.perf_counter()
            self._left = ()
            self._left = self._call()
            seconds = time.perf_counter() - start
        return seconds, list(self._times)


# Calls in a chain that computes nothing, and how often it is run.
_LENGTH: Final = 64
_REPEATS: Final = 25
#: How the cost of a call was measured.
HOW: Final = f"{_LENGTH} calls of an operator on one element, in a chain like the step's"


def call_cost(device: str = "cpu") -> tuple[float, ...]:
    """Return what a call in a chain costs that computes nothing, in seconds, by repetition.

    Args:
        device: that it runs on.
    """
    first = torch.ones(1, device=device)

    def step() -> None:
        value = first
        for _ in range(_LENGTH):
            value = torch.relu(value)

    chain = Chain(
        record(step, naming=lambda _: contextlib.nullcontext(), parameters={}, device=device)
    )
    chain.run()
    return tuple(chain.run() / _LENGTH for _ in range(_REPEATS))


# -----------------------------------------------------------------------------
# Whether the chain computes what the step computes.

# Both run the same kernels on the same operands, so results are usually the same bit by bit; sums
# that threads share may be added in another order. So many roundings of the largest element; of
# what a step changes (weights, statistics), of the largest change, for a step changes little: a
# chain without an optimizer would be within so many of the weights. Adding the change rounds again.
_ROUNDINGS: Final = 1 << 10
_ADDED: Final = 4


def verify(
    recording: Recording,
    step: Callable[[], Any],
    parameters: Mapping[torch.Tensor, str],
    seed: int = 0,
) -> tuple[Check, ...]:
    """Run the step and the chain from the same state, and compare all that they leave behind.

    That is what the step returns (output, loss), the gradients, and everything that the chain was
    given: weights, running statistics, the optimizer's state, which are as before afterwards.

    Args:
        recording: of the step.
        step: runs it once and returns the tensors that it computes.
        parameters: whose gradients are compared, by what they belong to.
        seed: of the random numbers that both draw.

    Returns:
        A check each of results, gradients and state; of those that a step has not, of nothing.

    Raises:
        PrimitiveError: they differ by more than the order of sums can explain, or the recording
            does not say where a result or a gradient comes from.
    """
    slots = [one.number for one in leaves([recording.results], Slot)]
    results = len(slots)
    graded = [one for one in parameters if one.grad is not None]
    for one in graded:
        slot = recording.slot(one.grad)
        if slot is None:
            raise PrimitiveError(f"no recorded call makes the gradient of {parameters[one]}")
        slots.append(slot)
    call = compose(recording, keep=slots)
    state = list(recording.given.values())
    before = [one.clone() for one in state]
    torch.manual_seed(seed)
    returned = list(leaves([step()], torch.Tensor))
    if len(returned) != results:
        raise PrimitiveError(f"{results} of {len(returned)} results come from recorded calls")
    expected = [one.detach().clone() for one in (*returned, *(one.grad for one in graded), *state)]
    _restore(state, before)
    torch.manual_seed(seed)
    with below_autograd():
        found = [*call()[: len(slots)], *state]
    pairs = list(zip(found, expected, strict=True))
    checks = [
        _compared("results", pairs[:results]),
        _compared("gradients", pairs[results : len(slots)]),
        _compared("state", pairs[len(slots) :], before),
    ]
    _restore(state, before)
    wrong = [f"{one.name}: {one.detail}" for one in checks if one.status != "ok"]
    if wrong:
        raise PrimitiveError(f"the chain does not compute what the step does: {'; '.join(wrong)}")
    return tuple(checks)


def _restore(state: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for one, value in zip(state, values, strict=True):
            one.copy_(value)


def _compared(
    name: str,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    before: Sequence[torch.Tensor] | None = None,
) -> Check:
    """Compare what the chain has left behind with what the step has.

    Args:
        name: of the check.
        pairs: the chain's, and the step's.
        before: what each was before; None where there was nothing.
    """
    same = failed = 0
    worst, where = 0.0, ""
    for number, (found, expected) in enumerate(pairs):
        if torch.equal(found, expected):
            same += 1
            continue
        exact = expected.double()
        error = float((found.double() - exact).abs().max())
        allowed = 0.0
        if expected.dtype.is_floating_point:
            largest = float(exact.abs().max())
            changed = largest
            if before is not None:
                changed = float((exact - before[number].double()).abs().max())
            eps = torch.finfo(expected.dtype).eps
            allowed = eps * (_ROUNDINGS * changed + _ADDED * largest)
        failed += not error <= allowed  # of a NaN too
        share = error / allowed if allowed else math.inf
        if not share <= worst:
            worst, where = share, f"{error:.1e} (allowed {allowed:.1e})"
    text = f"{same} of {len(pairs)} bit by bit"
    if same < len(pairs):
        text += f", the others within {where}"
    return Check(name=name, status="failed" if failed else "ok", detail=text)
