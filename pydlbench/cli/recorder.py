"""Keeps what a command measures in the store, while it measures."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec

from pydlbench.cli.options import say_kept
from pydlbench.cli.terminal import tell
from pydlbench.errors import StoreError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunInfo, RunRecord
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store

__all__ = ["Recorder", "Resumed"]


# -----------------------------------------------------------------------------
# The run that a recorder goes on with: what is kept of it, and whether it may be continued.


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
        from pydlbench.store.resume import continued

        return continued(self.record, run)

    def done(self) -> frozenset[str]:
        """Return the keys (see ``case_key``) of the rows that need no measuring."""
        from pydlbench.store.resume import done_keys

        return done_keys(self._store, self.info.id)

    def entries(self, table: str | None = None, *, samples: bool = False) -> Sequence[Entry]:
        """Return its entries; see ``Store.entries``."""
        return self._store.entries(self.info.id, table, samples=samples)

    def refuse_differences(self, run: RunRecord, request: Mapping[str, Any]) -> None:
        """Make sure that a session's rows may stand beside those that are there.

        Raises:
            UsageError: machine, libraries or request are not the same.
        """
        from pydlbench.store.resume import refuse_differences

        asked = self._store.request(self.info.id)
        refuse_differences(self.record, run, asked, request)


# -----------------------------------------------------------------------------
# Results on their way into the store: they wait until it takes them.


class Waiting:
    """A queue; what the store refuses stays in it, for the next attempt."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # Ctrl-C may have come behind the commit of the first one, or before.
        self._uncertain = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Take an entry."""
        self._entries.append(entry)

    def write(self, store: Store, run_id: str) -> None:
        """Write all that waits; Ctrl-C in the middle leaves nothing out and nothing twice.

        Raises:
            StoreError: one cannot be written; it waits, with those behind it.
        """
        from pydlbench.errors import StoreError

        try:
            while self._entries:
                entry = self._entries[0]
                if not (self._uncertain and store.holds(run_id, entry)):
                    self._uncertain = True
                    store.add(run_id, entry)
                self._entries.pop(0)
                self._uncertain = False
        except StoreError:
            self._uncertain = False  # a transaction that failed has left nothing
            raise


# -----------------------------------------------------------------------------
# Keeps what a command measures in the store, while it measures.
#
# A store that cannot be used costs a warning, never a measurement: what could not be written
# waits,
# and is tried again with the next row and at the end. Only a file that was named with ``--store``
# is
# checked like any other option, before anything is measured.

_EVERY_S = 5.0


class Recorder:
    """Puts one run into the store; a context manager.

    Usage: ``start`` once something is known of the machine, ``layer`` and ``add`` for all that is
    finished, at once, ``finish`` at the end. Leaving the context without ``finish`` ends the run as
    ``interrupted`` after Ctrl-C, else as ``failed``; a run that ends so before anything was
    finished is not kept.

    Args:
        store: open for writing; None keeps nothing.
        kind: the command.
        quiet: do not say where the run is kept.
        named: the store was named with ``--store``.
        resumed: the run to go on with, instead of a new one.

    Attributes:
        store: as given.
        resumed: as given.
        where: what other commands need to find the run: `` --store FILE``, where it was named.
        begun: whether the run is in the store.
        layers: how often ``layer`` was called.
        given: how often anything was handed over to be kept.
    """

    def __init__(
        self,
        store: Store | None,
        kind: str,
        *,
        quiet: bool = False,
        named: bool = False,
        resumed: Resumed | None = None,
    ) -> None:
        self.store = store
        self.resumed = resumed
        self.where = f" --store {shlex.quote(str(store.path))}" if store and named else ""
        self.layers = self.given = 0
        self._kind = kind
        self._quiet = quiet
        self._named = named
        self._run: RunRecord | None = None
        self._request: Mapping[str, Any] | None = None
        self.begun = self._ended = self._warned = False
        self._kept: str | None = None
        self._next_description = 0.0
        self._waiting = Waiting()

    @classmethod
    def of(cls, args: argparse.Namespace, kind: str, resume: str | None = None) -> Self:
        """Open the store that a command's options name.

        Args:
            args: the options; ``store`` and ``quiet`` are read.
            kind: the command.
            resume: the run to go on with, as ``Store.find`` takes it.

        Raises:
            UsageError: the file that was named cannot be written; or there is no such run, it is
                another command's, or it is being written.
        """
        from pydlbench.cli.options import writing_store

        store, named, resumed = writing_store(args, kind, resume)
        quiet = bool(getattr(args, "quiet", False))
        return cls(store, kind, quiet=quiet, named=named, resumed=resumed)

    def __enter__(self) -> Self:
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
                say_kept(self.store, self._kept, self.where)
        finally:
            if self.store is not None:
                self.store.close()

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

    def layer(
        self,
        row: Measurement,
        samples: Sequence[float] | None = None,
        key: str | None = None,
    ) -> None:
        """Keep a measurement.

        Args:
            row: with its ``samples_s``, or without.
            samples: in seconds, where they are not the row's.
            key: the case that it answers; see ``pydlbench.store.resume.case_key``.
        """
        from pydlbench.store.entry import Entry

        if samples is not None:
            row = msgspec.structs.replace(row, samples_s=tuple(samples))
        self._keep(Entry.of_layer(row, key))
        self.layers += 1

    def add(self, table: str, document: Mapping[str, Any], key: str | None = None) -> None:
        """Keep something else: ``estimate``, ``step``, ``check`` or ``findings``."""
        from pydlbench.store.entry import Entry

        self._keep(Entry.of(table, document, key))

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
                if not self.given and status != "done" and self.resumed is None:
                    self.store.delete(run.id)
                    self.begun = False
                    return
                self.store.finish(run, status)
            except StoreError as error:
                self._warn(error)
        if self._waiting:
            tell(f"warning: {len(self._waiting)} of {self.given} results could not be kept")
        if self.begun and len(self._waiting) < max(self.given, 1):
            self._kept = run.id

    def _begin(self) -> None:
        if self.store is None or self._run is None or self.begun:
            return
        if self.resumed is not None:
            self.store.resume(self.resumed.info.id)
        else:
            self.store.begin(self._run, self._kind, request=self._request)
        self.begun = True

    def _keep(self, entry: Entry) -> None:
        self.given += 1
        if self.store is not None:
            self._waiting.put(entry)
            self._write()

    def _write(self) -> None:
        """Write all that waits."""
        if self.store is None or self._run is None:
            return
        try:
            self._begin()
            self._waiting.write(self.store, self._run.id)
        except StoreError as error:
            self._warn(error)

    def _warn(self, error: StoreError) -> None:
        """Say it once: the same trouble comes back with every row."""
        if not self._warned:
            tell(f"warning: not kept for now, the run goes on: {error}")
        self._warned = True
