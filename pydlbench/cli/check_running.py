"""Native rows once, then a check for each framework and mode; what fails costs itself only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydlbench.cli.recording import Recorder
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.report.check_ladder import Limits, limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pydlbench.backends.case import Case
    from pydlbench.cli.check_request import CheckRequest
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.crosscheck import NativeSum
    from pydlbench.report.check_result import CheckResult
    from pydlbench.results import Measurement, RunRecord

__all__ = ["Checks"]

# Besides its rounds: parts, step and log.
_STAGES = 3


class Checks:
    """The checks of one request; what is finished survives whatever ends them early.

    Args:
        request: the step and the ways to run it.
        progress: called with steps done, steps in all and what is done next.
        session_factory: gives a session for the options of ``measure.Options`` as keywords.
        checker: takes the place of ``pydlbench.crosscheck.check``.
        recorder: keeps native rows and results as soon as they are finished; None keeps nothing.

    Attributes:
        request: as given.
        results: of the checks that were finished, in the order of the request.
        rows: native rows.
        limits: the two lowest rungs.
        run: when and where; None until the session ends.
        interrupted: Ctrl-C came before all were finished.
    """

    def __init__(
        self,
        request: CheckRequest,
        progress: Callable[[int, int, str], None],
        session_factory: Callable[..., AbstractContextManager[Any]] | None = None,
        checker: Callable[..., Any] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.request = request
        self.results: list[CheckResult] = []
        self.rows: dict[Case, Measurement] = {}
        self.limits = Limits(theoretical_s=None, roof_s=None)
        self.run: RunRecord | None = None
        self.interrupted = False
        self._progress = progress
        self._factory = session_factory or _open_session
        self._checker = checker or _check
        self._recorder = recorder or Recorder(None, "check")
        self._done = 0
        self._total = 1

    def take(self, interrupts: OneInterrupt) -> None:
        """Take all checks; returns early after Ctrl-C.

        Raises:
            PydlbenchError: there is no session, or native rows cannot be measured at all.
        """
        try:
            try:
                with self._factory(**self.request.options) as session:
                    try:
                        self._all(session)
                    finally:
                        self._describe(session)
            finally:
                # Inside the outer try: no moment is left in which Ctrl-C could get past it.
                interrupts.ignore()
        except KeyboardInterrupt:
            self.interrupted = True

    def _describe(self, session: Any) -> None:
        # Only now: peaks and bandwidths are probed while rows are measured.
        try:
            self.run = session.run
        except KeyboardInterrupt:  # the only one there is: see OneInterrupt
            self.run = session.run
            self.interrupted = True

    def _all(self, session: Any) -> None:
        native = self._native(session)
        for framework, mode in self.request.subjects:
            before = self._done
            result = self._one(session, native, framework, mode)
            self.results.append(result)
            self._recorder.add("check", result.to_dict(self.limits))
            self._done = before + self.request.rounds + _STAGES

    def _native(self, session: Any) -> NativeSum:
        """Measure the native rows, which all checks share."""
        from pydlbench.compose import plan
        from pydlbench.crosscheck.native import native_sum

        asked = self.request
        cache = session.cache_bytes("cpu")
        wanted = plan(asked.model, asked.phase, asked.precision, "cpu", cache)
        cases = wanted.cases
        self._total = len(cases) + len(asked.subjects) * (asked.rounds + _STAGES)

        def advance(done: int, _total: int, label: str) -> None:
            self._progress(done, self._total, label)

        self._recorder.start(session.run)
        for case, row in zip(cases, session.measure(cases, progress=advance), strict=True):
            self.rows[case] = replace(row, samples_s=None)
            self._recorder.layer(row)
        self._done = len(cases)
        self.limits = limits(wanted, self.rows)
        return native_sum(wanted, self.rows)

    def _one(self, session: Any, native: NativeSum, framework: str, mode: str) -> CheckResult:
        asked = self.request

        def advance(what: str) -> None:
            self._progress(self._done, self._total, f"{framework} {mode}: {what}")
            self._done += 1

        try:
            record = self._checker(
                asked.model.name,
                asked.model_options,
                asked.model.batch,
                asked.phase,
                asked.precision,
                framework,
                mode,
                session,
                rounds=asked.rounds,
                time_limit_s=asked.time_limit_s,
                native=native,
                layout=asked.layout,
                feed=asked.feed,
                tell=advance,
            )
        except PydlbenchError as error:
            status = "skipped" if isinstance(error, UnsupportedError) else "failed"
            why = " ".join(str(error).split())
            return asked.result(framework, mode, status=status, reason=why)
        return asked.result(framework, mode, record=record)


def _open_session(**options: Any) -> AbstractContextManager[Any]:
    from pydlbench.measure import Options, Session

    return Session(Options(**options))


def _check(*arguments: Any, **options: Any) -> Any:
    from pydlbench.crosscheck import check

    return check(*arguments, **options)
