"""What is known of a step before anything is tried."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.backends.case import Case

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.compose import Estimate, Plan
    from pydlbench.crosscheck import CheckRecord, LedgerTerm, NativeSum, PieceRow
    from pydlbench.endtoend import StepCase, StepRecord
    from pydlbench.models.graph import Model
    from pydlbench.models.work import Work
    from pydlbench.results import Measurement

__all__ = ["Excess", "Observations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What the framework needs for a node more than the native library does.

    Attributes:
        node: its name; of several that are alike, the first.
        seconds: in a step, all of those that are alike together.
        own_s: what the framework needs; None where only the native library was measured.
        native_s: what the native library needs.
        count: how many are alike.
    """

    node: str
    seconds: float
    own_s: float | None
    native_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What is known of a step. Seconds.

    Attributes:
        case: the step, its batch filled in.
        model: its graph.
        step: the step as it was timed.
        plan: its work.
        rows: the native rows of the plan's cases.
        estimate: their sum, by layer.
        native: their sum, by what they stand for.
        check: the cross-check's record, where one was made.
        reorder_s: layouts converted in the step by the library's own log; None without a log.
        reorder_how: which log.
        dispatch_s: of one operator; None if unknown.
        beside_s: the step's median beside the first change of it that was tried; None before.
    """

    case: StepCase
    model: Model
    step: StepRecord
    plan: Plan
    rows: Mapping[Case, Measurement]
    estimate: Estimate
    native: NativeSum
    check: CheckRecord | None = None
    reorder_s: float | None = None
    reorder_how: str = ""
    dispatch_s: float | None = None
    beside_s: float | None = None

    @property
    def step_s(self) -> float:
        """The step's median; one that was measured later where other work has disturbed it."""
        assert self.step.time is not None
        if self.step.contended:
            if self.check is not None:
                return self.check.measured.median
            if self.beside_s is not None:
                return self.beside_s
        return self.step.time.median

    def term(self, name: str) -> LedgerTerm | None:
        """Return a term of the cross-check's ledger."""
        terms = () if self.check is None else self.check.ledger
        return next((one for one in terms if one.term == name), None)

    def pieces(self, kind: str) -> list[PieceRow]:
        """Return the cross-check's parts of a kind; none without one."""
        return [] if self.check is None else [one for one in self.check.pieces if one.kind == kind]

    def own_s(self, node: str) -> float:
        """Return what a node costs in the step: in the framework, as far as that is known."""
        for kind in ("layer", "pointwise"):
            for piece in self.pieces(kind):
                if node in piece.nodes and len(piece.nodes) == 1:
                    return piece.seconds
        return self.native.by_node.get(node, 0.0)

    def excesses(self, kind: str) -> list[Excess]:
        """Return where the framework needs more than the native library, the largest first.

        Without a cross-check all nodes are possible, and what they need natively stands for it.

        Args:
            kind: ``layer`` or ``pointwise``.
        """
        if self.check is None:
            return sorted(self._suspects(kind), key=lambda one: -one.seconds)
        found = [
            Excess(
                node=piece.nodes[0],
                seconds=piece.count * (piece.seconds - piece.native_s),
                own_s=piece.seconds,
                native_s=piece.native_s,
                count=piece.count,
            )
            for piece in self.pieces(kind)
            if piece.native_s is not None and len(piece.nodes) == 1
        ]
        return sorted(found, key=lambda one: -one.seconds)

    def works(self, node: str) -> list[Work]:
        """Return the passes of a node's own layer: without its bias, its L2 term, its update."""
        layer = self.model[node].layer
        name = None if layer is None else layer.name
        found = [one.work for one in self.plan.terms if one.work.layer.name == name]
        return [one for one in found if one.node == node]

    def framework_case(self, work: Work) -> Case:
        """Return a piece of the step's work as the framework runs it alone."""
        return Case(
            layer=work.layer,
            pass_=work.pass_,
            precision=self.case.precision,
            propagation=work.propagation,
            backend=self.case.framework,
            mode=self.case.mode,
            device=self.case.device,
        )

    def native_s(self, work: Work) -> float:
        """Return what a piece of work needs natively, with hot caches; 0 where it is unknown."""
        for term in self.plan.terms:
            if term.work == work:
                row = self.rows[term.hot]
                return row.time.median if row.ok and row.time else 0.0
        return 0.0

    def changed(self, **changes: object) -> StepCase:
        """Return the step's case with other fields."""
        return dataclasses.replace(self.case, **changes)  # type: ignore[arg-type]  # by their names

    def _suspects(self, kind: str) -> list[Excess]:
        pointwise = kind == "pointwise"
        found: dict[object, Excess] = {}
        for name, seconds in self.native.by_node.items():
            layer = self.model[name].layer
            if layer is None or (layer.kind == "pointwise") != pointwise:
                continue
            alike = dataclasses.replace(layer, name=None)
            first = found.get(alike)
            count = 1 if first is None else first.count + 1
            found[alike] = Excess(
                node=name if first is None else first.node,
                seconds=seconds * count,
                own_s=None,
                native_s=seconds,
                count=count,
            )
        return list(found.values())
