"""Predicted times of a step, in seconds: the estimate from its layers, and forecasts.

An estimate is the sum of layers, with the layer that dominates it. A forecast is the sum of stored
times of operators and of page faults.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from pydlbench.grouping import group_by, sum_by
from pydlbench.records.measurement import MATERIAL, Framework, Phase, Precision
from pydlbench.records.record import Record, shown
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import RecordedCall
from pydlbench.records.user_model import UserModelSpec
from pydlbench.timing.statistics import median, median_interval
from pydlbench.units import cut, format_seconds, percent


class EstimatedStep(Record, frozen=True, kw_only=True):
    """The sum of the layers.

    Attributes:
        time_s: halfway between hot and cold caches, in seconds.
        low: lower end of the interval, in seconds.
        high: upper end, in seconds.
        hot_s: sum with hot caches, in seconds.
        cold_s: sum with cold caches, in seconds.
        half_width_s: half width of the statistical interval around time_s, in seconds.
        images_per_s: batch over time_s.
        roof_s: sum of the rooflines, in seconds.
        kernels_measured: number of distinct kernels that were measured.
        kernels_in_step: number of kernels in a step.
        kernels_without_cold: number of distinct kernels without a time with cold caches: their hot
            time is used for both.
        without_cold: why the first of the kernels without a cold time has none; empty if there are
            no such kernels.
    """

    time_s: float
    low: float
    high: float
    hot_s: float = 0.0
    cold_s: float = 0.0
    half_width_s: float = 0.0
    images_per_s: float | None
    roof_s: float | None = None
    kernels_measured: int = 0
    kernels_in_step: int = 0
    kernels_without_cold: int = 0
    without_cold: str = ""


class EstimatedLayer(Record, frozen=True, kw_only=True):
    """One node's part in an estimated step, all its passes together; seconds.

    Attributes:
        name: name of the node; for a group, name of its first node.
        kind: conv2d, gemm, pool2d, or the operation of a pointwise layer.
        time_s: mean of hot and cold, in seconds.
        low: the smaller of the hot and the cold time, in seconds.
        high: the larger of the hot and the cold time, in seconds.
        hot_s: time with hot caches, in seconds.
        cold_s: time with cold caches, in seconds.
        share: share of the step, 0 to 1.
        bound: limit of its slowest pass: compute, memory or launch.
        roof_s: least time by the roofline of the measured peaks, in seconds.
        efficiency: roofline time over measured time: 1 is as fast as the hardware allows.
        passes: seconds by pass; l2 and update are the L2 terms and weight updates of training.
        algorithms: kernel of each pass, by pass.
        like: the model's first layer that runs the same kernels; its own name if it is the first.
        contended: whether other work disturbed more than 5 % of its time.
        count: number of layers, where it is a group of equal ones.
    """

    name: str
    kind: Annotated[str, shown("kind", right=False)]
    time_s: float
    low: float = 0.0
    high: float = 0.0
    hot_s: Annotated[float, shown("hot", format_seconds)] = 0.0
    cold_s: Annotated[float, shown("cold", format_seconds)] = 0.0
    share: Annotated[float, shown("share", percent)]
    bound: Annotated[str | None, shown("bound", right=False)]
    roof_s: float | None = None
    efficiency: Annotated[float | None, shown("of roof", percent)]
    passes: Annotated[Mapping[str, float], shown("", format_seconds)] = msgspec.field(
        default_factory=dict
    )
    algorithms: Mapping[str, Any] = msgspec.field(default_factory=dict)
    like: str = ""
    contended: bool = False
    count: int = 1

    unlisted = ("count",)

    @property
    def alike(self) -> Annotated[str, shown("layer", right=False)]:
        """The name, with the number of layers of a group."""
        return self.name if self.count == 1 else f"{self.name} x{self.count}"

    @property
    def bar(self) -> Annotated[str, shown("", right=False)]:
        """The share as a bar; a blank title leaves it out of Markdown and pages."""
        return "#" * round(20 * self.share)

    @property
    def note(self) -> Annotated[str, shown("note", right=False)]:
        """A remark on the time's reliability."""
        return "contended" if self.contended else ""

    @property
    def at_roof_s(self) -> float:
        """Its time if it ran at its roof; the measured time where the roof is not known."""
        return self.time_s if self.roof_s is None else self.roof_s

    @property
    def excess_s(self) -> float:
        """Its time above the roof; 0 where it is faster than that."""
        return max(0.0, self.time_s - self.at_roof_s)


def group_layers(layers: Iterable[EstimatedLayer]) -> list[EstimatedLayer]:
    """Merge layers that run the same kernels, in the order of the first ones."""
    return list(map(_merge, group_by(layers, lambda layer: layer.like).values()))


def _merge(group: list[EstimatedLayer]) -> EstimatedLayer:
    sums = ("time_s", "low", "high", "hot_s", "cold_s", "share")
    known = all(layer.roof_s is not None for layer in group)
    passes = sum_by(item for layer in group for item in layer.passes.items())
    total: dict[str, Any] = {name: sum(getattr(layer, name) for layer in group) for name in sums}
    roof_s = sum(layer.at_roof_s for layer in group) if known else None
    return msgspec.structs.replace(
        group[0],
        **total,
        roof_s=roof_s,
        efficiency=roof_s / total["time_s"] if roof_s and total["time_s"] > 0 else None,
        passes=passes,
        contended=any(layer.contended for layer in group),
        count=len(group),
    )


class Recorded(Record, frozen=True, kw_only=True):
    """The recorded calls of a user's model, and the part of them that layers stand for.

    Calls that launch no kernel, as views, are not counted.

    Attributes:
        calls: the distinct calls.
        native_calls: share of the calls for which kinds of layers stand, timed or not, 0 to 1.
        native_bytes: the same share of the bytes of all operands and results.
        unmapped: why no layer stands for an operator, by operator; reasons are separated by
            semicolons.
        notes: remarks for the reader.
        types: types of an ONNX file, see ``StepFacts``; else empty.
    """

    calls: tuple[RecordedCall, ...]
    native_calls: float
    native_bytes: float
    unmapped: Mapping[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    types: str = ""


class StepEstimate(Record, frozen=True, kw_only=True):
    """The time of a step if it consisted of its layers only.

    Attributes:
        model: name of the model.
        title: title of the model.
        batch: images per step.
        phase: phase of the step.
        precision: precision of all layers.
        estimate: the sum of the layers.
        layers: layers in the order of the model.
        dominant: the single layer that takes most time.
        dominant_group: the group of layers with the same kernels that takes most time: its first
            layer (layer), the number of its layers (layers), its share of the step (share).
        dominant_share: that group's share of the step: median, ci_low and ci_high, 0 to 1, and
            their confidence; from the intervals of all rows, taken as independent, and without
            ends where a row has none. Null where nothing was timed.
        dominant_clear: whether that group is significantly larger than every other.
        dominant_rivals: first layers of the groups that do not differ significantly from it.
        disturbed_share: share of the sum that other work disturbed, 0 to 1; above 0.05 there are no
            conclusions from it.
        dominant_kind: the kind of layer that takes most time.
        kinds: seconds of the step by kind of layer.
        what_if: the step if its largest layers ran at their roofs: layer, the number of layers
            with the same kernels (layers), and step_at_its_roof_s in seconds.
        missing: parts that could not be measured and are in no sum: layer, pass, reason, and their
            share of the least bytes of all parts (share_of_bytes).
        memory_bytes: memory of a step: weights, gradients, optimizer, activations.
        options: options of the model, as given; arguments of the user's callable.
        own: inputs, loss and optimizer of a user's model; None for a model of the catalogue.
        recorded: the calls of a user's model, whose layers are named after its modules.
        device: cpu or cuda:N.
        threads: number of threads of its kernels; null on a GPU.
        cache_bytes: size of the last-level cache; kernels of four times that size are only measured
            once.
    """

    model: str
    title: str = ""
    batch: int
    phase: Phase
    precision: Precision
    estimate: EstimatedStep
    layers: tuple[EstimatedLayer, ...]
    dominant: str | None
    dominant_group: Mapping[str, Any] = msgspec.field(default_factory=dict)
    dominant_share: Mapping[str, float] | None = None
    dominant_clear: bool = False
    dominant_rivals: tuple[str, ...] = ()
    disturbed_share: float = 0.0
    dominant_kind: str | None = None
    kinds: Mapping[str, Any] = msgspec.field(default_factory=dict)
    what_if: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[Mapping[str, Any], ...] = ()
    memory_bytes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    own: UserModelSpec | None = None
    recorded: Recorded | None = None
    device: str = ""
    threads: int | None = None
    cache_bytes: int | None = None

    omitted = ("own", "recorded")

    @property
    def groups(self) -> list[EstimatedLayer]:
        """The layers, merged by kernels: ResNet-152 has 700 layers in 60 groups."""
        return group_layers(self.layers)

    @property
    def tells(self) -> bool:
        """Whether the disturbed part of the sum is small enough for conclusions."""
        return self.disturbed_share <= MATERIAL


# -----------------------------------------------------------------------------
# Forecasts.


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
        spec: specification of the step, with its batch; its fields are merged into the object.
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

    embedded = ("spec", "place")
    omitted = ("types", "host_s", "graph_s")

    spec: StepSpec
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
    program: str = ""
    status: str = "ok"
    reason: str | None = None
    types: str | None = None
    notes: tuple[str, ...] = ()
