"""The native rows of a step, by what they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydlbench.ladder.estimate import Range, plan
from pydlbench.ladder.operators import LAYERS
from pydlbench.models.work import LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.ladder.estimate import Plan
    from pydlbench.models.graph import Model
    from pydlbench.models.work import Work
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.session import Session

__all__ = ["NativeSum", "measure_native", "native_sum"]

_ZERO = Range(hot=0.0, cold=0.0)


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
    """

    time: Range
    by_node: Mapping[str, float]
    sums: Mapping[str, float] = field(default_factory=dict)
    roofs: Mapping[str, float] = field(default_factory=dict)
    loss_s: float = 0.0
    optimizer_s: float = 0.0
    missing: tuple[str, ...] = ()
    incomplete: frozenset[str] = frozenset()

    def roof_s(self) -> float:
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
    progress: Callable[[int, int, str], None] | None = None,
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
    """Sum measured rows by what they stand for."""
    total, loss, optimizer = _ZERO, 0.0, 0.0
    nodes: dict[str, float] = {}
    sums: dict[str, float] = {}
    roofs: dict[str, float] = {}
    missing: list[str] = []
    incomplete: set[str] = set()
    for term in wanted.terms:
        row, cold = rows[term.hot], rows[term.cold]
        if not row.ok or row.time is None:
            missing.append(f"{term.work.layer.name} {term.work.pass_}: {row.reason or row.status}")
            part = _part(term.work)
            incomplete.add(part if part in ("loss", "optimizer") else term.work.node)
            continue
        hot_s = row.time.median
        own = Range(hot=hot_s, cold=cold.time.median if cold.ok and cold.time else hot_s)
        total += own
        part = _part(term.work)
        if part == "loss":
            loss += own.middle
        elif part == "optimizer":
            optimizer += own.middle
        else:
            into = sums if part == "sum" else nodes
            into[term.work.node] = into.get(term.work.node, 0.0) + own.middle
            roof = row.roofline.time_s if row.roofline else own.middle
            roofs[term.work.node] = roofs.get(term.work.node, 0.0) + roof
    return NativeSum(
        time=total,
        by_node=nodes,
        sums=sums,
        roofs=roofs,
        loss_s=loss,
        optimizer_s=optimizer,
        missing=tuple(dict.fromkeys(missing)),
        incomplete=frozenset(incomplete),
    )


def _part(work: Work) -> str:
    """Return which part of a step a row belongs to."""
    last = (work.layer.name or "").rpartition("/")[2]
    if work.node == LOSS or last == "l2":
        return "loss"
    return {"update": "optimizer", "gradient-sum": "sum"}.get(last, "node")
