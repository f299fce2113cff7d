"""Stores the results of a command while it measures, however it ends."""

import datetime as dt
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from pydlbench.errors import StoreError, UsageError
from pydlbench.interrupts import OneInterrupt
from pydlbench.records.run import RunInfo, RunRecord, start_time
from pydlbench.store.entry import Entry
from pydlbench.store.place import is_same_gpu
from pydlbench.store.resume import merge_records, refuse_differences
from pydlbench.store.store import Store, short_id
from pydlbench.units import quantity

# Seconds between two updates of a run's device and environment.
_UPDATE_PERIOD_S = 5.0
# Interrupted runs whose native rows a run goes on from: readings of another day need not hold.
_MAX_AGE: Final = dt.timedelta(days=1)
_MAX_RECENT_RUNS: Final = 20


class RowRecorder:
    """Stores one run; a context manager in which the first Ctrl-C ends the measuring.

    Call ``start`` when the machine is known, ``add`` for each finished result, and ``finish`` at
    the end. Leaving the context without ``finish`` ends the run as ``interrupted`` after Ctrl-C,
    else as ``failed``. A run without a finished result is not kept.

    A store that cannot be used causes a warning and does not stop the measurement: results wait,
    and are written with the next row or at the end. Only a file that was named with ``--store`` is
    checked before anything is measured, like any other option.

    Args:
        store: store open for writing; None stores nothing, unless ``make`` is given.
        kind: the command.
        make: opens a missing store when the run begins, so that a command that ends before leaves
            no empty file.
        tell: called with warnings, and with a line that says where the run is stored.
        quiet: do not say where the run is stored.
        named: whether the store was named with ``--store``.
        resumed: the run to resume; None for a new one.
        limit_s: seconds after which measuring ends like after Ctrl-C; None for no limit.

    Attributes:
        store: the store.
        resumed: the resumed run.
        before: stored record of the resumed run.
        interrupts: handles Ctrl-C while the context lasts.
        begun: whether the run is in the store.
        given: number of results passed to ``add``.
    """

    def __init__(
        self,
        store: Store | None,
        kind: str,
        *,
        make: Callable[[], Store] | None = None,
        tell: Callable[[str], None] = lambda _: None,
        quiet: bool = False,
        named: bool = False,
        resumed: RunInfo | None = None,
        limit_s: float | None = None,
    ) -> None:
        self.store, self.resumed = store, resumed
        self.before = store.record(resumed.id) if store is not None and resumed else None
        self.interrupts = OneInterrupt(limit_s)
        self.given = 0
        self._make, self._kind, self._tell = make, kind, tell
        # Interrupted runs that were named already.
        self._reused: set[str] = set()
        self._quiet, self._named = quiet, named
        self._run: RunRecord | None = None
        self._request: Mapping[str, Any] | None = None
        self.begun = self._ended = self._warned = False
        self._kept: str | None = None
        self._next_description = 0.0
        # Entries that are not stored yet. Each is written atomically and replaces the one with its
        # key: an entry that Ctrl-C interrupted can be written again.
        self._waiting: dict[str | int, Entry] = {}
        self._written = False

    def __enter__(self) -> Self:
        self.interrupts.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._run is not None and not self._ended:
                stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
                self.finish(self._run, "interrupted" if stopped else "failed")
            if self.store is not None and self._kept is not None and not self._quiet:
                self._say_kept(self.store, self._kept)
        finally:
            if self.store is not None:
                self.store.close()
            self.interrupts.__exit__(kind, error, trace)

    @property
    def where(self) -> str:
        """How other commands find the run: `` --store FILE`` if that was given."""
        if self.store is None or not self._named:
            return ""
        return f" --store {shlex.quote(str(self.store.path))}"

    @property
    def started(self) -> bool:
        """Whether ``start`` has succeeded."""
        return self._run is not None

    def start(self, run: RunRecord, request: Mapping[str, Any] | None = None) -> None:
        """Begin the run, or resume one; once.

        Args:
            run: the session's record.
            request: the request as a JSON object; needed to resume the run later.

        Raises:
            UsageError: the named file cannot be written, or machine, libraries or request differ
                from those of the resumed run.
        """
        if self.before is not None and self.store is not None:
            request_before = self.store.request(self.before.id)
            refuse_differences(self.before, run, request_before, request or {})
        # Atomic: a run that Ctrl-C left half begun could not be ended.
        with self.interrupts.held():
            self._run, self._request = self.own(run), request
            try:
                self._begin()
            except StoreError as error:
                if self._named or self.resumed is not None:
                    self._run = None
                    raise UsageError(str(error)) from error
                self._warn(error)

    def own(self, run: RunRecord) -> RunRecord:
        """Return a record under the resumed run's id, time and command; a new run's unchanged."""
        return run if self.before is None else merge_records(self.before, run)

    def earlier(self, *, samples: bool = False) -> Sequence[Entry]:
        """Return the entries of the resumed run; none of a new one.

        Args:
            samples: include raw samples.
        """
        if self.store is None or self.resumed is None:
            return ()
        return self.store.entries(self.resumed.id, samples=samples)

    def reusable(self, run: RunRecord, *, finished: bool) -> Iterator[tuple[str, Entry]]:
        """Yield finished native rows of interrupted runs of the last day on this machine.

        Each has the id of its run; the newest run is the first. Rows that others disturbed are left
        out. A run that cannot be read is skipped with a warning.

        Args:
            run: record of this run; machine, libraries and their variables must be the same.
            finished: include runs that have finished, if they used the same GPU.
        """
        if self.store is None:
            return
        since = dt.datetime.now(dt.UTC) - _MAX_AGE
        for info in self.store.runs(limit=_MAX_RECENT_RUNS):
            ended_early = info.status in ("interrupted", "killed")
            if not (ended_early or (finished and info.status == "done")):
                continue
            begun = start_time(info.created_utc)
            if begun is None or begun < since:
                continue
            try:
                before = self.store.record(info.id)
                refuse_differences(before, run, {}, {})
                if not (ended_early or is_same_gpu(before.device, run.device)):
                    continue
                entries = list(self.store.entries(info.id, "layer"))
            except UsageError:
                continue  # another machine, library or variable
            except StoreError as error:
                self._tell(f"warning: rows of run {info.id} are not reused: {error}")
                continue
            for entry in entries:
                document = entry.document
                whole = document.get("stop_rule") != "interrupted"
                if document.get("status") == "ok" and whole and not document.get("contended"):
                    yield info.id, entry

    def tell_reuse(self, run_id: str) -> None:
        """Say once that native rows of an earlier run are reused."""
        if run_id not in self._reused and not self._quiet:
            self._tell(f"native rows of run {run_id} are reused")
        self._reused.add(run_id)

    def add(self, table: str, document: Mapping[str, Any], key: str | None = None) -> None:
        """Store a finished result.

        Args:
            table: table of the store: ``layer``, ``estimate``, ``step``...
            document: JSON object; its ``samples_s`` are stored separately.
            key: key of the entry; a later one with the same key replaces it.
        """
        self.given += 1
        if self.store is not None or self._make is not None:
            entry = Entry.from_document(table, document, key)
            self._waiting[self.given if key is None else key] = entry
            self._write()

    def describe(self, read: Callable[[], RunRecord]) -> None:
        """Store device and environment as known so far, every few seconds at most.

        Args:
            read: returns the session's record; not called if it is too early.
        """
        if self.store is None or not self.begun or time.monotonic() < self._next_description:
            return
        self._next_description = time.monotonic() + _UPDATE_PERIOD_S
        try:
            self.store.describe(self.own(read()))
        except StoreError as error:
            self._warn(error)

    def finish(self, run: RunRecord, status: str, keys: Sequence[str] = ()) -> None:
        """End the run; leaving the context prints where it is stored, below the results.

        Args:
            run: the session's final record.
            status: ``done``, ``interrupted`` or ``failed``.
            keys: keys of the rows, in the order in which they were requested.
        """
        if self._run is None or self._ended:
            return
        self._ended = True
        run = self._run = self.own(run)
        self._write()
        if self.store is not None and self.begun:
            try:
                if not self.given and self.resumed is None:
                    self.store.delete(run.id)
                    self.begun = False
                    return
                self.store.arrange(run.id, keys)
                self.store.finish(run, status)
            except StoreError as error:
                self._warn(error)
        if self._waiting:
            self._tell(f"warning: {quantity(len(self._waiting), 'result')} could not be kept")
        if self.begun and (self._written or not self._waiting):
            self._kept = run.id

    def _begin(self) -> None:
        if self._run is None or self.begun:
            return
        if self.store is None:
            if self._make is None:
                return
            self.store = self._make()
        if self.resumed is not None:
            self.store.resume(self.resumed.id)
        else:
            self.store.begin(self._run, self._kind, request=self._request)
        self.begun = True

    def _write(self) -> None:
        """Store all waiting entries; those that the store refuses wait for the next attempt."""
        if self._run is None:
            return
        try:
            self._begin()
            while self._waiting and self.store is not None:
                first = next(iter(self._waiting))
                self.store.add(self._run.id, self._waiting[first])
                del self._waiting[first]
                self._written = True
        except StoreError as error:
            self._warn(error)

    def _warn(self, error: StoreError) -> None:
        """Print a warning once, as the same error returns with every row."""
        if not self._warned:
            self._tell(f"warning: not kept for now, the run goes on: {error}")
        self._warned = True

    def _say_kept(self, store: Store, run_id: str) -> None:
        """Print the name of the run, and how to show it."""
        try:
            short = short_id(run_id, store.ids())
        except StoreError:
            short = run_id
        self._tell(f"kept as run {run_id} (pydlbench runs show {short}{self.where})")
