"""Observations of a step before any experiment: its time, its native rows, its breakdown."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pydlbench.analysis.estimate import (
    EstimatePlan,
    EstimateTerm,
    NativeSum,
    estimate,
    native_sum,
    plan_step,
    range_of,
)
from pydlbench.analysis.mapped import MappedCall, is_copy, kernels_of, kind_of, map_step
from pydlbench.backends import capabilities
from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.grouping import group_by, sum_by
from pydlbench.models import build_model
from pydlbench.models.graph import Model
from pydlbench.ops.op import Layer
from pydlbench.records.breakdown import BreakdownRecord, BrokenDownCall
from pydlbench.records.breakdown import Term as Difference
from pydlbench.records.diagnosis import MIN_SAVING
from pydlbench.records.estimate import StepEstimate
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.records.trace import RecordedCall
from pydlbench.runner.rows import empty_row
from pydlbench.runner.session import Session
from pydlbench.steps.run import runs_in_turn
from pydlbench.timing.statistics import sum_known
from pydlbench.units import format_seconds, percent, some_names


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceSite:
    """A layer of the step, or several equal ones: of a node, or of a recorded call.

    Attributes:
        name: name of the node or of the user's module; for several layers the name of the first,
            and their number.
        layer: the layer computed.
        terms: passes of the layer, without bias, L2 term and update.
        seconds: time of all equal layers in a step; the framework's time if it is known.
        count: number of equal layers.
    """

    name: str
    layer: Layer
    terms: tuple[EstimateTerm, ...]
    seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """The framework's additional time for a node or call, compared with the native library.

    Attributes:
        name: name of the node or the module; see :class:`EvidenceSite`.
        terms: passes of the layer.
        seconds: additional time of all equal layers in a step.
        own_s: the framework's time; None if only the native library was measured.
        native_s: the native library's time.
        count: number of equal layers.
    """

    name: str
    terms: tuple[EstimateTerm, ...]
    seconds: float
    own_s: float | None
    native_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observations of a step, with times in seconds.

    Attributes:
        spec: the step, its batch filled in.
        model: the step's graph; None for the user's own model.
        mapped: the native layers of a user's model's recorded calls; see
            :func:`pydlbench.analysis.mapped.map_step`.
        step: the timed step.
        plan: the kernels it consists of.
        rows: the native rows of the plan's kernels.
        estimate: sum of the native rows, by layer.
        native: sum of the native rows, by node or call.
        breakdown: the step's breakdown, if there is one.
        dispatch_s: time to start one operator; None if unknown.
        beside_s: the step's median in the first experiment with the whole step; None before that
            experiment.
    """

    spec: StepSpec
    model: Model | None
    mapped: Mapping[tuple[str, str], MappedCall] = field(default_factory=dict)
    step: StepRecord
    plan: EstimatePlan
    rows: Mapping[KernelSpec, Measurement]
    estimate: StepEstimate
    native: NativeSum
    breakdown: BreakdownRecord | None = None
    dispatch_s: float | None = None
    beside_s: float | None = None

    @property
    def step_s(self) -> float:
        """The step's median; a later one where other programs disturbed the first."""
        assert self.step.time is not None
        if self.step.contended:
            if self.breakdown is not None:
                return self.breakdown.measured.median
            if self.beside_s is not None:
                return self.beside_s
        return self.step.time.median

    @property
    def framework(self) -> capabilities.StepCapabilities:
        """The description of its framework."""
        return capabilities.declaration(self.spec.framework).steps

    @property
    def size(self) -> int:
        """The number of the model's nodes, or of its modules that make calls."""
        if self.model is not None:
            return len(self.model.nodes)
        return len({term.step_pass.node for term in self.plan.terms})

    @property
    def convolves(self) -> bool:
        """Whether the step has a convolution."""
        if self.model is not None:
            return any(node.op == "conv" for node in self.model)
        return any(call.meaning.kind == "convolution" for call in self.mapped.values())

    def share(self, seconds: float) -> str:
        """Return seconds as a share of the step, in words: ``21 % of the step``."""
        return f"{percent(seconds / self.step_s)} of the step"

    def matters(self, seconds: float, least: float = MIN_SAVING) -> bool:
        """Return whether seconds are at least a given share of the step."""
        return seconds >= least * self.step_s

    def difference(self, name: str) -> Difference | None:
        """Return one term of the breakdown."""
        terms = () if self.breakdown is None else self.breakdown.terms
        return next((term for term in terms if term.term == name), None)

    def calls(self, kind: str | None = None) -> list[BrokenDownCall]:
        """Return the breakdown's calls of one kind that ran alone; none without a breakdown.

        Args:
            kind: see :func:`pydlbench.analysis.mapped.kind_of`; None means layers and
                pointwise calls.
        """
        every = () if self.breakdown is None else self.breakdown.calls
        kinds = ("layer", "pointwise") if kind is None else (kind,)
        return [
            calls
            for calls in every
            if calls.alone_s is not None and kind_of(_recorded(calls)) in kinds
        ]

    def time_of(self, kind: str, native_s: float) -> tuple[float, str]:
        """Return the time of one kind's calls in a step, and how it was measured.

        Args:
            kind: see :func:`pydlbench.analysis.mapped.kind_of`.
            native_s: the native time, which is returned if there is no breakdown.
        """
        if not (calls := self.calls(kind)):
            return native_s, "in native kernels"
        seconds = sum(group.alone_s or 0.0 for group in calls)
        return seconds, f"timed alone in {self.spec.framework}"

    def called(self, name: str) -> tuple[str, ...]:
        """Return as evidence the line in which the user's code calls a site's module, if known."""
        lines = {} if self.breakdown is None else self.breakdown.lines
        module = name.partition(_LIKE)[0]
        return (f"{module} is called in {lines[module]}",) if module in lines else ()

    def copied(self) -> tuple[str, ...]:
        """Return as evidence the copies among the pointwise calls, if they matter."""
        copies = [calls for calls in self.calls("pointwise") if is_copy(_recorded(calls))]
        seconds = sum(calls.alone_s or 0.0 for calls in copies)
        if not self.matters(seconds):
            return ()
        names = dict.fromkeys(f"{calls.operator} of {calls.module}" for calls in copies)
        return (f"copies among them, {format_seconds(seconds)}: {some_names(list(names))}",)

    def convolutions(self) -> list[EvidenceSite]:
        """Return the step's convolutions."""
        if self.model is None:
            return self._recorded_convolutions()
        alone = self._alone_by_module()
        terms = self._terms(self.model)
        return [
            EvidenceSite(
                name=node.name,
                layer=node.layer,
                terms=terms.get(node.name, ()),
                seconds=alone.get(node.name, self.native.by_node.get(node.name, 0.0)),
            )
            for node in self.model
            if node.layer is not None and node.layer.op == "conv"
        ]

    def excesses(self, kind: str) -> list[Excess]:
        """Return the layers for which the framework is slower than the native library, by excess.

        Without a breakdown all nodes are candidates, with their native times.

        Args:
            kind: ``layer`` or ``pointwise``.
        """
        if self.model is None:
            excesses = self._recorded_excesses(kind)
        else:
            excesses = self._graph_excesses(self.model, kind)
        return sorted(excesses, key=lambda excess: -excess.seconds)

    def framework_case(self, term: EstimateTerm) -> KernelSpec:
        """Return the spec with which the framework runs one part of the plan alone."""
        pass_work = term.step_pass
        return KernelSpec(
            layer=pass_work.layer,
            pass_=pass_work.pass_,
            precision=term.hot.precision,
            propagation=pass_work.propagation,
            backend=self.spec.framework,
            mode=self.spec.mode,
            device=self.spec.device,
        )

    def native_s(self, term: EstimateTerm) -> float:
        """Return the native time of one part of the plan with hot caches; 0 if unknown."""
        return range_of(term, self.rows).hot

    def changed(self, **changes: object) -> StepSpec:
        """Return the step's spec with other fields."""
        return msgspec.structs.replace(self.spec, **changes)

    # --- steps with a graph -------------------------------------------------------------------

    def _terms(self, model: Model) -> dict[str, tuple[EstimateTerm, ...]]:
        """Return the passes of each node's own layer: without bias, L2 term and update."""
        names = {node.name: None if node.layer is None else node.layer.name for node in model}
        passes = [(term.step_pass, term) for term in self.plan.terms]
        own = [term for each, term in passes if each.layer.name == names.get(each.node)]
        by_node = group_by(own, lambda term: term.step_pass.node)
        return {name: tuple(terms) for name, terms in by_node.items()}

    def _alone_by_module(self) -> dict[str, float]:
        """Return the time of each module's calls in a step, measured alone."""
        return sum_by((calls.module, calls.alone_s or 0.0) for calls in self.calls())

    def _graph_excesses(self, model: Model, kind: str) -> list[Excess]:
        pointwise = kind == "pointwise"
        layers = {
            name: layer.replace(name=None)
            for name in self.native.by_node
            if (layer := model[name].layer) is not None and (layer.kind == "pointwise") == pointwise
        }
        alone, terms = self._alone_by_module(), self._terms(model)
        excesses = []
        for names in group_by(layers, layers.__getitem__).values():
            native_s = sum(self.native.by_node[name] for name in names)
            own = [alone[name] for name in names if name in alone]
            if self.breakdown is not None and len(own) < len(names):
                continue  # a call could not be run alone, or belongs to another node too
            seconds = sum(own) - native_s if own else native_s
            excesses.append(
                Excess(
                    name=f"{names[0]}{like(len(names))}",
                    terms=terms.get(names[0], ()),
                    seconds=seconds,
                    own_s=sum(own) / len(names) if own else None,
                    native_s=native_s / len(names),
                    count=len(names),
                )
            )
        return excesses

    # --- recorded steps -----------------------------------------------------------------------

    def _alike(self, kind: str) -> list[_Alike]:
        """Return the breakdown's calls of one kind, grouped by what they compute."""
        single = (group for group in self.calls(kind) if len(group.signatures) == 1)
        groups = group_by(single, lambda group: (group.signatures[0], group.direction))
        return [_Alike(self.mapped.get(key), calls) for key, calls in groups.items()]

    def _recorded_excesses(self, kind: str) -> list[Excess]:
        """Return the calls that correspond to native layers one by one."""
        return [
            Excess(
                name=calls.name,
                terms=calls.stands.terms,
                seconds=calls.alone_s - calls.native_s,
                own_s=calls.alone_s / calls.count,
                native_s=calls.native_s / calls.count,
                count=calls.count,
            )
            for calls in self._alike(kind)
            if calls.stands is not None and calls.native_s is not None and _alone(calls.stands)
        ]

    def _recorded_convolutions(self) -> list[EvidenceSite]:
        """Return the convolutions of recorded calls, forward and backward."""
        every = [calls for calls in self._alike("layer") if calls.convolutions]
        by_layer = group_by(every, lambda calls: calls.convolutions[0].step_pass.layer)
        return [
            EvidenceSite(
                name=same[0].name,
                layer=layer,
                terms=tuple(term for calls in same for term in calls.convolutions),
                seconds=sum(calls.alone_s for calls in same),
                count=same[-1].count,
            )
            for layer, same in by_layer.items()
        ]


@dataclass(frozen=True, slots=True)
class _Alike:
    """Calls of a step that compute the same, with times in seconds.

    Attributes:
        stands: the native layers that correspond to each call; None if unknown.
        calls: the calls by module.
    """

    stands: MappedCall | None
    calls: Sequence[BrokenDownCall]

    @property
    def count(self) -> int:
        """Number of the calls in a step."""
        return sum(calls.count for calls in self.calls)

    @property
    def name(self) -> str:
        """Name of the calls: ``features.4.block.1 and 6 like it``."""
        return f"{self.calls[0].module}{like(self.count)}"

    @property
    def alone_s(self) -> float:
        """The time of all of them, each measured alone."""
        return sum(calls.alone_s or 0.0 for calls in self.calls)

    @property
    def convolutions(self) -> tuple[EstimateTerm, ...]:
        """The convolutions among the native layers of each."""
        terms = () if self.stands is None else self.stands.terms
        return tuple(term for term in terms if term.step_pass.layer.op == "conv")

    @property
    def native_s(self) -> float | None:
        """Time of the native layers of the calls; None if a call has none."""
        return sum_known(calls.native_s for calls in self.calls)


def _recorded(calls: BrokenDownCall) -> RecordedCall:
    """Return the first of equal calls of a breakdown as it was recorded."""
    return RecordedCall(
        signature=(*calls.signatures, "")[0],
        operator=calls.operator,
        direction=calls.direction,
        names=(calls.module,),
    )


def work_of(breakdown: BreakdownRecord) -> str:
    """Return where the time of a step's calls goes, by direction and by kind, the largest first."""
    whole = breakdown.measured.median

    def shares(name_of: Callable[[BrokenDownCall], str]) -> str:
        seconds = sum_by((name_of(calls), calls.in_context_s) for calls in breakdown.calls)
        ranked = sorted(seconds, key=lambda name: -seconds[name])
        return ", ".join(f"{name} {percent(seconds[name] / whole)}" for name in ranked)

    by_direction = shares(lambda calls: calls.direction)
    by_kind = shares(lambda calls: "copy" if is_copy(one := _recorded(calls)) else kind_of(one))
    return f"calls by direction: {by_direction}; by kind: {by_kind}"


# The text between a module's name and the number of other equal calls.
_LIKE: Final = " and "
# A call of several layers runs as one fused kernel, which no single layer corresponds to.
_JOINED: Final = ("attention", "recurrent")


def like(count: int) -> str:
    """Return the suffix for the name of the first of several equal calls."""
    return f"{_LIKE}{count - 1} like it" if count > 1 else ""


def part_of(name: str, pass_: str) -> str:
    """Return the part of a step that a pass of a site is: that of the first of its equal calls."""
    return f"{name.partition(_LIKE)[0]} {pass_}"


def _alone(stands: MappedCall) -> bool:
    """Return whether the framework computes each of a call's native layers separately."""
    distinct = len({term.hot for term in stands.terms}) == len(stands.terms)
    return bool(stands.terms) and distinct and stands.meaning.kind not in _JOINED


# -----------------------------------------------------------------------------
# Observing a step: its time, its native rows, and its breakdown.

# Shares of the time limit until which native layers are measured, and the step is broken down; what
# is left is for experiments.
_NATIVE_SHARE: Final = 0.4
_BREAKDOWN_SHARE: Final = 0.7
_NO_TIME: Final = "there was no time left; --minutes gives more"
_NO_ROW: Final = "no native row: "


def time_step(
    spec: StepSpec, session: Session, tell: Callable[[str], None]
) -> Iterator[StepRecord]:
    """Time the step that is diagnosed; yield its record after each process.

    Args:
        spec: the step.
        session: the session whose workers and settings are used.
        tell: called with a description of the next action.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or its process ended.
    """
    turns = runs_in_turn(
        [spec],
        session,
        progress=lambda done, total, label: tell(f"step, {done + 1} of {total}: {label}"),
    )
    for _, step in turns:
        if not step.ok:
            kind = UnsupportedError if step.status == "skipped" else PrimitiveError
            raise kind(f"{spec.label}: {step.reason}")
        yield step


def observe(
    step: StepRecord,
    session: Session,
    start: float,
    time_limit_s: float,
    tell: Callable[[str], None],
    explainer: Callable[..., Iterator[BreakdownRecord]],
    known: Callable[[KernelSpec], Measurement | None] = lambda _: None,
    keep: Callable[[KernelSpec, Measurement], None] = lambda *_: None,
) -> Iterator[tuple[Observations, tuple[str, ...]]]:
    """Measure the other observations that the rules need; yield them with notes.

    Yields:
        The observations with the breakdown so far, after each of its rounds; then all of them.

    Args:
        step: the timed step.
        session: the session whose workers and settings are used.
        start: when the diagnosis began, in seconds of ``time.monotonic``.
        time_limit_s: limit of the whole diagnosis.
        tell: called with a description of the next action.
        explainer: yields the breakdown of the step, as far as it is known.
        known: returns the row of a native kernel that was found before; None if there is none.
        keep: called with each native kernel that was found, and its row.
    """
    tell("native layers")
    spec = step.spec
    model, mapped, wanted = _plan(spec, session)
    found = {case: row for case in wanted.specs if (row := known(case)) is not None}
    end = start + _NATIVE_SHARE * time_limit_s
    for case, row in _native_rows(wanted, found, session, end, tell):
        found[case] = row
        keep(case, row)
    unmeasured = (case for case in wanted.specs if case not in found)
    rows = found | {case: empty_row(case, None, "skipped", _NO_TIME) for case in unmeasured}
    seen = Observations(
        spec=spec,
        model=model,
        mapped=mapped,
        step=step,
        plan=wanted,
        rows=rows,
        estimate=estimate(wanted, rows),
        native=native_sum(wanted, rows),
    )
    notes = []
    lacking = group_by(seen.estimate.missing, lambda row: str(row["reason"]))
    for reason, same in lacking.items():
        names = dict.fromkeys(f"{row['layer']} {row['pass']}" for row in same)
        notes.append(f"{_NO_ROW}{some_names(list(names))}: {reason}")
    if model is None:
        notes.append(capabilities.declaration(spec.framework).steps.limitation)
    if step.contended:
        notes.append(f"other work disturbed the step: {step.contention_reason}")
    end = start + _BREAKDOWN_SHARE * time_limit_s
    reason = _NO_TIME
    try:
        for breakdown in _broken_down(seen, session, end, tell, explainer):
            seen = dataclasses.replace(seen, breakdown=breakdown)
            yield seen, _noted(notes, breakdown, lacking)
    except UsageError:  # the user's model is used in a wrong way
        raise
    except PydlbenchError as error:
        seen, reason = dataclasses.replace(seen, breakdown=None), str(error)
    if seen.breakdown is None:
        notes.append(f"no breakdown: {reason}")
        seen = dataclasses.replace(seen, dispatch_s=_dispatch_s(spec, session))
    yield seen, _noted(notes, seen.breakdown, lacking)


def _noted(
    notes: Sequence[str], breakdown: BreakdownRecord | None, reasons: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the notes with those of the breakdown.

    Args:
        notes: notes of the diagnosis.
        breakdown: the breakdown, if there is one.
        reasons: why native rows are missing; the breakdown need not say it again.
    """
    told = tuple(f": {reason}" for reason in reasons)
    more = () if breakdown is None else (work_of(breakdown), *breakdown.notes)
    new = (note for note in more if not (note.startswith(_NO_ROW) and note.endswith(told)))
    return tuple(dict.fromkeys((*notes, *new)))


def _native_rows(
    wanted: EstimatePlan,
    found: Collection[KernelSpec],
    session: Session,
    end: float,
    tell: Callable[[str], None],
) -> Iterator[tuple[KernelSpec, Measurement]]:
    """Yield native rows until ``end``, all but those that were found before."""
    for pair in session.measure(
        [spec for spec in wanted.specs if spec not in found],
        lambda done, total, label: tell(f"native layers, {int(done)} of {total}: {label}"),
        so_far=True,
    ):
        yield pair
        if time.monotonic() > end:
            return


def _broken_down(
    seen: Observations,
    session: Session,
    end: float,
    tell: Callable[[str], None],
    explainer: Callable[..., Iterator[BreakdownRecord]],
) -> Iterator[BreakdownRecord]:
    """Yield the breakdown after each round until ``end``, once it has native layers."""
    if time.monotonic() > end:
        return
    known = {spec.nameless: row for spec, row in seen.rows.items() if row.ok}
    for record in explainer(
        seen.spec,
        session,
        known=known.get,
        advance=lambda done, total, label: tell(f"{label} ({int(done)} of {total})"),
    ):
        if not record.coarse:
            yield record
        if time.monotonic() > end:
            return


def _plan(
    spec: StepSpec, session: Session
) -> tuple[Model | None, dict[tuple[str, str], MappedCall], EstimatePlan]:
    """Return a step's graph or the native layers of its recorded calls, and its plan."""
    cache_bytes = session.cache_bytes(spec.device)
    if spec.own is None:
        model = build_model(spec.model, spec.batch, **spec.options)
        return model, {}, plan_step(model, spec.phase, spec.precision, spec.device, cache_bytes)
    mapped = map_step(spec, session)
    wanted = EstimatePlan(
        name=spec.model,
        title="",
        batch=spec.batch or 0,
        phase=spec.phase,
        precision=spec.precision,
        terms=kernels_of(mapped).terms,
    )
    return None, mapped, wanted


def _dispatch_s(spec: StepSpec, session: Session) -> float | None:
    """Return the time in seconds of a call that does nothing; None if unknown."""
    if spec.mode != "eager":  # in other modes a step is a single call
        return None
    try:
        worker = session.worker(spec.framework, spec.device)
        return float(worker.probe("empty_call", mode=spec.mode)["seconds"])
    except PydlbenchError:
        return None  # one symptom less
