"""A check from its operators to its record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pydlbench.errors import PydlbenchError
from pydlbench.ladder.ledger import Findings, conclude
from pydlbench.ladder.native import measure_native
from pydlbench.ladder.operators import blocks, singles, step_operators
from pydlbench.ladder.rounds import LEAST, Rounds, ask_log, ask_operators, ask_replay, keeps_pages
from pydlbench.models import build_model
from pydlbench.records.step import StepPreparation
from pydlbench.runner.interleaved import random_order, releasing
from pydlbench.steps.run import prepare_step
from pydlbench.workers.environment import FRESH_PAGES
from pydlbench.workers.host import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.ladder.native import NativeSum
    from pydlbench.ladder.operators import StepOperator
    from pydlbench.models.graph import Model
    from pydlbench.records.check import CheckRecord
    from pydlbench.records.step import StepFacts, StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.steps.operations import OperatorsFacts
    from pydlbench.workers.host import RemoteKernel

__all__ = ["check_step"]

Facts = TypeVar("Facts")


def check_step(
    case: StepSpec,
    session: Session,
    *,
    rounds: int = 15,
    time_limit_s: float = 80.0,
    native: NativeSum | None = None,
    checks: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> CheckRecord:
    """Predict a framework's step from its isolated operators, run it, and explain it.

    Args:
        case: the step, on a CPU.
        session: whose workers are used.
        rounds: at the most; at least five are taken, whatever the time.
        time_limit_s: no round begins after so many seconds; the native rows are not counted.
        native: the native rows of the same step, where they have been measured already.
        checks: check the step (shapes, parameters, gradients, descent) before it is timed.
        tell: called with what is done next.

    Raises:
        UsageError: no such model or option.
        UnsupportedError: the framework has not what is asked for.
        WorkerError: a worker died.
    """
    begin = time.monotonic()
    model = build_model(case.model, case.batch, **case.options)
    if native is None:
        tell("native layers")
        native = measure_native(model, case.phase, case.precision, session)
    started = time.monotonic()
    made = _Check(case, model, session, checks, tell)
    try:
        made.prepare()
        made.take(rounds, started + time_limit_s)
        found = made.found()
        return conclude(found, native, session, time.monotonic() - begin)
    finally:
        made.close()


class _Check:
    """One check while it goes on."""

    def __init__(
        self,
        case: StepSpec,
        model: Model,
        session: Session,
        checks: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._case = case
        self._model = model
        self._session = session
        self._checks = checks
        self._tell = tell
        self._found: tuple[StepOperator, ...] = step_operators(
            model, case.phase, case.framework, str(case.mode), case.feed
        )
        # What compilers make of single nodes would take minutes more.
        self._singles = singles(model, case.phase, self._found) if case.mode == "graph" else ()
        self._kernels: list[RemoteKernel[Any]] = []
        self._own: Worker | None = None
        self._notes: list[str] = []
        self._operators: RemoteKernel[OperatorsFacts]
        self._step: RemoteKernel[StepFacts]
        self._rounds: Rounds
        self._log: dict[str, Any] = {}

    def prepare(self) -> None:
        """Make everything ready; the operators before the step."""
        case, session = self._case, self._session
        self._tell("operators")
        keeps = keeps_pages(case, session)
        self._operators = self._kept(
            ask_operators(
                case, session, self._found, self._singles, warm=not keeps, traces=not keeps
            )
        )
        played = None if keeps else self._replay(self._operators.facts.traces)
        if keeps:
            self._notes.append(
                f"{case.framework} keeps freed pages by itself: no cost of page faults is added to "
                "the prediction; those that are left are inside the operators"
            )
        self._tell("step")
        step = self._kept(
            prepare_step(case, session, preparation=StepPreparation(checks=self._checks))
        )
        kept = self._warm(case)
        # A CPU's memory is the host's: only what is fed from there has a transfer to be measured.
        resident = (
            self._warm(msgspec.structs.replace(case, feed="resident"))
            if case.feed == "host"
            else None
        )
        self._step = step
        wrong = [one for one in step.facts.checks if one.status != "ok"]
        self._notes += [f"check {one.name} failed: {one.detail}" for one in wrong]
        self._rounds = Rounds(
            self._found,
            self._operators,
            self._operators.facts.once_s,
            played,
            step,
            kept,
            random_order(session.options.seed),
            self._singles,
            resident,
            canary=self._session.canary if self._case.device == "cpu" else None,
        )

    def take(self, most: int, deadline: float) -> None:
        """Take rounds until there are enough, or the time is over; then read the log."""
        self._rounds.warm_up()
        while len(self._rounds.rows) < max(LEAST, most):
            if len(self._rounds.rows) >= LEAST and time.monotonic() > deadline:
                break
            self._tell(f"round {len(self._rounds.rows) + 1}")
            self._rounds.take()
        if self._rounds.disturbed:
            self._notes.append(
                f"somebody else used the cores in {self._rounds.disturbed} of "
                f"{len(self._rounds.rows)} rounds, although each was taken twice"
            )
        self._tell("log")
        if self._case.mode in ("eager", "graph"):
            try:
                self._log = ask_log(self._case, self._session)
            except PydlbenchError as error:
                self._notes.append(f"no log of layout reorders: {error}")

    def found(self) -> Findings:
        """Return what was measured."""
        return Findings(
            case=self._case,
            model=self._model,
            found=self._found,
            singles=self._singles,
            rounds=self._rounds,
            calls=self._operators.facts,
            log=self._log,
            library=self._step.facts.library,
            notes=tuple(self._notes),
        )

    def close(self) -> None:
        """Free what workers hold."""
        with releasing(self._kernels):
            pass
        if self._own is not None:
            self._own.discard()

    def _replay(self, traces: Mapping[str, Sequence[int]]) -> RemoteKernel[OperatorsFacts]:
        # Each block is given back when it is freed, so that the next one's pages are fresh.
        self._own = Worker("native", "cpu", self._session.cpus, environment=FRESH_PAGES)
        sizes = blocks(self._found, traces)
        return self._kept(ask_replay(self._session, self._own, sizes))

    def _warm(self, case: StepSpec) -> RemoteKernel[StepFacts]:
        how = StepPreparation(checks=False)
        return self._kept(prepare_step(case, self._session, warm=True, preparation=how))

    def _kept(self, kernel: RemoteKernel[Facts]) -> RemoteKernel[Facts]:
        self._kernels.append(kernel)
        return kernel
