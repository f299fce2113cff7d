"""Operators in functions of their own, repeated until they exceed the cost of a call.

Calling a function costs more than many operators do. A short operator is therefore repeated in its
function, each time on operands of its own, and the cost of an empty call is subtracted. The empty
call is made right after the operator, where the caches are as operators leave them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from pydlbench.backends.base import is_out_of_memory
from pydlbench.backends.steps.timed_calls import CallCost, TimedCall, TimedOperator
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.timing.statistics import median

# An operator is repeated in its function until a call takes this long, but at most so many times.
_CALL_S: Final = 12e-3
_MAX_REPETITIONS: Final = 16
# Maximum share of the memory for the operands of all repetitions together.
_MEMORY_SHARE: Final = 1 / 8
# Length of a chain of empty operators, and how often it is run.
_CHAIN_LENGTH: Final = 64
_CHAIN_RUNS: Final = 25

Operator = TypeVar("Operator", bound="TimedOperator")


class RepeatedOperator(TimedCall):
    """A function that executes an operator several times.

    Args:
        call: calls the function, and waits for it.
        executions: number of executions of the operator in a call.
        cost: cost of an empty call, which is subtracted; None subtracts nothing.
    """

    def __init__(
        self, call: Callable[[], Any], executions: int = 1, cost: CallCost | None = None
    ) -> None:
        super().__init__(call)
        self.executions, self._cost = executions, cost

    def run(self) -> float:
        """Call once and return the seconds of one execution."""
        seconds = super().run()
        return (seconds - (self._cost.seconds() if self._cost else 0.0)) / self.executions


class CallCosts:
    """Costs of calls that compute almost nothing, by their numbers of operands and results.

    Args:
        empty: returns such a call with given numbers of operands and results.
    """

    def __init__(self, empty: Callable[[int, int], TimedCall]) -> None:
        self._empty = empty
        self._costs: dict[tuple[int, int], CallCost] = {}

    def at(self, operands: int, results: int) -> CallCost:
        """Return the cost of a call; numbers are rounded, as small differences do not matter."""
        key = _next_power_of_two(operands), _next_power_of_two(results)
        if key not in self._costs:
            self._costs[key] = CallCost(self._empty(*key).run)
        return self._costs[key]


def _next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def long_enough(
    make: Callable[[Sequence[Sequence[Any]]], RepeatedOperator],
    operands: Sequence[Any],
    copy: Callable[[Any], Any],
    *,
    size: int,
    among: int,
    most: int = _MAX_REPETITIONS,
) -> RepeatedOperator:
    """Return an operator that is repeated often enough to exceed the cost of its call.

    Args:
        make: builds the function from sets of operands, with one execution for each.
        operands: operands of one execution.
        copy: returns an operand in memory of its own.
        size: size of the operands in bytes: large operands are repeated less often.
        among: number of operators that share the memory.
        most: maximum number of repetitions.
    """
    operator = make([operands])
    operator.run()
    once_s = min(operator.run() for _ in range(3))
    room = _MEMORY_SHARE * (read_cpu_facts().memory_total_bytes or 0) / among
    times = min(most, math.ceil(_CALL_S / max(once_s, 1e-5)), int(room / max(size, 1)))
    if times <= 1:
        return operator
    operator = make(
        [operands, *([copy(operand) for operand in operands] for _ in range(times - 1))]
    )
    operator.run()
    return operator


def dispatch_s(chain: Callable[[int], TimedOperator]) -> float:
    """Return the seconds that dispatching an operator costs, from a chain of empty operators.

    Args:
        chain: returns this many operators on almost no elements, each reading the last result.
    """
    long, short = chain(_CHAIN_LENGTH), chain(1)
    for operator in (long, short):
        operator.run()
    differences = [long.run() - short.run() for _ in range(_CHAIN_RUNS)]
    return max(0.0, median(differences) / (_CHAIN_LENGTH - 1))


# -----------------------------------------------------------------------------
# Operators by their signatures.


def one_line(error: Exception) -> str:
    """Return an error's class and text in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def prepare_operators(
    signatures: Iterable[str],
    make: Callable[[str], Operator],
    words: Callable[[Exception], str] = one_line,
) -> tuple[dict[str, Operator], dict[str, str]]:
    """Prepare operators; return those that run, and the reasons why others do not, by signature.

    Args:
        signatures: signatures of the operators.
        make: returns an operator that has run.
        words: describes an exception that is not pydlbench's own.
    """
    ready: dict[str, Operator] = {}
    refused: dict[str, str] = {}
    for signature in signatures:
        try:
            ready[signature] = make(signature)
        except PydlbenchError as error:
            refused[signature] = str(error)
        except Exception as error:  # noqa: BLE001 - an operator raises anything; others still run
            memory = "not enough memory: " if is_out_of_memory(error) else ""
            refused[signature] = f"{memory}{words(error)}"
    return ready, refused
