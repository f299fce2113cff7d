"""``pydlbench e2e MODEL``: times steps group by group and shows them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pydlbench.cli.e2e_request import Group, Request
    from pydlbench.cli.e2e_session import StepSession
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.cli.progress import Progress
    from pydlbench.cli.recording import Recorder
    from pydlbench.endtoend import StepRecord
    from pydlbench.results import RunRecord

__all__ = ["run_steps"]


def run_steps(args: argparse.Namespace, session_factory: Callable[..., Any] | None) -> int:
    """Time what ``args`` ask for and show it; see :func:`pydlbench.cli.e2e.run`."""
    from pydlbench.cli.e2e_output import Outputs
    from pydlbench.cli.e2e_request import read_request
    from pydlbench.cli.e2e_session import open_session
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.cli.progress import Progress
    from pydlbench.cli.recording import Recorder
    from pydlbench.cli.streams import tell

    outputs = Outputs.from_args(args)
    request = read_request(args)
    for note in () if args.quiet else request.notes:
        tell(f"note: {note}")
    progress = Progress(sys.stderr, quiet=args.quiet)
    with (
        Recorder.of(args, "e2e") as recorder,
        OneInterrupt() as interrupts,
        (session_factory or open_session)(**request.options) as session,
    ):
        finished = _Finished(recorder, checks=not args.no_checks, agree=args.agree)
        try:
            finished.measure(session, request, progress, interrupts)
        finally:
            progress.close()
        run: RunRecord = session.run
        recorder.finish(run, "interrupted" if finished.interrupted else "done")
        models = [group.model for group in request.groups]
        outputs.show(run, models, finished.rows, finished.agreements, early=finished.interrupted)
    if finished.interrupted:
        tell(f"interrupted: {len(finished.rows)} of {request.rows} rows finished")
        return 130
    disagree = any(one["status"] != "ok" for one in finished.agreements)
    return 0 if any(row.ok for row in finished.rows) and not disagree else 1


@dataclass(slots=True)
class _Finished:
    """What is finished; survives whatever ends the timing early."""

    recorder: Recorder
    checks: bool
    agree: bool
    rows: list[StepRecord] = field(default_factory=list)
    agreements: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    kept: int = 0

    def measure(
        self,
        session: StepSession,
        request: Request,
        progress: Progress,
        interrupts: OneInterrupt,
    ) -> None:
        from pydlbench.endtoend.memory import check_memory

        for group in request.groups:  # before the first of them is built
            check_memory(group.model, group.cases, session.memory_bytes)
        self.recorder.start(session.run)
        try:
            try:
                for group in request.groups:
                    self._group(session, group, progress, request.rows)
            finally:
                interrupts.ignore()
                self._catch_up()
        except KeyboardInterrupt:
            self.interrupted = True

    def _group(self, session: StepSession, group: Group, progress: Progress, total: int) -> None:
        before = len(self.rows)

        def advance(done: int, _total: int, label: str) -> None:
            progress(before + done, total, label)

        if self.agree:
            self._compare(session, group)
        self.rows += session.steps(group.cases, checks=self.checks, progress=advance)
        self._catch_up()

    def _catch_up(self) -> None:
        """Keep the rows that are not yet."""
        for row in self.rows[self.kept :]:
            self.kept += 1
            self.recorder.add("step", row.to_dict())

    def _compare(self, session: StepSession, group: Group) -> None:
        """Hold frameworks against each other, once per batch and phase."""
        case = group.cases[0]
        where = {"batch": case.batch, "phase": case.phase}
        try:
            found = session.agreement(case)
        except PydlbenchError as error:  # its rows may do all the same
            document = {**where, "status": "failed", "detail": str(error)}
        else:
            check = found.check
            document = {
                **where,
                "status": check.status,
                "detail": check.detail,
                **found.to_dict(),
            }
        self.agreements.append(document)
        self.recorder.add("agreement", document)
