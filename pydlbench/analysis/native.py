"""The native rows of a step, summed by what they stand for: its limit and its native layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pydlbench.analysis.estimate import ZERO, Range
from pydlbench.models.passes import LOSS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydlbench.analysis.estimate import Kernels
    from pydlbench.models.graph import Model
    from pydlbench.models.passes import StepPass
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec

#: What the nodes of a graph that libraries compute are called; all others are pointwise.
_LAYERS: Final = ("conv", "deconv", "linear", "pool")

__all__ = [
    "NativeParts",
    "NativeSum",
    "Owner",
    "native_sum",
    "parts_by_owner",
    "roof_s",
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
class NativeParts:
    """What native rows say of a part of a step. Seconds.

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

    def __add__(self, other: NativeParts) -> NativeParts:
        known = [one for one in (self.theoretical_s, other.theoretical_s) if one is not None]
        return NativeParts(
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


def parts_by_owner(
    rows: Iterable[tuple[StepPass, Measurement, Measurement]],
) -> dict[Owner, NativeParts]:
    """Sum native rows by whose work they are.

    Args:
        rows: a piece of work, its row with hot caches, which has a time, and the one with cold
            caches; where that has none, the hot one stands for both.
    """
    found: dict[Owner, NativeParts] = {}
    for work, hot, cold in rows:
        assert hot.time is not None, "rows without a time are in no sum"
        cold_time = cold.time if cold.ok and cold.time is not None else hot.time
        time = Range(hot=hot.time.median, cold=cold_time.median)
        own = NativeParts(
            theoretical_s=theoretical_s(hot),
            roof_s=time.middle if hot.roofline is None else hot.roofline.time_s,
            time=time,
        )
        owner = Owner.of(work)
        found[owner] = found.get(owner, NativeParts()) + own
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
    found = parts_by_owner(timed)
    total = sum(found.values(), NativeParts())

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
