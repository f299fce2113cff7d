"""What a command asks for: tasks, each with the rows that it answers together.

Commands derive their own kinds of tasks, so their parsers load this module; what measures is
loaded once something is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from pydlbench.runner.execute import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement, estimate, step or check that is wanted.

    Attributes:
        fields: what tells it from others, by the names that a sweep's ``exclude`` uses; all text.
        label: a short name for progress lines.
        spec: what is handed to whoever measures it.
    """

    fields: Mapping[str, str]
    label: str
    spec: Any = None


@dataclass(frozen=True, slots=True)
class Result:
    """One finished thing on its way into the store.

    Attributes:
        table: of the store; empty where there is nothing to keep.
        document: its JSON object; without ``status`` it counts as ``ok``.
        row: that it answers; None where it only goes into a row.
        key: of one that answers no row.
        detail: what was found: the record that the document was made of, or whatever else a command
            prints; never stored, so that a resumed run's earlier results have none.
    """

    table: str
    document: dict[str, Any]
    row: Row | None = None
    key: str | None = None
    detail: Any = None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Rows that are measured together: where one of them is missing, it is gone on with.

    A subclass says what they are and how they are measured; see :class:`KernelTask`.

    Attributes:
        kind: the command that asks for such rows.
        opens: the kind of session; tasks with the same kind and the same options share one.
        rows: what comes of it.
        options: keywords of ``session.Options``.
        table: number of the sweep's table that asked for it.
        place: how messages call that table.
        words: of the command line that asks for the same.
    """

    kind: ClassVar[str]
    opens: ClassVar[str] = "kernels"
    rows: tuple[Row, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    table: int = 1
    place: str = ""
    words: tuple[str, ...] = ()

    def open(self) -> AbstractContextManager[Any]:
        """Return a new session for tasks of this kind."""
        from pydlbench.runner.options import Options
        from pydlbench.runner.session import Session

        return Session(Options(**self.options))

    def seconds(self) -> float:
        """Return how many seconds of sampling it is allowed."""
        return len(self.rows) * float(self.options.get("budget_s", 0.0))

    def check(self, session: Any) -> None:  # noqa: B027 - some kinds need no room of their own
        """Make sure that there is room for it, before anything of a run is built.

        Raises:
            UsageError: there is not.
        """

    @abstractmethod
    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Yield each result as soon as it is finished, those of all rows among them.

        Raises:
            PydlbenchError: the rows that have no result yet will have none.
        """

    def refused(self, row: Row, status: str, reason: str) -> Result:
        """Return what stands in the place of a row that could not be measured."""
        return Result("", {**row.fields, "status": status, "reason": reason}, row)


@dataclass(frozen=True, kw_only=True)
class KernelTask(Task):
    """Layers alone, visited in laps; interleaved where they differ in backend and mode only."""

    kind: ClassVar[str] = "layers"

    def check(self, session: Any) -> None:
        """Make sure that the operands of each problem fit into memory together."""
        session.check_room([row.spec for row in self.rows])

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Measure what is not there yet; of a problem that lacks a row all of them."""
        from pydlbench.runner.problem import by_problem

        rows = {row.spec: row for row in self.rows}
        wanted = []
        for group in by_problem(list(rows)):
            if all(view.earlier(rows[spec]) for spec in group):
                continue
            try:
                if view.tolerant:  # else it was checked before anything was measured
                    session.check_room(group)
            except PydlbenchError as error:
                for spec in group:
                    yield self.refused(rows[spec], "failed", str(error))
            else:
                wanted += group
        for spec, measured in session.measure(wanted, progress=view.advance, so_far=True):
            yield Result("layer", measured.to_dict(), rows[spec], detail=measured)

    def refused(self, row: Row, status: str, reason: str) -> Result:
        """Return a layer's row without numbers."""
        from pydlbench.runner.rows import empty_row

        empty = empty_row(row.spec, self.options.get("threads"), status, reason)
        return Result("layer", empty.to_dict(), row)
