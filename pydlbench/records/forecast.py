"""What a forecast is made of, and what it says: operators' times, a calibration, their sum."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pydlbench.records.own import OwnSpec
from pydlbench.records.record import Record
from pydlbench.records.specs import Framework, Phase, Precision
from pydlbench.timing.statistics import median, median_interval

# Raised when times are taken in another way: older rows are not used then.
_METHOD: Final = 2


class Place(Record, frozen=True, kw_only=True):
    """Where an operator was timed: rows of another place are never used.

    Attributes:
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's.
        precision: of the products.
        device: ``cpu`` or ``cuda:N``.
        threads: that computed.
        processor: the CPU's name; the GPU's before it where the calls run on one.
        library: name and version of the framework.
        pages: ``kept`` (the C library's allocator kept pages that were freed) or ``default``.
    """

    framework: Framework
    mode: str
    precision: Precision = "fp32"
    device: str = "cpu"
    threads: int = 1
    processor: str = ""
    library: str = ""
    pages: str = "default"

    def key(self, table: str, what: str) -> str:
        """Return what a row of this place is found by.

        Args:
            table: ``operator`` or ``calibration``.
            what: the signature, or what else tells rows of one place apart.
        """
        text = json.dumps([_METHOD, self.to_dict(), what], sort_keys=True)
        return f"{table}/{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class OperatorTime(Record, frozen=True, kw_only=True):
    """The time of one operator, whatever model it is from.

    Attributes:
        signature: canonical text of what it computes, see :class:`RecordedCall`.
        operator: its name.
        place: where it was timed.
        created_utc: when the last visit was, in ISO 8601.
        visits_s: seconds of an execution in each visit, a process of its own each: the mean of the
            rounds in the middle, see :func:`~pydlbench.timing.statistics.middle_rounds`.
        enqueue_s: on a GPU, what the host needs to enqueue one, likewise.
        raised_s: of page faults, the same in processes that gave a large block back before, whose
            allocator keeps more of what is freed; empty of operators. The interval reaches there.
        faults: of page faults, how many ``visits_s`` are of, the median; None of operators.
        samples: of all visits together.
        disturbed: visits during which somebody else used the cores, although taken twice.
    """

    signature: str
    operator: str
    place: Place
    created_utc: str
    visits_s: tuple[float, ...]
    enqueue_s: tuple[float, ...] = ()
    raised_s: tuple[float, ...] = ()
    faults: float | None = None
    samples: int = 0
    disturbed: int = 0

    derived = ("seconds", "ci_low", "ci_high")

    @property
    def key(self) -> str:
        """What it is found by in a store."""
        return self.place.key("operator", self.signature)

    @property
    def seconds(self) -> float:
        """Of an execution: the median of the visits."""
        return median(self.visits_s)

    @property
    def ci_low(self) -> float | None:
        """Lower end of the interval: 95 % from six visits on, else the fastest visit."""
        return self._interval()[0]

    @property
    def ci_high(self) -> float | None:
        """Upper end; both are None with a single visit of an operator."""
        return self._interval()[1]

    @property
    def host_s(self) -> float:
        """Of the host, to enqueue an execution: the median of the visits; 0 of a CPU."""
        return median(self.enqueue_s) if self.enqueue_s else 0.0

    def host_ends(self) -> tuple[float, float]:
        """Return the ends of that median's interval; with a single visit it has no width."""
        ends = _ends(self.enqueue_s) or [self.host_s]
        return min(ends), max(ends)

    def of_faults(self, signature: str, counts: Sequence[float]) -> OperatorTime:
        """Return the row of page faults that were counted, each as long as one of these.

        Args:
            signature: of the row.
            counts: in runs of a step, each in a process of its own.

        Raises:
            ValueError: this is no row of page faults.
        """
        if not self.faults:
            raise ValueError(f"{self.operator}: no page faults were timed")
        cost_s = self.seconds / self.faults
        visits = tuple(number * cost_s for number in counts)
        return msgspec.structs.replace(
            self, signature=signature, visits_s=visits, raised_s=(), faults=median(counts)
        )

    def _interval(self) -> tuple[float | None, float | None]:
        ends = _ends(self.visits_s)
        if self.raised_s:
            ends += [self.seconds, median(self.raised_s)]
        return (min(ends), max(ends)) if ends else (None, None)


def _ends(visits: tuple[float, ...]) -> list[float]:
    """Return the ends of a median's interval, below six visits all of them; none of one."""
    if len(visits) < 2:
        return []
    found = median_interval(visits)
    return [*visits] if found is None else [found.low, found.high]


class CalibratedStep(Record, frozen=True, kw_only=True):
    """A network of ours whose step was run to calibrate forecasts of others.

    Attributes:
        model: its name.
        calls: operators of a step.
        operators_s: their sum; on a GPU of what the host needs to enqueue them, as in a step.
        faults_s: of page faults; None where they are not known.
        visits_s: of the step: the median of each visit.
        residual: of the calibrated sum: (forecast - measured) / measured.
    """

    model: str
    calls: int
    operators_s: float
    faults_s: float | None
    visits_s: tuple[float, ...]
    residual: float = 0.0


class CalibrationRecord(Record, frozen=True, kw_only=True):
    """What a step takes beside its operators, from steps of networks that nobody forecasts.

    Attributes:
        place: where they ran.
        phase: of the steps.
        created_utc: when, in ISO 8601.
        call_s: seconds that each call of a step takes besides its operator's own time.
        step_s: seconds that a step has once.
        residual: the largest of the networks' residuals, without its sign.
        steps: the networks.
    """

    place: Place
    phase: Phase
    created_utc: str
    call_s: float
    step_s: float
    residual: float
    steps: tuple[CalibratedStep, ...]

    @property
    def key(self) -> str:
        """What it is found by in a store."""
        return self.key_of(self.place, self.phase, [one.model for one in self.steps])

    def residual_of(self, call_s: float) -> float:
        """Return the residual, without its sign, of the network most like a step.

        What calls cost beside their operators' times is a multiple of a call of microseconds, and
        next to nothing of one of milliseconds: networks of either are no evidence for the other.

        Args:
            call_s: mean seconds of a call of the step, positive.
        """

        def unlike(one: CalibratedStep) -> float:
            return abs(math.log(median(one.visits_s) / one.calls / call_s))

        return abs(min(self.steps, key=unlike).residual)

    @staticmethod
    def key_of(place: Place, phase: str, models: list[str]) -> str:
        """Return the key of the calibration of a place and phase by some networks."""
        return place.key("calibration", json.dumps([phase, sorted(models)]))


class ForecastTerm(Record, frozen=True, kw_only=True):
    """A distinct operator of a forecast step.

    Attributes:
        operator: its name.
        signature: of what it computes.
        names: of the model's nodes or modules.
        count: how often it is in a step.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        seconds: of one execution, a GPU's on the device; None where there is no row.
        enqueue_s: what the host needs to enqueue one; None of a CPU.
        ci_low: lower end of its interval; None with a single visit or no row.
        ci_high: upper end.
        share: of the forecast, all its executions together.
        source: ``stored``, ``measured`` (for this forecast) or ``missing``.
        created_utc: when it was timed.
    """

    operator: str
    signature: str
    names: tuple[str, ...] = ()
    count: int = 1
    direction: str = "forward"
    seconds: float | None = None
    enqueue_s: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    share: float = 0.0
    source: str = "missing"
    created_utc: str | None = None

    omitted = ("enqueue_s",)


class ForecastRecord(Record, frozen=True, kw_only=True, rename={"seconds": "forecast_s"}):
    """A step's time from operators that were timed before, or apart; the step was not run.

    Attributes:
        model: its name.
        options: of the model.
        own: how a model of the user's own is fed and run; None of one of the catalogue.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        layout: of images.
        feed: ``resident`` or ``host``.
        place: framework, mode, precision, library, threads and processor; its fields stand in the
            object itself.
        created_utc: when the forecast was made, in ISO 8601.
        seconds: of a step (JSON: ``forecast_s``).
        ci_low: lower end of its interval, from those of the rows and a residual of the calibration.
        ci_high: upper end.
        operators_s: sum of the operators.
        overhead_s: of calls and of the step as a whole, by the calibration; on a GPU of the host.
        host_s: on a GPU, what the host needs to enqueue a step, ``overhead_s`` included; the step
            is the makespan of host and device. None of a CPU.
        graph_s: the same step in a CUDA graph: the device's seconds, and nothing of the host's.
        faults_s: of page faults, by a replay of the blocks that the step asks for; where a step was
            run to record its calls, of as many faults as it had. None where nobody knows them.
        calls: operators of a step, each as often as it occurs.
        stored: distinct operators whose rows came from the store.
        measured: distinct operators that were timed for this forecast.
        missing: distinct operators without a row: the forecast is too small by them.
        missing_calls: share of the calls that have no row.
        missing_bytes: share of the bytes of operands and results that have none; None where bytes
            are not known.
        oldest_utc: when the oldest row was timed.
        newest_utc: when the newest row was timed.
        calibration: that was used; None where there is none.
        terms: the distinct operators, the slowest first.
        status: ``ok``; ``failed`` where operators or the calibration are missing.
        reason: what is missing.
        types: what an ONNX file computes in, see ``StepFacts``; None of all else.
        notes: what a reader has to know.
    """

    embedded = ("place",)
    promised = ("framework", "mode", "precision")
    omitted = ("own", "types", "host_s", "graph_s")

    model: str
    batch: int
    phase: Phase
    place: Place
    created_utc: str
    seconds: float
    ci_low: float
    ci_high: float
    operators_s: float
    overhead_s: float = 0.0
    faults_s: float | None = None
    host_s: float | None = None
    graph_s: float | None = None
    calls: int = 0
    stored: int = 0
    measured: int = 0
    missing: int = 0
    missing_calls: float = 0.0
    missing_bytes: float | None = None
    oldest_utc: str | None = None
    newest_utc: str | None = None
    calibration: CalibrationRecord | None = None
    terms: tuple[ForecastTerm, ...] = ()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    own: OwnSpec | None = None
    layout: str = "nhwc"
    feed: str = "resident"
    status: str = "ok"
    reason: str | None = None
    types: str | None = None
    notes: tuple[str, ...] = ()
