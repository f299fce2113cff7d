"""Calls of a step, each timed alone in the framework that runs the step; for ``breakdown``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from pydlbench.backends.frameworks.verbose import creation_s, parse, total_s
from pydlbench.backends.host_clock import HostCounters, page_faults
from pydlbench.errors import UnsupportedError
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.step import StepSpec
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
                # The subtracted cost of a call may exceed the time of a tiny operator.
                seconds += [
                    max(0.0, operator.run())
                    for operator in self._operators
                    for _ in range(request.inner)
                ]
            faults = page_faults() - before
        return account.chunk(seconds, faults=faults / (request.samples * request.inner))


class TimedCall:
    """A call as an operator whose time includes the cost of starting it.

    Args:
        call: function that makes the call.
    """

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
    primitives.

    Args:
        operators: operators in the order in which a step runs them.
        log: calls a function once and returns the text that was printed meanwhile.
        facts: facts of the operators.
        cpus: CPUs that the process is pinned to.
    """

    #: Number of times that a chunk has of each operator and round.
    PARTS: Final = 5

    def __init__(
        self,
        operators: Sequence[TimedOperator],
        log: Callable[[Callable[[], Any]], str],
        facts: OperatorsFacts,
        cpus: Sequence[int],
    ) -> None:
        super().__init__(operators, facts, cpus)
        self._log = log

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time and log the requested rounds, after the untimed ones, which log nothing."""
        seconds: list[float] = []
        with HostCounters(self._cpus) as account:
            for _ in range(request.untimed):
                for operator in self._operators:
                    operator.run()
            before = page_faults()
            for _ in range(request.samples):
                unlogged = [operator.run() for operator in self._operators]
                for unlogged_s, operator in zip(unlogged, self._operators, strict=True):
                    seconds += [unlogged_s, *self._logged(operator)]
            faults = page_faults() - before
        return account.chunk(seconds, faults=faults / request.samples)

    def _logged(self, operator: TimedOperator) -> list[float]:
        """Run an operator with a log; return its seconds and the times in the log."""
        seconds: list[float] = []
        text = self._log(lambda: seconds.append(operator.run()))
        executions = parse(text)
        reorders = [execution for execution in executions if execution.primitive == "reorder"]
        return [*seconds, total_s(executions), total_s(reorders), creation_s(text)]
