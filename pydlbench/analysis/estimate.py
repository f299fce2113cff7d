"""The estimate of a step: sums of measured layers, each with its roof, its share and its doubts.

Every layer is measured with its operands in the cache and with none of them there. In a step some
are and some are not, so that the two sums are the ends of an interval::

    low = sum of hot times       high = sum of cold times       time = their middle

A kernel without a cold row counts with its hot time in both; how many these are is told.

The statistical interval is kept apart: that of the sums of the rounds in which the rows were
visited (:mod:`pydlbench.analysis.effort`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.analysis.dominance import Dominance, Timed, dominance
from pydlbench.analysis.effort import half_width_s, sharing
from pydlbench.models.passes import LOSS, step_passes
from pydlbench.ops.table import ITEM_BYTES, MEMORY_BOUND
from pydlbench.records.measurement import MATERIAL, disturbed_share
from pydlbench.records.specs import KernelSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.models.graph import Model
    from pydlbench.models.passes import StepPass
    from pydlbench.records.estimate import EstimatedLayer, Recorded, StepEstimate
    from pydlbench.records.measurement import Measurement
    from pydlbench.runner.repetitions import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Seconds with hot caches and with cold ones."""

    hot: float
    cold: float

    @property
    def low(self) -> float:
        """The faster of the two: prefetchers may make a cold run the faster one, within noise."""
        return min(self.hot, self.cold)

    @property
    def high(self) -> float:
        """The slower of the two."""
        return max(self.hot, self.cold)

    @property
    def middle(self) -> float:
        """Halfway."""
        return (self.hot + self.cold) / 2

    def __add__(self, other: Range) -> Range:
        return Range(hot=self.hot + other.hot, cold=self.cold + other.cold)


#: Nothing.
ZERO: Final = Range(hot=0.0, cold=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShare:
    """One node's part in a step, all its passes together; or that of all nodes alike.

    Attributes:
        name: of the node; of several the first one's.
        kind: ``conv2d``, ``gemm``, ``pool2d``, or the operation of a pointwise layer.
        time: seconds.
        roof_s: what the roofline of the measured peaks allows, in seconds; None if unknown.
        bound: what bounds its slowest pass: ``compute``, ``memory`` or ``launch``.
        share: of the step.
        by_pass: seconds by pass; in training also of its ``l2`` terms, and of the ``update``.
        algorithms: the kernels behind it, by pass.
        like: the name of the model's first layer that runs the same kernels; its own for itself.
        count: how many layers these are, if it stands for several.
        contended: other work disturbed more than 5 % of it: nothing is concluded from it.
    """

    name: str
    kind: str
    time: Range
    roof_s: float | None
    bound: str | None
    share: float
    by_pass: Mapping[str, Range]
    algorithms: Mapping[str, str]
    like: str = ""
    count: int = 1
    contended: bool = False

    @property
    def efficiency(self) -> float | None:
        """The roof over the time: 1 is as fast as the hardware allows."""
        return self.roof_s / self.time.middle if self.roof_s and self.time.middle > 0 else None

    def record(self) -> EstimatedLayer:
        """Return what is kept of it; times in seconds."""
        from pydlbench.records.estimate import EstimatedLayer

        return EstimatedLayer(
            name=self.name,
            kind=self.kind,
            time_s=self.time.middle,
            low=self.time.low,
            high=self.time.high,
            share=self.share,
            bound=self.bound,
            roof_s=self.roof_s,
            efficiency=self.efficiency,
            passes={name: one.middle for name, one in self.by_pass.items()},
            algorithms=self.algorithms,
            like=self.like or self.name,
            contended=self.contended,
        )


def joined(layers: Iterable[LayerShare]) -> list[LayerShare]:
    """Return one share for all layers that run the same kernels, in the order of the first ones."""
    alike: dict[str, list[LayerShare]] = {}
    for layer in layers:
        alike.setdefault(layer.like or layer.name, []).append(layer)
    return [_together(group) for group in alike.values()]


def _together(group: Sequence[LayerShare]) -> LayerShare:
    first = group[0]
    if len(group) == 1:
        return first
    time, passes = ZERO, dict.fromkeys(first.by_pass, ZERO)
    for layer in group:
        time += layer.time
        for name, part in layer.by_pass.items():
            passes[name] = passes.get(name, ZERO) + part
    roofs = [layer.roof_s for layer in group if layer.roof_s is not None]
    return dataclasses.replace(
        first,
        time=time,
        roof_s=sum(roofs) if len(roofs) == len(group) else None,
        share=sum(layer.share for layer in group),
        contended=any(layer.contended for layer in group),
        by_pass=passes,
        count=len(group),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a step should take, if it were its layers and nothing else.

    Attributes:
        time: seconds.
        half_width_s: of the statistical interval around ``time``, at the rows' confidence.
        batch: images per step.
        layers: in the order of the model.
        missing: what could not be measured, and is not in any sum: name, pass and reason.
        measured: how many distinct kernels were measured.
        occurrences: how many there are in the step.
        hot_only: how many distinct kernels have no time with cold caches, and why the first has
            not; their hot time stands for both.
        disturbed: which part of the sum other work disturbed, 0 to 1.
        leads: which layers take most of it, those alike together, and how sure that is; None where
            that is not known.
    """

    time: Range
    half_width_s: float
    batch: int
    layers: tuple[LayerShare, ...]
    missing: tuple[tuple[str, str, str], ...] = ()
    measured: int = 0
    occurrences: int = 0
    hot_only: tuple[int, str] = (0, "")
    disturbed: float = 0.0
    leads: Dominance | None = None

    @property
    def tells(self) -> bool:
        """Whether so little of the sum was disturbed that something can be concluded from it."""
        return self.disturbed <= MATERIAL

    @property
    def images_per_s(self) -> float:
        """Images per second at the middle of the interval."""
        return self.batch / self.time.middle if self.time.middle > 0 else math.nan

    @property
    def groups(self) -> list[LayerShare]:
        """The layers, those that run the same kernels as one: ResNet-152 has 700, and 60 kinds."""
        return joined(self.layers)

    @property
    def dominant(self) -> LayerShare | None:
        """What takes longest, layers that run the same kernels together."""
        return max(self.groups, key=lambda layer: layer.time.middle, default=None)

    @property
    def kinds(self) -> dict[str, float]:
        """Seconds by kind of layer, the largest first."""
        found: Counter[str] = Counter()
        for layer in self.layers:
            found[layer.kind] += layer.time.middle  # type: ignore[assignment]  # seconds, no counts
        return dict(found.most_common())

    @property
    def roof_s(self) -> float:
        """The step if every layer ran at its roof; those without a known roof as they are."""
        return sum(
            layer.time.middle if layer.roof_s is None else layer.roof_s for layer in self.layers
        )

    def at_roof_s(self, layer: LayerShare) -> float:
        """The step if this layer, or all alike, ran at the roof, and nothing else changed."""
        gain = 0.0 if layer.roof_s is None else max(0.0, layer.time.middle - layer.roof_s)
        return self.time.middle - gain

    def ranked(self) -> list[LayerShare]:
        """Return the layers, those alike together, by what they would save at their roof.

        The largest is the first.
        """
        return sorted(self.groups, key=self.at_roof_s)

    def record(self, plan: Plan, **more: Any) -> StepEstimate:
        """Return what is kept of it; times in seconds.

        Args:
            plan: what was summed.
            more: what a sum does not know: memory, options, device, threads, cache.
        """
        from pydlbench.records.estimate import EstimatedStep, StepEstimate

        dominant = self.dominant
        slowest = max(self.layers, key=lambda layer: layer.time.middle, default=None)
        return StepEstimate(
            model=plan.name,
            batch=plan.batch,
            phase=plan.phase,
            precision=plan.precision,
            recorded=plan.recorded,
            estimate=EstimatedStep(
                time_s=self.time.middle,
                low=self.time.low,
                high=self.time.high,
                hot_s=self.time.hot,
                cold_s=self.time.cold,
                half_width_s=self.half_width_s,
                images_per_s=self.images_per_s,
                roof_s=self.roof_s,
                kernels_measured=self.measured,
                kernels_in_step=self.occurrences,
                kernels_without_cold=self.hot_only[0],
            ),
            layers=tuple(layer.record() for layer in self.layers),
            dominant=slowest.name if slowest else None,
            dominant_group={
                "layer": dominant.name if dominant else None,
                "layers": dominant.count if dominant else 0,
                "share": dominant.share if dominant else None,
            },
            dominant_share=None if self.leads is None else self.leads.record(),
            dominant_clear=self.leads is not None and self.leads.clear,
            dominant_rivals=() if self.leads is None else self.leads.rivals,
            disturbed_share=self.disturbed,
            dominant_kind=next(iter(self.kinds), None),
            kinds=self.kinds,
            what_if=tuple(
                {
                    "layer": layer.name,
                    "layers": layer.count,
                    "step_at_its_roof_s": self.at_roof_s(layer),
                }
                for layer in self.ranked()[:5]
            ),
            missing=tuple(
                {"layer": name, "pass": pass_, "reason": reason}
                for name, pass_, reason in self.missing
            ),
            **more,
        )


def estimate(plan: Plan, rows: Mapping[KernelSpec, Measurement]) -> Estimate:
    """Sum measured layers into a step.

    Args:
        plan: the step's work.
        rows: a measurement for each of the plan's cases; one that is not ok counts as missing.

    Raises:
        KeyError: a case of the plan was not measured.
    """
    timed: dict[str, list[Term]] = {}
    missing = []
    for term in plan.terms:
        reason = _reason(rows[term.hot])
        if reason is None:
            timed.setdefault(term.work.node, []).append(term)
        else:
            missing.append((term.work.node, term.work.pass_, reason))
    times = {name: _sum(_range(term, rows) for term in terms) for name, terms in timed.items()}
    total = _sum(times.values())
    first: dict[tuple[KernelSpec, ...], str] = {}
    layers = tuple(
        _share(
            name,
            terms,
            rows,
            times[name],
            total.middle,
            like=first.setdefault(tuple(term.hot for term in terms), name),
        )
        for name, terms in timed.items()
    )
    kept = [term for terms in timed.values() for term in terms]
    return Estimate(
        time=total,
        half_width_s=half_width_s(_weights(kept, rows), rows),
        batch=plan.batch,
        layers=layers,
        missing=tuple(missing),
        measured=len({term.hot for term in kept}),
        occurrences=len(kept),
        hot_only=_hot_only(kept, rows),
        disturbed=_disturbed(kept, rows),
        leads=_leads(layers, timed, rows),
    )


def _disturbed(terms: Iterable[Term], rows: Mapping[KernelSpec, Measurement]) -> float:
    return disturbed_share((_range(term, rows).middle, _contended(term, rows)) for term in terms)


def _contended(term: Term, rows: Mapping[KernelSpec, Measurement]) -> bool:
    return any(row.ok and row.contended for row in (rows[term.hot], rows[term.cold]))


def _leads(
    layers: Iterable[LayerShare],
    timed: Mapping[str, Sequence[Term]],
    rows: Mapping[KernelSpec, Measurement],
) -> Dominance | None:
    """Layers that run the same kernels are one part; hot and cold rows are half of it each."""
    parts: dict[str, dict[KernelSpec, float]] = {}
    for layer in layers:
        part = parts.setdefault(layer.like or layer.name, {})
        for term in timed[layer.name]:
            for case in (term.hot, term.cold if rows[term.cold].ok else term.hot):
                part[case] = part.get(case, 0.0) + 0.5
    cases = {case for part in parts.values() for case in part}
    found = {case: Timed.of(time) for case in cases if (time := rows[case].time) is not None}
    return dominance(parts, found)


def _reason(row: Measurement) -> str | None:
    """Why a row cannot be summed; None if it can."""
    return None if row.ok else row.reason or row.status


def _hot_only(terms: Sequence[Term], rows: Mapping[KernelSpec, Measurement]) -> tuple[int, str]:
    reasons = {term.hot: _reason(rows[term.cold]) for term in terms}
    lacking = [reason for reason in reasons.values() if reason is not None]
    return len(lacking), lacking[0] if lacking else ""


def _median(row: Measurement) -> float | None:
    return row.time.median if row.ok and row.time is not None else None


def _range(term: Term, rows: Mapping[KernelSpec, Measurement]) -> Range:
    hot = _median(rows[term.hot]) or 0.0
    cold = _median(rows[term.cold])
    return Range(hot=hot, cold=hot if cold is None else cold)


def _sum(ranges: Iterable[Range]) -> Range:
    total = ZERO
    for one in ranges:
        total += one
    return total


def _share(
    name: str,
    terms: Sequence[Term],
    rows: Mapping[KernelSpec, Measurement],
    time: Range,
    total: float,
    *,
    like: str,
) -> LayerShare:
    by_pass: dict[str, Range] = {}
    algorithms: dict[str, str] = {}
    roofs: list[float | None] = []
    slowest, bound = -1.0, None
    for term in terms:
        row, own = rows[term.hot], _range(term, rows)
        pass_ = _pass(term)
        by_pass[pass_] = by_pass.get(pass_, ZERO) + own
        if row.algorithm:
            algorithms.setdefault(pass_, row.algorithm)
        roofs.append(row.roofline.time_s if row.roofline else None)
        if own.middle > slowest:
            slowest, bound = own.middle, row.roofline.bound if row.roofline else None
    known = [roof for roof in roofs if roof is not None]
    return LayerShare(
        name=name,
        kind=_kind(terms[0]),
        time=time,
        roof_s=sum(known) if len(known) == len(roofs) else None,
        bound=bound,
        share=time.middle / total if total > 0 else 0.0,
        by_pass=by_pass,
        algorithms=algorithms,
        like=like,
        contended=_disturbed(terms, rows) > MATERIAL,
    )


def _pass(term: Term) -> str:
    """Return the pass, or what training does to tensors besides: ``l2`` terms, the ``update``."""
    work = term.work
    op = work.layer.op
    if op in ("sgd", "momentum"):
        return "update"
    if (work.layer.name or "").endswith("/gradient-sum"):
        return "backward-data"
    return "l2" if op == "l2" and work.node != LOSS else work.pass_


def _kind(term: Term) -> str:
    layer = term.work.layer
    return layer.op if layer.kind in MEMORY_BOUND and layer.kind != "resize" else layer.kind


def _weights(
    terms: Iterable[Term], rows: Mapping[KernelSpec, Measurement] | None = None
) -> dict[KernelSpec, float]:
    """Return how often each case is in the middle of hot and cold: each of the two counts half.

    Args:
        terms: the pieces of a step's work.
        rows: one without a cold row counts with its hot one; None expects all.
    """
    weights: dict[KernelSpec, float] = {}
    for term in terms:
        cold = term.cold if rows is None or rows[term.cold].ok else term.hot
        for case in (term.hot, cold):
            weights[case] = weights.get(case, 0.0) + 0.5
    return weights


# -----------------------------------------------------------------------------
# Which kernels a step is made of: each distinct one is measured once, however often it occurs.

HOT = "hot"
COLD = "all-cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One piece of a step's work.

    Attributes:
        work: which node's, in which pass.
        hot: what is measured for it, its operands in the cache as far as they fit.
        cold: the same with nothing in the cache; ``hot`` where the operands would not fit anyway.
    """

    work: StepPass
    hot: KernelSpec
    cold: KernelSpec


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """A step's work and the measurements that it takes.

    Attributes:
        terms: in the order of execution.
    """

    terms: tuple[Term, ...]

    @property
    def effort(self) -> Effort:
        """What tells which of the cases need no further visit for the sum's sake."""
        cold = {term.cold: term.hot for term in self.terms if term.cold != term.hot}
        return sharing(_weights(self.terms), cold)

    @property
    def cases(self) -> tuple[KernelSpec, ...]:
        """What is to be measured: each distinct case once, hot and cold ones beside each other."""
        found: dict[KernelSpec, None] = {}
        for term in self.terms:
            found.setdefault(term.hot)
            found.setdefault(term.cold)
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Plan(Kernels):
    """The work of a step, with what is told of it.

    Attributes:
        name: of the model.
        title: what it is, in words.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        recorded: the calls that it follows from; None where the model has a graph.
    """

    name: str
    title: str
    batch: int
    phase: str
    precision: str
    recorded: Recorded | None = None


def plan(
    model: Model,
    phase: str = "forward",
    precision: str = "fp32",
    device: str = "cpu",
    cache_bytes: int | None = None,
) -> Plan:
    """Return the work of a step and what has to be measured for it.

    Args:
        model: with its batch.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        device: ``cpu`` or ``cuda:N``.
        cache_bytes: size of the last cache before memory. A kernel whose operands take four times
            as much finds none of them there, whoever ran before: it is measured once, not twice.
            None measures everything twice.

    Raises:
        UsageError: no such phase.
    """
    terms = terms_of(step_passes(model, phase), precision, device, cache_bytes)
    return Plan(
        name=model.name,
        title=model.title,
        batch=model.batch,
        phase=phase,
        precision=precision,
        terms=terms,
    )


def terms_of(
    works: Iterable[StepPass], precision: str, device: str, cache_bytes: int | None
) -> tuple[Term, ...]:
    """Return what is measured for each piece of work; see :func:`plan`."""
    # Without names -> as it is called where it first occurs.
    known: dict[KernelSpec, KernelSpec] = {}

    def shared(case: KernelSpec) -> KernelSpec:
        return known.setdefault(nameless(case), case)

    terms = []
    for one in works:
        hot = KernelSpec(
            layer=one.layer,
            pass_=one.pass_,
            precision=precision,
            propagation=one.propagation,
            cache=HOT,
            device=device,
        )
        cold = hot
        if (
            cache_bytes is None
            or one.layer.bytes(one.pass_, ITEM_BYTES[precision]) < 4 * cache_bytes
        ):
            cold = msgspec.structs.replace(hot, cache=COLD)
        terms.append(Term(work=one, hot=shared(hot), cold=shared(cold)))
    return tuple(terms)


def nameless(case: KernelSpec) -> KernelSpec:
    """Return a case whose layer has no name: what two layers have in common that are alike."""
    return msgspec.structs.replace(case, layer=dataclasses.replace(case.layer, name=None))
