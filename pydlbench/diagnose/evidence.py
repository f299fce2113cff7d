"""What is known of a step before anything is tried: the step itself, its native rows, a check."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from pydlbench.backends import capabilities
from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.ladder.check import check_step
from pydlbench.ladder.estimate import Plan, estimate, plan
from pydlbench.ladder.experiments import REORDERS, log_of
from pydlbench.ladder.mapped import kernels_of, map_step
from pydlbench.ladder.native import native_sum
from pydlbench.ladder.parts import MODEL, parts_of
from pydlbench.models import build_model
from pydlbench.records.diagnosis import WORTH
from pydlbench.records.specs import KernelSpec
from pydlbench.steps.run import run
from pydlbench.units import percent
from pydlbench.workers.host import releasing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.ladder.estimate import Estimate, Term
    from pydlbench.ladder.mapped import MappedCall
    from pydlbench.ladder.native import NativeSum
    from pydlbench.ladder.parts import Part
    from pydlbench.models.graph import Model
    from pydlbench.ops.op import Layer
    from pydlbench.records.check import CheckRecord, LedgerTerm, OperatorRow
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.step import StepRecord, StepSpec
    from pydlbench.runner.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A layer of the step, or several that are alike: a node's, or a recorded call's.

    Attributes:
        name: of the node, or of the user's module; of several the first, and how many are like it.
        layer: what is computed.
        terms: its passes: without its bias, its L2 term, its update.
        seconds: what it costs in a step, all that are alike together: in the framework, as far as
            that is known.
        count: how many are alike.
    """

    name: str
    layer: Layer
    terms: tuple[Term, ...]
    seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What the framework needs for a node or a recorded call more than the native library does.

    Attributes:
        name: of the node or the module; see :class:`Site`.
        terms: its passes.
        seconds: in a step, all of those that are alike together.
        own_s: what the framework needs; None where only the native library was measured.
        native_s: what the native library needs.
        count: how many are alike.
    """

    name: str
    terms: tuple[Term, ...]
    seconds: float
    own_s: float | None
    native_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What is known of a step. Seconds.

    Attributes:
        case: the step, its batch filled in.
        model: its graph; None of a model of the user's own.
        mapped: of such a model what stands for its recorded calls; see
            :func:`pydlbench.ladder.mapped.map_step`.
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
    model: Model | None
    mapped: Mapping[tuple[str, str], MappedCall] = field(default_factory=dict)
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

    @property
    def framework(self) -> capabilities.Steps:
        """How its framework runs steps."""
        return capabilities.of(self.case.framework).steps

    @property
    def size(self) -> int:
        """How many nodes the model has, or how many of its modules make calls."""
        if self.model is not None:
            return len(self.model.nodes)
        return len({one.work.node for one in self.plan.terms})

    @property
    def convolves(self) -> bool:
        """Whether there is a convolution in the step."""
        if self.model is not None:
            return any(node.op == "conv" for node in self.model)
        return any(one.work.kind == "convolution" for one in self.mapped.values())

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

    @property
    def parts(self) -> list[Part]:
        """The check's operators by the nodes that they belong to; none without a check."""
        return [] if self.check is None else parts_of(self.check.operators, self.check.native_parts)

    def called(self, name: str) -> tuple[str, ...]:
        """Return as evidence where the user's code calls a site's module, if that is known."""
        lines = {} if self.check is None else self.check.lines
        module = name.partition(_LIKE)[0]
        return (f"{module} is called in {lines[module]}",) if module in lines else ()

    def convolutions(self) -> list[Site]:
        """Return the step's convolutions."""
        if self.model is None:
            return self._recorded_convolutions()
        parts = {one.name: one.seconds for one in self.parts}
        terms = self._terms(self.model)
        return [
            Site(
                name=node.name,
                layer=node.layer,
                terms=terms.get(node.name, ()),
                seconds=parts.get(node.name, self.native.by_node.get(node.name, 0.0)),
            )
            for node in self.model
            if node.layer is not None and node.layer.op == "conv"
        ]

    def excesses(self, kind: str) -> list[Excess]:
        """Return where the framework needs more than the native library, the largest first.

        Without a check all nodes are possible, and what they need natively stands for it.

        Args:
            kind: ``layer`` or ``pointwise``.
        """
        if self.model is None:
            found = self._recorded_excesses(kind)
        elif self.check is None:
            found = self._suspects(self.model, kind)
        else:
            terms = self._terms(self.model)
            found = [
                Excess(
                    name=one.name,
                    terms=terms.get(one.name, ()),
                    seconds=one.count * (one.seconds - one.native_s),
                    own_s=one.seconds,
                    native_s=one.native_s,
                    count=one.count,
                )
                for one in self.parts
                if one.kind == kind and one.native_s is not None and ".." not in one.name
            ]
        return sorted(found, key=lambda one: -one.seconds)

    def framework_case(self, term: Term) -> KernelSpec:
        """Return a piece of the step's work as the framework runs it alone."""
        work = term.work
        return KernelSpec(
            layer=work.layer,
            pass_=work.pass_,
            precision=term.hot.precision,
            propagation=work.propagation,
            backend=self.case.framework,
            mode=self.case.mode,
            device=self.case.device,
        )

    def native_s(self, term: Term) -> float:
        """Return what a piece of work needs natively, with hot caches; 0 where it is unknown."""
        row = self.rows[term.hot]
        return row.time.median if row.ok and row.time else 0.0

    def changed(self, **changes: object) -> StepSpec:
        """Return the step's case with other fields."""
        return msgspec.structs.replace(self.case, **changes)

    # --- of a step with a graph ---------------------------------------------------------------

    def _terms(self, model: Model) -> dict[str, tuple[Term, ...]]:
        """Return the passes of each node's own layer: without bias, L2 term and update."""
        names = {node.name: None if node.layer is None else node.layer.name for node in model}
        found: dict[str, list[Term]] = {}
        for one in self.plan.terms:
            if one.work.layer.name == names.get(one.work.node):
                found.setdefault(one.work.node, []).append(one)
        return {name: tuple(terms) for name, terms in found.items()}

    def _suspects(self, model: Model, kind: str) -> list[Excess]:
        pointwise = kind == "pointwise"
        found: dict[object, Excess] = {}
        terms = self._terms(model)
        for name, seconds in self.native.by_node.items():
            layer = model[name].layer
            if layer is None or (layer.kind == "pointwise") != pointwise:
                continue
            alike = layer.replace(name=None)
            first = found.get(alike)
            count = 1 if first is None else first.count + 1
            found[alike] = Excess(
                name=name if first is None else first.name,
                terms=terms.get(name, ()) if first is None else first.terms,
                seconds=seconds * count,
                own_s=None,
                native_s=seconds,
                count=count,
            )
        return list(found.values())

    # --- of a recorded one --------------------------------------------------------------------

    def _recorded_excesses(self, kind: str) -> list[Excess]:
        """Return the calls that native layers stand for one by one; none without a check."""
        found = []
        for row in self.operators(kind):
            stands = self.mapped.get((row.signature, row.direction))
            if stands is None or row.native_s is None or not _alone(stands):
                continue
            found.append(
                Excess(
                    name=_called(row),
                    terms=stands.terms,
                    seconds=row.count * (row.seconds - row.native_s),
                    own_s=row.seconds,
                    native_s=row.native_s,
                    count=row.count,
                )
            )
        return found

    def _recorded_convolutions(self) -> list[Site]:
        """Return the convolutions of recorded calls, forwards and backwards; see there."""
        found: dict[Layer, Site] = {}
        for row in self.operators("layer"):
            stands = self.mapped.get((row.signature, row.direction))
            terms = () if stands is None else stands.terms
            terms = tuple(one for one in terms if one.work.layer.op == "conv")
            if not terms:
                continue
            layer = terms[0].work.layer
            known = found.get(layer)
            found[layer] = Site(
                name=_called(row) if known is None else known.name,
                layer=layer,
                terms=(*(() if known is None else known.terms), *terms),
                seconds=row.count * row.seconds + (0.0 if known is None else known.seconds),
                count=row.count,
            )
        return list(found.values())


# Between a module's name and the number of calls that are like its own.
_LIKE: Final = " and "
# What several layers stand for is not what the framework runs: a kernel that joins them.
_JOINED: Final = ("attention", "recurrent")


def _called(row: OperatorRow) -> str:
    """Return what a recorded call is named after: ``features.4.block.1 and 6 like it``."""
    name = row.names[0] if row.names else ""
    return f"{name or MODEL}{like(row.count)}"


def like(count: int) -> str:
    """Return what stands behind the name of the first of so many."""
    return f"{_LIKE}{count - 1} like it" if count > 1 else ""


def _alone(stands: MappedCall) -> bool:
    """Whether a call's native layers are, each for itself, what the framework computes."""
    distinct = len({one.hot for one in stands.terms}) == len(stands.terms)
    return bool(stands.terms) and distinct and stands.work.kind not in _JOINED


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
    tell("the step")
    step = run(case, session)
    if not step.ok:
        kind = UnsupportedError if step.status == "skipped" else PrimitiveError
        raise kind(f"{case.label}: {step.reason}")
    case = msgspec.structs.replace(case, batch=step.case.batch)
    tell("native layers")
    model, mapped, wanted = _work(case, session)
    rows = dict(session.measure(wanted.cases))
    native = native_sum(wanted, rows)
    seen = Observations(
        case=case,
        model=model,
        mapped=mapped,
        step=step,
        plan=wanted,
        rows=rows,
        estimate=estimate(wanted, rows),
        native=native,
    )
    notes = [f"no native row: {one}" for one in native.missing]
    if model is None:
        notes.append(capabilities.of(case.framework).steps.unseen)
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


def _work(
    case: StepSpec, session: Session
) -> tuple[Model | None, dict[tuple[str, str], MappedCall], Plan]:
    """Return a step's graph, or what stands for its recorded calls, and the work that follows."""
    cache_bytes = session.cache_bytes(case.device)
    if case.own is None:
        model = build_model(case.model, case.batch, **case.options)
        return model, {}, plan(model, case.phase, case.precision, case.device, cache_bytes)
    mapped = map_step(case, session)
    wanted = Plan(
        name=case.model,
        title="",
        batch=case.batch or 0,
        phase=case.phase,
        precision=case.precision,
        terms=kernels_of(mapped).terms,
    )
    return None, mapped, wanted


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
    reorder_s, how = None, ""
    if case.mode in ("eager", "graph") and not case.on_gpu:
        try:
            log = log_of(case, session)
            with releasing([log.kernel]):
                how = f"oneDNN's log of {log.what}"
                if log.executions:
                    reorder_s = log.logged()["logged_reorders"]
        except PydlbenchError:
            reorder_s = None  # one symptom less
    empty = None
    if case.mode == "eager":  # elsewhere a step is one call, however many operators it has
        try:
            worker = session.worker(case.framework, case.device)
            empty = worker.probe("empty_call", mode=case.mode)["seconds"]
        except PydlbenchError:
            empty = None
    return dataclasses.replace(
        seen,
        reorder_s=reorder_s,
        reorder_how=how,
        dispatch_s=empty,
    )
