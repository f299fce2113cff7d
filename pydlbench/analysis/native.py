"""Sums of the native rows of a step by node, loss and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pydlbench.analysis.estimate import range_of
from pydlbench.grouping import summed
from pydlbench.models.passes import LOSS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.analysis.estimate import EstimateKernels
    from pydlbench.models.graph import Model
    from pydlbench.models.passes import StepPass
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec

#: Ops of the nodes of a graph that libraries compute; all others are pointwise.
_LAYERS: Final = ("conv", "deconv", "linear", "pool")


class Owner(NamedTuple):
    """The part of a step that a native row belongs to.

    Attributes:
        part: ``node``, ``sum`` (of gradients, at a node), ``loss`` (with the L2 terms) or
            ``optimizer``.
        node: the node.
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
        seconds: by owner; only rows with a time.
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
        own = sum(seconds for name, seconds in nodes if model[name].op not in _LAYERS)
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
        seconds=summed((owner_of(term.step_pass), range_of(term, rows).middle) for term in timed),
        incomplete=frozenset(
            owner.part if owner.part in ("loss", "optimizer") else owner.node for owner in lacking
        ),
    )
