"""A check from its parts to its record."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

from pydlbench.crosscheck import replay
from pydlbench.crosscheck.asking import ask_log, ask_parts, ask_replay, keeps_pages, paired
from pydlbench.crosscheck.ledger import Evidence, ledger, native_of
from pydlbench.crosscheck.native import measure_native
from pydlbench.crosscheck.pieces import groups, pieces, singles
from pydlbench.crosscheck.prediction import Calibration
from pydlbench.crosscheck.record import CheckRecord, PieceRow
from pydlbench.crosscheck.rounds import LEAST, Rounds
from pydlbench.endtoend import StepCase, StepPreparation, prepare_step
from pydlbench.errors import PydlbenchError
from pydlbench.models import build_model
from pydlbench.results.summary import time_summary
from pydlbench.timing.statistics import median
from pydlbench.workers.environment import FRESH_PAGES
from pydlbench.workers.host import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.crosscheck.asking import Host
    from pydlbench.crosscheck.native import NativeSum
    from pydlbench.crosscheck.pieces import Piece
    from pydlbench.models.graph import Model
    from pydlbench.workers.host import RemoteKernel

__all__ = ["check"]


def check(
    model_name: str,
    options: Mapping[str, Any] | None = None,
    batch: int | None = None,
    phase: str = "forward",
    precision: str = "fp32",
    framework: str = "torch",
    mode: str | None = None,
    session: Host | None = None,
    *,
    rounds: int = 15,
    time_limit_s: float = 80.0,
    native: NativeSum | None = None,
    checks: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> CheckRecord:
    """Predict a framework's step from its isolated parts, run it, and explain it.

    Args:
        model_name: by which the model is known.
        options: of the model.
        batch: images per step; None is the model's own.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's; None is its first.
        session: whose workers are used.
        rounds: at the most; at least five are taken, whatever the time.
        time_limit_s: no round begins after so many seconds; the native rows are not counted.
        native: the native rows of the same step, where they have been measured already.
        checks: check the step (shapes, parameters, gradients, descent) before it is timed.
        tell: called with what is done next.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework has not what is asked for.
        WorkerError: a worker died.
    """
    if session is None:
        raise ValueError("a check needs a session")
    begin = time.monotonic()
    case = StepCase(
        model=model_name,
        options=dict(options or {}),
        batch=batch,
        phase=phase,
        framework=framework,
        mode=mode,
        precision=precision,
        seed=session.options.seed,
    )
    model = build_model(model_name, batch, **case.options)
    if native is None:
        tell("native layers")
        native = measure_native(model, phase, precision, session)
    started = time.monotonic()
    made = _Check(case, model, session, checks, tell)
    try:
        made.prepare()
        made.take(rounds, started + time_limit_s)
        return made.record(native, time.monotonic() - begin)
    finally:
        made.close()


class _Check:
    """One check while it goes on."""

    def __init__(
        self,
        case: StepCase,
        model: Model,
        session: Host,
        checks: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._case = case
        self._model = model
        self._session = session
        self._checks = checks
        self._tell = tell
        self._found: tuple[Piece, ...] = pieces(model, case.phase, case.framework, str(case.mode))
        # What compilers make of single nodes would take minutes more.
        self._singles = singles(model, case.phase, self._found) if case.mode == "graph" else ()
        self._kernels: list[RemoteKernel] = []
        self._own: Worker | None = None
        self._notes: list[str] = []
        self._parts: RemoteKernel
        self._step: RemoteKernel
        self._rounds: Rounds
        self._log: dict[str, Any] = {}

    def prepare(self) -> None:
        """Make everything ready; the parts before the step."""
        case, session = self._case, self._session
        self._tell("parts")
        keeps = keeps_pages(case, session)
        self._parts = self._kept(
            ask_parts(case, session, self._found, self._singles, warm=not keeps, traces=not keeps)
        )
        played = None if keeps else self._replay(self._parts.facts["traces"])
        if keeps:
            self._notes.append(
                f"{case.framework} keeps freed pages by itself: no allocations are replayed, and "
                "the faults that are left are inside the parts"
            )
        self._tell("step")
        step = self._kept(
            prepare_step(case, session, preparation=StepPreparation(checks=self._checks))
        )
        kept = self._kept(
            prepare_step(case, session, warm=True, preparation=StepPreparation(checks=False))
        )
        self._step = step
        wrong = [one for one in step.facts["checks"] if one["status"] != "ok"]
        self._notes += [f"check {one['name']} failed: {one['detail']}" for one in wrong]
        self._rounds = Rounds(
            self._found,
            self._parts,
            Calibration.of(self._parts.facts),
            played,
            step,
            kept,
            random.Random(session.options.seed),  # noqa: S311 - an order, not a secret
            self._singles,
        )

    def take(self, most: int, deadline: float) -> None:
        """Take rounds until there are enough, or the time is over; then read the log."""
        self._rounds.warm_up()
        while len(self._rounds.rows) < max(LEAST, most):
            if len(self._rounds.rows) >= LEAST and time.monotonic() > deadline:
                break
            self._tell(f"round {len(self._rounds.rows) + 1}")
            self._rounds.take()
        self._tell("log")
        if self._case.mode in ("eager", "graph"):
            try:
                self._log = ask_log(self._case, self._session)
            except PydlbenchError as error:
                self._notes.append(f"no log of layout reorders: {error}")

    def record(self, native: NativeSum, seconds: float) -> CheckRecord:
        """Return what was found."""
        case, rows, model = self._case, self._rounds.rows, self._model
        measured = time_summary([one.measured_s for one in rows], self._session.options.confidence)
        times = self._rounds.median_times()
        calibration = Calibration.of(self._parts.facts)
        faults = self._faults()
        seen = Evidence(
            measured_s=measured.median,
            times=times,
            native=native,
            allocation_s=paired([one.measured_s for one in rows], [one.kept_s for one in rows]),
            allocation_how=_allocation_how(faults),
            dispatch_s=calibration.dispatch_s,
            operators={one.name: len(one.nodes) for one in (*self._found, *self._singles)},
            singles=self._singles,
            reorder_s=self._reorders(),
            reorder_how=f"oneDNN's log of {self._log.get('calls', 0)} steps, the middle one",
        )
        return CheckRecord(
            model=case.model,
            options=dict(case.options),
            batch=model.batch,
            phase=case.phase,
            precision=case.precision,
            framework=case.framework,
            mode=str(case.mode),
            library=self._step.facts["library"],
            threads=len(self._session.cpus),
            estimate_s=median(one.estimate_s for one in rows),
            estimate_native_s=native.time.middle,
            native_low_s=native.time.low,
            native_high_s=native.time.high,
            measured=measured,
            ledger=ledger(model, self._found, seen),
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
                for one in self._found
            ),
            faults=faults,
            calibration={
                "once_s": calibration.once_s,
                "dispatch_s": calibration.dispatch_s,
                "fault_s": self._rounds.fault_s(),
                "how": calibration.how,
            },
            notes=(*self._notes, *self._absent(native)),
            seconds=seconds,
        )

    def close(self) -> None:
        """Free what workers hold."""
        for kernel in self._kernels:
            with contextlib.suppress(PydlbenchError):  # its worker has died meanwhile
                kernel.release()
        if self._own is not None:
            self._own.discard()

    def _replay(self, traces: Mapping[str, Any]) -> RemoteKernel:
        case = self._case
        order = groups(self._model, case.phase, case.framework, str(case.mode))
        events = replay.sequence(self._model, order, self._found, traces)
        # Each block is given back when it is freed, so that the next one's pages are fresh.
        self._own = Worker("native", "cpu", self._session.cpus, environment=FRESH_PAGES)
        return self._kept(ask_replay(case, self._own, events))

    def _kept(self, kernel: RemoteKernel) -> RemoteKernel:
        self._kernels.append(kernel)
        return kernel

    def _faults(self) -> dict[str, float | None]:
        taken = self._rounds
        own, played = taken.median_faults("parts"), taken.predicted_faults()
        known = [one for one in (own, played) if one is not None]
        return {
            "predicted": sum(known) if known else None,
            "counted": taken.median_faults("step"),
            "kept": taken.median_faults("kept"),
        }

    def _reorders(self) -> float | None:
        seconds = self._log.get("seconds")
        return None if not seconds else float(seconds.get("reorder", 0.0))

    def _absent(self, native: NativeSum) -> list[str]:
        """Return which terms could not be measured, and why."""
        found = [f"no native row: {one}" for one in native.missing]
        if self._reorders() is None:
            found.append("no layout reorders: nothing logs them here; they are in operator choice")
        joined = any(len(one.nodes) > 1 for one in self._found)
        if joined and not self._singles:
            found.append("no fusion: nodes that are joined were not run one by one besides")
        return found


def _allocation_how(faults: Mapping[str, float | None]) -> str:
    counted, kept = faults["counted"], faults["kept"]
    how = "the step minus the same with an allocator that keeps its pages, round by round"
    if counted is None or kept is None:
        return how
    return f"{how}: {counted:.0f} page faults against {kept:.0f}"
