"""A sweep from its first row to its conclusion: one run in the store, whatever ends it."""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.cli.recording import Recorder
    from pydlbench.cli.sweep_output import SweepOutputs
    from pydlbench.results import RunRecord
    from pydlbench.results.store import Entry
    from pydlbench.sweep import Job, SweepFile

__all__ = ["Sweep"]


class Sweep:
    """Runs a file's jobs and shows what came of them.

    Args:
        file: that was read.
        jobs: what it asks for.
        recorder: keeps what is finished; may go on with an earlier run.
        quiet: no progress.
    """

    def __init__(
        self, file: SweepFile, jobs: Sequence[Job], recorder: Recorder, *, quiet: bool
    ) -> None:
        self._file = file
        self._jobs = jobs
        self._recorder = recorder
        self._quiet = quiet
        # All that is finished, by key, without raw samples.
        self._entries: dict[str, Entry] = {}
        self._describe: Callable[[], RunRecord] = _new_run

    def run(
        self,
        outputs: SweepOutputs,
        factories: Mapping[str, Callable[..., Any]],
        checker: Callable[..., Any] | None,
    ) -> int:
        """Measure what is not there yet; see :func:`pydlbench.cli.sweep.run`."""
        from pydlbench.cli.interrupts import OneInterrupt
        from pydlbench.cli.streams import tell
        from pydlbench.cli.sweep import request_of
        from pydlbench.cli.sweep_forecast import make_forecast
        from pydlbench.cli.sweep_progress import SweepProgress
        from pydlbench.cli.sweep_running import Runner
        from pydlbench.cli.sweep_sessions import Sessions

        forecast = make_forecast(self._recorder.store)
        spans = [forecast.job(job) for job in self._jobs]
        progress = SweepProgress(sys.stderr, self._jobs, spans, quiet=self._quiet)
        first = _new_run()
        self._recorder.start(first, request_of(self._file))
        # What is known where no session is opened any more, or before one is.
        resumed = self._recorder.resumed
        known = first if resumed is None else resumed.record
        interrupted = False
        with OneInterrupt() as interrupts:
            sessions = Sessions({**_factories(), **factories})
            self._describe = lambda: sessions.described(known)
            runner = Runner(
                sessions,
                factories.get("check", _open_session),
                checker,
                self._done(),
                self._keep,
                progress,
            )
            try:
                try:
                    with sessions:
                        runner.run(self._jobs)
                finally:
                    # Inside the outer try: no moment is left in which Ctrl-C could get past it.
                    interrupts.ignore()
            except KeyboardInterrupt:
                interrupted = True
            finally:
                progress.close()
            record = self._recorder.own(sessions.described(known))
            self._recorder.finish(record, "interrupted" if interrupted else "done")
            entries = list(self._entries.values())
            where = self._recorder.where if self._recorder.begun else None
            outputs.show(
                self._file, record, runner.outcomes, entries, where=where, interrupted=interrupted
            )
        if interrupted:
            total = sum(len(job.rows) for job in self._jobs)
            tell(f"interrupted: {len(runner.outcomes)} of {total} rows finished")
            if where is not None:
                tell(f"go on with: pydlbench sweep --resume {record.id}{where}")
            return 130
        return 0 if any(one.status == "ok" for one in runner.outcomes) else 1

    def _keep(self, table: str, document: dict[str, Any], key: str) -> None:
        from pydlbench.results.store import Entry

        self._recorder.add(table, document, key)
        # What was probed for the row: a sweep that is killed has it all the same.
        self._recorder.describe(self._describe)
        self._entries.pop(key, None)
        self._entries[key] = Entry(table, Entry.of(table, document).document, None, key)

    def _done(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return what an earlier attempt has finished, by key."""
        from pydlbench.cli.sweep_keys import kernel_of

        resumed = self._recorder.resumed
        if resumed is None:
            return {}
        answered = resumed.done()
        for entry in resumed.entries():
            if entry.key is not None:
                self._entries[entry.key] = entry
        # An estimate without a kernel that failed is not what was asked for.
        unsure = {kernel_of(key) for key in self._entries if key not in answered}
        return {
            key: (entry.table, entry.document)
            for key, entry in self._entries.items()
            if key in answered and key not in unsure
        }


def _new_run() -> RunRecord:
    """Return the record of a run on this machine, with nothing probed yet."""
    from pydlbench.devices.cpu import choose_cpus, read_cpu_facts
    from pydlbench.devices.environment import read_environment
    from pydlbench.devices.probing import start_record
    from pydlbench.results import RunRecord

    facts = read_cpu_facts()
    now = dt.datetime.now(dt.UTC)
    return RunRecord(
        id=f"{now:%Y%m%d}-{uuid.uuid4().hex[:8]}",
        created_utc=now.isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        device=start_record(facts, choose_cpus(facts, None)).to_dict(),
        environment=read_environment(),
    )


def _factories() -> dict[str, Callable[..., Any]]:
    from pydlbench.cli.e2e_session import open_session

    return {"layers": _open_session, "e2e": open_session}


def _open_session(**options: Any) -> Any:
    from pydlbench.measure import Options, Session

    return Session(Options(**options))
