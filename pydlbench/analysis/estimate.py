"""The estimate of a step: a sum of measured layers, each with its roof and its share.

Every layer is measured with its operands in the cache and with none of them there. In a step some
are and some are not, so that the two sums are the ends of an interval::

    low = sum of hot times       high = sum of cold times       time = their middle

A kernel without a cold row counts with its hot time in both; the record has their number.

The statistical interval is separate: that of the sums of the rounds in which the rows were visited
(:mod:`pydlbench.analysis.effort`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from pydlbench.analysis.dominance import TimedItem, dominance
from pydlbench.analysis.effort import half_width_s, sharing
from pydlbench.grouping import group_by, sum_by
from pydlbench.models.graph import Model
from pydlbench.models.passes import LOSS, StepPass, step_passes
from pydlbench.ops.table import ITEM_BYTES, MEMORY_BOUND, item_bytes
from pydlbench.records.estimate import (
    EstimatedLayer,
    EstimatedStep,
    Recorded,
    StepEstimate,
    group_layers,
)
from pydlbench.records.measurement import MATERIAL, KernelSpec, Measurement, disturbed_share
from pydlbench.records.trace import Dominant
from pydlbench.runner.session import Effort
from pydlbench.timing.statistics import CONFIDENCE, sum_known


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
        """Mean of the two times."""
        return (self.hot + self.cold) / 2

    def __add__(self, other: Range) -> Range:
        return Range(hot=self.hot + other.hot, cold=self.cold + other.cold)


#: The sum of no layers.
ZERO: Final = Range(hot=0.0, cold=0.0)


# Rates of any machine: only the order of the kernels depends on them.
_ROUGH_FLOPS_PER_S: Final = 1e11
_ROUGH_BYTES_PER_S: Final = 2e10
# Maximum number of layers for which the record has the step with the layer at its roofline.
_MAX_WHAT_IF: Final = 5


def _least_bytes(spec: KernelSpec) -> int:
    return spec.layer.bytes(spec.pass_, item_bytes(spec.layer, spec.precision))


def estimate(
    plan: EstimatePlan, rows: Mapping[KernelSpec, Measurement], **more: Any
) -> StepEstimate:
    """Sum measured layers into a step.

    Args:
        plan: the plan of the step.
        rows: a measurement for each spec of the plan; one that is not ok counts as missing.
        more: other fields of the record: memory, options, device, threads...

    Raises:
        KeyError: a spec of the plan was not measured.
    """
    sizes = [_least_bytes(term.hot) for term in plan.terms]
    missing = [
        {
            "layer": term.step_pass.node,
            "pass": term.step_pass.pass_,
            "reason": reason,
            "share_of_bytes": size / max(1, sum(sizes)),
        }
        for term, size in zip(plan.terms, sizes, strict=True)
        if (reason := _reason(rows[term.hot])) is not None
    ]
    measured = (term for term in plan.terms if rows[term.hot].ok)
    timed = group_by(measured, lambda term: term.step_pass.node)
    kept = [term for terms in timed.values() for term in terms]
    total = sum((range_of(term, rows) for term in kept), ZERO)
    first: dict[tuple[KernelSpec, ...], str] = {}
    layers = tuple(
        _layer(
            name,
            terms,
            rows,
            total.middle,
            like=first.setdefault(tuple(term.hot for term in terms), name),
        )
        for name, terms in timed.items()
    )
    reasons = {term.hot: _reason(rows[term.cold]) for term in kept}
    without_cold = [reason for reason in reasons.values() if reason is not None]
    kinds = sum_by((layer.kind, layer.time_s) for layer in layers)
    groups = group_layers(layers)
    largest = max(groups, key=lambda layer: layer.time_s, default=None)
    slowest = max(layers, key=lambda layer: layer.time_s, default=None)
    dominant = _dominance(layers, timed, rows)
    return StepEstimate(
        model=plan.name,
        title=plan.title,
        batch=plan.batch,
        phase=plan.phase,
        precision=plan.precision,
        recorded=plan.recorded,
        estimate=EstimatedStep(
            time_s=total.middle,
            low=total.low,
            high=total.high,
            hot_s=total.hot,
            cold_s=total.cold,
            half_width_s=half_width_s(_weights(kept, rows), rows),
            images_per_s=plan.batch / total.middle if total.middle > 0 else math.nan,
            roof_s=sum(layer.at_roof_s for layer in layers),
            kernels_measured=len({term.hot for term in kept}),
            kernels_in_step=len(kept),
            kernels_without_cold=len(without_cold),
            without_cold=next(iter(without_cold), ""),
        ),
        layers=layers,
        dominant=slowest.name if slowest else None,
        dominant_group={
            "layer": largest.name if largest else None,
            "layers": largest.count if largest else 0,
            "share": largest.share if largest else None,
        },
        dominant_share=None if dominant is None else share_of(dominant),
        dominant_clear=dominant is not None and not dominant.rivals,
        dominant_rivals=() if dominant is None else dominant.rivals,
        disturbed_share=_disturbed(kept, rows),
        dominant_kind=max(kinds, key=kinds.__getitem__, default=None),
        kinds=dict(sorted(kinds.items(), key=lambda kind: -kind[1])),
        what_if=tuple(
            {
                "layer": layer.name,
                "layers": layer.count,
                "step_at_its_roof_s": total.middle - layer.excess_s,
            }
            for layer in sorted(groups, key=lambda layer: -layer.excess_s)[:_MAX_WHAT_IF]
        ),
        missing=tuple(missing),
        **more,
    )


def _disturbed(terms: Iterable[EstimateTerm], rows: Mapping[KernelSpec, Measurement]) -> float:
    return disturbed_share((range_of(term, rows).middle, _contended(term, rows)) for term in terms)


def _contended(term: EstimateTerm, rows: Mapping[KernelSpec, Measurement]) -> bool:
    return any(row.ok and row.contended for row in (rows[term.hot], rows[term.cold]))


def _dominance(
    layers: Iterable[EstimatedLayer],
    timed: Mapping[str, Sequence[EstimateTerm]],
    rows: Mapping[KernelSpec, Measurement],
) -> Dominant | None:
    """Return the dominant layer; layers with the same kernels are one part of the sum."""
    parts = {
        name: _weights([term for layer in alike for term in timed[layer.name]], rows)
        for name, alike in group_by(layers, lambda layer: layer.like).items()
    }
    specs = {spec for part in parts.values() for spec in part}
    times = {
        spec: TimedItem.from_summary(time)
        for spec in specs
        if (time := rows[spec].time) is not None
    }
    return dominance(parts, times)


def share_of(dominant: Dominant) -> dict[str, float]:
    """Return a share and its interval, if any, as they are stored."""
    if dominant.ci_low is None or dominant.ci_high is None:
        return {"median": dominant.share}
    ends = {"ci_low": dominant.ci_low, "ci_high": dominant.ci_high}
    return {"median": dominant.share, **ends, "confidence": CONFIDENCE}


def _reason(row: Measurement) -> str | None:
    """Return why a row cannot be summed; None if it can."""
    return None if row.ok else row.reason or row.status


def _median(row: Measurement) -> float | None:
    return row.time.median if row.ok and row.time is not None else None


def range_of(term: EstimateTerm, rows: Mapping[KernelSpec, Measurement]) -> Range:
    """Return the seconds of a term; without a cold row those of the hot one are used for both."""
    hot = _median(rows[term.hot]) or 0.0
    cold = _median(rows[term.cold])
    return Range(hot=hot, cold=hot if cold is None else cold)


def _layer(
    name: str,
    terms: Sequence[EstimateTerm],
    rows: Mapping[KernelSpec, Measurement],
    total: float,
    *,
    like: str,
) -> EstimatedLayer:
    # The first one of a pass counts.
    known = ((_pass(term), rows[term.hot].algorithm) for term in reversed(terms))
    algorithms = {pass_: algorithm for pass_, algorithm in known if algorithm}
    roofs = [rows[term.hot].roofline for term in terms]
    roof_s = sum_known(None if roof is None else roof.time_s for roof in roofs)
    slowest = max(terms, key=lambda term: range_of(term, rows).middle)
    over = rows[slowest.hot].roofline
    time = sum((range_of(term, rows) for term in terms), ZERO)
    return EstimatedLayer(
        name=name,
        kind=_kind(slowest),
        time_s=time.middle,
        low=time.low,
        high=time.high,
        hot_s=time.hot,
        cold_s=time.cold,
        share=time.middle / total if total > 0 else 0.0,
        bound=None if over is None else over.bound,
        roof_s=roof_s,
        efficiency=roof_s / time.middle if roof_s and time.middle > 0 else None,
        passes=sum_by((_pass(term), range_of(term, rows).middle) for term in terms),
        algorithms=algorithms,
        like=like,
        contended=_disturbed(terms, rows) > MATERIAL,
    )


def _pass(term: EstimateTerm) -> str:
    """Return the pass, or the part of training: ``l2`` term or ``update``."""
    step_pass = term.step_pass
    op = step_pass.layer.op
    if op in ("sgd", "momentum"):
        return "update"
    if (step_pass.layer.name or "").endswith("/gradient-sum"):
        return "backward-data"
    return "l2" if op == "l2" and step_pass.node != LOSS else step_pass.pass_


def _kind(term: EstimateTerm) -> str:
    layer = term.step_pass.layer
    return layer.op if layer.kind in MEMORY_BOUND and layer.kind != "resize" else layer.kind


def _weights(
    terms: Iterable[EstimateTerm], rows: Mapping[KernelSpec, Measurement] | None = None
) -> dict[KernelSpec, float]:
    """Return the weight of each spec in the middle of hot and cold: half an occurrence each.

    Args:
        terms: the terms of a step.
        rows: without a cold row the hot one counts fully; None means that all rows exist.
    """
    return sum_by(
        (spec, 0.5)
        for term in terms
        for spec in (term.hot, term.cold if rows is None or rows[term.cold].ok else term.hot)
    )


# -----------------------------------------------------------------------------
# The kernels of a step: each distinct one is measured once, however often it occurs.

HOT = "hot"
COLD = "all-cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateTerm:
    """One pass of a layer of a step, and the specs that are measured for it.

    Attributes:
        step_pass: the node and the pass.
        hot: spec with as many operands in the cache as fit.
        cold: spec with no operand in the cache; ``hot`` if the operands do not fit anyway.
    """

    step_pass: StepPass
    hot: KernelSpec
    cold: KernelSpec


@dataclass(frozen=True, kw_only=True)
class EstimateKernels:
    """The terms of a step, and the measurements that they need.

    Attributes:
        terms: terms in the order of execution.
    """

    terms: tuple[EstimateTerm, ...]

    @property
    def effort(self) -> Effort:
        """The function that says why a spec needs no further visit for the sum, if so."""
        cold = {term.cold: term.hot for term in self.terms if term.cold != term.hot}
        return sharing(_weights(self.terms), cold)

    @property
    def specs(self) -> tuple[KernelSpec, ...]:
        """The specs to measure: each distinct one once, hot and cold ones beside each other."""
        return tuple(dict.fromkeys(spec for term in self.terms for spec in (term.hot, term.cold)))

    @property
    def by_size(self) -> tuple[KernelSpec, ...]:
        """The specs, hot ones before cold ones, those that likely make most of the sum first."""
        weights = _weights(self.terms)

        def order(spec: KernelSpec) -> tuple[bool, float]:
            flops = spec.layer.flops(spec.pass_) / _ROUGH_FLOPS_PER_S
            moved = spec.layer.bytes(spec.pass_, ITEM_BYTES[spec.precision]) / _ROUGH_BYTES_PER_S
            return spec.cache != HOT, -weights[spec] * max(flops, moved)

        return tuple(sorted(self.specs, key=order))


@dataclass(frozen=True, kw_only=True)
class EstimatePlan(EstimateKernels):
    """The terms of a step, with the facts that the record shows.

    Attributes:
        name: name of the model.
        title: name of the model in words.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: precision of all layers.
        recorded: the recorded calls that the plan is made from; None if the model has a graph.
    """

    name: str
    title: str
    batch: int
    phase: str
    precision: str
    recorded: Recorded | None = None


def plan_step(
    model: Model,
    phase: str = "forward",
    precision: str = "fp32",
    device: str = "cpu",
    cache_bytes: int | None = None,
) -> EstimatePlan:
    """Return the terms of a step, and the specs to measure for them.

    Args:
        model: the model with its batch.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: precision of all layers.
        device: ``cpu`` or ``cuda:N``.
        cache_bytes: size of the last-level cache. A kernel whose operands take four times as much
            never finds them there: it is measured once, not twice. None measures everything twice.

    Raises:
        UsageError: no such phase.
    """
    return EstimatePlan(
        name=model.name,
        title=model.title,
        batch=model.batch,
        phase=phase,
        precision=precision,
        terms=terms_of(step_passes(model, phase), precision, device, cache_bytes),
    )


def terms_of(
    passes: Iterable[StepPass], precision: str, device: str, cache_bytes: int | None
) -> tuple[EstimateTerm, ...]:
    """Return the terms of passes of layers; see :func:`plan_step`."""
    terms = []
    for part in passes:
        hot = KernelSpec(
            layer=part.layer,
            pass_=part.pass_,
            precision=precision,
            propagation=part.propagation,
            cache=HOT,
            device=device,
        )
        cold = hot
        if (
            cache_bytes is None
            or part.layer.bytes(part.pass_, ITEM_BYTES[precision]) < 4 * cache_bytes
        ):
            cold = msgspec.structs.replace(hot, cache=COLD)
        terms.append(EstimateTerm(step_pass=part, hot=hot, cold=cold))
    return sharing_kernels(terms)


def sharing_kernels(terms: Iterable[EstimateTerm]) -> tuple[EstimateTerm, ...]:
    """Return terms; those with the same kernel share the spec of its first occurrence."""
    # The first occurrence by nameless spec.
    known: dict[KernelSpec, KernelSpec] = {}

    def shared(spec: KernelSpec) -> KernelSpec:
        return known.setdefault(spec.nameless, spec)

    return tuple(
        EstimateTerm(step_pass=term.step_pass, hot=shared(term.hot), cold=shared(term.cold))
        for term in terms
    )


# -----------------------------------------------------------------------------
# Sums of the native rows of a step by node, loss and optimizer.

#: Ops of the nodes of a graph that libraries compute; all others are pointwise.
_LIBRARY_OPS: Final = ("conv", "deconv", "linear", "pool")


class Owner(NamedTuple):
    """The part of a step that a native row belongs to.

    Attributes:
        part: ``node``, ``sum`` (of gradients, at a node), ``loss`` (with the L2 terms) or
            ``optimizer``.
        node: name of the node.
    """

    part: str
    node: str


def owner_of(step_pass: StepPass) -> Owner:
    """Return the part of a step that a pass of a layer belongs to."""
    last = (step_pass.layer.name or "").rpartition("/")[2]
    if step_pass.node == LOSS or last == "l2":
        return Owner("loss", step_pass.node)
    return Owner({"update": "optimizer", "gradient-sum": "sum"}.get(last, "node"), step_pass.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSum:
    """Native layers of a step, summed by owner; halfway between hot and cold caches.

    Attributes:
        seconds: time by owner; only rows with a time.
        incomplete: nodes, ``loss`` or ``optimizer`` with a row without a time.
    """

    seconds: Mapping[Owner, float]
    incomplete: frozenset[str]

    @property
    def by_node(self) -> dict[str, float]:
        """Seconds of all passes by node, without sums of gradients."""
        return {
            owner.node: seconds for owner, seconds in self.seconds.items() if owner.part == "node"
        }

    def of_part(self, part: str) -> float:
        """Return the seconds of all owners of one kind, see :class:`Owner`."""
        return sum(seconds for owner, seconds in self.seconds.items() if owner.part == part)

    def of_pointwise(self, model: Model) -> float:
        """Return the seconds of pointwise nodes and of sums of gradients."""
        nodes = self.by_node.items()
        own = sum(seconds for name, seconds in nodes if model[name].op not in _LIBRARY_OPS)
        return own + self.of_part("sum")


def native_sum(wanted: EstimateKernels, rows: Mapping[KernelSpec, Measurement]) -> NativeSum:
    """Sum measured rows by owner, without rows that have no time.

    Args:
        wanted: the terms of the step.
        rows: a measurement for each of its specs.
    """
    timed = [term for term in wanted.terms if rows[term.hot].ok]
    lacking = [owner_of(term.step_pass) for term in wanted.terms if not rows[term.hot].ok]
    return NativeSum(
        seconds=sum_by((owner_of(term.step_pass), range_of(term, rows).middle) for term in timed),
        incomplete=frozenset(
            owner.part if owner.part in ("loss", "optimizer") else owner.node for owner in lacking
        ),
    )
