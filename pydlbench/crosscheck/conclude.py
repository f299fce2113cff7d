"""From what a check measured to its record: the prediction, the step, and the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.crosscheck.asking import paired
from pydlbench.crosscheck.ledger import Evidence, ledger, native_of
from pydlbench.crosscheck.record import CheckRecord, PieceRow
from pydlbench.results.summary import time_summary
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.crosscheck.asking import Host
    from pydlbench.crosscheck.native import NativeSum
    from pydlbench.crosscheck.pieces import Piece
    from pydlbench.crosscheck.prediction import Calibration
    from pydlbench.crosscheck.rounds import Rounds
    from pydlbench.endtoend import StepCase
    from pydlbench.models.graph import Model

__all__ = ["Findings", "conclude"]

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
        found: its parts.
        singles: the nodes of joined parts one by one, where these were run besides.
        rounds: all of them, taken.
        calibration: what calls cost.
        log: what oneDNN logged of whole steps; empty without a log.
        library: name and version of the framework.
        notes: what a reader has to know.
    """

    case: StepCase
    model: Model
    found: Sequence[Piece]
    singles: Sequence[Piece]
    rounds: Rounds
    calibration: Calibration
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
        """Page faults per step; see :class:`pydlbench.crosscheck.record.CheckRecord`."""
        return {
            "predicted": self.rounds.predicted_faults(),
            "counted": self.rounds.median_faults("step"),
            "kept": self.rounds.median_faults("kept"),
        }


def conclude(what: Findings, native: NativeSum, session: Host, seconds: float) -> CheckRecord:
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
        estimate_s=median(one.estimate_s for one in rows),
        estimate_native_s=native.time.middle,
        native_low_s=native.time.low,
        native_high_s=native.time.high,
        measured=measured,
        ledger=ledger(model, what.found, _evidence(what, native, measured.median, times)),
        rounds=tuple(rows),
        pieces=tuple(
            PieceRow(
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
            "once_s": what.calibration.once_s,
            "dispatch_s": what.calibration.dispatch_s,
            "fault_s": what.rounds.fault_s(),
            "how": what.calibration.how,
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
        dispatch_s=what.calibration.dispatch_s,
        start_s=what.calibration.once_s,
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
