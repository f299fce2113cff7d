"""The cross-checks of a sweep: one step in several frameworks and modes, its native rows shared."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.cli.check_running import Checks
from pydlbench.cli.interrupts import OneInterrupt
from pydlbench.cli.recording import Recorder
from pydlbench.cli.sweep_keys import kernel_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.results import Measurement, RunRecord
    from pydlbench.sweep import Job, Row

__all__ = ["CheckJob"]


class CheckJob:
    """Takes the checks of a job that are not there yet.

    Args:
        job: with a ``CheckRequest``.
        todo: its rows that are wanted.
        finished: called with each row and its document.
        native: called with case, document and key of each native row.
        progress: called with rows done, as a fraction too, and what is done next.

    Attributes:
        interrupted: Ctrl-C came before all were finished.
    """

    def __init__(
        self,
        job: Job,
        todo: Sequence[Row],
        finished: Callable[[Row, dict[str, Any]], None],
        native: Callable[[Case, dict[str, Any], str], None],
        progress: Callable[[float, str], None],
    ) -> None:
        self.interrupted = False
        self._job = job
        self._left = {row.case: row for row in todo}
        self._request = dataclasses.replace(job.request, subjects=tuple(self._left))
        self._before = len(job.rows) - len(todo)
        self._count = len(todo)
        self._checks: Checks | None = None
        self._finished = finished
        self._keep = native
        self._progress = progress

    def run(
        self, factory: Callable[..., Any], checker: Callable[..., Any] | None
    ) -> RunRecord | None:
        """Take them and return what the session said of its run.

        Raises:
            PydlbenchError: there is no session, or the native rows cannot be measured at all.
        """
        passing = _Passing(self._native, self._result)
        self._checks = checks = Checks(self._request, self._advance, factory, checker, passing)
        checks.take(_Deaf())
        self.interrupted = checks.interrupted
        return checks.run

    def refused(self, status: str, reason: str) -> Iterator[tuple[Row, dict[str, Any]]]:
        """Yield the rows that are left, with a document that says why they have no result."""
        for (framework, mode), row in self._left.items():
            result = self._request.result(framework, mode, status=status, reason=reason)
            yield row, result.to_dict(None)

    def _advance(self, done: int, total: int, label: str) -> None:
        model = self._request.model
        rows = self._before + self._count * min(done / total, 1.0)
        self._progress(rows, f"{model.name} batch {model.batch}: {label}")

    def _native(self, measured: Measurement) -> None:
        assert self._checks is not None  # whose rows these are
        case = next(reversed(self._checks.rows))
        # By the job's first row: all of them share it.
        self._keep(case, measured.to_dict(), kernel_key(self._job, self._job.rows[0], case))

    def _result(self, document: dict[str, Any]) -> None:
        row = self._left.pop((document["framework"], document["mode"]))
        self._finished(row, document)


class _Passing(Recorder):
    """Takes what a cross-check would keep, and passes it on.

    Args:
        layer: called with each native row.
        check: called with each result's document.
    """

    def __init__(
        self, layer: Callable[[Measurement], None], check: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(None, "check")
        self._layer, self._check = layer, check

    def layer(
        self,
        row: Measurement,
        samples: Sequence[float] | None = None,  # noqa: ARG002 - as its base has it
        key: str | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Pass a native row on."""
        self._layer(row)

    def add(
        self,
        table: str,  # noqa: ARG002 - it is always a check
        document: Mapping[str, Any],
        key: str | None = None,  # noqa: ARG002 - as its base has it
    ) -> None:
        """Pass a result on."""
        self._check(dict(document))


class _Deaf(OneInterrupt):
    """Ctrl-C is handled by the sweep, not by one of its checks."""

    def ignore(self) -> None:
        """Go on listening."""
