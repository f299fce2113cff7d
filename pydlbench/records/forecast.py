"""A forecast of a step: stored times of operators, page faults, and their sum."""

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.measurement import Framework, Phase, Precision
from pydlbench.records.record import Record, shown
from pydlbench.records.user_model import UserModelSpec
from pydlbench.timing.statistics import median, median_interval
from pydlbench.units import cut, format_seconds, percent

# Version of the timing method: rows of older methods are not used.
_METHOD: Final = 3
_NAMES_WIDTH: Final = 36  # characters of the names of an operator's nodes
# Minimum number of processes for a 95 % interval: with three, the default, the median's interval
# would be 2.7 times their range.
_MIN_INTERVAL_VISITS: Final = 4


def _names_text(names: tuple[str, ...]) -> str:
    return cut(", ".join(names), _NAMES_WIDTH)


def _plus_minus(share: float) -> str:
    return f"+- {percent(share, decimal=True)}"


class Place(Record, frozen=True, kw_only=True):
    """Where an operator was timed: rows of another place are never used.

    Attributes:
        framework: ``torch`` or ``tensorflow``.
        mode: mode of the framework.
        precision: precision of the products.
        device: ``cpu`` or ``cuda:N``.
        threads: number of threads.
        processor: name of the CPU; on a GPU, the GPU's name before it.
        library: name and version of the framework.
    """

    framework: Framework
    mode: str
    precision: Precision = "fp32"
    device: str = "cpu"
    threads: int = 1
    processor: str = ""
    library: str = ""

    def key(self, table: str, row: str) -> str:
        """Return the store's key of a row of this place.

        Args:
            table: ``operator`` or ``faults``.
            row: the signature of an operator, or another key within this place.
        """
        text = json.dumps([_METHOD, self.to_dict(), row], sort_keys=True)
        return f"{table}/{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class OperatorTime(Record, frozen=True, kw_only=True):
    """The time of one operator, of any model.

    Attributes:
        signature: canonical text of the call, see :class:`RecordedCall`.
        operator: name of the operator.
        place: framework, settings and processor with which the operator was timed.
        created_utc: when the operator was last timed, in ISO 8601.
        visits_s: time of one execution in each fresh process: the mean of the middle rounds,
            see :func:`~pydlbench.timing.statistics.middle_rounds`.
        enqueue_s: on a GPU, the host's time to enqueue one execution, in each process.
        samples: number of samples of all processes together.
        disturbed: number of these processes beside which other programs used the cores.
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
        """Key of the row in the store."""
        return self.place.key("operator", self.signature)

    @property
    def seconds(self) -> float:
        """Time of an execution: the median of the processes."""
        return median(self.visits_s)

    @property
    def ci_low(self) -> float | None:
        """Lower end of the interval: 95 % with four processes or more, else the fastest one."""
        return self._interval()[0]

    @property
    def ci_high(self) -> float | None:
        """Upper end of the interval; both ends are None with a single process."""
        return self._interval()[1]

    @property
    def host_s(self) -> float:
        """The host's time to enqueue an execution: the median of the processes; 0 on a CPU."""
        return median(self.enqueue_s) if self.enqueue_s else 0.0

    def _interval(self) -> tuple[float | None, float | None]:
        interval = median_interval(self.visits_s)
        if interval is None:
            return None, None
        if len(self.visits_s) < _MIN_INTERVAL_VISITS:
            return min(self.visits_s), max(self.visits_s)
        return interval.low, interval.high


class StepFaults(Record, frozen=True, kw_only=True):
    """Page faults of a step, counted in fresh processes.

    Attributes:
        place: framework, settings and processor with which the step ran.
        step: the step, as JSON.
        program: a hash of its recorded calls, because a user's file may have changed.
        created_utc: when the page faults were counted, in ISO 8601.
        counts: page faults of a step in each process.
    """

    place: Place
    step: str
    program: str
    created_utc: str
    counts: tuple[float, ...]

    @property
    def key(self) -> str:
        """Key of the row in the store."""
        return self.place.key("faults", f"{self.step} {self.program}")


class ForecastTerm(Record, frozen=True, kw_only=True):
    """A distinct operator of a forecast step.

    Attributes:
        operator: name of the operator.
        signature: signature of the call.
        names: nodes or modules of the model that it belongs to.
        count: calls in a step.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        seconds: time of one execution (device time on a GPU); None if the operator was not
            measured.
        enqueue_s: the host's time to enqueue one execution; None on a CPU.
        ci_low: lower end of the interval of ``seconds``; None if measured once or not at all.
        ci_high: upper end of the interval.
        share: share of all its executions in the forecast.
        source: ``stored``, ``measured`` (for this forecast) or ``missing``.
        created_utc: when the operator was timed.
    """

    operator: Annotated[str, shown("operator", right=False)]
    signature: str
    names: Annotated[tuple[str, ...], shown("of", _names_text, right=False)] = ()
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
        """Half of the interval's width over the time; None if there is no interval."""
        if not self.seconds or self.ci_low is None or self.ci_high is None:
            return None
        return (self.ci_high - self.ci_low) / 2 / self.seconds


class ForecastRecord(Record, frozen=True, kw_only=True, rename={"seconds": "forecast_s"}):
    """A step's time, predicted from stored times of its operators without timing the step.

    Attributes:
        model: name of the model.
        options: options of the model.
        own: inputs, loss and optimizer of a user's model; None for a model of the catalogue.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        layout: layout of images.
        feed: ``resident`` or ``host``.
        program: a hash of its recorded calls, see :class:`StepFaults`.
        place: framework, mode, precision, library, threads and processor; its fields are merged
            into the object.
        created_utc: when the forecast was made, in ISO 8601.
        seconds: time of a step (JSON: ``forecast_s``).
        ci_low: lower end of the step's 90 % interval, from the errors of earlier forecasts, or from
            :data:`pydlbench.analysis.forecast.ASSUMED` if fewer than nine were scored.
        ci_high: upper end of the interval.
        operators_s: sum of the operators' times.
        host_s: on a GPU, the host's time to enqueue a step; the step is the makespan of host and
            device. None on a CPU.
        graph_s: device time of the same step in a CUDA graph, without the host's time.
        faults: page faults of a step, counted in an untimed one; None where they were not counted.
        faults_s: time of the page faults; None where their number or cost is not known.
        scored: number of earlier forecasts behind the interval.
        factors: corrections by class of rows (``cache``, ``memory``, ``faults``): present time of a
            few rows over their stored time; empty where none was timed.
        calls: number of calls in a step.
        stored: number of distinct operators with a stored row.
        measured: number of distinct operators that were timed for this forecast.
        missing: number of distinct operators without a row, which the forecast lacks.
        missing_calls: share of the calls without a row.
        missing_bytes: share of the bytes of operands and results without a row; None where bytes
            are not known.
        oldest_utc: when the oldest row was timed.
        newest_utc: when the newest row was timed.
        terms: the distinct operators, the slowest first.
        status: ``ok``; ``failed`` where operators are missing.
        reason: the missing operators, in words.
        types: types of an ONNX file, see ``StepFacts``; else None.
        notes: remarks for the reader.
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
