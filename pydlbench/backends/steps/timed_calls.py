"""Calls of a step, each timed alone in the framework that runs the step; for ``breakdown``.

Calling a function costs more than many operators do. A short operator is therefore repeated in its
function, each time on operands of its own, and the cost of an empty call is subtracted. The empty
call is made right after the operator, where the caches are as operators leave them.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from pydlbench.backends.base import is_out_of_memory
from pydlbench.backends.frameworks.verbose import creation_s, parse, total_s
from pydlbench.backends.host_clock import HostCounters, page_faults
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.statistics import median


def check_on_cpu(spec: StepSpec) -> None:
    """Refuse calls on a GPU, for which this framework or mode has no clock.

    Raises:
        UnsupportedError: names a framework that has one.
    """
    if spec.on_gpu:
        raise UnsupportedError(
            f"{spec.framework} {spec.mode}: its operators are not timed on a GPU; nearest: "
            "--framework torch --mode eager"
        )


class TimedOperator(Protocol):
    """A call or group of calls with its operands in place."""

    def run(self) -> float:
        """Run it once and return the seconds of one execution.

        Setting up operands and starting the call are not included.
        """


class LoggedOperator(TimedOperator, Protocol):
    """A call whose libraries log what it executes.

    Attributes:
        executions: number of executions in a run.
    """

    executions: int


class OperatorsKernel:
    """Operators that are ready to be timed.

    A request's samples are rounds: the chunk has one time per operator and round, operator by
    operator. With ``inner`` above one, each operator runs that often in a row and has as many
    times: the first run follows another operator, all later ones find their operands in caches.

    Args:
        operators: operators in the order in which a step runs them.
        facts: facts of the operators.
        cpus: CPUs that the process is pinned to.
    """

    def __init__(
        self,
        operators: Sequence[TimedOperator],
        facts: OperatorsFacts,
        cpus: Sequence[int],
    ) -> None:
        self._operators = tuple(operators)
        self._cpus = tuple(cpus)
        self.facts = facts

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested rounds, after the untimed ones."""
        for _ in range(request.untimed):
            for operator in self._operators:
                operator.run()
        seconds: list[float] = []
        with HostCounters(self._cpus) as account:
            before = page_faults()
            for _ in range(request.samples):
                seconds += self._round(request.inner)
            faults = page_faults() - before
        return account.chunk(seconds, faults=faults / (request.samples * request.inner))

    def _round(self, inner: int) -> Sequence[float]:
        """Run each operator ``inner`` times and return the seconds."""
        # The subtracted cost of a call may exceed the time of a tiny operator.
        return [max(0.0, operator.run()) for operator in self._operators for _ in range(inner)]


class TimedCall:
    """A call as an operator whose time includes the cost of starting it.

    Args:
        call: function that makes the call.
    """

    executions = 1

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def settle(self) -> None:
        """Do nothing: the call finds its operands as the last call left them."""

    def run(self) -> float:
        """Call once and return the seconds; results are dropped after the clock is read."""
        start = time.perf_counter()
        results = self.call()
        seconds = time.perf_counter() - start
        del results
        return seconds


#: Number of last calls whose median is the cost of a call; small, so that it follows the machine.
RECENT_CALLS: Final = 31


class CallCost:
    """The cost of starting a call, measured where it arises: after each operator.

    Here the operators of a step are called from Python, which a step need not do. This cost is
    therefore subtracted from their times. An empty call in a loop finds its code and data in the
    nearest cache; between operators, whose tensors have displaced them, it took four times as long.
    The operator before it matters less, so that the median of all recent calls is taken.

    Args:
        call: makes an empty call and returns its seconds.
    """

    def __init__(self, call: Callable[[], float]) -> None:
        self._call = call
        self._recent: deque[float] = deque(maxlen=RECENT_CALLS)

    def seconds(self) -> float:
        """Make one more empty call; return the median of the recent ones."""
        self._recent.append(self._call())
        return self.latest

    @property
    def latest(self) -> float:
        """The median of the recent calls, in seconds; there was at least one."""
        return median(self._recent)


class LoggedOperators(OperatorsKernel):
    """Operators whose libraries log what they execute.

    A request's samples are rounds. A round runs all operators without a log, and then each of them
    with one, so that an operator follows another one both times. The chunk has five times per
    operator and round, operator by operator: the call without a log; the call with a log; and,
    according to the log, all executions, the layout reorders included in them, and creating
    primitives. A library that logs all calls of its process also logs those without a log here.

    Args:
        operators: operators by signature, in the order in which a step runs them.
        refused: why other calls could not be prepared, by signature.
        log: calls a function once and returns the text that was printed meanwhile.
        cpus: CPUs that the process is pinned to.
    """

    #: Number of times that a chunk has of each operator and round.
    PARTS: Final = 5

    def __init__(
        self,
        operators: Mapping[str, LoggedOperator],
        refused: Mapping[str, str],
        log: Callable[[Callable[[], Any]], str],
        cpus: Sequence[int],
    ) -> None:
        executions = {
            name: {
                primitive: -(-count // operator.executions)
                for primitive, count in Counter(
                    f"{ran.library} {ran.primitive}" for ran in parse(log(operator.run))
                ).items()
            }
            for name, operator in operators.items()
        }
        facts = OperatorsFacts(names=tuple(operators), executions=executions, refused=dict(refused))
        super().__init__(list(operators.values()), facts, cpus)
        self._logged_operators, self._log = tuple(operators.values()), log

    def _round(self, inner: int) -> Sequence[float]:
        """Run each operator without a log, then each with one."""
        seconds: list[float] = []
        pairs = zip(super()._round(inner), self._logged_operators, strict=True)
        for unlogged_s, operator in pairs:
            seconds += [unlogged_s, *self._logged(operator)]
        return seconds

    def _logged(self, operator: LoggedOperator) -> list[float]:
        """Run an operator with a log; return its seconds and the times in the log."""
        seconds: list[float] = []
        text = self._log(lambda: seconds.append(max(0.0, operator.run())))
        executions = parse(text)
        reorders = [execution for execution in executions if execution.primitive == "reorder"]
        logged = total_s(executions), total_s(reorders), creation_s(text)
        return [*seconds, *(each / operator.executions for each in logged)]


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
