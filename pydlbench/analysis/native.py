"""The native rows of a step, summed by what they stand for."""

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

#: What the nodes of a graph that libraries compute are called; all others are pointwise.
_LAYERS: Final = ("conv", "deconv", "linear", "pool")


class Owner(NamedTuple):
    """Where a native row belongs in a step.

    Attributes:
        part: ``node``, ``sum`` (of gradients, at a node), ``loss`` (with the L2 terms) or
            ``optimizer``.
        node: whose work it is.
    """

    part: str
    node: str


def owner_of(step_pass: StepPass) -> Owner:
    """Return where a piece of a step's work belongs."""
    last = (step_pass.layer.name or "").rpartition("/")[2]
    if step_pass.node == LOSS or last == "l2":
        return Owner("loss", step_pass.node)
    return Owner({"update": "optimizer", "gradient-sum": "sum"}.get(last, "node"), step_pass.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSum:
    """Native layers of a step, summed by what they stand for; halfway between hot and cold caches.

    Attributes:
        seconds: by owner; of rows that have a time.
        incomplete: nodes of which a row has none, or ``loss``, or ``optimizer``.
    """

    seconds: Mapping[Owner, float]
    incomplete: frozenset[str]

    @property
    def by_node(self) -> dict[str, float]:
        """Seconds by node's name, all passes; sums of gradients at it are left out."""
        return {
            owner.node: seconds for owner, seconds in self.seconds.items() if owner.part == "node"
        }

    def of_part(self, part: str) -> float:
        """Return the seconds of all owners of one kind, see :class:`Owner`."""
        return sum(seconds for owner, seconds in self.seconds.items() if owner.part == part)

    def of_pointwise(self, model: Model) -> float:
        """Return the seconds of all nodes that no library computes, and of sums of gradients."""
        nodes = self.by_node.items()
        own = sum(seconds for name, seconds in nodes if model[name].op not in _LAYERS)
        return own + self.of_part("sum")


def native_sum(wanted: EstimateKernels, rows: Mapping[KernelSpec, Measurement]) -> NativeSum:
    """Sum measured rows by what they stand for; rows without a time are in no sum.

    Args:
        wanted: the step's work.
        rows: a measurement for each of its cases.
    """
    timed = [term for term in wanted.terms if rows[term.hot].ok]
    lacking = [owner_of(term.step_pass) for term in wanted.terms if not rows[term.hot].ok]
    return NativeSum(
        seconds=summed((owner_of(term.step_pass), range_of(term, rows).middle) for term in timed),
        incomplete=frozenset(
            owner.part if owner.part in ("loss", "optimizer") else owner.node for owner in lacking
        ),
    )
