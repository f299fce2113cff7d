"""What somebody's log or trace says: its distinct problems, and what the limit of each is."""

from __future__ import annotations

from typing import Annotated

from pydlbench.records.fields import shown
from pydlbench.records.record import Document, Record, one_of
from pydlbench.records.run import RunRecord
from pydlbench.records.trace import CallInContext, Dominant, ModuleInContext
from pydlbench.units import format_seconds, percent
from pydlbench.words import DIRECTIONS


class RecordedProblem(Record, frozen=True, kw_only=True):
    """Equal calls of what was recorded. Times in seconds, of all of them together.

    Attributes:
        operator: its name, in the words of what recorded it: ``aten.convolution_backward``.
        problem: the descriptor of the native layer that stands for most of it; the shapes of its
            operands where there is none.
        passes: of that layer; empty where there is none.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``, where the file tells.
        precision: in which it computes; types that have none by their names; empty if unknown.
        modules: of the user's model that it belongs to, where the file names them.
        count: how many calls.
        seconds: that they took; null where the file has no times.
        share: of the whole: by time, or by the limits where the file has no times.
        flops: algorithmic ones; null where nobody knows.
        limit_s: their roofline on this machine; null where what they compute is not known.
        native_s: of the native layers that stand for them; null where they were not timed.
        no_layer: why no native layer stands for them; null where one does.
        signature: see :class:`~pydlbench.records.operator.RecordedCall`.
    """

    operator: Annotated[str, shown("operator", right=False)]
    problem: Annotated[str, shown("problem", right=False)]
    passes: tuple[str, ...] = ()
    direction: Annotated[str, one_of(*DIRECTIONS)]
    precision: Annotated[str, shown("precision", right=False)]
    modules: tuple[str, ...] = ()
    count: Annotated[int, shown("count", "{:,}".format)]
    seconds: Annotated[float | None, shown("time", format_seconds)] = None
    share: Annotated[float | None, shown("share", percent)] = None
    flops: int | None = None
    limit_s: Annotated[float | None, shown("limit", format_seconds)] = None
    native_s: Annotated[float | None, shown("native", format_seconds)] = None
    no_layer: str | None = None
    signature: str

    @property
    def pass_(self) -> Annotated[str, shown("pass", right=False)]:
        """The passes of its layer; of an optimizer that it is one."""
        named = self.direction in ("forward", "backward")
        return " ".join(self.passes) if named and self.passes else self.direction

    @property
    def of_limit(self) -> Annotated[float | None, shown("of limit", percent)]:
        """What the limit is of its time, 0 to 1; None where one of the two is not known."""
        if self.limit_s is None or not self.seconds:
            return None
        return self.limit_s / self.seconds

    @property
    def times_native(self) -> Annotated[float | None, shown("x native", "{:.3g}".format)]:
        """How many times as long it takes as native layers; None where either is not known."""
        return self.seconds / self.native_s if self.seconds and self.native_s else None


class RecordedSteps(Record, frozen=True, kw_only=True):
    """A log or a trace, read. Times in seconds, of one step where it has several.

    Attributes:
        file: its name.
        source: what wrote it.
        steps: how many executions of the same calls are in it.
        count: calls in each, those that compute nothing left out.
        step_s: the step, or the sum of its calls where nobody noted more; null without times.
        between_calls_s: of the step, what is between its calls; null where that is not known.
        dominant: what takes most of it: a module where the file names them, else a problem.
        problems: the longest first.
        calls: of one operator, module and direction; empty without times, likewise below.
        modules: the longest first; empty where the file names none.
        limits_of: whose peaks the limits are held against; null where there are none.
        notes: what a reader has to know.
    """

    file: str
    source: str
    steps: int
    count: int
    step_s: float | None = None
    between_calls_s: float | None = None
    dominant: Dominant | None = None
    problems: tuple[RecordedProblem, ...]
    calls: tuple[CallInContext, ...] = ()
    modules: tuple[ModuleInContext, ...] = ()
    limits_of: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def without_layer(self) -> tuple[RecordedProblem, ...]:
        """Problems that no native layer stands for, the longest first."""
        return tuple(problem for problem in self.problems if problem.no_layer is not None)


class RecordedDocument(Document, frozen=True, kw_only=True):
    """What ``step --trace FILE`` writes.

    Attributes:
        run: when and where its limits were measured.
        recorded: what the file says.
    """

    run: RunRecord
    recorded: RecordedSteps
