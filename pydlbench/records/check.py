"""What a check found, as it is stored and printed. All times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from pydlbench.models.own import is_onnx
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.operator import RecordedCall
from pydlbench.records.own import OwnSpec
from pydlbench.records.record import Record, one_of
from pydlbench.records.specs import Framework, Phase, Precision
from pydlbench.words import FRAMEWORK_MODES

if TYPE_CHECKING:
    from pydlbench.records.step import StepSpec

#: From what the hardware needs to the step that was measured; fields of :class:`Rungs`.
RUNGS: Final = ("limit", "native", "native_chain", "operators", "operator_chain", "step")


class Rung(Record, frozen=True, kw_only=True):
    """One rung, measured on its own: none is computed from another.

    Attributes:
        median: over the laps in which it was comparable with the others.
        ci_low: lower end of the median's 95 % interval over these laps; None below six.
        ci_high: upper end.
        n: how many laps these are.
    """

    median: float
    ci_low: float | None = None
    ci_high: float | None = None
    n: int

    promised = ("ci_low", "ci_high")


class Rungs(Record, frozen=True, kw_only=True):
    """The rungs of a step; null where one is not known, with the reason in ``reasons``.

    Attributes:
        limit: FLOPs and bytes over the measured peaks, at the clock of the native rows.
        native: the sum of the native layers, each alone; halfway between hot and cold caches.
        native_chain: the native layers in the order of the step, on each other's results.
        operators: the framework's calls, each distinct one alone, times how often the step has it.
        operator_chain: the recorded calls in their order, on each other's results.
        step: the step.
    """

    limit: Rung | None = None
    native: Rung | None = None
    native_chain: Rung | None = None
    operators: Rung | None = None
    operator_chain: Rung | None = None
    step: Rung | None = None

    promised = RUNGS

    def of(self, name: str) -> Rung | None:
        """Return a rung by its name."""
        found: Rung | None = getattr(self, name)
        return found

    def known(self) -> dict[str, Rung]:
        """Return the rungs that are known, by name, from the lowest."""
        return {name: one for name in RUNGS if (one := self.of(name)) is not None}


class LedgerTerm(Record, frozen=True, kw_only=True):
    """One term of the ledger.

    Attributes:
        term: what it is; the name of a cause only where an experiment stands behind it.
        kind: ``limit`` (computed from FLOPs and bytes), ``difference`` (what lies between two
            rungs, with no experiment on it), ``fused`` (the same, below zero, where layers that a
            step computes together take less time than one by one, by what those that are neither
            products nor convolutions take at the most), ``experiment`` (an A/B run, a counter or a
            log) or ``unexplained`` (what experiments, or fused layers, leave of a difference).
        seconds: of the measured step; below zero where something is saved.
        ci_low: lower end of its 95 % interval, from differences within laps; None without one.
        ci_high: upper end.
        share: of the measured step.
        how: how it was measured.
        between: the two rungs between which it lies.
        detail: what stands out in it; empty where nothing does.
    """

    term: str
    kind: Annotated[str, one_of("limit", "difference", "fused", "experiment", "unexplained")]
    seconds: float
    ci_low: float | None = None
    ci_high: float | None = None
    share: float
    how: str
    between: tuple[str, ...] = ()
    detail: str = ""

    promised = ("ci_low", "ci_high")


class Lap(Record, frozen=True, kw_only=True):
    """One visit of everything, in random order.

    Attributes:
        seconds: by what was visited: the rungs, ``native_hot`` and ``native_cold``,
            ``native_fusible`` (of ``native``, what is neither a product nor a convolution), and the
            sides of experiments, as ``step_kept`` (the step with an allocator that keeps its
            pages), ``logged_convolutions`` (of a step, by the library's log) and
            ``native_convolutions``; and of some calls, ``operators_mkl`` and ``native_mkl`` (see
            ``ladder.ledger.GROUPS``). On a GPU also ``enqueue`` (what the host needs for the
            operators), ``pipeline`` (the makespan of both), ``step_events`` and ``step_graph`` (see
            ``steps.device.WAYS``).
        canary: by visit, the FMA throughput right before and after it (the lower of the two), as a
            share of what the cores do when nobody else uses them.
        clock_hz: by visit, the core clock read beside it.
        sm_clock_hz: by visit, the clock that a GPU's multiprocessors had meanwhile; empty of a CPU.
        retaken: what was visited twice, as somebody else used the cores the first time.
    """

    seconds: Mapping[str, float]
    canary: Mapping[str, float] = msgspec.field(default_factory=dict)
    clock_hz: Mapping[str, float] = msgspec.field(default_factory=dict)
    sm_clock_hz: Mapping[str, float] = msgspec.field(default_factory=dict)
    retaken: tuple[str, ...] = ()


class OperatorRow(RecordedCall, frozen=True, kw_only=True):
    """One distinct operator of the step, timed alone; a forecast's row of its signature is its own.

    Attributes:
        kind: ``layer`` (what libraries compute), ``pointwise``, ``loss``,
            ``optimizer`` or ``feed``.
        seconds: of one execution, a GPU's on the device; the median of the laps.
        enqueue_s: what the host needs to put one into a GPU's queue; None of a CPU.
        ci_low: lower end of that median's interval, at the level of the rungs'; None below six
            laps.
        ci_high: upper end.
        forecast_s: what the forecast had for it; None where it had nothing.
        native_s: what the native layers need that stand for one execution, halfway between hot and
            cold caches; 0 of a view, None where there is no layer or no row of it.
        flops: algorithmic ones of one execution; None where there is no formula.
    """

    kind: str
    seconds: float
    enqueue_s: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    forecast_s: float | None = None
    native_s: float | None = None
    flops: int | None = None

    omitted = (*RecordedCall.omitted, "enqueue_s")

    def owners(self) -> dict[str, float]:
        """Return how many executions are whose: loss, optimizer and feed are parts by themselves.

        A name is empty for what is nobody's.
        """
        whole = self.kind in ("feed", "loss", "optimizer")
        return {self.kind: float(self.count)} if whole else self.shares()


class Unmapped(Record, frozen=True, kw_only=True):
    """Calls of a step that no native layer stands for.

    Attributes:
        operator: of all of them.
        reason: why there is none: no rule, a type that we have no precision for, a row that failed.
        seconds: of the step, all of them together.
    """

    operator: str
    reason: str
    seconds: float


class Known(Record, frozen=True, kw_only=True):
    """How much of a step's recorded calls is known; views, which run no kernel, are left out.

    Attributes:
        native_calls: share of the calls for which native layers stand that have a time.
        native_bytes: share of the bytes of operands and results that are theirs.
        native_time: share of the operators' time that is theirs.
        formula_calls: share of the calls whose FLOPs have a formula.
        formula_bytes: share of the bytes that are theirs.
        formula_time: share of the operators' time that is theirs.
        unmapped: all others, what takes longest first.
    """

    native_calls: float
    native_bytes: float
    native_time: float
    formula_calls: float
    formula_bytes: float
    formula_time: float
    unmapped: tuple[Unmapped, ...] = ()


class Unreplayed(Record, frozen=True, kw_only=True):
    """The calls of a step that could not be run alone: they are in no sum of operators.

    Attributes:
        calls: their share of the step's calls.
        bytes: of the bytes of all operands and results; None where nobody has counted them.
        profiled: of a step in the framework's own profile; None where it has none.
        reasons: by operator, each of them once.
    """

    calls: float
    bytes: float | None = None
    profiled: float | None = None
    reasons: Mapping[str, tuple[str, ...]]


class CheckRecord(
    Record,
    frozen=True,
    kw_only=True,
    rename={"measured": "measured_s"},
):
    """A step of a model in a framework, rung by rung: measured, and explained as far as it goes.

    Attributes:
        model: its name.
        options: of the model.
        own: how a model of the user's own is fed and run; None of one of the catalogue.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: of the framework.
        device: ``cpu`` or ``cuda:N``.
        library: name and version of the framework.
        threads: that computed; on a GPU those of the host.
        measured: the step with the default allocator, over all laps (JSON: ``measured_s``).
        rungs: each with its interval; null where there is none.
        reasons: by rung, why it is null: it is not there, or it was refused because the machine
            was another one while it was measured.
        native_hot: the sum of the native layers with hot caches; null where ``native`` is.
        native_cold: with cold caches. The native chain has to lie between the two.
        additivity_s: the isolated operators of this step and the page faults of its blocks, both
            measured beside it: how well parts add up; on a GPU the makespan of what host and device
            need for them. It predicts nothing.
        forecast_s: what stored operator rows said of the step before it was timed; null without.
        forecast_utc: when that was said, and stored.
        forecast_parts: what it consists of: ``operators``, ``faults`` (of pages; zero where there
            are none) and ``overhead`` (of calls and the step).
        step_utc: when the step was first made ready, before it was timed for the first time.
        ledger: terms that sum to the median of the rung ``step``; empty where that is null.
        unexplained_low: lower end of the 95 % interval of ``unexplained``; null without one.
        unexplained_high: upper end.
        contradictions: measurements that cannot all be right, in words.
        laps: as they were taken.
        ended: why there are no more: ``settled`` (they would not tell more), ``laps`` (as many as
            were asked for) or ``time limit``; empty in records of earlier versions.
        time_limit_s: that they had; null likewise.
        operators: each distinct one that could be timed alone.
        lines: by the user's module, where the user's code made its first call:
            ``my_model.py:15``.
        unreplayed: what could not; null where all could.
        known: how much of the calls native layers and formulas stand for; null where no
            operator was timed.
        native_parts: seconds of the native layers by what they stand for: a name of the operators',
            ``loss`` or ``optimizer``; of what is not completely known none.
        faults: pages touched for the first time per step: ``counted`` (in the step), ``kept`` (in
            the step whose allocator keeps pages) and ``played`` (by the step's blocks alone, of
            which ``additivity_s`` has what a fault costs); on a GPU ``allocations``, blocks that
            the framework asked the driver for. Null where nobody counted.
        calibration: what a call and an operator cost, and how that was measured.
        layout: of images: ``nhwc`` (PyTorch's channels_last) or ``nchw``.
        feed: ``resident`` images, or new ones from the ``host`` in each step.
        disturbed: somebody else used the cores most of the time: times are upper bounds.
        types: what an ONNX file computes in, see ``StepFacts``; None of all else.
        notes: what a reader has to know, and what was cut.
        seconds: that the check took.
    """

    model: str
    batch: int
    phase: Phase
    precision: Precision
    framework: Framework
    mode: str
    library: str
    threads: int
    measured: TimeSummary
    rungs: Rungs
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict)
    native_hot: Rung | None = None
    native_cold: Rung | None = None
    additivity_s: float | None = None
    forecast_s: float | None = None
    forecast_utc: str | None = None
    forecast_parts: Mapping[str, float] = msgspec.field(default_factory=dict)
    step_utc: str | None = None
    ledger: tuple[LedgerTerm, ...]
    unexplained_low: float | None = None
    unexplained_high: float | None = None
    contradictions: tuple[str, ...] = ()
    laps: tuple[Lap, ...]
    ended: str = ""
    time_limit_s: float | None = None
    operators: tuple[OperatorRow, ...]
    lines: Mapping[str, str] = msgspec.field(default_factory=dict)
    unreplayed: Unreplayed | None = None
    known: Known | None = None
    native_parts: Mapping[str, float] = msgspec.field(default_factory=dict)
    faults: Mapping[str, float | None] = msgspec.field(default_factory=dict)
    calibration: Mapping[str, Any] = msgspec.field(default_factory=dict)
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    own: OwnSpec | None = None
    layout: str = "nhwc"
    feed: str = "resident"
    device: str = "cpu"
    disturbed: bool = False
    types: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    derived = ("additivity_error", "forecast_error", "unexplained")
    promised = ("forecast_s",)
    omitted = ("own", "types")

    @property
    def additivity_error(self) -> float | None:
        """How far the isolated operators are off the measured step, as a signed fraction of it."""
        return self._off(self.additivity_s)

    @property
    def forecast_error(self) -> float | None:
        """How far the forecast is off the measured step, likewise; null without one."""
        return self._off(self.forecast_s)

    @property
    def unexplained(self) -> float | None:
        """What experiments leave of differences, as a signed fraction of the step."""
        if not self.ledger:
            return None
        return sum(one.share for one in self.ledger if one.kind == "unexplained")

    @property
    def sound(self) -> bool:
        """Whether its rungs may be judged: the cores were its own, and nothing contradicts."""
        return not self.disturbed and not self.contradictions and self.rungs.step is not None

    def _off(self, predicted_s: float | None) -> float | None:
        if predicted_s is None:
            return None
        return (predicted_s - self.measured.median) / self.measured.median


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What came of checking a step in one framework and mode: a record, or the reason for none.

    Attributes:
        model: the model's name.
        batch: images per step; None of a model of the user's own that has not run.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's.
        status: ``ok``, ``skipped`` (it cannot) or ``failed``.
        record: what was found; None unless ``ok``.
        reason: why there is none.
        options: of the model.
        layout: of images: ``nhwc`` or ``nchw``.
        feed: ``resident`` or ``host``.
        device: ``cpu`` or ``cuda:N``.
    """

    model: str
    batch: int | None
    phase: str
    precision: str
    framework: str
    mode: str
    status: str = "ok"
    record: CheckRecord | None = None
    reason: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "nhwc"
    feed: str = "resident"
    device: str = "cpu"

    @property
    def who(self) -> str:
        """Framework and mode: ``torch eager``."""
        return f"{self.framework} {self.mode}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the record's fields stand in the object itself."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "record"}
        own["options"] = dict(self.options)
        return own if self.record is None else {**own, **self.record.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckResult:
        """Read :meth:`to_dict`'s object back.

        Raises:
            ValueError: a value of the record is not of its type.
        """
        own = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        record = CheckRecord.from_dict(data) if "measured_s" in data else None
        return cls(**{**own, "record": record})


def step_words(step: StepSpec | CheckRecord) -> list[str]:
    """Return the words that name a step on the command lines of ``check`` and ``diagnose``."""
    words = [step.model]
    own = getattr(step, "own", None)
    # Of one's own model only a file may leave it open; inputs say it themselves.
    says = is_onnx(step.model) and not (own and own.inputs) if own is not None else True
    words += ["--batch", str(step.batch)] if step.batch is not None and says else []
    layout = "nhwc" if own is None else "nchw"
    for name, usual in (("phase", "forward"), ("precision", "fp32"), ("layout", layout)):
        value = getattr(step, name)
        words += [f"--{name}", value] if value != usual else []
    for name, value in step.options.items():
        plain = f"{name.replace('_', '-')}={value}"
        words += ["--option", plain] if own is None else ["--arg", f"{name}={value}"]
    words += own.words() if own is not None else []
    words += ["--framework", step.framework]
    words += ["--device", step.device] if step.device != "cpu" else []
    # A framework's first mode needs no word.
    usual_mode = step.mode == FRAMEWORK_MODES[step.framework][0]
    return words if usual_mode else [*words, "--mode", str(step.mode)]
