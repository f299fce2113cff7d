"""Measures the cases of ``layers`` and keeps what is finished, whatever ends it early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec

from pydlbench.errors import PydlbenchError
from pydlbench.store.resume import case_key

if TYPE_CHECKING:
    from pydlbench.cli.layers import Request
    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.terminal import OneInterrupt, Progress
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec

__all__ = ["LayerSession", "Running", "SessionFactory"]


class LayerSession(Protocol):
    """What is needed of a session; the tests of the command line invent one."""

    @property
    def run(self) -> RunRecord:
        """The record of the run."""

    def measure(
        self, cases: Sequence[KernelSpec], progress: Callable[[int, int, str], None]
    ) -> Iterable[Measurement]:
        """Measure cases one after another."""


SessionFactory = Callable[..., AbstractContextManager[LayerSession]]


class Running:
    """The rows of one request.

    Args:
        request: what is asked for.
        recorder: keeps every row with its samples as soon as it is finished; may go on with a run.
        progress: called with rows done, rows in all and the next one's label.
        samples: leave the raw samples on the rows.

    Attributes:
        interrupted: Ctrl-C came before all were finished.
        trouble: what ended the measuring although some rows were finished.
    """

    def __init__(
        self, request: Request, recorder: Recorder, progress: Progress, *, samples: bool = False
    ) -> None:
        from pydlbench.cli.resuming import layers_request

        self.interrupted = False
        self.trouble: PydlbenchError | None = None
        self._request = request
        self._asked = layers_request(request)
        self._recorder = recorder
        self._progress = progress
        self._samples = samples
        self._runs: list[tuple[int, RunRecord]] = []
        self._asked_for = 0  # rows, of all sessions so far
        self._done = recorder.resumed.done() if recorder.resumed else frozenset[str]()
        # By key: one that is measured again takes its place.
        self._old = self._finished()
        # With the keys that they are kept under, and their samples until then.
        self._new: list[tuple[Measurement, str | None]] = []

    @property
    def rows(self) -> list[Measurement]:
        """What is finished; of a run that is resumed also what was finished before."""
        new = {key for _, key in self._new}
        old = [row for key, row in self._old.items() if key not in new]
        return [*old, *(self._shown(row) for row, _ in self._new)]

    @property
    def early(self) -> bool:
        """Whether more was asked for."""
        return self.interrupted or self.trouble is not None

    @property
    def status(self) -> str:
        """What becomes of the run in the store."""
        if self.trouble is not None:
            return "failed"
        return "interrupted" if self.interrupted else "done"

    def record(self) -> RunRecord | None:
        """Return one record for all sessions: the first's, with the device at most threads."""
        if not self._runs:
            return self._recorder.resumed.record if self._recorder.resumed and self._old else None
        device = dict(max(self._runs, key=lambda pair: pair[0])[1].device)
        if len(self._runs) > 1:
            device["by_threads"] = {str(threads): run.device for threads, run in self._runs}
        return self._recorder.own(msgspec.structs.replace(self._runs[0][1], device=device))

    def measure(self, factory: SessionFactory, interrupts: OneInterrupt) -> None:
        """Measure all; what an error leaves behind is kept, if there is anything to show."""
        try:
            try:
                for threads in self._request.threads:
                    self._one_session(threads, factory)
                if self._recorder.resumed and not self._runs:  # all was done already
                    self._recorder.start(self._recorder.resumed.record, self._asked)
            finally:
                # Inside the outer try: no moment is left in which Ctrl-C could get past it.
                interrupts.ignore()
                self._catch_up()
        except KeyboardInterrupt:
            self.interrupted = True
        except PydlbenchError as error:
            if not self._new:
                raise
            self.trouble = error

    def _one_session(self, threads: int | None, factory: SessionFactory) -> None:
        from pydlbench.cli.resuming import unfinished

        every = self._request.cases
        cases = unfinished(every, lambda case: case_key(case, threads) in self._done)
        finished = self._asked_for + len(every) - len(cases)
        self._asked_for += len(every)
        if not cases:
            return

        with factory(**self._request.options, threads=threads) as session:

            def advance(done: int, _total: int, label: str) -> None:
                # Not earlier: only now a GPU has told its name.
                if not self._recorder.started:
                    self._recorder.start(session.run, self._asked)
                self._progress(finished + done, self._request.rows, label)

            keys = _Keys(cases, threads)
            try:
                # Not a comprehension: Ctrl-C must find the rows that are finished.
                for row in session.measure(cases, progress=advance):
                    self._take(row, keys.of(row))
                    self._catch_up()
                    # What was probed for the row: a run that is killed has it all the same.
                    self._recorder.describe(lambda: session.run)
            finally:
                # Only now: peaks and bandwidths are probed while rows are measured.
                try:
                    run = session.run
                except KeyboardInterrupt:  # the only one there is: see OneInterrupt
                    run = session.run
                    self.interrupted = True
                self._runs.append((threads or run.device.get("threads") or 0, run))

    def _take(self, row: Measurement, key: str | None) -> None:
        """Note a row; one that was ok before is not given up for one that is not."""
        before = self._old.get(key or "")
        if before is None or row.ok or not before.ok:
            self._new.append((row, key))

    def _catch_up(self) -> None:
        """Keep the new rows that are not yet; one that is kept twice takes its own place."""
        for index in range(self._recorder.layers, len(self._new)):
            row, key = self._new[index]
            self._recorder.layer(row, key=key)
            self._new[index] = (self._shown(row), key)

    def _shown(self, row: Measurement) -> Measurement:
        return row if self._samples else msgspec.structs.replace(row, samples_s=None)

    def _finished(self) -> dict[str, Measurement]:
        """Return the finished rows of the run that is resumed, by key."""
        from pydlbench.records.measurement import Measurement

        if self._recorder.resumed is None:
            return {}
        kept = self._recorder.resumed.entries("layer", samples=self._samples)
        return {
            entry.key: Measurement.from_dict({**entry.document, "samples_s": entry.samples})
            for entry in kept
            if entry.key is not None and entry.key in self._done
        }


class _Keys:
    """Says which case a row answers: rows come in groups, not in the order of the cases."""

    def __init__(self, cases: Sequence[KernelSpec], threads: int | None) -> None:
        self._left = list(cases)
        self._threads = threads

    def of(self, row: Measurement) -> str | None:
        for case in self._left:
            if _answers(row, case):
                self._left.remove(case)
                return case_key(case, self._threads)
        return None


def _answers(row: Measurement, case: KernelSpec) -> bool:
    return (
        *(row.problem, row.layer, row.pass_, row.precision, row.propagation, row.cache),
        *(row.layout_request, row.backend, row.mode, row.device, row.fuse),
    ) == (
        *(case.layer.problem, case.layer.name or case.layer.problem, case.pass_, case.precision),
        *(case.propagation, case.cache, case.layout, case.backend, case.mode, case.device),
        case.fuse,
    )
