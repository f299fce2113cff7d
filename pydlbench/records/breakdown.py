"""A step's breakdown: levels from the hardware's limit to the step, and the terms between them."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

import msgspec

from pydlbench.records.record import Record, one_of, shown
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import CallInContext, ModuleInContext, Tracing
from pydlbench.units import format_seconds, percent

#: Levels from the hardware's limit to the step: the fields of :class:`Levels`.
LEVELS: Final = ("limit", "native", "alone", "in_context", "step")
#: The term for all that lies between the limit and the calls in the step, if it ended before native
#: layers and calls alone were timed.
NOT_MEASURED: Final = "not measured"


class Level(Record, frozen=True, kw_only=True):
    """One level of a step. Times in seconds.

    Attributes:
        median: mean of the middle rounds, so that levels and the terms between them add up.
        ci_low: lower end of the 95 % interval, widened by interference; None with a single round.
        ci_high: upper end of the interval.
        n: number of rounds of the interval: those that timed the level.
    """

    median: Annotated[float, shown("time", format_seconds, unit="s")]
    ci_low: float | None = None
    ci_high: float | None = None
    n: int

    promised = ("ci_low", "ci_high")


class Levels(Record, frozen=True, kw_only=True):
    """The levels of a step; null where one is not known, with the reason in ``reasons``.

    Attributes:
        limit: rooflines of the native layers, at the clock of each round.
        native: the fastest native kernels of the layers that stand for the calls.
        alone: the framework's calls, each timed alone, times its number in the step.
        in_context: the same calls within the step: their share of a traced step, times the step.
        step: real steps in fresh processes.
    """

    limit: Level | None = None
    native: Level | None = None
    alone: Level | None = None
    in_context: Level | None = None
    step: Level

    promised = LEVELS


class Term(Record, frozen=True, kw_only=True):
    """A part of a step's time. Terms sum to the step.

    Attributes:
        term: name of the part; it names a cause only if an experiment supports it.
        kind: ``limit``, ``difference`` (between two levels; no experiment explains it, or not all
            could be made), ``experiment`` (an A/B run, a counter or a log) or ``unexplained`` (the
            rest of a difference after its experiments).
        seconds: time of this part; negative where time is saved.
        ci_low: lower end of its 95 % interval over the rounds; None with a single round.
        ci_high: upper end of the interval.
        share: share of the step.
        how: how the part was measured.
        level: the upper of the two levels between which the term lies; the lower one is the next
            known level.
        detail: calls that stand out in this part; for an ``unexplained`` term, the calls with the
            largest difference between the two levels. Empty if no call stands out.
    """

    term: Annotated[str, shown("term", right=False)]
    kind: Annotated[
        str,
        one_of("limit", "difference", "experiment", "unexplained"),
        shown("kind", right=False),
    ]
    seconds: Annotated[float, shown("time", format_seconds, unit="s")]
    ci_low: Annotated[float | None, shown("95 %", format_seconds, unit="s")] = None
    ci_high: float | None = None
    share: Annotated[float, shown("of step", partial(percent, signed=True, decimal=True))]
    how: str
    level: Annotated[str, one_of(*LEVELS)]
    detail: Annotated[str, shown("what stands out", right=False)] = ""

    promised = ("ci_low", "ci_high")


class Alternative(Record, frozen=True, kw_only=True):
    """The step with one change, in other processes beside it (A/B). Times in seconds.

    It is no term: its saving may be a part of several. The saving of kept pages is also in
    ``fresh memory`` and ``returned memory``, and must not be added to these terms.

    Attributes:
        change: what was changed.
        median: median of the changed step.
        saved: median over the rounds of the time saved by the change; negative if the changed step
            takes longer.
        ci_low: lower end of the 95 % interval of the saving; None with a single round.
        ci_high: upper end of the interval.
        n: number of rounds.
        how: how the change was made.
    """

    change: str
    median: float
    saved: float
    ci_low: float | None = None
    ci_high: float | None = None
    n: int
    how: str

    promised = ("ci_low", "ci_high")


class BrokenDownCall(CallInContext, frozen=True, kw_only=True):
    """Calls of one operator, module and direction, on all levels. Times in seconds.

    Attributes:
        alone_s: time of all these calls together, each timed alone; None if one could not be run
            alone.
        native_s: time of the native layers that stand for these calls; 0 for views, None if there
            is no layer.
        faults: page faults of all these calls in the step; None where they were not counted by
            call.
        signatures: signatures of the calls, see
            :class:`~pydlbench.records.trace.RecordedCall`.
    """

    alone_s: float | None = None
    native_s: float | None = None
    faults: float | None = None
    signatures: tuple[str, ...] = ()

    promised = ("alone_s", "native_s", "faults")


class BrokenDownModule(ModuleInContext, frozen=True, kw_only=True):
    """A module's calls on all levels. Times in seconds.

    Attributes:
        alone_s: time of the module's calls, each timed alone; None if one could not be run alone.
        native_s: time of the native layers that stand for the module's calls; None if a call has no
            layer.
    """

    alone_s: Annotated[float | None, shown("alone", format_seconds, unit="s")] = None
    native_s: Annotated[float | None, shown("native", format_seconds, unit="s")] = None


class Breakdown(Record, frozen=True, kw_only=True):
    """The levels and terms of a step, without its settings. Times in seconds.

    Attributes:
        levels: the levels, each with its interval; null where a level is not known.
        reasons: reason why a level is null, by level; and the reason why the calls have no
            ``faults``.
        terms: parts of the step's time, which sum to the step.
        calls: calls of the step, the longest first.
        modules: modules of the step, the longest first.
        alternatives: steps with one change.
        between_calls_s: time between calls in the step.
        not_measured: parts without an experiment, with the reason; they are not in ``unexplained``.
        without_layer: operators of calls without a native layer, with their times and reasons; they
            have a term of their own, without experiments.
        unexplained: the rest of the differences after all experiments, as a signed share of the
            step; null where there were no experiments.
        unexplained_low: lower end of the 95 % interval of ``unexplained``; null with a single
            round.
        unexplained_high: upper end of the interval.
        contradictions: measurements that cannot all be right, in words.
        disturbed: number of rounds during which other processes used the machine.
        disturbance: the observed interference in words; empty if there was none.
    """

    levels: Levels
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict)
    terms: tuple[Term, ...]
    calls: tuple[BrokenDownCall, ...]
    modules: tuple[BrokenDownModule, ...]
    alternatives: tuple[Alternative, ...] = ()
    between_calls_s: float
    not_measured: tuple[str, ...] = ()
    without_layer: tuple[str, ...] = ()
    unexplained: Annotated[float | None, shown("unexplained", partial(percent, signed=True))] = None
    unexplained_low: float | None = None
    unexplained_high: float | None = None
    contradictions: tuple[str, ...] = ()
    disturbed: int = 0
    disturbance: str = ""


class BreakdownRecord(Breakdown, frozen=True, kw_only=True, rename={"measured": "measured_s"}):
    """The breakdown of a model's step in a framework.

    Attributes:
        spec: specification of the step, with its batch; its fields are merged into the object.
        measured: time of the step, equal to the level ``step`` (JSON: ``measured_s``).
        library: name and version of the framework.
        threads: number of threads; on a GPU, number of the host's threads.
        processes: number of fresh processes in which the step was timed.
        program: a hash of the step's calls.
        trace: how the calls were timed within the step.
        forecast_s: forecast from stored rows, made before the step was timed; null if there is
            none.
        lines: source line of the first call in the user's code, by module: ``my_model.py:15``.
        types: types of an ONNX file, see ``StepFacts``; else None.
        notes: remarks for the reader.
        seconds: duration of the breakdown.
    """

    spec: StepSpec
    measured: Level
    library: str
    threads: int
    processes: int
    program: str = ""
    trace: Tracing
    forecast_s: float | None = None
    lines: Mapping[str, str] = msgspec.field(default_factory=dict)
    types: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    embedded = ("spec",)
    derived = ("additivity_error", "forecast_error")
    promised = ("forecast_s",)
    omitted = ("types",)

    @property
    def who(self) -> Annotated[str, shown("step", right=False)]:
        """The framework with its mode."""
        return f"{self.spec.framework} {self.spec.mode}"

    @property
    def additivity_error(self) -> float | None:
        """Error of the sum of calls alone, as a signed fraction of the step; null without it."""
        return None if self.levels.alone is None else self._error(self.levels.alone.median)

    @property
    def forecast_error(self) -> float | None:
        """Error of the forecast, as a signed fraction of the step; null without a forecast."""
        return None if self.forecast_s is None else self._error(self.forecast_s)

    @property
    def coarse(self) -> bool:
        """Whether it has neither native layers nor calls alone, because it ended early."""
        return any(term.term == NOT_MEASURED for term in self.terms)

    def _error(self, predicted_s: float) -> float:
        return (predicted_s - self.measured.median) / self.measured.median
