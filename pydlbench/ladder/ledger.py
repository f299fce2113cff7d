"""From laps to rungs, and from rungs to the terms between them.

Rungs are compared within laps. A visit beside which the cores or their clock were others than
beside the rest of its lap is left out; a rung of which too few laps are left is refused, and the
difference between its neighbours takes its place. What lies between two rungs is a difference. An
experiment explains a part of it; what experiments leave is unexplained, with its sign. Nothing here
makes a term fit: measurements that cannot all be right are named as contradictions.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pydlbench.records.check import RUNGS, LedgerTerm, Rung, Rungs
from pydlbench.timing.statistics import Interval, median, median_interval
from pydlbench.units import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pydlbench.records.check import Lap

#: Fewer laps have no interval at 95 %.
LEAST: Final = 6
# How far a visit's canary and its clock may be from the middle of its lap. An undisturbed canary
# stays within 3 %, a shared core shows as 30 to 50 %; a clock steps by up to 2 %, and a difference
# of 5 % would be as large as most of what a ledger explains.
_CANARY: Final = 0.10
_CLOCK: Final = 0.05
# Of the step: no further lap would tell more once all intervals are as narrow.
_SETTLED: Final = 0.01
#: Calls that have sums of their own, natively and as operators: those in which neither oneDNN nor
#: MKL logs anything, those in which MKL alone does, those in which oneDNN logs a convolution, and
#: those without a native layer.
OUTSIDE: Final = "outside"
MKL: Final = "mkl"
CONVOLVED: Final = "convolved"
LAYERLESS: Final = "layerless"
GROUPS: Final = (OUTSIDE, MKL, CONVOLVED, LAYERLESS)
# What a visit of another name has measured.
_VISIT: Final = {
    **dict.fromkeys(("limit", "native_hot", "native_cold", "native_convolutions"), "native"),
    **{f"native_{name}": "native" for name in GROUPS},
    **{f"operators_{name}": "operators" for name in GROUPS},
    **dict.fromkeys(("logged_reorders", "logged_convolutions", "logged_around"), "log"),
    "feed": "operators",
}

# What a step that computes layers together saves at the most: of the native rows all that is
# neither a product nor a convolution. It is a bound even where the machine was slower beside it.
_FUSIBLE: Final = "native_fusible"

#: What lies between two rungs, by the upper one: no cause, but where it is.
_BETWEEN: Final = {
    "native": "layers above the limit",
    "native_chain": "context of native layers",
    "operators": "operators above native",
    "operator_chain": "context",
    "step": "framework overhead",
}
# By the lower and the upper rung, where others lie between them that are not known.
_WIDER: Final = {
    ("native", "operators"): "operators above native",
    ("operators", "step"): "context and framework overhead",
}
_NAMES: Final = {"native_chain": "native chain", "operator_chain": "operator chain"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What was measured to explain a part of a difference.

    Attributes:
        term: the cause that it is about.
        rung: it lies below this rung; below the next higher one where this one is not known.
        seconds: of the step, by lap; by number of its repetition if it is not ``paired``.
        how: it was measured.
        paired: whether it was measured in the laps.
        detail: what stands out.
    """

    term: str
    rung: str
    seconds: Mapping[int, float]
    how: str
    paired: bool = True
    detail: str = ""

    def within(self, lap: int) -> float | None:
        """Return the seconds that it had in a lap; None where that is not known."""
        return self.seconds.get(lap) if self.paired else median(self.seconds.values())

    def reach(self, confidence: float) -> tuple[float, float]:
        """Return how far its interval reaches below and above its median, in seconds.

        Nothing where it is ``paired``: differences within laps have its scatter already.
        """
        if self.paired:
            return 0.0, 0.0
        values = list(self.seconds.values())
        middle = median(values)
        found = median_interval(values, confidence)
        low, high = (found.low, found.high) if found else (min(values), max(values))
        return middle - low, high - middle


@dataclass(frozen=True, slots=True)
class Ladder:
    """What laps say of each rung, and of the sides of experiments.

    Attributes:
        values: seconds by lap, by name; comparable ones only.
        reasons: why a rung is not known, by name.
        disturbed: somebody else used the cores most of the time.
    """

    values: Mapping[str, Mapping[int, float]]
    reasons: Mapping[str, str]
    disturbed: bool = False

    @classmethod
    def of(cls, laps: Sequence[Lap], absent: Mapping[str, str] | None = None) -> Ladder:
        """Sort what was comparable from what was not.

        Args:
            laps: all of them.
            absent: why a rung was not measured, by name.
        """
        values: dict[str, dict[int, float]] = {}
        why: dict[str, Counter[str]] = {}
        for index, lap in enumerate(laps):
            other = _others(lap)
            for name, seconds in lap.seconds.items():
                visit = _VISIT.get(name, name)
                if visit in other:
                    why.setdefault(name, Counter())[other[visit]] += 1
                else:
                    values.setdefault(name, {})[index] = seconds
        reasons = {name: "not measured" for name in RUNGS if name not in values}
        for name, counted in why.items():
            left = len(values.get(name, ()))
            if left < min(LEAST, len(laps)):
                values.pop(name, None)
                reasons[name] = _refusal(counted, left, len(laps))
        reasons |= {name: one for name, one in (absent or {}).items() if name not in values}
        canaries = [one for lap in laps for one in lap.canary.values()]
        return cls(
            values=values,
            reasons={name: reasons[name] for name in RUNGS if name in reasons},
            disturbed=bool(canaries) and median(canaries) < 1 - _CANARY,
        )

    def rung(self, name: str, confidence: float = 0.95) -> Rung | None:
        """Return the summary of a rung, or of a side of an experiment; None where it is unknown."""
        known = self.values.get(name)
        if not known:
            return None
        interval = median_interval(known.values(), confidence)
        return Rung(
            median=median(known.values()),
            ci_low=interval.low if interval else None,
            ci_high=interval.high if interval else None,
            n=len(known),
        )

    def between(self, lower: str, upper: str) -> dict[int, float]:
        """Return how much longer one takes than another, by lap; laps that have both."""
        low, high = self.values.get(lower, {}), self.values.get(upper, {})
        return {lap: high[lap] - low[lap] for lap in high if lap in low}


def refused(laps: Sequence[Lap]) -> set[str]:
    """Return what was measured, and in too few undisturbed visits to be known."""
    return {name for lap in laps for name in lap.seconds} - set(Ladder.of(laps).values)


def settled(laps: Sequence[Lap], confidence: float = 0.95) -> bool:
    """Whether the step and all differences are known to 1 % of the step, with nothing refused.

    Args:
        laps: all of them.
        confidence: of the intervals.
    """
    ladder = Ladder.of(laps)
    if "step" not in ladder.values or refused(laps):
        return False
    known = [name for name in RUNGS if name in ladder.values]
    sets = [ladder.values["step"], *(ladder.between(*pair) for pair in pairwise(known))]
    widest = 2 * _SETTLED * median(ladder.values["step"].values())
    found = [median_interval(one.values(), confidence) for one in sets]
    return all(one is not None and one.high - one.low <= widest for one in found)


def _others(lap: Lap) -> dict[str, str]:
    """Return which visits of a lap the machine was another one beside, and in what."""
    found: dict[str, str] = {}
    for marks, tolerance, word in (
        (lap.canary, _CANARY, "canary"),
        (lap.clock_hz, _CLOCK, "clock"),
    ):
        if not marks:
            continue
        middle = median(marks.values())
        for name, value in marks.items():
            if middle > 0 and abs(value / middle - 1) > tolerance:
                side = "below" if value < middle else "above"
                found[name] = f"the {word} was {side} that of the others"
    return found


def _refusal(counted: Counter[str], left: int, laps: int) -> str:
    seen = ", ".join(f"{word} in {count}" for word, count in counted.most_common())
    return (
        f"refused: {seen} of {laps} laps (by over {percent(_CANARY)} for a canary, "
        f"{percent(_CLOCK)} for a clock); {left} laps are left, {LEAST} are needed: a quiet "
        "machine, or a larger --stop-after and --laps"
    )


# -----------------------------------------------------------------------------
# The terms.


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What follows from laps.

    Attributes:
        rungs: each with its interval.
        reasons: why one is null.
        native_hot: the native sum with hot caches.
        native_cold: with cold ones.
        ledger: the terms; they sum to the rung ``step``.
        unexplained: interval of the unexplained share; None without one.
        contradictions: what cannot all be right.
        fused: how much less than its layers one by one a step takes that computes them together.
        disturbed: somebody else used the cores most of the time.
    """

    rungs: Rungs
    reasons: Mapping[str, str]
    native_hot: Rung | None
    native_cold: Rung | None
    ledger: tuple[LedgerTerm, ...]
    unexplained: tuple[float, float] | None
    contradictions: tuple[str, ...]
    fused: tuple[str, ...]
    disturbed: bool


def conclude(
    laps: Sequence[Lap],
    experiments: Sequence[Experiment] = (),
    absent: Mapping[str, str] | None = None,
    *,
    hows: Mapping[str, str] | None = None,
    details: Mapping[str, str] | None = None,
    outside_s: float | None = 0.0,
    calling_s: float = 0.0,
    fused: bool = False,
    confidence: float = 0.95,
) -> Findings:
    """Return rungs, terms and contradictions.

    Args:
        laps: all of them.
        experiments: in the order in which they are to be listed.
        absent: why a rung was not measured, by name.
        hows: how a rung was measured, by name.
        details: what stands out in the difference below a rung, by name.
        outside_s: reorders and packing that the native chain has and the native sum has not; None
            where nobody knows how long they take.
        calling_s: what the chain of recorded calls spends on starting each of them from Python,
            as the step does not: its autograd starts those of a backward pass.
        fused: the step computes layers together, so that it may take less than they do one by one:
            less by what its memory-bound layers take, and no more.
        confidence: level of the intervals.
    """
    ladder = Ladder.of(laps, absent)
    made = _Terms(ladder, hows or {}, details or {}, confidence, fused)
    if "step" in ladder.values:
        made.climb(experiments)
    pairs = _LAYERS_ALONE if fused else ()
    below = {pair: words for pair in pairs if (words := _saved(ladder, *pair, confidence))}
    said = [*made.contradictions, *_impossible(ladder, outside_s, calling_s, confidence, below)]
    return Findings(
        rungs=Rungs(**{name: ladder.rung(name, confidence) for name in RUNGS}),
        reasons=ladder.reasons,
        native_hot=ladder.rung("native_hot", confidence),
        native_cold=ladder.rung("native_cold", confidence),
        ledger=tuple(made.terms),
        unexplained=made.unexplained(),
        contradictions=tuple(said),
        fused=tuple(below.values()),
        disturbed=ladder.disturbed,
    )


@dataclass(slots=True)
class _Terms:
    """The terms as they are made, from the lowest rung to the step."""

    ladder: Ladder
    hows: Mapping[str, str]
    details: Mapping[str, str]
    confidence: float
    fused: bool = False
    terms: list[LedgerTerm] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    # By lap, what experiments leave of each difference that they are about.
    left: list[dict[int, float]] = field(default_factory=list)
    # How far the experiments' own intervals reach, of what was not measured in the laps.
    reaches: list[tuple[float, float]] = field(default_factory=list)

    def climb(self, experiments: Sequence[Experiment]) -> None:
        """Make the terms; their seconds are differences of medians, which sum to the step."""
        known = [name for name in RUNGS if name in self.ladder.values]
        below = ""
        for name in known:
            own = [one for one in experiments if _place(one.rung, known) == name]
            self._difference(below, name, own)
            below = name

    def unexplained(self) -> tuple[float, float] | None:
        """Return the interval of all that is left, as shares of the step."""
        if not self.left or not self.terms:
            return None
        shared = set.intersection(*(set(one) for one in self.left))
        sums = {lap: sum(one[lap] for one in self.left) for lap in shared}
        point = sum(one.seconds for one in self.terms if one.kind == "unexplained")
        found = self._around(point, sums.values(), self.reaches)
        step = self._median("step")
        return None if found is None else (found[0] / step, found[1] / step)

    def _median(self, name: str) -> float:
        return median(self.ladder.values[name].values())

    def _around(
        self,
        point: float,
        values: Iterable[float],
        less: Iterable[tuple[float, float]] = (),
    ) -> tuple[float, float] | None:
        """Return the interval of values' median, extended to a point outside of it.

        Args:
            point: the median that is stated.
            values: by lap.
            less: how far the intervals of what was subtracted reach below and above their medians,
                where it was not measured in the laps: independent errors, so that squares add up.
        """
        found = median_interval(values, self.confidence)
        if found is None:
            return None
        down = math.hypot(max(0.0, point - found.low), *(above for _, above in less))
        up = math.hypot(max(0.0, found.high - point), *(below for below, _ in less))
        return point - down, point + up

    def _difference(self, below: str, above: str, own: Sequence[Experiment]) -> None:
        seconds, by_lap = self._median(above), self.ladder.values[above]
        between: tuple[str, ...] = (above,)
        if below:
            seconds -= self._median(below)
            by_lap = self.ladder.between(below, above)
            between = (below, above)
        name = _title(below, above)
        kind = "limit" if name == "limit" else "difference"
        rest, left = seconds, dict(by_lap)
        for one in own:
            part = median(one.seconds.values())
            rest -= part
            left = {lap: s - e for lap, s in left.items() if (e := one.within(lap)) is not None}
            ends = self._around(part, one.seconds.values())
            self._add(one.term, "experiment", part, ends, between, one.how, one.detail)
        reaches = [one.reach(self.confidence) for one in own]
        ends = self._around(rest, left.values(), reaches)
        causes = [one.term for one in own]
        less = f"{name}, less {', '.join(causes)}" if own else name
        # Of what is computed together the layers one by one are no lower bound.
        joined = self.fused and below in _ALONE and above not in _ALONE
        if joined and ends is not None and ends[1] < 0:
            bound = _fusible(self.ladder, left)
            most = median(bound.values())
            beyond = {lap: seconds + bound[lap] for lap, seconds in left.items()}
            found = self._around(rest + most, beyond.values(), reaches)
            over = found is not None and found[1] < 0
            how = f"{less}: layers computed together against the same one by one"
            if not over:
                self._add(f"fused, {name}", "fused", rest, ends, between, how)
                return
            how += ", as much as layers take that are neither products nor convolutions"
            ends = self._around(-most, [-one for one in bound.values()])
            self._add(f"fused, {name}", "fused", -most, ends, between, how)
            rest, left, ends = rest + most, beyond, found
            causes.append("layers computed together")
        elif not own:
            self._add(name, kind, seconds, ends, between, "")
            return
        self.left.append(left)
        self.reaches += reaches
        how = f"{less}: no experiment explains it"
        self._add(f"unexplained, {name}", "unexplained", rest, ends, between, how)
        if ends is not None and ends[1] < 0:
            scale = Scale.fit(self._median("step"))
            self.contradictions.append(
                f"{' and '.join(causes)} explain more than there is in {name}: "
                f"{scale.signed(rest)} is left (95 % {scale.signed(ends[0])} .. "
                f"{scale.signed(ends[1])})"
            )

    def _add(
        self,
        term: str,
        kind: str,
        seconds: float,
        ends: tuple[float, float] | None,
        between: tuple[str, ...],
        how: str,
        detail: str = "",
    ) -> None:
        above = between[-1]
        if kind == "limit" or not how:
            upper = self.hows.get(above, _name(above))
            how = upper if len(between) == 1 else f"{upper}, minus {_name(between[0])}, lap by lap"
        self.terms.append(
            LedgerTerm(
                term=term,
                kind=kind,
                seconds=seconds,
                ci_low=ends[0] if ends else None,
                ci_high=ends[1] if ends else None,
                share=seconds / self._median("step"),
                how=how,
                between=between,
                detail=detail or (self.details.get(above, "") if kind != "experiment" else ""),
            )
        )


def _place(rung: str, known: Sequence[str]) -> str:
    """Return the first known rung from one on; the step is always known."""
    return next(name for name in RUNGS[RUNGS.index(rung) :] if name in known)


def _title(below: str, above: str) -> str:
    """Return what the difference between two rungs is called."""
    if not below:
        return "limit" if above == "limit" else f"up to {_name(above)}"
    if RUNGS.index(above) - RUNGS.index(below) == 1:
        return _BETWEEN[above]
    return _WIDER.get((below, above)) or f"{_name(below)} to {_name(above)}"


def _name(rung: str) -> str:
    return _NAMES.get(rung, rung)


def _bounds(interval: Interval, scale: Scale) -> str:
    return f"{scale.signed(interval.low)} .. {scale.signed(interval.high)}"


# -----------------------------------------------------------------------------
# What cannot all be right.

# Whatever stands first cannot take longer than what stands second.
_ORDER: Final = (
    ("limit", "native_hot", "a native row is faster than its limit"),
    ("limit", "native_chain", "the native chain is faster than the limit"),
    ("limit", "step", "the step is faster than the limit of its layers"),
    ("native_chain", "step", "the library's kernels in a row take longer than the step"),
    ("native_hot", "step", "the native layers alone, caches hot, take longer than the step"),
    ("operator_chain", "step", "the same calls without modules and autograd take longer"),
)


# Those that are measured layer by layer: what computes several at once may be below them; as much
# of :data:`_ORDER`. The native chain has to lie between the native sums all the same.
_ALONE: Final = ("limit", "native", "native_chain")
_LAYERS_ALONE: Final = (("limit", "step"), ("native_chain", "step"), ("native_hot", "step"))


def _fusible(ladder: Ladder, laps: Iterable[int]) -> dict[int, float]:
    """Return what computing layers together saves at the most in these laps; 0 if unknown."""
    known = ladder.values.get(_FUSIBLE, {})
    return {lap: known.get(lap, 0.0) for lap in laps}


def _saved(ladder: Ladder, lower: str, upper: str, confidence: float) -> str:
    """Return how far a step lies below its layers one by one.

    Empty where it does not, or is farther below than computing them together explains.
    """
    between = ladder.between(lower, upper)
    found = median_interval(between.values(), confidence)
    if found is None or found.high >= 0:
        return ""
    bound = _fusible(ladder, between)
    beyond = median_interval([s + bound[lap] for lap, s in between.items()], confidence)
    if beyond is not None and beyond.high < 0:
        return ""
    what = "their limit" if lower == "limit" else f"the {_name(lower).replace('_', ' ')}"
    return (
        "fused step: layers computed together take less than one by one, "
        f"the step against {what}: {_both(ladder, upper, lower, found)}"
    )


def _impossible(
    ladder: Ladder,
    outside_s: float | None,
    calling_s: float,
    confidence: float,
    fused: Collection[tuple[str, str]],
) -> list[str]:
    """Return which rungs contradict each other beyond the interval of their difference.

    Args:
        ladder: the rungs.
        outside_s: see :func:`conclude`.
        calling_s: likewise.
        confidence: likewise.
        fused: pairs in which the upper rung takes less, as it computes layers together.
    """
    said = []
    for lower, upper, words in _ORDER:
        if (lower, upper) in fused:
            continue
        found = median_interval(ladder.between(lower, upper).values(), confidence)
        allowed = calling_s if lower == "operator_chain" else 0.0
        if found is not None and found.high < -allowed:
            said.append(f"{words}: {_both(ladder, upper, lower, found)}")
    below = median_interval(ladder.between("native_hot", "native_chain").values(), confidence)
    above = median_interval(ladder.between("native_cold", "native_chain").values(), confidence)
    if below is not None and below.high < 0:
        said.append(
            "the native chain lies below the native sum with hot caches: "
            + _both(ladder, "native_chain", "native_hot", below)
        )
    if above is not None and above.low > (outside_s or 0.0):
        but = ""
        if outside_s is None:
            but = "; reorders and packing, which only the chain has, were not timed"
        elif outside_s:
            but = f", {Scale.fit(outside_s).text(outside_s)} of reorders and packing allowed for"
        said.append(
            "the native chain lies above the native sum with cold caches"
            f"{but}: {_both(ladder, 'native_chain', 'native_cold', above)}"
        )
    return said


def _both(ladder: Ladder, first: str, second: str, difference: Interval) -> str:
    one, other = (median(ladder.values[name].values()) for name in (first, second))
    scale = Scale.fit(max(one, other))
    return f"{scale.text(one)} against {scale.text(other)} (95 % {_bounds(difference, scale)})"
