"""The experiments of a check: what each explains of the difference that it lies in.

An A/B run is a visit of either side in each lap, and so is what a library logs of a step, or of
its calls one by one; calls in which it logs nothing are held against their native layers; the cost
of a call is measured by itself. What there is to be asked of workers for them
stands here, too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from pydlbench.backends import capabilities
from pydlbench.backends.frameworks.verbose import parse
from pydlbench.backends.steps import operations
from pydlbench.backends.steps.groups import is_group
from pydlbench.backends.steps.operators import logged_s
from pydlbench.errors import PydlbenchError
from pydlbench.ladder.calls import CONVOLUTION, CallLog
from pydlbench.ladder.laps import fitting
from pydlbench.ladder.ledger import CONVOLVED, LAYERLESS, MKL, OUTSIDE, Experiment
from pydlbench.ladder.operators import listed
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.step import StepFacts, StepPreparation
from pydlbench.timing.chunk import Request
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.backends.frameworks.verbose import Execution
    from pydlbench.ladder.ledger import Ladder
    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.workers.host import RemoteKernel

#: The term of pages that are touched for the first time.
FRESH_MEMORY: Final = "fresh memory"
#: And of starting operators.
DISPATCH: Final = "dispatch"
REORDERS: Final = "layout reorders"
#: What the kernels that a framework's library takes for convolutions need longer in a step than the
#: fastest ones alone; or less than these.
CONVOLUTIONS: Final = "slower convolutions"
FASTER: Final = "faster convolutions"
#: Those that the native chain has as well.
OWN_REORDERS: Final = "reorders of the native chain"

#: Whatever else a call does: memory for its results, finding the primitive, what the framework
#: computes besides.
AROUND: Final = "around the library's kernels"
#: What calls take longer that oneDNN does not compute, and those that no native layer stands for.
OTHERS: Final = {
    OUTSIDE: "calls outside of oneDNN and MKL",
    MKL: "calls of MKL",
    LAYERLESS: "calls without a native layer",
}
# How each of these was measured, behind the number of its calls.
_LOGGED: Final = {
    OUTSIDE: "in which neither library logs anything, each alone, minus the native layers that "
    "stand for it",
    MKL: "in which MKL alone logs anything, each alone, minus the native layers that stand for it, "
    "whose packing is left out",
    LAYERLESS: "that no native layer stands for, each alone",
}

# No fault costs more than this, in seconds; and the share of a step that so many could explain at
# the most, below which there is nothing that an allocator could save.
_MOST_PER_FAULT_S: Final = 5e-6
_NOTHING: Final = 1e-3


class Group(NamedTuple):
    """Calls of a step that have a sum of their own.

    Attributes:
        calls: their number in a step.
        detail: which of them stand out.
    """

    calls: int
    detail: str = ""


def experiments(
    case: StepSpec,
    ladder: Ladder,
    *,
    calls: Sequence[RecordedCall],
    facts: OperatorsFacts | None,
    logged: Mapping[str, int],
    logs: str = "a step",
    computed: int = 0,
    groups: Mapping[str, Group] | None = None,
    faults: Mapping[str, float | None],
    reorders_s: Sequence[float] = (),
    convolutions: int = 0,
    allocating: bool = True,
) -> tuple[list[Experiment], list[str]]:
    """Return what was tried, and notes on what could not be.

    Args:
        case: the step.
        ladder: what the laps say.
        calls: of the step.
        facts: what their worker says of them; None where they were not timed.
        logged: executions in a step by the log of the framework's libraries, by library and
            primitive; empty without a log.
        logs: what is logged in each lap.
        computed: calls of a step that oneDNN computes.
        groups: the calls that have sums of their own, see :data:`~.ledger.GROUPS`.
        faults: page faults per step: ``counted``, and with pages ``kept``.
        reorders_s: of the native chain, run by run: what lies above it has none of these.
        convolutions: native rows that stand for single ones.
        allocating: whether the chain of calls asks for memory as the step does.
    """
    found: list[Experiment] = []
    notes: list[str] = []
    if reorders := ladder.values.get("logged_reorders"):
        how = f"the library's log of {logs} in each lap"
        found.append(Experiment(term=REORDERS, rung="operators", seconds=reorders, how=how))
        if any(reorders_s) and "native_chain" in ladder.values:
            found.append(_own_reorders(reorders_s))
        slower, why = _convolutions(ladder, logged.get(CONVOLUTION, 0), convolutions, logs)
        found += slower
        notes += why
        found += _around(ladder, computed, 0.0 if facts is None else facts.dispatch_s)
    else:
        why_not = "its visits were disturbed too often" if logged else "nothing logs them here"
        notes.append(f"no {REORDERS}: {why_not}")
    found += _groups(ladder, groups or {}, 0.0 if facts is None else facts.dispatch_s)
    found += _dispatch(calls, facts)
    if any(is_group(one.signature) for one in calls):
        notes.append("no fusion: calls that are joined were not run one by one besides")
    # A chain of calls that allocates has fresh pages as the step has: they lie below it.
    chained = ladder.between("operator_chain_kept", "operator_chain")
    rung = "operator_chain" if allocating and "operator_chain" in ladder.values else "step"
    what = "operator chain" if chained else "step"
    fresh = chained or ladder.between("step_kept", "step")
    how = f"the {what} minus the same with an allocator that keeps its pages"
    counted, left = faults.get("counted"), faults.get("kept")
    if counted is not None and left is not None:
        how += f": {counted:.0f} page faults of the step against {left:.0f}"
        steps = ladder.values.get("step")
        if fresh and steps and cost_nothing(faults, median(steps.values())):
            notes.append(f"no {FRESH_MEMORY}: {how.partition(': ')[2]}, too few to cost time")
            fresh = {}
    if fresh:
        found.append(Experiment(term=FRESH_MEMORY, rung=rung, seconds=fresh, how=how))
    if case.feed == "host" and (fed := ladder.between("step_resident", "step_kept")):
        how = "the step fed from the host minus the same with its images lying there, pages kept"
        found.append(Experiment(term="host transfer", rung="step", seconds=fed, how=how))
    return found, notes


def cost_nothing(faults: Mapping[str, float | None], step_s: float) -> bool:
    """Whether a step has too few page faults to cost time; False where nobody counted them.

    Args:
        faults: page faults per step: ``counted``, and with pages ``kept``.
        step_s: of a step.
    """
    counted, left = faults.get("counted"), faults.get("kept")
    if counted is None or left is None:
        return False
    return (counted - left) * _MOST_PER_FAULT_S < _NOTHING * step_s


def _convolutions(
    ladder: Ladder, logged: int, count: int, logs: str
) -> tuple[list[Experiment], list[str]]:
    """Return what logged convolutions take longer than native rows, or why nobody knows.

    Args:
        ladder: with the seconds of both, lap by lap.
        logged: executions in a step.
        count: of the native rows; none where they stand for something else than single ones.
        logs: what is logged in each lap.
    """
    if not count or not logged:
        return [], []
    if logged != count:
        said = f"the library ran {logged} in a step, native rows stand for {count}"
        return [], [f"no {CONVOLUTIONS}: {said}"]
    # Of recorded calls all that a convolution computes, its bias too, as the library does at once.
    seconds = ladder.between(f"native_{CONVOLVED}", "logged_convolutions")
    seconds = seconds or ladder.between("native_convolutions", "logged_convolutions")
    if not seconds:
        return [], [f"no {CONVOLUTIONS}: no lap has both sides undisturbed"]
    how = (
        f"{logged} convolutions of a step by the library's log of {logs} in each lap, in the "
        "layouts and by the kernels that the framework takes, minus the fastest native ones alone "
        "in that lap"
    )
    term = CONVOLUTIONS if median(seconds.values()) >= 0 else FASTER
    return [Experiment(term=term, rung="operators", seconds=seconds, how=how)], []


def _around(ladder: Ladder, computed: int, dispatch_s: float) -> list[Experiment]:
    """Return what calls that oneDNN computes take beside what it logs, dispatch left out."""
    seconds = ladder.values.get("logged_around")
    if not seconds or not computed:
        return []
    how = (
        f"{computed} calls that oneDNN computes, each alone, minus the executions that it logs in "
        "the same calls, in one process in each lap, dispatch left out"
    )
    starting_s = computed * dispatch_s
    values = {lap: value - starting_s for lap, value in seconds.items()}
    return [Experiment(term=AROUND, rung="operators", seconds=values, how=how)]


def _groups(ladder: Ladder, groups: Mapping[str, Group], dispatch_s: float) -> list[Experiment]:
    """Return what the calls of each group take longer than their native layers.

    Args:
        ladder: with the seconds of both, lap by lap.
        groups: by name.
        dispatch_s: of a call, which has a term of its own.
    """
    found = []
    for name in [name for name in OTHERS if name in groups]:
        one, operators = groups[name], f"operators_{name}"
        seconds = ladder.values.get(operators, {})
        if name != LAYERLESS:
            seconds = ladder.between(f"native_{name}", operators)
        if not seconds or not one.calls:
            continue
        starting_s = one.calls * dispatch_s
        found.append(
            Experiment(
                term=OTHERS[name],
                rung="operators",
                seconds={lap: value - starting_s for lap, value in seconds.items()},
                how=f"{one.calls} calls {_LOGGED[name]}, in each lap, dispatch left out",
                detail=one.detail,
            )
        )
    return found


def _own_reorders(seconds: Sequence[float]) -> Experiment:
    """Return the conversions of the native chain: what lies above it is less than a step's own."""
    return Experiment(
        term=OWN_REORDERS,
        rung="operators",
        seconds={number: -one for number, one in enumerate(seconds)},
        how=f"{len(seconds)} runs of the native chain with a clock behind each conversion: it has "
        "reorders and packing of its own, which are in the rung below",
        paired=False,
    )


def _dispatch(calls: Sequence[RecordedCall], facts: OperatorsFacts | None) -> list[Experiment]:
    """Return what starting the operators costs: it is in each of them, natively it is not."""
    if facts is None:
        return []
    count = sum(one.count for one in calls if one.operator != "feed")
    each = facts.dispatch_samples or (facts.dispatch_s,)
    seconds = {number: count * one + facts.once_s for number, one in enumerate(each)}
    parts = []
    if facts.once_s:
        parts.append(f"{facts.once_s * 1e6:.1f} us of an empty call")
    if facts.dispatch_s:
        us = f"{facts.dispatch_s * 1e6:.1f} us"
        parts.append(f"{us} for each of {count} operators that computes nothing")
    how = ", and ".join(parts) or "a compiled step's operators are started by none"
    return [Experiment(term=DISPATCH, rung="operators", seconds=seconds, how=how, paired=False)]


# -----------------------------------------------------------------------------
# What a check asks workers for: whether pages are kept, and logs.

# A block that the C library's allocator always asks the system for, and gives back.
_LARGE = 1 << 26
_PAGE = 4096
# Fewer faults than this share of its pages: an allocator of the framework's own keeps them.
_KEPT = 0.05


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


class StepLog:
    """Whole steps whose library writes a log to standard error, as TensorFlow's does.

    Args:
        case: the step.
        session: whose workers are used.

    Attributes:
        what: is logged.
        kernel: runs the steps.
        executions: of the first one, by library and primitive; empty where nothing is logged.

    Raises:
        PydlbenchError: it cannot be made ready.
    """

    what: Final = "a step"

    def __init__(self, case: StepSpec, session: Session) -> None:
        # In a process of its own, which may die of it without any other visit.
        self._worker = session.worker(case.framework, case.device, warm=True, logging=True)
        self._request: Request | None = None
        how = StepPreparation(checks=False)
        self.kernel: RemoteKernel[StepFacts] = self._worker.build(
            operations.prepare_step, StepFacts, case=case.to_dict(), preparation=how
        )
        self.executions = Counter(f"{one.library} {one.primitive}" for one in self._read())

    def logged(self) -> dict[str, float]:
        """Run as many steps as any other visit.

        Returns:
            Seconds of a step: ``logged_reorders`` and ``logged_convolutions``.
        """
        self._request = self._request or fitting(self.kernel)
        if self._request.untimed:
            self.kernel.sample(Request(samples=self._request.untimed))
        found = [logged_s(self._read()) for _ in range(self._request.samples)]
        reorders, convolutions = zip(*found, strict=True)
        return {"logged_reorders": median(reorders), "logged_convolutions": median(convolutions)}

    def _read(self) -> list[Execution]:
        """Run a step and read what its process has written meanwhile."""
        self.kernel.sample(Request(samples=1))
        return parse(self._worker.said())


def log_of(
    case: StepSpec, session: Session, calls: Sequence[RecordedCall] = ()
) -> StepLog | CallLog:
    """Make ready what libraries log of a step: PyTorch's of each call alone, TensorFlow's of steps.

    Args:
        case: the step.
        session: whose workers are used.
        calls: of the step; PyTorch records them where they are not given.

    Raises:
        PydlbenchError: it cannot be made ready.
    """
    if not capabilities.of(case.framework).steps.logs_calls:
        return StepLog(case, session)
    return CallLog(case, session, calls or listed(case, session).calls)


class LogVisits:
    """A log as what a lap visits; a visit that fails says nothing and costs no other.

    Args:
        log: of the step, or of its calls one by one.
    """

    def __init__(self, log: StepLog | CallLog) -> None:
        self._log = log
        self._lost: list[str] = []

    def __call__(self) -> dict[str, float]:
        """Return the seconds of a step that the log tells."""
        try:
            return self._log.logged()
        except PydlbenchError as error:
            self._lost.append(" ".join(str(error).split()))
            return {}

    def notes(self) -> list[str]:
        """Return how many visits failed, and why the last one did."""
        if not self._lost:
            return []
        return [f"log: {len(self._lost)} visits failed: {self._lost[-1]}"]
