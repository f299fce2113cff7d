"""Keeps what a command measures in the store, while it measures, whatever ends it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from pydlbench.errors import StoreError, UsageError
from pydlbench.store.entry import Entry
from pydlbench.store.reader import short_id
from pydlbench.store.resume import continued, refuse_differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from pydlbench.records.run import RunInfo, RunRecord
    from pydlbench.store.store import Store

# Device and environment of a run that goes on are written again so often, in seconds.
_EVERY_S = 5.0


class OneInterrupt:
    """Context in which the first SIGINT or SIGTERM raises ``KeyboardInterrupt``; others do nothing.

    Impatient people press Ctrl-C twice, and batch systems send SIGTERM before they kill: what is
    finished is then saved and shown undisturbed. Does nothing outside of the main thread; a signal
    that is ignored or that somebody else handles stays as it is.
    """

    def __init__(self) -> None:
        self._listening = True
        self._held = self._pending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        if threading.current_thread() is threading.main_thread():
            for number, handler in usual.items():
                if signal.getsignal(number) is handler:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def ignore(self) -> None:
        """Do nothing on any signal from now on."""
        self._listening = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Put a signal off until the block has ended: what it does is done whole."""
        outermost, self._held = not self._held, True
        try:
            yield
        finally:
            self._held = not outermost
            if self._pending and outermost:
                self._pending = False
                raise KeyboardInterrupt

    def _handle(self, *_: object) -> None:
        if not self._listening:
            return
        self._listening = False
        if self._held:
            self._pending = True
        else:
            raise KeyboardInterrupt


class Resumed:
    """A run of a store that more rows are added to.

    Args:
        store: that holds it.
        info: which one.

    Attributes:
        info: as given.
        record: as it was kept.
    """

    def __init__(self, store: Store, info: RunInfo) -> None:
        self._store = store
        self.info = info
        self.record = store.record(info.id)

    def own(self, run: RunRecord) -> RunRecord:
        """Return a session's record as this run's, with all that was found on the device before."""
        return continued(self.record, run)

    def entries(self, *, samples: bool = False) -> Sequence[Entry]:
        """Return all that is kept of it, with raw samples where they are asked for."""
        return self._store.entries(self.info.id, samples=samples)

    def refuse_differences(self, run: RunRecord, request: Mapping[str, Any]) -> None:
        """Make sure that a session's rows may stand beside those that are there.

        Raises:
            UsageError: machine, libraries or request are not the same.
        """
        request_before = self._store.request(self.info.id)
        refuse_differences(self.record, run, request_before, request)


class Waiting:
    """Results on their way into the store: what it refuses waits for the next attempt.

    Attributes:
        written: how often one was written.
    """

    def __init__(self) -> None:
        self.written = 0
        self._entries: list[Entry] = []
        # Ctrl-C may have come behind the commit of the first one, or before.
        self._uncertain = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Take an entry; of a row that waits already, with fewer visits, it takes the place."""
        # The first one may have been written when Ctrl-C came.
        for number, waiting in enumerate(self._entries):
            if (
                waiting.key is not None
                and waiting.key == entry.key
                and (number or not self._uncertain)
            ):
                self._entries[number] = entry
                return
        self._entries.append(entry)

    def write(self, store: Store, run_id: str) -> None:
        """Write all that waits; Ctrl-C in the middle leaves nothing out and nothing twice.

        Raises:
            StoreError: one cannot be written; it waits, with those behind it.
        """
        try:
            while self._entries:
                entry = self._entries[0]
                if not (self._uncertain and store.holds(run_id, entry)):
                    self._uncertain = True
                    store.add(run_id, entry)
                self._entries.pop(0)
                self.written += 1
                self._uncertain = False
        except StoreError:
            self._uncertain = False  # a transaction that failed has left nothing
            raise


class Recorder:
    """Puts one run into the store; a context manager, in which Ctrl-C ends the measuring once.

    Usage: ``start`` once something is known of the machine, ``add`` for all that is finished, at
    once, ``finish`` at the end. Leaving the context without ``finish`` ends the run as
    ``interrupted`` after Ctrl-C, else as ``failed``; a run in which nothing was finished is not
    kept.

    A store that cannot be used costs a warning, never a measurement: what could not be written
    waits, and is tried again with the next row and at the end. Only a file that was named with
    ``--store`` is checked like any other option, before anything is measured.

    Args:
        store: open for writing; None keeps nothing, unless ``make`` is given.
        kind: the command.
        make: opens a store that is not there yet, when the run begins: a command that ends before
            leaves no empty file.
        tell: called with lines for whoever waits: warnings, and where the run is kept.
        quiet: do not say where the run is kept.
        named: the store was named with ``--store``.
        resumed: the run to go on with, instead of a new one.

    Attributes:
        store: as given, or as made.
        resumed: as given.
        interrupts: what answers Ctrl-C while the context lasts.
        begun: whether the run is in the store.
        given: how often anything was handed over to be kept.
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
        resumed: Resumed | None = None,
    ) -> None:
        self.store = store
        self.resumed = resumed
        self.interrupts = OneInterrupt()
        self.given = 0
        self._make = make
        self._kind = kind
        self._tell = tell
        self._quiet = quiet
        self._named = named
        self._run: RunRecord | None = None
        self._request: Mapping[str, Any] | None = None
        self.begun = self._ended = self._warned = False
        self._kept: str | None = None
        self._next_description = 0.0
        self._waiting = Waiting()

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
        """What other commands need to find the run: `` --store FILE``, where it was named."""
        if self.store is None or not self._named:
            return ""
        return f" --store {shlex.quote(str(self.store.path))}"

    @property
    def started(self) -> bool:
        """Whether ``start`` has been called, with success."""
        return self._run is not None

    def start(self, run: RunRecord, request: Mapping[str, Any] | None = None) -> RunRecord:
        """Begin the run, or go on with the resumed one; later calls do nothing.

        Args:
            run: the session's record.
            request: what was asked for, a JSON object; needed where a run can be resumed.

        Returns:
            The record that outputs show; see :meth:`own`.

        Raises:
            UsageError: the file that was named cannot be written; or machine, libraries or request
                are not those of the run that is resumed.
        """
        if self._run is None:
            if self.resumed is not None:
                self.resumed.refuse_differences(run, request or {})
            # Whole or not at all: a run that Ctrl-C left half begun could not be ended any more.
            with self.interrupts.held():
                self._run, self._request = self.own(run), request
                try:
                    self._begin()
                except StoreError as error:
                    if self._named or self.resumed is not None:
                        self._run = None
                        raise UsageError(str(error)) from error
                    self._warn(error)
        return self.own(run)

    def own(self, run: RunRecord) -> RunRecord:
        """Return a record under the resumed run's id, time and command; of a new run itself."""
        return run if self.resumed is None else self.resumed.own(run)

    def add(self, table: str, document: Mapping[str, Any], key: str | None = None) -> None:
        """Keep something that is finished.

        Args:
            table: what it is: ``layer``, ``estimate``, ``step``...
            document: its JSON object; ``samples_s`` in it are kept apart.
            key: what it answers; a later one with the same key takes its place.
        """
        self.given += 1
        if self.store is not None or self._make is not None:
            self._waiting.put(Entry.from_document(table, document, key))
            self._write()

    def describe(self, read: Callable[[], RunRecord]) -> None:
        """Keep what is known of device and environment by now, every few seconds at the most.

        Args:
            read: gives the session's record; not called where it is too early.
        """
        if self.store is None or not self.begun or time.monotonic() < self._next_description:
            return
        self._next_description = time.monotonic() + _EVERY_S
        try:
            self.store.describe(self.own(read()))
        except StoreError as error:
            self._warn(error)

    def finish(self, run: RunRecord, status: str) -> None:
        """End the run; where it is kept is said when the context is left, below the results.

        Args:
            run: the session's record; device and environment are known only now.
            status: ``done``, ``interrupted`` or ``failed``.
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
                self.store.finish(run, status)
            except StoreError as error:
                self._warn(error)
        if self._waiting:
            count = len(self._waiting)
            self._tell(f"warning: {count} result{'s' * (count > 1)} could not be kept")
        if self.begun and (self._waiting.written or not self._waiting):
            self._kept = run.id

    def _begin(self) -> None:
        if self._run is None or self.begun:
            return
        if self.store is None:
            if self._make is None:
                return
            self.store = self._make()
        if self.resumed is not None:
            self.store.resume(self.resumed.info.id)
        else:
            self.store.begin(self._run, self._kind, request=self._request)
        self.begun = True

    def _write(self) -> None:
        """Write all that waits."""
        if self._run is None:
            return
        try:
            self._begin()
            if self.store is not None:
                self._waiting.write(self.store, self._run.id)
        except StoreError as error:
            self._warn(error)

    def _warn(self, error: StoreError) -> None:
        """Say it once: the same trouble comes back with every row."""
        if not self._warned:
            self._tell(f"warning: not kept for now, the run goes on: {error}")
        self._warned = True

    def _say_kept(self, store: Store, run_id: str) -> None:
        """Say under which name the run can be found, and how it is shown."""
        try:
            short = short_id(run_id, store.ids())
        except StoreError:
            short = run_id
        self._tell(f"kept as run {run_id} (pydlbench runs show {short}{self.where})")
