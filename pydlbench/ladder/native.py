"""The native rows of a step, visited lap by lap and summed: the ladder's lower rungs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pydlbench.errors import PydlbenchError
from pydlbench.ladder.effort import ALIKE
from pydlbench.ladder.estimate import ZERO, Range, nameless
from pydlbench.models.passes import LOSS
from pydlbench.study.loop import LEAST_ROUNDS, Study, Subject, random_order
from pydlbench.timing.chunk import Request
from pydlbench.timing.guards import seen_beside, waited_s
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.timing.statistics import median
from pydlbench.workers.host import releasing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.ladder.estimate import Kernels, Term
    from pydlbench.ladder.mapped import MappedCall
    from pydlbench.models.graph import Model
    from pydlbench.models.passes import StepPass
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.chunk import Chunk
    from pydlbench.workers.host import RemoteKernel

#: What the nodes of a graph that libraries compute are called; all others are pointwise.
_LAYERS: Final = ("conv", "deconv", "linear", "pool")

__all__ = [
    "NativeRungs",
    "NativeSum",
    "NativeVisits",
    "Owner",
    "native_parts",
    "native_sum",
    "roof_s",
    "rungs_by_owner",
    "theoretical_s",
]


class Owner(NamedTuple):
    """Where a native row belongs in a step.

    Attributes:
        part: ``node``, ``sum`` (of gradients, at a node), ``loss`` (with the L2 terms) or
            ``optimizer``.
        node: whose work it is.
    """

    part: str
    node: str

    @classmethod
    def of(cls, work: StepPass) -> Owner:
        """Return the owner of a piece of a step's work."""
        last = (work.layer.name or "").rpartition("/")[2]
        if work.node == LOSS or last == "l2":
            return cls("loss", work.node)
        return cls({"update": "optimizer", "gradient-sum": "sum"}.get(last, "node"), work.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRungs:
    """The three rungs that native rows give. Seconds.

    Attributes:
        theoretical_s: executed FLOPs over the peaks derived from the device's facts, at the clock
            it ran; None where no peak is known. Bytes are not in it: a processor does not say what
            its memory can do.
        roof_s: the rooflines of the measured peaks and bandwidths; a row without one counts as it
            is.
        time: the rows, with hot and with cold caches.
    """

    theoretical_s: float | None = None
    roof_s: float = 0.0
    time: Range = ZERO

    def __add__(self, other: NativeRungs) -> NativeRungs:
        known = [one for one in (self.theoretical_s, other.theoretical_s) if one is not None]
        return NativeRungs(
            theoretical_s=sum(known) if known else None,
            roof_s=self.roof_s + other.roof_s,
            time=self.time + other.time,
        )


def theoretical_s(row: Measurement) -> float | None:
    """Return the seconds of a row's executed FLOPs at the theoretical peak; None if unknown."""
    if not row.peak.theoretical or not row.flops_executed:
        return None
    return row.flops_executed / (row.peak.theoretical * 1e12)


def roof_s(row: Measurement) -> float | None:
    """Return the seconds of a row's measured roof, or its own without one; None without a time."""
    if row.roofline is not None:
        return row.roofline.time_s
    return None if row.time is None else row.time.median


def rungs_by_owner(
    rows: Iterable[tuple[StepPass, Measurement, Measurement]],
) -> dict[Owner, NativeRungs]:
    """Sum native rows by whose work they are.

    Args:
        rows: a piece of work, its row with hot caches, which has a time, and the one with cold
            caches; where that has none, the hot one stands for both.
    """
    found: dict[Owner, NativeRungs] = {}
    for work, hot, cold in rows:
        assert hot.time is not None, "rows without a time are in no sum"
        cold_time = cold.time if cold.ok and cold.time is not None else hot.time
        time = Range(hot=hot.time.median, cold=cold_time.median)
        own = NativeRungs(
            theoretical_s=theoretical_s(hot),
            roof_s=time.middle if hot.roofline is None else hot.roofline.time_s,
            time=time,
        )
        owner = Owner.of(work)
        found[owner] = found.get(owner, NativeRungs()) + own
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSum:
    """Native layers of a step, summed by what they stand for. Seconds.

    Attributes:
        time: all of it.
        by_node: by node's name, all passes, gradient sums at it left out.
        sums: of gradients, by node.
        roofs: of both, by node: what the roofline of the measured peaks allows; a row without one
            counts as it is.
        loss_s: the loss and the L2 terms.
        optimizer_s: the updates.
        missing: what could not be measured, with the reason.
        incomplete: the nodes that some of this belongs to, or ``loss``, or ``optimizer``.
        theoretical_s: the step at the theoretical peaks; None without one.
        roof_s: the step at its rooflines, loss and optimizer in it; None without any row.
    """

    time: Range
    by_node: Mapping[str, float]
    sums: Mapping[str, float] = field(default_factory=dict)
    roofs: Mapping[str, float] = field(default_factory=dict)
    loss_s: float = 0.0
    optimizer_s: float = 0.0
    missing: tuple[str, ...] = ()
    incomplete: frozenset[str] = frozenset()
    theoretical_s: float | None = None
    roof_s: float | None = None

    def above_roofs(self) -> dict[str, float]:
        """Return how far each node is above its roof, gradient sums at it included."""
        return {
            name: seconds + self.sums.get(name, 0.0) - self.roofs.get(name, seconds)
            for name, seconds in self.by_node.items()
        }

    def of_nodes(self) -> float:
        """Return the seconds of all nodes, and of the sums of gradients."""
        return sum(self.by_node.values()) + sum(self.sums.values())

    def of_layers(self, model: Model) -> float:
        """Return the seconds of convolutions, products and poolings."""
        return sum(s for name, s in self.by_node.items() if model[name].op in _LAYERS)

    def of_pointwise(self, model: Model) -> float:
        """Return the seconds of all other nodes, and of the sums of gradients."""
        return self.of_nodes() - self.of_layers(model)


def native_sum(wanted: Kernels, rows: Mapping[KernelSpec, Measurement]) -> NativeSum:
    """Sum measured rows by what they stand for; rows without a time are in no sum.

    Args:
        wanted: the step's work.
        rows: a measurement for each of its cases.
    """
    timed = []
    missing: list[str] = []
    incomplete: set[str] = set()
    for term in wanted.terms:
        row = rows[term.hot]
        if row.ok and row.time is not None:
            timed.append((term.work, row, rows[term.cold]))
            continue
        who = term.work.layer.name or f"{term.work.node} {term.work.layer.problem}"
        missing.append(f"{who} {term.work.pass_}: {row.reason or row.status}")
        owner = Owner.of(term.work)
        incomplete.add(owner.part if owner.part in ("loss", "optimizer") else owner.node)
    found = rungs_by_owner(timed)
    total = sum(found.values(), NativeRungs())

    def seconds(part: str) -> dict[str, float]:
        return {owner.node: one.time.middle for owner, one in found.items() if owner.part == part}

    roofs: dict[str, float] = {}
    for owner, one in found.items():
        if owner.part in ("node", "sum"):
            roofs[owner.node] = roofs.get(owner.node, 0.0) + one.roof_s
    return NativeSum(
        time=total.time,
        by_node=seconds("node"),
        sums=seconds("sum"),
        roofs=roofs,
        loss_s=sum(seconds("loss").values()),
        optimizer_s=sum(seconds("optimizer").values()),
        missing=tuple(dict.fromkeys(missing)),
        incomplete=frozenset(incomplete),
        theoretical_s=total.theoretical_s,
        roof_s=total.roof_s if found else None,
    )


def native_parts(model: Model, native: NativeSum, *, single: bool) -> dict[str, float]:
    """Return the seconds of a step's native layers by the names that its operators have.

    Of what some rows are missing of there is nothing.

    Args:
        model: the step's graph.
        native: their sums.
        single: whether operators are of one node each; groups are known by their calls only.
    """
    found = {
        node.name: native.by_node.get(node.name, 0.0) + native.sums.get(node.name, 0.0)
        for node in model.nodes
        if single and (node.layer is None or node.name in native.by_node)
    }
    found |= {LOSS: native.loss_s, "optimizer": native.optimizer_s}
    return {name: s for name, s in found.items() if name not in native.incomplete}


# -----------------------------------------------------------------------------
# The native rows as what a lap of a check visits: each kernel briefly, prepared anew.

# Of the sum: kernels that are together no more than this are visited in some laps only.
_TAIL: Final = 0.25
# Which are these, and those with cold caches that stand with their hot ones: every third. So they
# have new addresses twice in six laps, and five times in fifteen.
_EVERY: Final = 3
# Visits of a kernel with cold caches before it is known how far from hot ones it is.
_KNOWN: Final = 2
# Samples of a kernel in a visit, at least, and at most; of one as long as the policy's
# ``settle_limit_s`` or longer, which no cache remembers, a single one is enough.
_LEAST: Final = 3
_MOST: Final = 20


class _Visited(NamedTuple):
    """What a visit of a kernel saw.

    Attributes:
        seconds: of an execution; on a CPU the mean: medians of kernels with long right tails add up
            to less than their sum takes (by 1 % in ResNet-50's forward step, by 3 %
            in MobileNetV3's training step).
        clock_hz: of the core or GPU; None where nobody read it.
        share: of the canaries beside it, the lowest; None without one.
        disturbed: somebody else used the cores.
    """

    seconds: float
    clock_hz: float | None
    share: float | None = None
    disturbed: bool = False


class NativeVisits:
    """Visits the distinct native kernels of a step, in random order, and sums.

    A kernel is prepared anew in each visit, from the variant that was found to be the fastest:
    other addresses, other pages. On a CPU each lap has a process of its own, and a visit is one
    chunk of samples, as calibrating was the search's; one beside which somebody else used the cores
    is made once more at the end of the lap, and then left out: the kernel stands in the sum of that
    lap with its last time, in the first one with the search's.

    The first lap visits all of them. In later ones two kinds of kernels have their turn in every
    third lap: the smallest, which make a quarter of the sum together and stand with their last time
    in the others; and those with cold caches that are bound by their arithmetic and as fast as with
    hot ones, which stand with the hot one's time of that lap, times the ratio that the two had.

    Args:
        wanted: the step's work.
        rows: of its cases; those that have no time are in no sum.
        session: whose workers are used.
        laps: how many visits share the budget of a row.
    """

    def __init__(
        self, wanted: Kernels, rows: Mapping[KernelSpec, Measurement], session: Session, laps: int
    ) -> None:
        options = session.options
        visits = max(2, laps)
        self._policy = Policy(
            confidence=options.confidence, budget_s=options.budget_s, visits=visits
        )
        self._session = session
        self._order = random_order(options.seed)
        self._rows = rows
        self._wanted = wanted
        self._terms = [one for one in wanted.terms if _timed(rows[one.hot])]
        self._convolved = [one for one in self._terms if one.work.layer.op == "conv"]
        every = dict.fromkeys(case for one in self._terms for case in (one.hot, one.cold))
        self._cases = [case for case in every if _timed(rows[case])]
        self._hot = {one.cold: one.hot for one in self._terms if one.cold != one.hot}
        self._lap = 0
        # Of undisturbed visits.
        self._seconds: dict[KernelSpec, list[float]] = {case: [] for case in self._cases}
        # What stands for each in the sums of this lap.
        self._now = {case: _median(rows[case]) for case in self._cases}
        self._reorders: dict[KernelSpec, Mapping[str, float]] = {}
        # Why visits failed, by kernel.
        self._failed: dict[KernelSpec, list[str]] = {}
        self._nameless = {nameless(case): case for case in self._cases}
        #: Recorded calls whose native layers have a sum of their own, by its name.
        self.groups: Mapping[str, Sequence[MappedCall]] = {}
        #: Core clock beside the kernels of the last visit; None where nobody read it.
        self.clock_hz: float | None = None
        #: Canary beside them, each with the weight that it has in the sum; None without one.
        self.share: float | None = None

    @property
    def kernels(self) -> int:
        """How many distinct kernels there are."""
        return len(self._seconds)

    @property
    def convolutions(self) -> int:
        """How many convolutions there are in the sums."""
        return len(self._convolved)

    def __call__(self) -> dict[str, float]:
        """Visit the kernels whose turn it is, and return the sums of this lap.

        ``native_hot``, ``native_cold`` and their middle, ``native``; of that ``native_fusible``,
        all that is neither a product nor a convolution, ``native_convolutions``, and those of
        :attr:`groups`; and the ``limit``.
        """
        if not any(case.on_gpu for case in self._cases):  # its libraries take seconds to start
            self._session.worker("native", "cpu").close(kill=True)
        due = self._due()
        seen = self._visit_all(due)
        again = [case for case, one in seen.items() if one.disturbed]
        seen |= self._visit_all(again)
        for case, one in seen.items():
            if not one.disturbed:
                self._seconds[case].append(one.seconds)
                self._now[case] = one.seconds
        for case, hot in self._hot.items():
            if case in self._now and case not in seen and (ratio := self._ratio(case)) is not None:
                self._now[case] = ratio * self._now[hot]
        self._lap += 1
        clocks = [one.clock_hz for one in seen.values() if one.clock_hz is not None]
        self.clock_hz = median(clocks) if clocks else None
        self.share = self._shared(seen)
        hot_s, cold_s = self._sums(self._terms)
        fusible = [one for one in self._terms if not one.work.layer.multiply_adds]
        convolved = {"native_convolutions": sum(self._sums(self._convolved)) / 2}
        return {
            "limit": sum(self._limit(one.hot) for one in self._terms),
            "native": (hot_s + cold_s) / 2,
            "native_hot": hot_s,
            "native_cold": cold_s,
            "native_fusible": sum(self._sums(fusible)) / 2,
            **(convolved if self._convolved else {}),
            **{f"native_{name}": self._of_calls(some) for name, some in self.groups.items()},
        }

    def covers(self, call: MappedCall) -> bool:
        """Whether each native layer that stands for a call has a time; a view needs none."""
        known = self._nameless
        if call.lacks or not call.terms:
            return call.work.kind == "view"
        return all(nameless(one.hot) in known for one in call.terms)

    def _of_calls(self, calls: Iterable[MappedCall]) -> float:
        """Return the seconds of this lap of calls' native layers, caches halfway to cold ones."""
        total = 0.0
        for call in calls:
            for term in call.terms:
                hot = self._now[self._nameless[nameless(term.hot)]]
                cold_case = self._nameless.get(nameless(term.cold))
                cold = hot if cold_case is None else self._now[cold_case]
                total += call.count * (hot + cold) / 2
        return total

    def _due(self) -> list[KernelSpec]:
        """Return the kernels whose turn it is in this lap."""
        if self._lap == 0:
            return list(self._cases)
        weight = self._weights()
        left = _TAIL * sum(weight.values())
        rarely = {case for case in self._cases if self._ratio(case) is not None}
        for case in sorted(weight, key=lambda one: weight[one]):
            left -= weight[case]
            if left < 0:
                break
            rarely.add(case)
        turn = self._lap % _EVERY
        return [
            case
            for number, case in enumerate(self._cases)
            if case not in rarely or number % _EVERY == turn
        ]

    def _weights(self) -> dict[KernelSpec, float]:
        """Return the seconds that each kernel has in the sum, hot and cold ones together."""
        weight = dict.fromkeys(self._cases, 0.0)
        for one in self._terms:
            weight[one.hot] += self._now[one.hot]
            if one.cold in weight:
                weight[one.cold] += self._now[one.cold]
        return weight

    def _ratio(self, case: KernelSpec) -> float | None:
        """Return a kernel's time with cold caches over that with hot ones, if they are alike."""
        hot = self._hot.get(case)
        if hot is None or case not in self._seconds:
            return None
        cold_s, hot_s = self._seconds[case], self._seconds[hot]
        roofline = self._rows[hot].roofline
        if (
            roofline is None
            or roofline.bound != "compute"
            or min(map(len, (cold_s, hot_s))) < _KNOWN
        ):
            return None
        ratio = median(cold_s) / median(hot_s)
        return ratio if abs(ratio - 1) <= ALIKE else None

    def _shared(self, seen: Mapping[KernelSpec, _Visited]) -> float | None:
        """Return the canaries' mean, weighted as the kernels are in the sum."""
        weight = self._weights()
        known = [(weight[case], one.share) for case, one in seen.items() if one.share is not None]
        whole = sum(seconds for seconds, _ in known)
        return sum(seconds * share for seconds, share in known) / whole if whole else None

    def sums(self) -> NativeSum:
        """Return the rows' sums by what they stand for, each kernel's median over the laps."""
        return native_sum(self._wanted, self.measured())

    def measured(self) -> dict[KernelSpec, Measurement]:
        """Return the rows with the median over the laps of each kernel that was visited."""
        found = dict(self._rows)
        for case, seconds in self._seconds.items():
            row = found[case]
            if seconds and row.time is not None:
                time = msgspec.structs.replace(row.time, median=median(seconds))
                found[case] = msgspec.structs.replace(row, time=time)
        return found

    def reorders(self, *roles: str) -> float:
        """Return the seconds of bringing operands of these roles into the kernels' layouts.

        It is no part of the sums: a step that keeps its tensors in these layouts needs none of it,
        but one that trains has to pack its weights anew.

        Args:
            roles: ``source``, ``weights``...; none is all.
        """
        return sum(
            seconds
            for one in self._terms
            for role, seconds in self._reorders.get(one.hot, {}).items()
            if not roles or role in roles
        )

    def _sums(self, terms: Sequence[Term]) -> tuple[float, float]:
        """Return the seconds of this lap with hot and with cold caches."""
        hot = sum(self._now[one.hot] for one in terms)
        return hot, sum(self._now.get(one.cold, self._now[one.hot]) for one in terms)

    def _visit_all(self, cases: Sequence[KernelSpec]) -> dict[KernelSpec, _Visited]:
        """Visit kernels in random order, those of one problem in a row: they share their inputs."""
        problems: dict[KernelSpec, list[KernelSpec]] = {}
        for case in cases:
            problems.setdefault(self._hot.get(case, case), []).append(case)
        groups = list(problems.values())
        self._order.shuffle(groups)
        for one in groups:
            self._order.shuffle(one)
        found = ((case, self._visit(case)) for one in groups for case in one)
        return {case: visited for case, visited in found if visited is not None}

    def _visit(self, case: KernelSpec) -> _Visited | None:
        """Visit a kernel; None where that failed."""
        row = self._rows[case]
        variant = f"{row.algorithm} {row.layout}" if row.algorithm else None
        try:
            kernel = self._session.prepare(case, variant=variant)
            with releasing([kernel]):
                visited = (self._sampled if case.on_gpu else self._chunk)(case, kernel)
        except PydlbenchError as error:
            self._failed.setdefault(case, []).append(" ".join(str(error).split()))
            return None
        self._reorders.setdefault(case, kernel.facts.reorder_s)
        return visited

    def _chunk(self, case: KernelSpec, kernel: RemoteKernel[KernelFacts]) -> _Visited:
        """Take a chunk of samples, as long as the time that is known of the kernel asks for."""
        policy, once_s = self._policy, max(self._now[case], 1e-9)
        inner = 1
        if once_s < policy.min_sample_s:  # a fifth more, as it may be faster this time
            inner = math.ceil(1.2 * policy.min_sample_s / once_s)
        long = once_s >= policy.settle_limit_s
        samples = min(_MOST, max(1 if long else _LEAST, round(policy.chunk_s / (once_s * inner))))
        untimed = 0 if long else min(10_000, math.ceil(policy.settle_s / once_s))
        chunk = kernel.sample(Request(samples=samples, inner=inner, untimed=untimed))
        return _Visited(
            seconds=sum(chunk.seconds) / len(chunk.seconds),
            clock_hz=median(chunk.clock_hz) if chunk.clock_hz else None,
            share=min(chunk.canary, default=None),
            disturbed=_disturbed(chunk, policy),
        )

    def _sampled(self, case: KernelSpec, kernel: RemoteKernel[KernelFacts]) -> _Visited:
        """Take the rounds of a GPU's kernel that make an interval."""
        policy = gpu_policy(self._policy, kernel.facts.timing, case.cache)
        study = Study(self._order)
        subject = Subject(key=0, sample=kernel.sample, policy=policy)
        for error in study.take([subject], rounds=LEAST_ROUNDS).values():
            raise error
        series = study.table.of(0)
        return _Visited(series.median, series.clock_hz)

    def notes(self) -> list[str]:
        """Return which kernels failed or were disturbed, and what stands in the sums for them."""
        never = [case for case, one in self._seconds.items() if self._lap and not one]
        alone = [case for case in never if case not in self._failed]
        said = []
        if alone:
            said.append(
                f"native: somebody else used the cores beside all visits of {len(alone)} of "
                f"{self.kernels} kernels: the search's times stand for {alone[0].label} and others"
            )
        for case, why in self._failed.items():
            made = len(self._seconds[case])
            stands = f"{made} made its time, and the last one stands in the sums of those laps"
            if not made:
                stands = "none made its time, and the search's stands in all sums"
            said.append(f"native {case.label}: {len(why)} visits failed, {stands}: {why[-1]}")
        return said

    def _limit(self, case: KernelSpec) -> float:
        """Return what the roofline allows at the clock of this lap; a row without one as it is."""
        row = self._rows[case]
        if row.roofline is None:
            return self._now[case]
        if row.roofline.bound != "compute" or not row.clock_hz or not self.clock_hz:
            return row.roofline.time_s
        return row.roofline.time_s * row.clock_hz / self.clock_hz


def _disturbed(chunk: Chunk, policy: Policy) -> bool:
    fma = min(chunk.canary, default=None)
    words = seen_beside(
        disturbance=chunk.disturbance,
        fma=fma,
        wait_s=waited_s(chunk),
        steal_s=chunk.steal_s,
        wall_s=chunk.wall_s,
        policy=policy,
    )
    return words is not None


def _timed(row: Measurement) -> bool:
    return row.ok and row.time is not None


def _median(row: Measurement) -> float:
    assert row.time is not None, "rows without a time are in no sum"
    return row.time.median
