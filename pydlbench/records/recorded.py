"""A recorded log or trace of a step: its distinct problems with their limits."""

from __future__ import annotations

from typing import Annotated

from pydlbench.records.record import Record, one_of, shown
from pydlbench.records.trace import CallInContext, Dominant, ModuleInContext
from pydlbench.units import format_seconds, percent
from pydlbench.words import DIRECTIONS


class RecordedProblem(Record, frozen=True, kw_only=True):
    """Equal calls of a recorded step. Times in seconds, of all of them together.

    Attributes:
        operator: the recorder's name of the operator: ``aten.convolution_backward``.
        problem: the descriptor of the native layer that stands for most of it; the shapes of its
            operands where there is none.
        passes: passes of that layer; empty where there is none.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``, if the file has it.
        precision: precision of the computation, or the name of a type that has none; empty if
            unknown.
        modules: modules of the user's model that it belongs to, if the file names them.
        count: number of calls.
        seconds: time of all these calls; null where the file has no times.
        share: share of the total time, or of the total limit where the file has no times.
        flops: algorithmic FLOPs; null where they are not known.
        limit_s: roofline of all these calls on this machine; null where their computation is not
            known.
        native_s: time of the native layers that stand for these calls; null where the layers were
            not timed.
        no_layer: why no native layer stands for them; null where one does.
        signature: signature of the calls, see :class:`~pydlbench.records.trace.RecordedCall`.
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
        """The passes of its layer, or the direction where it has none."""
        named = self.direction in ("forward", "backward")
        return " ".join(self.passes) if named and self.passes else self.direction

    @property
    def of_limit(self) -> Annotated[float | None, shown("of limit", percent)]:
        """The limit over the time, 0 to 1; None where either is not known."""
        if self.limit_s is None or not self.seconds:
            return None
        return self.limit_s / self.seconds

    @property
    def times_native(self) -> Annotated[float | None, shown("x native", "{:.3g}".format)]:
        """The time over that of native layers; None where either is not known."""
        return self.seconds / self.native_s if self.seconds and self.native_s else None


class RecordedSteps(Record, frozen=True, kw_only=True):
    """The contents of a log or a trace. Times in seconds, of one step where it has several.

    Attributes:
        file: name of the file.
        source: program that wrote it.
        steps: number of executions of the same calls.
        count: calls in each step, without those that compute nothing.
        step_s: time of the step, or the sum of its calls if the file has no more; null without
            times.
        between_calls_s: time of the step between its calls; null where that is not known.
        dominant: the largest part: a module if the file names them, else a problem.
        problems: distinct problems, the longest first.
        calls: calls by operator, module and direction; empty if the file has no times.
        modules: modules, the longest first; empty if the file names none, or has no times.
        limits_of: device whose peaks the limits are computed from; null where there are none.
        notes: remarks for the reader.
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
        """Problems without a native layer, the longest first."""
        return tuple(problem for problem in self.problems if problem.no_layer is not None)
