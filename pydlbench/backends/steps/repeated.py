"""Operators in functions of their own, repeated until they stand above what a call costs.

A call of a function costs more than many an operator. So a short one is put into its function
several times, on operands of its own each time, and what an empty call costs is taken off: one
right after it, where the caches are as operators leave them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydlbench.backends.base import is_out_of_memory
from pydlbench.backends.steps.timed_calls import CallCost, TimedCall
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydlbench.backends.steps.timed_calls import TimedOperator

# An operator is repeated in its function until it lasts so long, in seconds, and so often at most.
_LONG_S: Final = 12e-3
_MOST: Final = 16
# The operands of all repetitions together take no more than this share of the memory.
_ROOM: Final = 1 / 8
# Operators in a chain that computes nothing, and how often it is run.
_CHAIN: Final = 64
_REPEATS: Final = 25

Operator = TypeVar("Operator", bound="TimedOperator")


class RepeatedOperator(TimedCall):
    """A function that holds an operator several times.

    Args:
        call: calls it, and waits for it.
        executions: of the operator in a call.
        cost: of a call, which is taken off; None leaves it in.
    """

    def __init__(
        self, call: Callable[[], Any], executions: int = 1, cost: CallCost | None = None
    ) -> None:
        super().__init__(call)
        self.executions, self._cost = executions, cost

    def run(self) -> float:
        """Call it once; seconds of one execution."""
        seconds = super().run()
        return (seconds - (self._cost.seconds() if self._cost else 0.0)) / self.executions


class CallCosts:
    """What calls cost that compute next to nothing, by their numbers of operands and results.

    Args:
        empty: returns such a call of so many operands and results.
    """

    def __init__(self, empty: Callable[[int, int], TimedCall]) -> None:
        self._empty = empty
        self._known: dict[tuple[int, int], CallCost] = {}

    def at(self, operands: int, results: int) -> CallCost:
        """Return what a call costs."""
        # A few more or less make no difference that could be measured.
        key = _rounded(operands), _rounded(results)
        if key not in self._known:
            self._known[key] = CallCost(self._empty(*key).run)
        return self._known[key]


def _rounded(number: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, number - 1).bit_length()


def long_enough(
    make: Callable[[Sequence[Sequence[Any]]], RepeatedOperator],
    operands: Sequence[Any],
    copy: Callable[[Any], Any],
    *,
    size: int,
    among: int,
    most: int = _MOST,
) -> RepeatedOperator:
    """Return an operator that is repeated often enough to stand above the cost of its call.

    Args:
        make: of sets of operands, with one execution for each.
        operands: of one execution.
        copy: returns an operand in memory of its own.
        size: of the operands, in bytes: large ones take longer, and are repeated less often.
        among: operators that share the memory.
        most: repetitions.
    """
    made = make([operands])
    made.run()
    once = min(made.run() for _ in range(3))
    room = _ROOM * (read_cpu_facts().memory_total_bytes or 0) / among
    times = min(most, math.ceil(_LONG_S / max(once, 1e-5)), int(room / max(size, 1)))
    if times <= 1:
        return made
    made = make([operands, *([copy(each) for each in operands] for _ in range(times - 1))])
    made.run()
    return made


def dispatch_s(chain: Callable[[int], TimedOperator]) -> float:
    """Return what an operator costs that computes nothing, in seconds.

    Args:
        chain: returns so many operators on next to no elements, each of which reads the last.
    """
    long, short = chain(_CHAIN), chain(1)
    for each in (long, short):
        each.run()
    differences = [long.run() - short.run() for _ in range(_REPEATS)]
    return max(0.0, median(differences) / (_CHAIN - 1))


# -----------------------------------------------------------------------------
# Operators by their signatures.


def one_line(error: Exception) -> str:
    """Return an error's class and text in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def made_ready(
    signatures: Iterable[str],
    make: Callable[[str], Operator],
    words: Callable[[Exception], str] = one_line,
) -> tuple[dict[str, Operator], dict[str, str]]:
    """Return the operators that could be made, and why others could not, by signature.

    Args:
        signatures: of the operators.
        make: returns one that has run.
        words: says what was raised that is no error of ours.
    """
    ready: dict[str, Operator] = {}
    refused: dict[str, str] = {}
    for signature in signatures:
        try:
            ready[signature] = make(signature)
        except PydlbenchError as error:
            refused[signature] = str(error)
        except Exception as error:  # noqa: BLE001 - an operator raises what it likes; it costs no other
            memory = "not enough memory: " if is_out_of_memory(error) else ""
            refused[signature] = f"{memory}{words(error)}"
    return ready, refused
