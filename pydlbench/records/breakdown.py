"""Where a step's time goes: levels from the hardware's limit to the step, and what lies between."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.fields import shown
from pydlbench.records.record import Record, one_of
from pydlbench.records.specs import Framework, Phase, Precision
from pydlbench.records.trace import CallInContext, ModuleInContext, Tracing
from pydlbench.records.user_model import UserModelSpec
from pydlbench.units import format_seconds, percent

#: From what the hardware needs to the step itself; fields of :class:`Levels`.
LEVELS: Final = ("limit", "native", "alone", "in_context", "step")


class Level(Record, frozen=True, kw_only=True):
    """One level of a step. Times in seconds.

    Attributes:
        median: over the rounds: the mean of those in the middle, so that levels and the terms
            between them add up.
        ci_low: lower end of the 95 % interval, widened by interference; None of a single round.
        ci_high: upper end.
        n: how many rounds.
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
        alone: the framework's calls, each by itself, as often as the step makes it.
        in_context: the same calls within the step: their share of a traced step, of this step.
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
        term: what it is; the name of a cause only where an experiment stands behind it.
        kind: ``limit``, ``difference`` (between two levels; nothing was tried to explain it, or not
            all could be), ``experiment`` (an A/B run, a counter or a log) or ``unexplained`` (what
            the experiments leave of a difference).
        seconds: of the step; below zero where something is saved.
        ci_low: lower end of its 95 % interval over the rounds; None of a single one.
        ci_high: upper end.
        share: of the step.
        how: it was measured.
        level: it lies below this level and above the next lower one that is known.
        detail: calls that stand out in it; of an ``unexplained`` term, those with the largest whole
            difference. Empty where none does.
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
    """The step with one thing changed, in other processes beside it (A/B). Times in seconds.

    It stands beside the terms: what it saves may be a part of several. What kept pages save is also
    behind the terms ``fresh memory`` and ``returned memory``, which are not to be added to it.

    Attributes:
        change: what is not as in the step.
        median: of the changed step, over its rounds.
        saved: what the step takes longer in the same rounds, the median; below zero where the
            changed one takes longer.
        ci_low: lower end of its 95 % interval; None of a single round.
        ci_high: upper end.
        n: how many rounds.
        how: it differs.
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
        alone_s: of all of them together, each by itself; None where it could not be run so.
        native_s: of the native layers that stand for them; 0 of views, None without a layer.
        faults: page faults of them all in the step; None where nobody counted them by call.
        signatures: of the calls, see :class:`~pydlbench.records.operator.RecordedCall`.
    """

    alone_s: float | None = None
    native_s: float | None = None
    faults: float | None = None
    signatures: tuple[str, ...] = ()

    promised = ("alone_s", "native_s", "faults")


class BrokenDownModule(ModuleInContext, frozen=True, kw_only=True):
    """A module's calls on all levels. Times in seconds.

    Attributes:
        alone_s: of its calls, each by itself; None where one could not be run so.
        native_s: of the native layers that stand for them; None where a call has none.
    """

    alone_s: Annotated[float | None, shown("alone", format_seconds, unit="s")] = None
    native_s: Annotated[float | None, shown("native", format_seconds, unit="s")] = None


class Breakdown(Record, frozen=True, kw_only=True):
    """Where a step's time goes, by what was measured. Times in seconds.

    Attributes:
        levels: each with its interval; null where it is not known.
        reasons: by level, why it is null; and why ``faults`` of calls are.
        terms: they sum to the step.
        calls: the longest first.
        modules: likewise.
        alternatives: steps with one thing changed.
        between_calls_s: what is between calls in the step.
        not_measured: what no experiment was made on, with the reason; it is not in ``unexplained``.
        without_layer: operators of calls that no native layer stands for, with what these take and
            why; they have a term of their own, which no experiment is about.
        unexplained: what experiments leave of differences, as a signed share of the step; null
            where no difference was explained.
        unexplained_low: lower end of its 95 % interval; null of a single round.
        unexplained_high: upper end.
        contradictions: measurements that cannot all be right, in words.
        disturbed: beside how many rounds somebody else used the machine.
        disturbance: what was seen there, in words; empty without any.
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
    """A step of a model in a framework, broken down.

    Attributes:
        measured: the step: the same number as the level of that name (JSON: ``measured_s``).
        model: its name.
        options: of the model.
        own: how a model of the user's own is fed and run; None of one of the catalogue.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: its name.
        mode: of the framework.
        device: ``cpu`` or ``cuda:N``.
        layout: of images: ``nhwc`` or ``nchw``.
        feed: ``resident`` images and labels, or new ones from the ``host`` in each step.
        library: name and version of the framework.
        threads: that computed; on a GPU the host's.
        processes: fresh ones in which the step was timed.
        program: a hash of its calls.
        trace: how calls were timed in their step.
        forecast_s: what stored rows said of the step before it was timed; null without.
        lines: by the user's module, where the user's code made its first call:
            ``my_model.py:15``.
        types: what an ONNX file computes in, see ``StepFacts``; None of all else.
        notes: what a reader has to know.
        seconds: that the breakdown took.
    """

    measured: Level
    model: str
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    own: UserModelSpec | None = None
    batch: int
    phase: Phase
    precision: Precision
    framework: Framework
    mode: str
    device: str = "cpu"
    layout: str = "nhwc"
    feed: str = "resident"
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

    derived = ("additivity_error", "forecast_error")
    promised = ("forecast_s",)
    omitted = ("own", "types")

    @property
    def who(self) -> Annotated[str, shown("step", right=False)]:
        """The framework with its mode."""
        return f"{self.framework} {self.mode}"

    @property
    def additivity_error(self) -> float | None:
        """How far calls alone are off the step, as a signed fraction of it; null without them."""
        return None if self.levels.alone is None else self._off(self.levels.alone.median)

    @property
    def forecast_error(self) -> float | None:
        """How far the forecast is off the step, likewise; null without one."""
        return None if self.forecast_s is None else self._off(self.forecast_s)

    def _off(self, predicted_s: float) -> float:
        return (predicted_s - self.measured.median) / self.measured.median
