"""What is known of a step before anything is tried: the step itself, its native rows, a check."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.ladder.check import check_step
from pydlbench.ladder.estimate import estimate, plan
from pydlbench.ladder.experiments import REORDERS, ask_log
from pydlbench.ladder.native import native_sum
from pydlbench.ladder.parts import parts_of
from pydlbench.models import build_model
from pydlbench.records.diagnosis import WORTH
from pydlbench.records.specs import KernelSpec
from pydlbench.steps.run import run
from pydlbench.timing.statistics import median
from pydlbench.units import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.ladder.estimate import Estimate, Plan
    from pydlbench.ladder.native import NativeSum
    from pydlbench.ladder.parts import Part
    from pydlbench.models.graph import Model
    from pydlbench.models.work import Work
    from pydlbench.records.check import CheckRecord, LedgerTerm, OperatorRow
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.step import StepRecord, StepSpec
    from pydlbench.runner.session import Session

__all__ = ["Excess", "Observations", "observe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What the framework needs for a node more than the native library does.

    Attributes:
        node: its name; of several that are alike, the first.
        seconds: in a step, all of those that are alike together.
        own_s: what the framework needs; None where only the native library was measured.
        native_s: what the native library needs.
        count: how many are alike.
    """

    node: str
    seconds: float
    own_s: float | None
    native_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What is known of a step. Seconds.

    Attributes:
        case: the step, its batch filled in.
        model: its graph.
        step: the step as it was timed.
        plan: its work.
        rows: the native rows of the plan's cases.
        estimate: their sum, by layer.
        native: their sum, by what they stand for.
        check: the check's record, where one was made.
        reorder_s: layouts converted in the step by the library's own log; None without a log.
        reorder_how: which log.
        dispatch_s: of one operator; None if unknown.
        beside_s: the step's median beside the first change of it that was tried; None before.
    """

    case: StepSpec
    model: Model
    step: StepRecord
    plan: Plan
    rows: Mapping[KernelSpec, Measurement]
    estimate: Estimate
    native: NativeSum
    check: CheckRecord | None = None
    reorder_s: float | None = None
    reorder_how: str = ""
    dispatch_s: float | None = None
    beside_s: float | None = None

    @property
    def step_s(self) -> float:
        """The step's median; one that was measured later where other work has disturbed it."""
        assert self.step.time is not None
        if self.step.contended:
            if self.check is not None:
                return self.check.measured.median
            if self.beside_s is not None:
                return self.beside_s
        return self.step.time.median

    def share(self, seconds: float) -> str:
        """Return which part of the step so many seconds are, in words: ``21 %``."""
        return percent(seconds / self.step_s)

    def matters(self, seconds: float, least: float = WORTH) -> bool:
        """Whether so many seconds are at least such a share of the step."""
        return seconds >= least * self.step_s

    def term(self, name: str) -> LedgerTerm | None:
        """Return a term of the check's ledger."""
        terms = () if self.check is None else self.check.ledger
        return next((one for one in terms if one.term == name), None)

    def operators(self, kind: str) -> list[OperatorRow]:
        """Return the check's operators of a kind; none without a check."""
        every = () if self.check is None else self.check.operators
        return [one for one in every if one.kind == kind]

    def own_s(self, node: str) -> float:
        """Return what a node costs in the step: in the framework, as far as that is known."""
        own = (one.seconds for one in self.parts if one.name == node)
        return next(own, self.native.by_node.get(node, 0.0))

    @property
    def parts(self) -> list[Part]:
        """The check's operators by the nodes that they belong to; none without a check."""
        return [] if self.check is None else parts_of(self.check.operators, self.check.native_parts)

    def excesses(self, kind: str) -> list[Excess]:
        """Return where the framework needs more than the native library, the largest first.

        Without a check all nodes are possible, and what they need natively stands for it.

        Args:
            kind: ``layer`` or ``pointwise``.
        """
        if self.check is None:
            return sorted(self._suspects(kind), key=lambda one: -one.seconds)
        found = [
            Excess(
                node=one.name,
                seconds=one.count * (one.seconds - one.native_s),
                own_s=one.seconds,
                native_s=one.native_s,
                count=one.count,
            )
            for one in self.parts
            if one.kind == kind and one.native_s is not None and ".." not in one.name
        ]
        return sorted(found, key=lambda one: -one.seconds)

    def works(self, node: str) -> list[Work]:
        """Return the passes of a node's own layer: without its bias, its L2 term, its update."""
        layer = self.model[node].layer
        name = None if layer is None else layer.name
        found = [one.work for one in self.plan.terms if one.work.layer.name == name]
        return [one for one in found if one.node == node]

    def framework_case(self, work: Work) -> KernelSpec:
        """Return a piece of the step's work as the framework runs it alone."""
        return KernelSpec(
            layer=work.layer,
            pass_=work.pass_,
            precision=self.case.precision,
            propagation=work.propagation,
            backend=self.case.framework,
            mode=self.case.mode,
            device=self.case.device,
        )

    def native_s(self, work: Work) -> float:
        """Return what a piece of work needs natively, with hot caches; 0 where it is unknown."""
        for term in self.plan.terms:
            if term.work == work:
                row = self.rows[term.hot]
                return row.time.median if row.ok and row.time else 0.0
        return 0.0

    def changed(self, **changes: object) -> StepSpec:
        """Return the step's case with other fields."""
        return msgspec.structs.replace(self.case, **changes)

    def _suspects(self, kind: str) -> list[Excess]:
        pointwise = kind == "pointwise"
        found: dict[object, Excess] = {}
        for name, seconds in self.native.by_node.items():
            layer = self.model[name].layer
            if layer is None or (layer.kind == "pointwise") != pointwise:
                continue
            alike = dataclasses.replace(layer, name=None)
            first = found.get(alike)
            count = 1 if first is None else first.count + 1
            found[alike] = Excess(
                node=name if first is None else first.node,
                seconds=seconds * count,
                own_s=None,
                native_s=seconds,
                count=count,
            )
        return list(found.values())


# -----------------------------------------------------------------------------
# From a step to what is known of it: the step itself, its native rows, and a check.

# Laps of the check: so many have an interval that leaves out the extremes.
_LAPS = 9
# Of the time limit: a check gets so much, and none is begun after so much.
_SHARE, _LATEST = 0.25, 0.4


def observe(
    case: StepSpec,
    session: Session,
    time_limit_s: float,
    tell: Callable[[str], None],
    checker: Callable[..., CheckRecord] = check_step,
) -> tuple[Observations, tuple[str, ...]]:
    """Measure what the rules read; return it with notes for the reader.

    Args:
        case: the step.
        session: whose workers and settings are used.
        time_limit_s: of the whole diagnosis.
        tell: called with what is done next.
        checker: the check.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or died.
    """
    start = time.monotonic()
    model = build_model(case.model, case.batch, **case.options)
    case = msgspec.structs.replace(case, batch=model.batch)
    tell("the step")
    step = run(case, session)
    if not step.ok:
        kind = UnsupportedError if step.status == "skipped" else PrimitiveError
        raise kind(f"{case.label}: {step.reason}")
    tell("native layers")
    wanted = plan(model, case.phase, case.precision, case.device, session.cache_bytes(case.device))
    rows = dict(session.measure(wanted.cases))
    native = native_sum(wanted, rows)
    seen = Observations(
        case=case,
        model=model,
        step=step,
        plan=wanted,
        rows=rows,
        estimate=estimate(wanted, rows),
        native=native,
    )
    notes = [f"no native row: {one}" for one in native.missing]
    if step.contended:
        notes.append(f"other work disturbed the step: {step.contention_reason}")
    reason = _unchecked(time.monotonic() - start, time_limit_s)
    if reason is None:
        tell("check")
        try:
            found = checker(
                case,
                session,
                laps=_LAPS,
                time_limit_s=_SHARE * time_limit_s,
                native=rows,
                tell=tell,
            )
        except UsageError:
            raise
        except PydlbenchError as error:
            reason = str(error)
        else:
            return _with_check(seen, found), tuple(dict.fromkeys((*notes, *found.notes)))
    notes.append(f"no check: {reason}")
    return _without_check(seen, session), tuple(notes)


def _unchecked(spent_s: float, limit_s: float) -> str | None:
    """Return why there is no check; None if there is to be one."""
    if spent_s > _LATEST * limit_s:
        return "step and native layers took too much of the time limit"
    return None


def _with_check(seen: Observations, found: CheckRecord) -> Observations:
    term = next((one for one in found.ledger if one.term == REORDERS), None)
    return dataclasses.replace(
        seen,
        check=found,
        reorder_s=None if term is None else term.seconds,
        reorder_how="" if term is None else term.how,
        dispatch_s=found.calibration.get("dispatch_s"),
    )


def _without_check(seen: Observations, session: Session) -> Observations:
    """Ask for the log of the step and the cost of a call: what the rules need besides."""
    case = seen.case
    log: dict[str, Any] = {}
    if case.mode in ("eager", "graph"):
        try:
            log = ask_log(case, session)
        except PydlbenchError:
            log = {}  # one symptom less
    try:
        worker = session.worker(case.framework, case.device)
        empty = worker.probe("empty_call", mode=case.mode)["seconds"]
    except PydlbenchError:
        empty = None
    logged = log.get("reorders")
    return dataclasses.replace(
        seen,
        reorder_s=median(logged) if logged else None,
        reorder_how=f"oneDNN's log of {log.get('calls', 0)} steps",
        dispatch_s=empty,
    )
