"""The tasks of a command, each with the rows that it measures together.

Commands derive their tasks from these, so their parsers import this module. Modules that measure
are imported when something is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.records.record import Record
    from pydlbench.store.store import Store

_Record = TypeVar("_Record", bound="Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One wanted measurement, estimate, step or breakdown.

    Attributes:
        fields: texts that distinguish it from other rows, by the names that a sweep's ``exclude``
            uses.
        label: short name for progress lines.
        spec: what is measured.
    """

    fields: Mapping[str, str]
    label: str
    spec: Any = None


@dataclass(frozen=True, slots=True)
class Result:
    """One finished result.

    Attributes:
        table: table of the store; empty if nothing is stored.
        document: JSON object; without ``status`` it is ``ok``.
        row: row of the result; None if the result is only a part of a row.
        key: key of a result without a row.
        detail: record that the document was made of, or anything else that a command prints. It is
            not stored, so earlier results of a resumed run have none.
        place: see :class:`Task`; the loop sets it.
        so_far: whether a later result of the same row is to replace it: the answer that a row has
            if the run ends before that. Its document says ``interrupted``.
    """

    table: str
    document: dict[str, Any]
    row: TaskRow | None = None
    key: str | None = None
    detail: Any = None
    place: str = ""
    so_far: bool = False

    @property
    def status(self) -> str:
        """``ok``, ``skipped`` or ``failed``."""
        return str(self.document.get("status", "ok"))

    @property
    def reason(self) -> str | None:
        """Why the status is not ``ok``."""
        return self.document.get("reason")

    @property
    def partial(self) -> bool:
        """Whether it lacks some of its repetitions or parts."""
        known = self.document
        return bool(self.so_far or known.get("interrupted")) or (
            known.get("stop_rule") == "interrupted"
        )

    def record(self, kind: type[_Record]) -> _Record:
        """Return the record, as it was measured or as read from an earlier attempt."""
        return self.detail if isinstance(self.detail, kind) else kind.from_dict(self.document)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The view of a task on the run while it measures.

    Attributes:
        tolerant: whether the other rows are still measured after a row has failed; see
            ``execute.execute``.
        store: returns the store of the run; None if there is no store, and before the run has
            begun.
        advance: shows progress: rows done, all rows, and what comes next.
        keep: stores a result that belongs to no row, with its key, before the task goes on.
        earlier: whether the resumed run has finished a row of the task.
        begun: returns the document of a row that the resumed run has in part; None if it has none.
        kernel: returns the document of a kernel that this run has already measured, if it is ok.
    """

    tolerant: bool
    store: Callable[[], Store | None]
    advance: Callable[[float, int, str], None]
    keep: Callable[[Result], None]
    earlier: Callable[[TaskRow], bool]
    begun: Callable[[TaskRow], dict[str, Any] | None]
    kernel: Callable[[KernelSpec], dict[str, Any] | None]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Rows that are measured together: a resumed run measures all of them if one is missing.

    Subclasses define the rows and how they are measured; see :class:`KernelTask`.

    Attributes:
        kind: command that asks for such rows.
        opens: kind of session; tasks with the same kind and the same options share one.
        rows: rows of the task.
        options: keywords of ``RunnerOptions``.
        table: number of the sweep's table.
        place: name of that table in messages.
        words: command-line words that ask for the same.
    """

    kind: ClassVar[str]
    opens: ClassVar[str] = "kernels"
    rows: tuple[TaskRow, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    table: int = 1
    place: str = ""
    words: tuple[str, ...] = ()

    def open(self) -> AbstractContextManager[Any]:
        """Return a new session for tasks of this kind."""
        from pydlbench.runner.options import RunnerOptions
        from pydlbench.runner.session import Session

        return Session(RunnerOptions(**self.options))

    def seconds(self) -> float:
        """Return the sampling time of the task, in seconds."""
        return len(self.rows) * float(self.options.get("budget_s", 0.0))

    def check(self, session: Any) -> None:  # noqa: B027 - some kinds need no room of their own
        """Check that the task has enough memory, before anything of a run is prepared.

        Raises:
            UsageError: the memory is not enough.
        """

    @abstractmethod
    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Yield each result as soon as it is finished, with those of all rows among them.

        Raises:
            PydlbenchError: the rows without a result will have none.
        """

    def refused(self, row: TaskRow, status: str, reason: str) -> Result:
        """Return the result of a row that could not be measured."""
        return Result("", {**row.fields, "status": status, "reason": reason}, row)


@dataclass(frozen=True, kw_only=True)
class KernelTask(Task):
    """Layers; those that differ only in backend and mode are interleaved."""

    kind: ClassVar[str] = "layers"

    def check(self, session: Any) -> None:
        """Check that the operands of each problem fit into memory together."""
        session.check_room([row.spec for row in self.rows])

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Measure what is missing; if one row of a problem is missing, all of its rows."""
        from pydlbench.runner.problem import by_problem

        rows = {row.spec: row for row in self.rows}
        wanted = []
        for group in by_problem(list(rows)):
            if all(view.earlier(rows[spec]) for spec in group):
                continue
            try:
                if view.tolerant:  # otherwise checked before anything is measured
                    session.check_room(group)
            except PydlbenchError as error:
                for spec in group:
                    yield self.refused(rows[spec], "failed", str(error))
            else:
                wanted += group
        for spec, measured in session.measure(wanted, progress=view.advance, so_far=True):
            yield Result("layer", measured.to_dict(), rows[spec], detail=measured)

    def refused(self, row: TaskRow, status: str, reason: str) -> Result:
        """Return a layer's row without numbers."""
        from pydlbench.runner.rows import empty_row

        threads = self.options.get("threads")
        return Result("layer", empty_row(row.spec, threads, status, reason).to_dict(), row)
