"""The estimate of a step: sums of measured layers, each with its roof, its share and its doubts.

Every layer is measured with its operands in the cache and with none of them there. In a step some
are and some are not, so that the two sums are the ends of an interval::

    low = sum of hot times       high = sum of cold times       time = their middle

A kernel without a cold row counts with its hot time in both; how many these are is told.

The statistical interval is kept apart. It combines the half-widths of the distinct measurements as
those of independent ones, each times how often its kernel occurs; it knows nothing of a machine
that drifts while they are taken.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.compose.shares import ZERO, LayerShare, Range, joined
from pydlbench.models.work import LOSS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.compose.plan import Plan, Term
    from pydlbench.results import Measurement

__all__ = ["Estimate", "estimate"]


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
    """

    time: Range
    half_width_s: float
    batch: int
    layers: tuple[LayerShare, ...]
    missing: tuple[tuple[str, str, str], ...] = ()
    measured: int = 0
    occurrences: int = 0
    hot_only: tuple[int, str] = (0, "")

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

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON objects ``estimate``, ``layers`` and ``dominant``."""
        dominant = self.dominant
        slowest = max(self.layers, key=lambda layer: layer.time.middle, default=None)
        return {
            "estimate": {
                "time_s": self.time.middle,
                "low": self.time.low,
                "high": self.time.high,
                "hot_s": self.time.hot,
                "cold_s": self.time.cold,
                "half_width_s": self.half_width_s,
                "images_per_s": self.images_per_s,
                "roof_s": self.roof_s,
                "kernels_measured": self.measured,
                "kernels_in_step": self.occurrences,
                "kernels_without_cold": self.hot_only[0],
            },
            "layers": [layer.to_dict() for layer in self.layers],
            "dominant": slowest.name if slowest else None,
            "dominant_group": {
                "layer": dominant.name if dominant else None,
                "layers": dominant.count if dominant else 0,
                "share": dominant.share if dominant else None,
            },
            "dominant_kind": next(iter(self.kinds), None),
            "kinds": self.kinds,
            "what_if": [
                {
                    "layer": layer.name,
                    "layers": layer.count,
                    "step_at_its_roof_s": self.at_roof_s(layer),
                }
                for layer in self.ranked()[:5]
            ],
            "missing": [
                {"layer": name, "pass": pass_, "reason": reason}
                for name, pass_, reason in self.missing
            ],
        }


def estimate(plan: Plan, rows: Mapping[Case, Measurement]) -> Estimate:
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
    first: dict[tuple[Case, ...], str] = {}
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
        half_width_s=_half_width(kept, rows),
        batch=plan.model.batch,
        layers=layers,
        missing=tuple(missing),
        measured=len({term.hot for term in kept}),
        occurrences=len(kept),
        hot_only=_hot_only(kept, rows),
    )


def _reason(row: Measurement) -> str | None:
    """Why a row cannot be summed; None if it can."""
    return None if row.ok else row.reason or row.status


def _hot_only(terms: Sequence[Term], rows: Mapping[Case, Measurement]) -> tuple[int, str]:
    reasons = {term.hot: _reason(rows[term.cold]) for term in terms}
    lacking = [reason for reason in reasons.values() if reason is not None]
    return len(lacking), lacking[0] if lacking else ""


def _median(row: Measurement) -> float | None:
    return row.time.median if row.ok and row.time is not None else None


def _range(term: Term, rows: Mapping[Case, Measurement]) -> Range:
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
    rows: Mapping[Case, Measurement],
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
    )


def _pass(term: Term) -> str:
    """Return the pass, or what training does to tensors besides: ``l2`` terms, the ``update``."""
    work = term.work
    op = getattr(work.layer, "op", None)
    if op in ("sgd", "momentum"):
        return "update"
    if (work.layer.name or "").endswith("/gradient-sum"):
        return "backward-data"
    return "l2" if op == "l2" and work.node != LOSS else work.pass_


def _kind(term: Term) -> str:
    layer = term.work.layer
    return str(getattr(layer, "op", layer.kind))


def _half_width(terms: Sequence[Term], rows: Mapping[Case, Measurement]) -> float:
    """Of the middle of hot and cold: each distinct measurement counts half, times its number."""
    counts: Counter[Case] = Counter()
    for term in terms:
        counts[term.hot] += 1
        counts[term.cold if rows[term.cold].ok else term.hot] += 1
    squares = 0.0
    for case, count in counts.items():
        time = rows[case].time
        if time is not None and time.ci_low is not None and time.ci_high is not None:
            squares += (count / 2 * (time.ci_high - time.ci_low) / 2) ** 2
    return math.sqrt(squares)
