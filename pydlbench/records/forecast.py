"""What a forecast is made of, and what it says: operators' times, page faults, their sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.fields import shown
from pydlbench.records.record import Record
from pydlbench.records.specs import Framework, Phase, Precision
from pydlbench.records.user_model import UserModelSpec
from pydlbench.timing.statistics import median, median_interval
from pydlbench.units import cut, format_seconds, percent

# Raised when times are taken in another way: older rows are not used then.
_METHOD: Final = 3
# Characters of the names of an operator's nodes.
_WIDE: Final = 36
# Three visits, the default, would have an interval of 2.7 times their range.
_FEW: Final = 4


def _joined(names: tuple[str, ...]) -> str:
    return cut(", ".join(names), _WIDE)


def _plus_minus(share: float) -> str:
    return f"+- {percent(share, decimal=True)}"


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
    """

    framework: Framework
    mode: str
    precision: Precision = "fp32"
    device: str = "cpu"
    threads: int = 1
    processor: str = ""
    library: str = ""

    def key(self, table: str, what: str) -> str:
        """Return what a row of this place is found by.

        Args:
            table: ``operator`` or ``faults``.
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
        samples: of all visits together.
        disturbed: visits during which somebody else used the cores.
    """

    signature: str
    operator: str
    place: Place
    created_utc: str
    visits_s: tuple[float, ...]
    enqueue_s: tuple[float, ...] = ()
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
        """Lower end of the interval: 95 % from four visits on, else the fastest visit."""
        return self._interval()[0]

    @property
    def ci_high(self) -> float | None:
        """Upper end; both are None with a single visit of an operator."""
        return self._interval()[1]

    @property
    def host_s(self) -> float:
        """Of the host, to enqueue an execution: the median of the visits; 0 of a CPU."""
        return median(self.enqueue_s) if self.enqueue_s else 0.0

    def _interval(self) -> tuple[float | None, float | None]:
        ends = _ends(self.visits_s)
        return (min(ends), max(ends)) if ends else (None, None)


def _ends(visits: tuple[float, ...]) -> list[float]:
    """Return the ends of a median's interval, below four visits all of them; none of one."""
    interval = median_interval(visits)
    if interval is None:
        return []
    return [*visits] if len(visits) < _FEW else [interval.low, interval.high]


class StepFaults(Record, frozen=True, kw_only=True):
    """How many page faults a step has, counted in processes of their own.

    Attributes:
        place: where it ran.
        step: the step, as JSON.
        program: a hash of its recorded calls: a user's file may be another one today.
        created_utc: when, in ISO 8601.
        counts: page faults of a step, one of each process.
    """

    place: Place
    step: str
    program: str
    created_utc: str
    counts: tuple[float, ...]

    @property
    def key(self) -> str:
        """What it is found by in a store."""
        return self.place.key("faults", f"{self.step} {self.program}")


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

    operator: Annotated[str, shown("operator", right=False)]
    signature: str
    names: Annotated[tuple[str, ...], shown("of", _joined, right=False)] = ()
    count: Annotated[int, shown("calls")] = 1
    direction: Annotated[str, shown("direction", right=False)] = "forward"
    seconds: Annotated[float | None, shown("each", format_seconds, unit="s")] = None
    enqueue_s: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    share: Annotated[float, shown("share", partial(percent, decimal=True))] = 0.0
    source: str = "missing"
    created_utc: str | None = None

    omitted = ("enqueue_s",)

    @property
    def half_width(self) -> Annotated[float | None, shown("processes", _plus_minus)]:
        """Half of the interval over the time; None without one."""
        if not self.seconds or self.ci_low is None or self.ci_high is None:
            return None
        return (self.ci_high - self.ci_low) / 2 / self.seconds


class ForecastRecord(Record, frozen=True, kw_only=True, rename={"seconds": "forecast_s"}):
    """A step's time from operators that were timed before, or apart; the step was not timed.

    Attributes:
        model: its name.
        options: of the model.
        own: how a model of the user's own is fed and run; None of one of the catalogue.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        layout: of images.
        feed: ``resident`` or ``host``.
        program: a hash of its recorded calls, see :class:`StepFaults`.
        place: framework, mode, precision, library, threads and processor; its fields stand in the
            object itself.
        created_utc: when the forecast was made, in ISO 8601.
        seconds: of a step (JSON: ``forecast_s``).
        ci_low: lower end of its 90 % interval: by so much were earlier forecasts off, or where
            fewer than nine were scored, :data:`pydlbench.analysis.scores.ASSUMED`.
        ci_high: upper end.
        operators_s: sum of the operators.
        host_s: on a GPU, what the host needs to enqueue a step; the step is the makespan of host
            and device. None of a CPU.
        graph_s: the same step in a CUDA graph: the device's seconds, and nothing of the host's.
        faults: page faults of a step, counted where it ran untimed; None where nobody counted.
        faults_s: of these; None where they, or what one costs, are not known.
        scored: how many earlier forecasts the interval is of.
        factors: by class of rows (``cache``, ``memory``, ``faults``), by what stored ones were
            multiplied, as some of them took now over what is stored; empty where none was timed.
        calls: operators of a step, each as often as it occurs.
        stored: distinct operators whose rows came from the store.
        measured: distinct operators that were timed for this forecast.
        missing: distinct operators without a row: the forecast is too small by them.
        missing_calls: share of the calls that have no row.
        missing_bytes: share of the bytes of operands and results that have none; None where bytes
            are not known.
        oldest_utc: when the oldest row was timed.
        newest_utc: when the newest row was timed.
        terms: the distinct operators, the slowest first.
        status: ``ok``; ``failed`` where operators are missing.
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
    faults: float | None = None
    faults_s: float | None = None
    scored: int = 0
    factors: Mapping[str, float] = msgspec.field(default_factory=dict)
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
    terms: tuple[ForecastTerm, ...] = ()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    own: UserModelSpec | None = None
    layout: str = "nhwc"
    feed: str = "resident"
    program: str = ""
    status: str = "ok"
    reason: str | None = None
    types: str | None = None
    notes: tuple[str, ...] = ()
