"""Rounds: all operators, then the prediction is written down, then the step.

How many pages a step touches for the first time is counted, as it hangs on what the C library's
allocator was asked for since its process began: the same step of the same code has any number
from none to all of its pages. So the prediction takes the number from earlier steps of the same
process, none of whose seconds it knows, and what one fault costs from a replay of the step's
blocks on fresh pages.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pydlbench.backends import capabilities
from pydlbench.ladder.operators import by_operator, predict
from pydlbench.records.check import RoundRow
from pydlbench.records.step import StepFacts, StepPreparation
from pydlbench.runner.interleaved import REST_S
from pydlbench.steps import operations
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.timing.chunk import Request
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from pydlbench.ladder.operators import StepOperator
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.chunk import Chunk
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["LEAST", "Rounds", "ask_log", "ask_operators", "ask_replay", "keeps_pages", "paired"]

_POLICY = Policy()
#: Fewer rounds have no interval, and no median to speak of.
LEAST = 5
# Samples of a kernel in a round together take so long, in seconds; one at least, so many at most.
_CHUNK_S = 0.1
_MOST = 20
# What is faster is run untimed after another process has had the cores, once and for so long: in a
# loop a step finds its threads awake, each on a core of its own (a scheduler may take 50 ms to see
# to that), and its code in the caches. What is slower has no first tenth to speak of.
_SETTLE_S = 1.0
_SPREAD_S = 0.1
# A prediction takes the page faults of so many samples of the step before it.
_COUNTED = 3


class Sampled(Protocol):
    """A prepared kernel."""

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""


class Rounds:
    """Takes rounds one after another.

    Args:
        found: the operators.
        operators: runs all of them, and what is to be known besides, in this order.
        once_s: seconds of starting a call, which operators have taken off and a step has once.
        replay: touches a step's blocks on fresh pages, which gives what a page fault costs; None
            where the framework keeps its pages itself.
        step: the step with the default allocator.
        kept: the step with an allocator that keeps its pages.
        order: in which the steps run.
        besides: operators that are timed too, and in no prediction.
        resident: as ``kept``, its images lying there; None where those of the others do too.
        rest: called between processes, so that the last one's threads fall asleep.
        canary: what the cores' FMA units do now, as a share of what they do undisturbed; None
            where nobody can tell.
    """

    def __init__(
        self,
        found: Sequence[StepOperator],
        operators: Sampled,
        once_s: float,
        replay: Sampled | None,
        step: Sampled,
        kept: Sampled,
        order: random.Random,
        besides: Sequence[StepOperator] = (),
        resident: Sampled | None = None,
        rest: Callable[[], None] = lambda: time.sleep(REST_S),
        canary: Callable[[], float | None] | None = None,
    ) -> None:
        self._found = tuple(found)
        self._timed = (*self._found, *besides)
        self._once_s = once_s
        self._kernels: dict[str, Sampled | None] = {
            "operators": operators,
            "replay": replay,
            "step": step,
            "kept": kept,
            "resident": resident,
        }
        self._order = order
        self._rest = rest
        self._canary = canary
        self.disturbed = 0
        self._requests = dict.fromkeys(self._kernels, Request(samples=1, untimed=1))
        self.rows: list[RoundRow] = []
        self.times: list[dict[str, float]] = []
        self.faults: dict[str, list[float]] = {name: [] for name in self._kernels}
        # Of the step, before the first round.
        self._before: list[float] = []
        self._costs: list[float] = []

    def warm_up(self) -> None:
        """Take a round that is not kept, and set how many samples the others take.

        What is kept of it is the number of the step's page faults.
        """
        for name, kernel in self._kernels.items():
            if kernel is None:
                continue
            chunk = self._sample(name)
            once = sum(chunk.seconds)
            samples = min(_MOST, max(1, int(_CHUNK_S / max(once, 1e-6))))
            settling = min(_MOST, math.ceil(_SPREAD_S / max(once, 1e-6)))
            untimed = settling if once < _SETTLE_S else 0
            self._requests[name] = Request(samples=samples, untimed=untimed)
        if self._kernels["replay"] is not None:
            for _ in range(_COUNTED - 1):
                self._sample("step")
        self._before = list(self.faults["step"])
        for counts in self.faults.values():
            counts.clear()

    def take(self) -> RoundRow:
        """Take one round and return it.

        One during which somebody else used the cores is dropped and taken once more; the second
        one stays, and is counted in ``disturbed``.
        """
        ours = False
        for _ in range(2):
            before = self._cores_are_ours()
            row, times, cost_s = self._round()
            if ours := before and self._cores_are_ours():
                break
        self.disturbed += not ours
        self.rows.append(row)
        self.times.append(times)
        if cost_s is not None:
            self._costs.append(cost_s)
        return row

    def _cores_are_ours(self) -> bool:
        """Whether nobody else uses the cores; true where there is no canary to tell."""
        if self._canary is None:
            return True
        self._rest()
        share = self._canary()
        return share is None or share >= _POLICY.canary_share

    def _round(self) -> tuple[RoundRow, dict[str, float], float | None]:
        """Return a round, the seconds of its operators, and what a page fault cost in it."""
        chunk = self._sample("operators")
        times = by_operator(chunk.seconds, self._timed)
        operators_s = predict(times, self._found, self._once_s)
        faults_s, cost_s = 0.0, None
        if self._kernels["replay"] is not None:
            cost_s = _per_fault(self._sample("replay"))
            # Those that operators have although their pages are kept are in their seconds.
            others = max(0.0, self._known_faults() - (chunk.faults or 0.0))
            faults_s = others * cost_s
        estimate_s = operators_s + faults_s  # nothing below can change it any more
        steps = [one for one in ("step", "kept", "resident") if self._kernels[one] is not None]
        self._order.shuffle(steps)
        seconds = {name: median(self._sample(name).seconds) for name in steps}
        row = RoundRow(
            operators_s=operators_s,
            faults_s=faults_s,
            estimate_s=estimate_s,
            measured_s=seconds["step"],
            kept_s=seconds["kept"],
            resident_s=seconds.get("resident"),
        )
        return row, times, cost_s

    def median_times(self) -> dict[str, float]:
        """Return each operator's seconds: the median over the rounds."""
        return {one.name: median(t[one.name] for t in self.times) for one in self._timed}

    def median_faults(self, name: str) -> float | None:
        """Return a kernel's faults per execution: the median over the rounds."""
        return median(self.faults[name]) if self.faults[name] else None

    def fault_s(self) -> float | None:
        """Return what a page fault costs: the median over the rounds; None without a replay."""
        return median(self._costs) if self._costs else None

    def predicted_faults(self) -> float | None:
        """Return the faults per step that the last round's prediction took; None without any.

        Without a replay they are those that the operators have.
        """
        if self._kernels["replay"] is None:
            return self.median_faults("operators")
        return self._known_faults(last=1)

    def _known_faults(self, last: int = 0) -> float:
        """Return the median of what the last steps had, ``last`` of them left out."""
        known = [*self._before, *self.faults["step"]]
        known = known[: len(known) - last][-_COUNTED:]
        return median(known) if known else 0.0

    def _sample(self, name: str) -> Chunk:
        kernel = self._kernels[name]
        if kernel is None:
            raise ValueError(f"no {name} to sample")
        self._rest()
        chunk = kernel.sample(self._requests[name])
        if chunk.faults is not None:
            self.faults[name].append(chunk.faults)
        return chunk


def _per_fault(replayed: Chunk) -> float:
    """Return the seconds of a page fault."""
    return median(replayed.seconds) / replayed.faults if replayed.faults else 0.0


# -----------------------------------------------------------------------------
# What a check asks workers for: operators, replays, steps and logs.

# A block that the C library's allocator always asks the system for, and gives back.
_LARGE = 1 << 26
_PAGE = 4096
# Fewer faults than this share of its pages: an allocator of the framework's own keeps them.
_KEPT = 0.05
_LOGGED_CALLS = 3
# Of the last cache, so that pages which come back are in it no more.
_OUT_OF_CACHES = 4


def ask_operators(
    case: StepSpec,
    session: Session,
    found: Sequence[StepOperator],
    besides: Sequence[StepOperator] = (),
    *,
    warm: bool,
    traces: bool,
) -> RemoteKernel[OperatorsFacts]:
    """Have all operators of a step made ready where pages are kept.

    Args:
        case: the step.
        session: whose worker is asked.
        found: the operators.
        besides: what is timed too, and in no sum: its faults do not count.
        warm: in a process whose C library keeps pages; else the framework does that by itself.
        traces: whether the blocks that they allocate are to be recorded.
    """
    uncounted = [msgspec.structs.replace(one.request(), count=0) for one in besides]
    requests = [*(one.request() for one in found), *uncounted]
    # What comes from the host is an operator of its own.
    resident = msgspec.structs.replace(case, feed="resident")
    worker = session.worker(case.framework, case.device, warm=warm)
    return worker.build(
        operations.prepare_operators,
        OperatorsFacts,
        case=resident.to_dict(),
        operators=requests,
        traces=traces,
    )


def keeps_pages(case: StepSpec, session: Session) -> bool:
    """Whether a framework's own allocator keeps freed pages: its results then fault no more."""
    worker = session.worker(case.framework, case.device)
    kernel = worker.build(
        operations.prepare_allocation, OperatorsFacts, framework=case.framework, size=_LARGE
    )
    try:
        chunk = kernel.sample(Request(samples=5, untimed=2))
        return (chunk.faults or 0.0) < _KEPT * _LARGE / _PAGE
    finally:
        kernel.release()


def ask_replay(
    session: Session, worker: Worker, sizes: Sequence[int]
) -> RemoteKernel[OperatorsFacts]:
    """Have blocks made ready in a process that has no framework in it.

    Args:
        session: knows the caches.
        worker: any that gets new pages for each block and that nobody else uses.
        sizes: of the blocks, in bytes.
    """
    live = _OUT_OF_CACHES * session.cache_bytes("cpu")
    return worker.build(operations.prepare_replay, OperatorsFacts, sizes=list(sizes), live=live)


def ask_log(case: StepSpec, session: Session) -> dict[str, Any]:
    """Return what oneDNN logged of whole steps: seconds and executions by primitive.

    Empty where there is no such log.
    """
    logging = bool(capabilities.of(case.framework).log_environment)
    worker = session.worker(case.framework, case.device, warm=True, logging=logging)
    if logging:
        return _said(case, worker)
    kernel = worker.build(
        operations.prepare_log, OperatorsFacts, case=case.to_dict(), calls=_LOGGED_CALLS
    )
    try:
        return kernel.facts.log
    finally:
        kernel.release()


def _said(case: StepSpec, worker: Worker) -> dict[str, Any]:
    """Read the log that a process writes to standard error while it runs steps."""
    from pydlbench.backends.frameworks.verbose import parse
    from pydlbench.steps.operators import summary

    how = StepPreparation(checks=False)
    kernel = worker.build(operations.prepare_step, StepFacts, case=case.to_dict(), preparation=how)
    try:
        calls = []
        for _ in range(_LOGGED_CALLS):
            kernel.sample(Request(samples=1))
            calls.append(parse(worker.said()))
        return summary(calls)
    finally:
        kernel.release()


def paired(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the differences of pairs that were taken in the same rounds."""
    return median(a - b for a, b in zip(first, second, strict=True))
