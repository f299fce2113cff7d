"""The native rows of a step, summed by what they stand for: the ladder's lower rungs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pydlbench.ladder.estimate import ZERO, Range, plan
from pydlbench.ladder.operators import LAYERS
from pydlbench.models.work import LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pydlbench.ladder.estimate import Plan
    from pydlbench.models.graph import Model
    from pydlbench.models.work import Work
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.session import Session

__all__ = [
    "NativeSum",
    "Place",
    "Rungs",
    "measure_native",
    "native_sum",
    "roof_s",
    "rungs_by_place",
    "theoretical_s",
]


class Place(NamedTuple):
    """Where a native row belongs in a step.

    Attributes:
        part: ``node``, ``sum`` (of gradients, at a node), ``loss`` (with the L2 terms) or
            ``optimizer``.
        node: whose work it is.
    """

    part: str
    node: str

    @classmethod
    def of(cls, work: Work) -> Place:
        """Return the place of a piece of a step's work."""
        last = (work.layer.name or "").rpartition("/")[2]
        if work.node == LOSS or last == "l2":
            return cls("loss", work.node)
        return cls({"update": "optimizer", "gradient-sum": "sum"}.get(last, "node"), work.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rungs:
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

    def __add__(self, other: Rungs) -> Rungs:
        known = [one for one in (self.theoretical_s, other.theoretical_s) if one is not None]
        return Rungs(
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


def rungs_by_place(
    rows: Iterable[tuple[Work, Measurement, Measurement]],
) -> dict[Place, Rungs]:
    """Sum native rows by their place in the step.

    Args:
        rows: a piece of work, its row with hot caches, which has a time, and the one with cold
            caches; where that has none, the hot one stands for both.
    """
    found: dict[Place, Rungs] = {}
    for work, hot, cold in rows:
        assert hot.time is not None, "rows without a time are in no sum"
        cold_time = cold.time if cold.ok and cold.time is not None else hot.time
        time = Range(hot=hot.time.median, cold=cold_time.median)
        own = Rungs(
            theoretical_s=theoretical_s(hot),
            roof_s=time.middle if hot.roofline is None else hot.roofline.time_s,
            time=time,
        )
        place = Place.of(work)
        found[place] = found.get(place, Rungs()) + own
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

    def roof_of_nodes(self) -> float:
        """Return the roof of all nodes together."""
        return sum(self.roofs.values())

    def of_nodes(self) -> float:
        """Return the seconds of all nodes, and of the sums of gradients."""
        return sum(self.by_node.values()) + sum(self.sums.values())

    def of_layers(self, model: Model) -> float:
        """Return the seconds of convolutions, products and poolings."""
        return sum(s for name, s in self.by_node.items() if model[name].op in LAYERS)

    def of_pointwise(self, model: Model) -> float:
        """Return the seconds of all other nodes, and of the sums of gradients."""
        return self.of_nodes() - self.of_layers(model)


def measure_native(
    model: Model,
    phase: str,
    precision: str,
    session: Session,
    progress: Callable[[float, int, str], None] | None = None,
) -> NativeSum:
    """Measure each distinct layer of a step natively, with hot and with cold caches, and sum up.

    Args:
        model: with its batch.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        session: measures.
        progress: called with rows done, rows in all and the next row's label.
    """
    wanted = plan(model, phase, precision, "cpu", session.cache_bytes("cpu"))
    rows = dict(session.measure(wanted.cases, progress))
    return native_sum(wanted, rows)


def native_sum(wanted: Plan, rows: Mapping[KernelSpec, Measurement]) -> NativeSum:
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
        missing.append(f"{term.work.layer.name} {term.work.pass_}: {row.reason or row.status}")
        place = Place.of(term.work)
        incomplete.add(place.part if place.part in ("loss", "optimizer") else place.node)
    found = rungs_by_place(timed)
    total = sum(found.values(), Rungs())

    def seconds(part: str) -> dict[str, float]:
        return {place.node: one.time.middle for place, one in found.items() if place.part == part}

    roofs: dict[str, float] = {}
    for place, one in found.items():
        if place.part in ("node", "sum"):
            roofs[place.node] = roofs.get(place.node, 0.0) + one.roof_s
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
