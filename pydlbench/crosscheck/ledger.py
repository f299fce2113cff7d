"""The terms between the hardware's roof and a measured step, each from an experiment of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.crosscheck.record import UNEXPLAINED, LedgerTerm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.crosscheck.native import NativeSum
    from pydlbench.crosscheck.pieces import Piece
    from pydlbench.models.graph import Model

__all__ = ["Evidence", "ledger", "native_of"]

# How many layers a term's detail names, and the share of the step below which none is worth it.
_NAMED = 2
_WORTH = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured to explain a step. Seconds.

    Attributes:
        measured_s: the step.
        times: by part, one execution with kept pages.
        native: the native rows.
        allocation_s: the step minus the same with kept pages, in the same rounds.
        allocation_how: with the faults counted.
        dispatch_s: of one operator.
        start_s: of starting a step's call.
        operators: how many a part is made of; those that are not named are single.
        reorder_s: layouts converted in the step by the library's own log; None without a log.
        reorder_how: which log.
        singles: the nodes of joined parts one by one, where these were run besides.
        host_s: the step minus the same with its images lying there, both with kept pages, in the
            same rounds; None where they lie there anyhow. A CPU's memory is the host's: there is
            nothing to transfer then, and no such term.
    """

    measured_s: float
    times: Mapping[str, float]
    native: NativeSum
    allocation_s: float
    allocation_how: str
    dispatch_s: float
    operators: Mapping[str, int]
    start_s: float = 0.0
    reorder_s: float | None = None
    reorder_how: str = ""
    singles: Sequence[Piece] = ()
    host_s: float | None = None


def ledger(model: Model, found: Sequence[Piece], seen: Evidence) -> tuple[LedgerTerm, ...]:
    """Return the terms; their seconds sum to the measured step.

    Args:
        model: the graph.
        found: the parts.
        seen: what was measured.
    """
    native = seen.native
    apart = _apart(found, seen)
    layers = _native_of_layers(apart, native)
    other = native.of_nodes() - layers
    made = _Terms(seen.measured_s)
    made.add("layers at their roof", native.roof_s(), "rooflines of the native rows, summed")
    made.add(
        "above the roof, native",
        layers + other - native.roof_s(),
        "native rows, between hot and cold caches, minus their rooflines",
        _standing_out(native, seen.measured_s),
    )
    dispatch = sum(
        one.count * seen.dispatch_s * seen.operators.get(one.name, 1)
        for one in apart
        if one.kind in ("layer", "pointwise")
    )
    own = _by_kind(apart, seen)
    reorders = seen.reorder_s or 0.0
    joined = any(len(one.nodes) > 1 for one in apart)
    also = ", each with what a compiler joins to it," if joined else ""
    made.add(
        "operator choice",
        own["layer"] - layers - reorders,
        f"the framework's convolutions, products and poolings{also} alone, pages kept, dispatch "
        "and logged reorders taken off, minus the native rows of the same nodes and passes",
        _choices(model, apart, seen),
    )
    if seen.reorder_s is not None:
        made.add("layout reorders", reorders, seen.reorder_how)
    made.add(
        "pointwise",
        own["pointwise"] - other,
        "the framework's other nodes and sums of gradients alone, pages kept, dispatch taken off, "
        "minus the native rows of the same nodes and passes",
    )
    made.add("allocation, first touch", seen.allocation_s, seen.allocation_how)
    made.add(
        "dispatch",
        dispatch + seen.start_s,
        _dispatch_how(seen),
    )
    if seen.singles:
        saved = _total(found, seen) - _total(apart, seen)
        made.add("fusion", saved, "joined nodes minus the same nodes one by one, both alone")
    for kind in ("loss", "optimizer"):
        if any(one.kind == kind for one in found):
            made.add(kind, own[kind], f"the framework's {kind} alone, pages kept")
    if seen.host_s is not None:
        made.add(
            "host transfer",
            seen.host_s,
            "the step fed from the host minus the same with its images lying there, both with "
            "kept pages, round by round",
        )
    return made.closed()


def native_of(model: Model, piece: Piece, native: NativeSum) -> float | None:
    """Return what the native library needs for a part's first occurrence; None if unknown."""
    if piece.kind in native.incomplete or piece.kind == "feed":
        return None
    if piece.kind == "loss":
        return native.loss_s
    if piece.kind == "optimizer":
        return native.optimizer_s
    if piece.kind == "gradient sum":
        names = {name for (name,) in piece.occurrences}
        if not native.incomplete.isdisjoint(names):
            return None
        return sum(native.sums.get(name, 0.0) for name in names) / piece.count
    if not native.incomplete.isdisjoint(piece.nodes):
        return None
    known = [native.by_node[name] for name in piece.nodes if name in native.by_node]
    needed = [name for name in piece.nodes if model[name].layer is not None]
    return sum(known) if known or not needed else None


def _native_of_layers(found: Sequence[Piece], native: NativeSum) -> float:
    """Return the native seconds of all nodes that are in a part of the kind ``layer``."""
    groups = [nodes for one in found if one.kind == "layer" for nodes in one.occurrences]
    return sum(native.by_node.get(name, 0.0) for nodes in groups for name in nodes)


def _dispatch_how(seen: Evidence) -> str:
    call = f"{seen.start_s * 1e6:.1f} us of an empty call"
    if not seen.dispatch_s:
        return f"{call}; operators are not started one by one, or in no time"
    each = f"{seen.dispatch_s * 1e6:.1f} us per operator that computes nothing"
    return f"{each}, times their number, and {call}"


class _Terms:
    def __init__(self, measured_s: float) -> None:
        self._measured = measured_s
        self._terms: list[LedgerTerm] = []

    def add(self, term: str, seconds: float, how: str, detail: str = "") -> None:
        share = seconds / self._measured
        self._terms.append(
            LedgerTerm(term=term, seconds=seconds, share=share, how=how, detail=detail)
        )

    def closed(self) -> tuple[LedgerTerm, ...]:
        """Return the terms with the one that is a difference."""
        rest = self._measured - sum(one.seconds for one in self._terms)
        self.add(UNEXPLAINED, rest, "the measured step minus all other terms")
        return tuple(self._terms)


def _apart(found: Sequence[Piece], seen: Evidence) -> list[Piece]:
    """Return the parts, those that are joined by their nodes one by one where these were run."""
    if not seen.singles:
        return list(found)
    return [one for one in found if len(one.nodes) < 2] + list(seen.singles)


def _total(found: Sequence[Piece], seen: Evidence) -> float:
    return sum(one.count * seen.times[one.name] for one in found)


def _by_kind(found: Sequence[Piece], seen: Evidence) -> dict[str, float]:
    """Return the parts' seconds, gradient sums with the pointwise; dispatch taken off of nodes."""
    total = dict.fromkeys(("layer", "pointwise", "loss", "optimizer", "feed"), 0.0)
    for one in found:
        seconds = seen.times[one.name]
        if one.kind in ("layer", "pointwise"):
            seconds -= seen.dispatch_s * seen.operators.get(one.name, 1)
        kind = "pointwise" if one.kind == "gradient sum" else one.kind
        total[kind] += one.count * seconds
    return total


def _standing_out(native: NativeSum, measured_s: float) -> str:
    """Name the nodes that are farthest above their roofs."""
    gaps = {
        name: seconds + native.sums.get(name, 0.0) - native.roofs.get(name, seconds)
        for name, seconds in native.by_node.items()
    }
    return _named(gaps, measured_s)


def _choices(model: Model, found: Sequence[Piece], seen: Evidence) -> str:
    """Name the layers where the framework's operator differs most from the native row."""
    gaps = {}
    for one in found:
        beside = native_of(model, one, seen.native)
        if one.kind == "layer" and beside is not None:
            started = seen.dispatch_s * seen.operators.get(one.name, 1)
            gaps[one.name] = one.count * (seen.times[one.name] - started - beside)
    return _named(gaps, seen.measured_s)


def _named(gaps: Mapping[str, float], measured_s: float) -> str:
    ranked = sorted(gaps, key=lambda name: abs(gaps[name]), reverse=True)[:_NAMED]
    worth = [name for name in ranked if abs(gaps[name]) > _WORTH * measured_s]
    return ", ".join(f"{name} {gaps[name] * 1e3:+.1f} ms" for name in worth)
