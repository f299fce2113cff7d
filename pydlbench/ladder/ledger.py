"""The terms between the hardware's roof and a measured step, each from an experiment of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.ladder.rounds import paired
from pydlbench.records.check import UNEXPLAINED, CheckRecord, LedgerTerm, OperatorRow
from pydlbench.records.measurement import time_summary
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.ladder.native import NativeSum
    from pydlbench.ladder.operators import StepOperator
    from pydlbench.ladder.rounds import Rounds
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.steps.operations import OperatorsFacts

__all__ = ["Evidence", "Findings", "conclude", "ledger", "native_of"]

# How many layers a term's detail names, and the share of the step below which none is worth it.
_NAMED = 2
_WORTH = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured to explain a step. Seconds.

    Attributes:
        measured_s: the step.
        times: by operator, one execution with kept pages.
        native: the native rows.
        allocation_s: the step minus the same with kept pages, in the same rounds.
        allocation_how: with the faults counted.
        dispatch_s: of one operator.
        start_s: of starting a step's call.
        operators: how many framework calls each is made of; those not named are single.
        reorder_s: layouts converted in the step by the library's own log; None without a log.
        reorder_how: which log.
        singles: the nodes of joined operators one by one, where these were run besides.
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
    singles: Sequence[StepOperator] = ()
    host_s: float | None = None


def ledger(model: Model, found: Sequence[StepOperator], seen: Evidence) -> tuple[LedgerTerm, ...]:
    """Return the terms; their seconds sum to the measured step.

    Args:
        model: the graph.
        found: the operators.
        seen: what was measured.
    """
    native = seen.native
    apart = _apart(found, seen)
    layers = _native_of_layers(apart, native)
    other = native.of_nodes() - layers
    made = _Terms(seen.measured_s)
    made.add("layers at their roof", native.roof_of_nodes(), "rooflines of the native rows, summed")
    made.add(
        "above the roof, native",
        layers + other - native.roof_of_nodes(),
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


def native_of(model: Model, operator: StepOperator, native: NativeSum) -> float | None:
    """Return what the native library needs for an operator's first occurrence; None if unknown."""
    if operator.kind in native.incomplete or operator.kind == "feed":
        return None
    if operator.kind == "loss":
        return native.loss_s
    if operator.kind == "optimizer":
        return native.optimizer_s
    if operator.kind == "gradient sum":
        names = {name for (name,) in operator.occurrences}
        if not native.incomplete.isdisjoint(names):
            return None
        return sum(native.sums.get(name, 0.0) for name in names) / operator.count
    if not native.incomplete.isdisjoint(operator.nodes):
        return None
    known = [native.by_node[name] for name in operator.nodes if name in native.by_node]
    needed = [name for name in operator.nodes if model[name].layer is not None]
    return sum(known) if known or not needed else None


def _native_of_layers(found: Sequence[StepOperator], native: NativeSum) -> float:
    """Return the native seconds of all nodes that are in an operator of the kind ``layer``."""
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


def _apart(found: Sequence[StepOperator], seen: Evidence) -> list[StepOperator]:
    """Return the operators, joined ones by their nodes one by one where these were run."""
    if not seen.singles:
        return list(found)
    return [one for one in found if len(one.nodes) < 2] + list(seen.singles)


def _total(found: Sequence[StepOperator], seen: Evidence) -> float:
    return sum(one.count * seen.times[one.name] for one in found)


def _by_kind(found: Sequence[StepOperator], seen: Evidence) -> dict[str, float]:
    """Return the operators' seconds, gradient sums with the pointwise; nodes less dispatch."""
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


def _choices(model: Model, found: Sequence[StepOperator], seen: Evidence) -> str:
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


# -----------------------------------------------------------------------------
# From what a check measured to its record: the prediction, the step, and the ledger.

# No fault costs more than this, in seconds; and the share of a step that so many could explain at
# the most, below which there is nothing that an allocator could save.
_MOST_PER_FAULT_S = 5e-6
_NOTHING = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a check has measured besides the native rows.

    Attributes:
        case: the step.
        model: its graph.
        found: its operators.
        singles: the nodes of joined operators one by one, where these were run besides.
        rounds: all of them, taken.
        calls: what the worker says of the operators: what starting a call and dispatch cost.
        log: what oneDNN logged of whole steps; empty without a log.
        library: name and version of the framework.
        notes: what a reader has to know.
    """

    case: StepSpec
    model: Model
    found: Sequence[StepOperator]
    singles: Sequence[StepOperator]
    rounds: Rounds
    calls: OperatorsFacts
    log: Mapping[str, Any]
    library: str
    notes: tuple[str, ...] = ()

    @property
    def reorder_s(self) -> float | None:
        """Seconds of layout reorders in a step; None where nothing logs them."""
        seconds = self.log.get("seconds")
        return None if not seconds else float(seconds.get("reorder", 0.0))

    @property
    def faults(self) -> dict[str, float | None]:
        """Page faults per step; see :class:`pydlbench.records.check.CheckRecord`."""
        return {
            "predicted": self.rounds.predicted_faults(),
            "counted": self.rounds.median_faults("step"),
            "kept": self.rounds.median_faults("kept"),
        }


def conclude(what: Findings, native: NativeSum, session: Session, seconds: float) -> CheckRecord:
    """Return the record of a check.

    Args:
        what: was measured.
        native: the native rows of the same step.
        session: its confidence and its CPUs.
        seconds: that the check took.
    """
    case, model, rows = what.case, what.model, what.rounds.rows
    measured = time_summary([one.measured_s for one in rows], session.options.confidence)
    times = what.rounds.median_times()
    estimate_s = median(one.estimate_s for one in rows)
    return CheckRecord(
        model=case.model,
        options=dict(case.options),
        batch=model.batch,
        phase=case.phase,
        precision=case.precision,
        framework=case.framework,
        mode=str(case.mode),
        layout=case.layout,
        feed=case.feed,
        library=what.library,
        threads=len(session.cpus),
        estimate_s=estimate_s,
        estimate_native_s=native.time.middle,
        native_low_s=native.time.low,
        native_high_s=native.time.high,
        measured=measured,
        ledger=ledger(model, what.found, _evidence(what, native, measured.median, times)),
        rounds=tuple(rows),
        operators=tuple(
            OperatorRow(
                name=one.name,
                kind=one.kind,
                count=one.count,
                seconds=times[one.name],
                native_s=native_of(model, one, native),
                nodes=one.nodes,
            )
            for one in what.found
        ),
        faults=what.faults,
        calibration={
            "once_s": what.calls.once_s,
            "dispatch_s": what.calls.dispatch_s,
            "fault_s": what.rounds.fault_s(),
            "how": what.calls.how,
        },
        ladder={
            "theoretical_s": native.theoretical_s,
            "roof_s": native.roof_s,
            "native_low_s": native.time.low,
            "native_high_s": native.time.high,
            "operators_s": median(one.operators_s for one in rows),
            "estimate_s": estimate_s,
            "measured_s": measured.median,
        },
        notes=(*what.notes, *_absent(what, native)),
        seconds=seconds,
    )


def _evidence(
    what: Findings, native: NativeSum, measured_s: float, times: Mapping[str, float]
) -> Evidence:
    rows = what.rounds.rows
    kept = [one.kept_s for one in rows]
    allocation_s, how = _allocation([one.measured_s for one in rows], kept, what.faults)
    resident = [one.resident_s for one in rows if one.resident_s is not None]
    return Evidence(
        measured_s=measured_s,
        times=times,
        native=native,
        allocation_s=allocation_s,
        allocation_how=how,
        dispatch_s=what.calls.dispatch_s,
        start_s=what.calls.once_s,
        operators={one.name: len(one.nodes) for one in (*what.found, *what.singles)},
        singles=what.singles,
        reorder_s=what.reorder_s,
        reorder_how=f"oneDNN's log of {what.log.get('calls', 0)} steps, the middle one",
        host_s=paired(kept, resident) if resident else None,
    )


def _absent(what: Findings, native: NativeSum) -> list[str]:
    """Return which terms could not be measured, and why."""
    found = [f"no native row: {one}" for one in native.missing]
    if what.reorder_s is None:
        found.append("no layout reorders: nothing logs them here; they are in operator choice")
    joined = any(len(one.nodes) > 1 for one in what.found)
    if joined and not what.singles:
        found.append("no fusion: nodes that are joined were not run one by one besides")
    return found


def _allocation(
    steps: Sequence[float], kept: Sequence[float], faults: Mapping[str, float | None]
) -> tuple[float, str]:
    """Return what fresh pages cost a step, in seconds, and how that was measured.

    Two processes that run the same step differ by some per cent anyhow. Where both touch the same
    pages again, that is what the experiment shows, and no cost of memory.

    Args:
        steps: seconds with the default allocator, by round.
        kept: likewise with one that keeps its pages.
        faults: per step, in either.
    """
    difference = paired(steps, kept)
    how = "the step minus the same with an allocator that keeps its pages, round by round"
    counted, left = faults["counted"], faults["kept"]
    if counted is None or left is None:
        return difference, how
    how = f"{how}: {counted:.0f} page faults against {left:.0f}"
    if (counted - left) * _MOST_PER_FAULT_S < _NOTHING * median(steps):
        return 0.0, (
            f"{how}, too few to cost anything: what these two processes differ by, "
            f"{difference * 1e3:+.2f} ms, is left unexplained"
        )
    return difference, how
