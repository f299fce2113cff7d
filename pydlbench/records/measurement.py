"""A request to a backend, the record of its row, and the peaks that it is held against."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec

from pydlbench.errors import UsageError
from pydlbench.ops.fused import canonical_fusion
from pydlbench.ops.op import Layer
from pydlbench.ops.table import KINDS, read_layer
from pydlbench.records.record import Record, one_of, shown
from pydlbench.timing.statistics import median, median_interval, quantile
from pydlbench.units import cut, format_bytes, format_seconds, number, percent, scientific, si
from pydlbench.words import (
    CACHES,
    FRAMEWORK_MODES,
    LAYOUTS,
    PASSES,
    PHASES,
    PRECISIONS,
    PROPAGATIONS,
    TIMINGS,
    check_device,
    check_word,
)

LayerKind = Annotated[str, one_of(*KINDS)]
PassName = Annotated[str, one_of(*PASSES)]
Precision = Annotated[str, one_of(*PRECISIONS)]
Propagation = Annotated[str, one_of(*PROPAGATIONS)]
Cache = Annotated[str, one_of(*CACHES)]
Framework = Annotated[str, one_of(*FRAMEWORK_MODES)]
Phase = Annotated[str, one_of(*PHASES)]


class KernelSpec(Record, frozen=True, kw_only=True):
    """One kernel in one setting, as one row of a table measures it.

    Attributes:
        layer: the problem.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        precision: storage and arithmetic together, one of ``pydlbench.words.PRECISIONS``.
        propagation: which forward kernel: ``inference`` may skip what ``training`` keeps for
            the backward pass (the argmax of a max pooling). No meaning for backward passes.
        cache: tensors that are in the cache when a sample starts.
        layout: ``best`` lets all layouts compete; the others restrict the choice.
        backend: name of the backend, see ``pydlbench.backends.capabilities``.
        device: ``cpu`` or ``cuda:N``.
        timing: ``events`` (each sample behind a closed gate, between two CUDA events),
            ``cuda-graph`` (many launches in a graph) or ``auto``: a graph where caches are hot,
            events after a cache flush where they are not. CPUs have ``auto`` only.
        fuse: operations in the same kernel, see :mod:`pydlbench.ops.fused`: ``bias-relu`` adds a
            bias and clips at zero (forward only); ``bias`` adds a bias as frameworks do in one
            operator, and backward-weights computes its gradient, too.
        mode: mode of a framework (``eager``, ``compiled``, ``graph``, ``xla``); None for native.

    Raises:
        UsageError: a word that is not among its choices; backends and modes are not checked.
    """

    layer: Layer
    pass_: str = "forward"
    precision: str = "fp32"
    propagation: str = "inference"
    cache: str = "hot"
    layout: str = "best"
    backend: str = "native"
    device: str = "cpu"
    timing: str = "auto"
    fuse: str = "none"
    mode: str | None = None

    def __post_init__(self) -> None:
        for option, value, choices in (
            ("--pass", self.pass_, PASSES),
            ("--precision", self.precision, PRECISIONS),
            ("--propagation", self.propagation, PROPAGATIONS),
            ("--cache", self.cache, CACHES),
            ("--layout", self.layout, LAYOUTS),
            ("--timing", self.timing, TIMINGS),
        ):
            check_word(option, value, choices)
        check_device(self.device)
        if (known := canonical_fusion(self.fuse)) != self.fuse:
            raise UsageError(f"--fuse {self.fuse}: nearest: {known}")

    @property
    def on_gpu(self) -> bool:
        """Whether its device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def label(self) -> str:
        """A short name for progress lines: ``alexnet/conv3 forward fp32``."""
        who = [] if self.backend == "native" else [self.backend, *filter(None, [self.mode])]
        name = self.layer.name or self.layer.problem
        return " ".join([name, self.pass_, self.precision, *who])

    @property
    def nameless(self) -> Self:
        """The spec without its layer's name: equal for two rows of the same kernel."""
        return msgspec.structs.replace(self, layer=dataclasses.replace(self.layer, name=None))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a spec from its JSON object."""
        return cls(**{**data, "layer": read_layer(data["layer"])})


# Names in libraries: wino, winograd, jit_wino_4x3; fft, FFT_TILING; not within another word.
_FEWER_FLOPS: Final = (("Winograd", r"(?<![a-z])wino"), ("FFT", r"(?<![a-z])fft(?![a-z])"))


def fewer_flops(*names: str | None) -> str | None:
    """Return ``Winograd`` or ``FFT`` if an algorithm's name or notes contain it, else None."""
    words = " ".join(filter(None, names)).lower()
    return next((name for name, sign in _FEWER_FLOPS if re.search(sign, words)), None)


# Name of a CUTLASS kernel, which is an argument of a generic template.
_CUTLASS: Final = re.compile(r"cutlass::\w+<(\w+)")
_NAME_LENGTH: Final = 100


def kernel_name(kernel: Mapping[str, Any]) -> str:
    """Return the name of a GPU's kernel, without result type, parameters and template arguments."""
    name = str(kernel["name"]).removeprefix("void ").replace("(anonymous namespace)::", "")
    if named := _CUTLASS.search(name):
        return named[1]
    return name.partition("<")[0].partition("(")[0][:_NAME_LENGTH]


#: Efficiency from which on a kernel is near its roof: a better one would gain little.
NEAR_ROOF: Final = 0.8

#: Result of measuring a row.
Status = Annotated[str, one_of("ok", "skipped", "failed")]


def _sampled(rows: Sequence[Any]) -> bool:
    """Whether a row has its samples, and enough of them for a percentile."""
    return any(row.samples_s and row.time and row.time.p90 for row in rows)


def _repeated(rows: Sequence[Any]) -> bool:
    """Whether a row was prepared several times, so that its interval is that of repetitions."""
    return any(row.time is not None and row.time.repetitions > 1 for row in rows)


def _confidence(rows: Sequence[Any]) -> str:
    """Return the header of the rows' intervals: ``95 % CI``."""
    levels = {row.time.confidence for row in rows if row.time is not None}
    return f"{100 * levels.pop():g} % CI" if len(levels) == 1 else "CI"


def _moves(rows: Sequence[Any]) -> bool:
    """Whether some rows are not bound by compute."""
    return any(row.roofline is not None and row.roofline.bound != "compute" for row in rows)


class TimeSummary(Record, frozen=True, kw_only=True):
    """Seconds per execution, and how far to trust them.

    Attributes:
        median: Median of the samples.
        ci_low: Lower end of the confidence interval of the median, which assumes a normal
            distribution of two to five values and none of more; ``None`` with a single value.
        ci_high: Upper end of the interval.
        q1: First quartile.
        q3: Third quartile.
        min: Fastest sample.
        n: Number of samples.
        confidence: Level of the interval, 0 to 1.
        p90: 90th percentile of the samples; None with fewer than 10. A sample is the mean of
            ``inner`` executions: single executions scatter more.
        p99: 99th percentile; None with fewer than 100 samples.
        repetitions: Number of preparations of the row, each with new memory. The median and its
            interval are those of the rounds' medians: one per repetition, or several rounds of a
            single repetition.
        visit_s: Median of each repetition, by lap over the run's rows; empty with a single one.
            Repetitions of a run's rows in the same lap ran under the same conditions.
        laps: Number of the lap of each value of ``visit_s``, from 0, if a repetition was lost;
            None if they are 0, 1, 2 and so on.
        processes: Number of processes of the repetitions.
    """

    omitted = ("laps",)

    median: Annotated[float, shown("median", format_seconds, unit="s")]
    ci_low: Annotated[float | None, shown(unit="s")]
    ci_high: Annotated[float | None, shown(unit="s")]
    q1: Annotated[float, shown(unit="s")]
    q3: Annotated[float, shown(unit="s")]
    min: Annotated[float, shown(unit="s")]
    n: Annotated[int, shown("n")]
    confidence: float = 0.95
    p90: Annotated[float | None, shown("p90", format_seconds, unit="s", when=_sampled)] = None
    p99: Annotated[float | None, shown("p99", format_seconds, unit="s", when=_sampled)] = None
    repetitions: Annotated[int, shown("repetitions", when=_repeated)] = 1
    visit_s: tuple[float, ...] = ()
    laps: tuple[int, ...] | None = None
    processes: int = 1

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width over the median; ``None`` without an interval."""
        if self.ci_low is None or self.ci_high is None or not self.median > 0:
            return None
        return (self.ci_high - self.ci_low) / 2 / self.median

    @property
    def spread(self) -> Annotated[str, shown(_confidence)]:
        """The interval's half width in per cent; without an interval, the interquartile range."""
        if self.half_width is not None:
            return percent(self.half_width)
        return "no spread" if self.iqr is None else f"IQR {percent(self.iqr)}"

    @property
    def interval(self) -> Annotated[str | None, shown("95 % CI")]:
        """The ends of the interval; None if there is no interval."""
        if self.ci_low is None or self.ci_high is None:
            return None
        return f"{format_seconds(self.ci_low)} to {format_seconds(self.ci_high)}"

    @property
    def iqr(self) -> float | None:
        """Interquartile range relative to the median; ``None`` for a single sample."""
        if self.n < 2 or not self.median > 0:
            return None
        return (self.q3 - self.q1) / self.median


class Peaks(Record, frozen=True, kw_only=True):
    """Compute peaks in TFLOP/s, at the clock and number of threads of the measurement.

    Attributes:
        theoretical: FLOP per cycle of the device's units times its clock.
        measured: Rate of a probe kernel, at this clock.
    """

    theoretical: Annotated[float | None, shown(unit="TFLOP/s")] = None
    measured: Annotated[float | None, shown(unit="TFLOP/s")] = None


class Roofline(Record, frozen=True, kw_only=True):
    """The measured limit of one kernel.

    Attributes:
        bound: ``compute``, ``memory`` or ``launch``: the highest limit.
        time_s: Least time under that limit, in seconds.
        efficiency: ``time_s`` over the measured median: 1 is the roof. Kernels that need fewer
            FLOPs than a direct one (Winograd, FFT) can exceed it.
        bandwidth: The slowest level of the memory roof: ``memory``, ``llc`` or ``l2``.
        bandwidth_gbps: Measured bandwidth of that level in GB/s, from the fastest probe.
        bandwidth_low_gbps: Bandwidth of the slowest undisturbed probe; null if there was only one.
    """

    bound: Annotated[str, one_of("compute", "memory", "launch"), shown("bound", right=False)]
    time_s: Annotated[float, shown(unit="s")]
    # A memory-bound kernel reaches neither compute peak: this is the fraction of its own roof.
    efficiency: Annotated[float, shown("of roof", percent, when=_moves)]
    bandwidth: str = "memory"
    bandwidth_gbps: Annotated[float | None, shown(unit="GB/s")] = None
    bandwidth_low_gbps: Annotated[float | None, shown(unit="GB/s")] = None

    @property
    def efficiency_high(self) -> float:
        """The efficiency by the slowest probe's bandwidth.

        Equal to ``efficiency`` if no bandwidth is the limit, or if it was probed once.
        """
        low, high = self.bandwidth_low_gbps, self.bandwidth_gbps
        if self.bound != "memory" or not low or not high:
            return self.efficiency
        return self.efficiency * high / low


# Ratios in time and in cycles that differ by more are both printed.
_CLOCKS_DIFFER: Final = 0.01
#: Minimum number of runs from which a later one is predicted.
OCCASIONS: Final = 3
#: The share of later runs in which a row's median lies within the predicted interval.
LATER_LEVEL: Final = 0.9
_LATER: Final = f"{100 * LATER_LEVEL:g} % of later runs"


class Expected(Record, frozen=True, kw_only=True):
    """Prediction interval of a row's median in a later run, from stored runs of the same code.

    Attributes:
        low: lower end, in seconds.
        high: upper end of the interval.
        occasions: number of stored runs, at least half an hour apart.
        level: the share of later runs in which the median lies within.
    """

    low: Annotated[float, shown(unit="s")]
    high: Annotated[float, shown(unit="s")]
    occasions: int
    level: float = LATER_LEVEL


class Correctness(Record, frozen=True, kw_only=True):
    """Result of the verification.

    Attributes:
        status: ``ok``, ``failed`` or ``unchecked``.
        rel_error: Largest relative error.
        tolerance: Largest allowed relative error.
        detail: The checked elements, or the index of the wrong one.
    """

    status: Annotated[str, one_of("ok", "failed", "unchecked")] = "unchecked"
    rel_error: float | None = None
    tolerance: float | None = None
    detail: str | None = None

    promised = ("status",)


def _kernel(algorithm: str) -> str:
    """Return the kernel in parentheses after a framework's function, else the whole name."""
    in_parentheses = _IN_PARENTHESES.fullmatch(algorithm)
    text = in_parentheses.group(1) if in_parentheses else algorithm
    # "Pad, Conv2D: _MklNativeFusedConv2D"
    short = text.rpartition(": ")[2] if len(text) > _ALGORITHM_WIDTH else text
    return cut(short, _ALGORITHM_WIDTH)


def _giga(flops: int) -> str:
    return number(flops / 1e9)


def _layers(rows: Sequence[Any]) -> bool:
    return len({row.layer for row in rows}) > 1


def _megahertz(hertz: float) -> str:
    return f"{hertz / 1e6:.0f}"


def _of_traffic(rows: Sequence[Any]) -> bool:
    """Whether some rows with a known bandwidth are bound by memory."""
    known = [row for row in rows if row.of_bandwidth is not None]
    return any(row.roofline.bound == "memory" for row in known)


_GPU: Final = "sm_clock_hz memory_clock_hz power_w temperature_c reasons others readings"
_ROLE: Final = re.compile(r"(src|weights|dst) ([^,]+)")
_IN_PARENTHESES: Final = re.compile(r"\S+ \((.+)\)")
_ALGORITHM_WIDTH: Final = 40  # characters of an algorithm in tables


class Candidate(Record, frozen=True, kw_only=True, rename={"time": "time_s"}):
    """An implementation that a search tried; unknown fields are absent.

    Attributes:
        algorithm: the library's name of the implementation.
        layout: memory formats.
        chosen: whether it is the row's kernel.
        status: ``ok``, ``skipped`` or ``failed``.
        reason: why it was skipped or failed.
        time: a trial's seconds per execution, with their spread if known.
        reorder_s: seconds to bring each operand into its layout, by role.
        workspace_bytes: scratch memory.
        tensor_cores: whether it uses a GPU's tensor cores.
        setup_s: seconds to create it.
        correct: result of the verification: status and rel_error.
    """

    algorithm: Annotated[str | None, shown("algorithm", right=False)] = None
    layout: Annotated[str | None, shown("layout", right=False)] = None
    chosen: bool = False
    status: str = "ok"
    reason: str | None = None
    time: Mapping[str, Any] | float | None = None
    reorder_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    workspace_bytes: Annotated[int | None, shown("workspace", format_bytes)] = None
    tensor_cores: Annotated[
        bool | None, shown("tensor cores", lambda flag: "yes" if flag else "no")
    ] = None
    setup_s: Annotated[float | None, shown("built in", format_seconds)] = None
    correct: Mapping[str, Any] | None = None

    @property
    def star(self) -> Annotated[str, shown("", right=False)]:
        """The mark of the row's kernel."""
        return "*" if self.chosen else ""

    @property
    def summary(self) -> TimeSummary | None:
        """Its time; statistics that a short trial does not have are unknown."""
        if self.status != "ok" or not self.time:
            return None
        unknown = dict.fromkeys(("q1", "q3", "min"), math.nan) | {"ci_low": None, "ci_high": None}
        known = self.time if isinstance(self.time, Mapping) else {"median": self.time}
        return TimeSummary.from_dict({**unknown, "n": 1, **known})

    @property
    def reorders(self) -> Annotated[float | None, shown("reorders", format_seconds)]:
        """Seconds to bring all operands into its layout; None if it is zero."""
        return sum(self.reorder_s.values()) or None

    @property
    def verdict(self) -> Annotated[str, shown("verdict", right=False)]:
        """Status with the error of the verification, or the reason why it has no time."""
        if self.reason:
            return f"{self.status}: {' '.join(self.reason.split())}"
        if self.status != "ok" or self.correct:
            error = (self.correct or {}).get("rel_error")
            return f"{self.status} {scientific(error)}" if error else self.status
        # Candidates that cannot win are only verified on request.
        return f"{self.status}, unchecked"


class Measurement(
    Record,
    frozen=True,
    kw_only=True,
    rename={"pass_": "pass", "time": "time_s", "peak": "peak_tflops"},
):
    """One kernel in one setting: one row of every table and one object of the JSON output.

    Attributes:
        layer: Name of the layer (``alexnet/conv3``), or the problem itself if the layer has no
            name.
        kind: Kind of layer: ``conv2d``, ``gemm``, ``pool2d``, ``pointwise`` and so on.
        problem: Canonical descriptor, batch included.
        batch: Images, or rows of a matrix product.
        pass_: ``forward``, ``backward-data`` or ``backward-weights`` (JSON: ``pass``).
        precision: Storage and arithmetic together: ``fp32``, ``bf16``...
        accumulate: ``float32`` or ``float16``; ``None`` where there is nothing to accumulate.
        device: ``cpu`` or ``cuda:N``.
        backend: ``native``, or a framework.
        mode: How a framework ran it (``eager``, ``compiled``, ``graph``, ``xla``).
        library: Name and version: ``oneDNN 3.2.0``.
        algorithm: The implementation as the library names it.
        layout: Memory formats that the kernel used.
        layout_request: The requested layout: ``best``, ``any``, ``nhwc``...
        cache: ``hot``, ``weights-cold`` or ``all-cold``.
        timing: ``steady``, ``events``, ``cuda-graph`` or ``host-sync``.
        status: ``ok``, ``skipped`` or ``failed``.
        reason: Why it was skipped or failed; ``None`` for an ``ok`` row.
        time: Seconds per execution (JSON: ``time_s``).
        flops: Algorithmic FLOPs, padding counted.
        flops_executed: FLOPs of a direct kernel, without the padded taps.
        bytes: Least bytes moved.
        tflops: ``flops`` over the median, in TFLOP/s.
        gbps: ``bytes`` over the median, in GB/s.
        arithmetic_intensity: ``flops_executed`` over ``bytes``.
        clock_hz: Core clock read beside the samples, in Hz.
        clock_from: The row beside whose samples the clock was read, in the same rounds and on the
            same cores, if this backend's process reads none; ``None`` for its own samples.
        peak: Compute peaks at this clock, precision and number of threads (JSON:
            ``peak_tflops``).
        roofline: The roof of this kernel with its efficiency.
        correct: Result of the verification.
        contended: Other work disturbed half of the rounds or more, and the others were shorter; the
            time is an upper bound.
        stop_reason: Why sampling stopped, in words.
        propagation: ``inference`` or ``training``; only meaningful for ``forward``.
        threads: Threads of the kernel, one pinned per core.
        workspace_bytes: Scratch memory of the kernel.
        reorder_s: Seconds to bring each operand from its plain layout into the kernel's layout, by
            role; not timed in rows of an estimate.
        setup_s: Seconds to create and compile the plan.
        candidates: With ``--algorithms``, every implementation tried; each a dict with
            ``algorithm``, ``layout``, ``status``, ``reason``, ``time_s`` (as above), ``chosen``,
            ``workspace_bytes``, ``reorder_s``.
        samples_s: With ``--samples``, the raw samples in seconds.
        warnings: Circumstances that make this row less reliable, in words.
        contention_reason: The counters behind ``contended``, in words.
        stop_rule: ``rounds``, or ``interrupted`` if it has fewer rounds than requested.
        inner: Executions per sample.
        cycles: Core cycles per execution: the median in seconds times ``clock_hz``.
        fuse: Operations fused into the kernel: ``none``, ``bias-relu``, ``sum-add:per_oc``.
        tensor_cores: Whether it uses a GPU's tensor cores; ``None`` if the library does not tell.
        notes: The library's numerical and behaviour notes on the algorithm.
        launch_s: Seconds per execution by three clocks: ``event`` (between CUDA events), ``graph``
            (in a CUDA graph), ``host`` (launched one by one, on the host's clock); and ``enqueue``,
            the host's time of a launch.
        kernels: Kernels that the driver reports for one execution: dicts with ``name``, ``grid``
            and ``block`` (three numbers each), ``shared_bytes`` of a block and ``registers`` of a
            thread; empty if it cannot be captured into a CUDA graph.
        energy_j: Energy of one execution in joules, with ``--energy``.
        power_w: Mean power while the energy was measured, in watts.
        sustained_s: Seconds of an execution within a second of executions in a row, with
            ``--energy``: the rate that power and heat allow permanently.
        sustained_hz: The multiprocessors' clock during that second.
        gpu: Readings of the GPU beside the samples: clocks in Hz, power in W, temperature in
            degrees Celsius, reasons for a reduced clock.
        ratio: This backend's time over the time of the fastest one, from the rounds of both: ``to``
            (the fastest backend and mode), ``median``, ``ci_low``, ``ci_high``, and in ``rounds``
            the number of values: medians of repetitions, or the rounds of a single repetition.
        warm_s: Seconds of the same call with an allocator that keeps its pages; frameworks only.
        faults: Page faults per call without and with that allocator: ``default``, ``warm``.
        empty_call_s: Seconds of a call that does nothing, made in the same way as the layer's call;
            never subtracted.
        expected_s: Prediction interval of the row's median in a later run, from stored runs of the
            same code; None with fewer than three runs, at least half an hour apart.
        causes: Causes of the gap to the fastest backend: dicts with ``cause``, ``seconds``,
            ``share`` of the gap and ``how`` it was measured; then ``unexplained``.
    """

    layer: str
    kind: LayerKind
    problem: str
    batch: int
    pass_: PassName
    precision: Precision
    accumulate: str | None = None
    device: str = "cpu"
    backend: str = "native"
    mode: str | None = None
    library: str | None = None
    algorithm: Annotated[str | None, shown("algorithm", _kernel, right=False)] = None
    layout: str | None = None
    cache: Cache = "hot"
    timing: str = "steady"
    status: Status
    reason: str | None = None
    time: TimeSummary | None = None
    flops: Annotated[int, shown("GFLOP", _giga, unit="FLOP", when=_layers)]
    flops_executed: Annotated[int, shown(unit="FLOP")]
    bytes: Annotated[int, shown(unit="B")]
    tflops: Annotated[float | None, shown("TFLOP/s", number, unit="TFLOP/s")] = None
    gbps: Annotated[float | None, shown("GB/s", number, unit="GB/s", when=_moves)] = None
    arithmetic_intensity: Annotated[float | None, shown(unit="FLOP/B")] = None
    clock_hz: Annotated[float | None, shown("MHz", _megahertz, unit="Hz")] = None
    peak: Peaks = msgspec.field(default_factory=Peaks)
    roofline: Roofline | None = None
    correct: Correctness = msgspec.field(default_factory=Correctness)
    contended: bool = False
    stop_reason: str | None = None
    layout_request: str = "best"
    propagation: Propagation = "inference"
    threads: int | None = None
    workspace_bytes: Annotated[int | None, shown(unit="B")] = None
    reorder_s: Annotated[Mapping[str, float], shown(unit="s")] = msgspec.field(default_factory=dict)
    setup_s: Annotated[float | None, shown(unit="s")] = None
    candidates: tuple[Mapping[str, Any], ...] | None = None
    samples_s: tuple[float, ...] | None = None
    warnings: tuple[str, ...] = ()
    contention_reason: str | None = None
    stop_rule: str | None = None
    inner: int | None = None
    cycles: float | None = None
    fuse: str = "none"
    tensor_cores: bool | None = None
    notes: tuple[str, ...] = ()
    launch_s: Annotated[
        Mapping[str, float] | None,
        shown("", format_seconds, unit="s", keys="event graph host enqueue"),
    ] = None
    kernels: tuple[Mapping[str, Any], ...] = ()
    energy_j: Annotated[float | None, shown("energy", partial(si, unit="J"), unit="J")] = None
    power_w: Annotated[float | None, shown("W", number, unit="W")] = None
    sustained_s: Annotated[float | None, shown(unit="s")] = None
    sustained_hz: Annotated[float | None, shown("MHz", _megahertz, unit="Hz")] = None
    gpu: Annotated[Mapping[str, Any] | None, shown(keys=_GPU)] = None
    ratio: Annotated[
        Mapping[str, Any] | None, shown(keys="to median ci_low ci_high rounds cycles")
    ] = None
    warm_s: Annotated[float | None, shown("pages kept", format_seconds, unit="s")] = None
    faults: Annotated[Mapping[str, float] | None, shown(keys="default warm")] = None
    empty_call_s: Annotated[float | None, shown(unit="s")] = None
    expected_s: Expected | None = None
    causes: tuple[Mapping[str, Any], ...] = ()
    clock_from: str | None = None

    #: Columns of a table of rows.
    columns: ClassVar[str] = (
        "algorithm short_layout flops time.median time.spread later_runs time.n time.repetitions "
        "time.p90 time.p99 tflops gbps of_theoretical of_measured roofline.efficiency of_bandwidth "
        "roofline.bound energy_j gflops_per_watt to_best warm_s checked note"
    )
    derived = ("gflops_per_watt", "of_bandwidth", "fewer_flops")
    omitted = ("candidates", "samples_s", "sustained_s", "sustained_hz")
    promised = ("device", "backend", "cache", "reason", "time", "correct")

    def __repr__(self) -> str:
        """Return one line: the kernel, and its median with the interval."""
        what = " ".join(
            filter(None, (self.layer, self.pass_, self.precision, self.backend, self.mode))
        )
        if self.time is None:
            return f"<Measurement {what}: {self.status}: {self.reason}>"
        time = self.time
        return (
            f"<Measurement {what}: {time.median:.4g} s "
            f"[{time.ci_low:.4g}, {time.ci_high:.4g}], n {time.n}>"
            if time.ci_low is not None and time.ci_high is not None
            else f"<Measurement {what}: {time.median:.4g} s, n {time.n}>"
        )

    @property
    def who(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.backend, self.mode)))

    @property
    def gflops_per_watt(
        self,
    ) -> Annotated[float | None, shown("GFLOP/s/W", number, unit="GFLOP/J")]:
        """Algorithmic GFLOP/s per watt, which is GFLOP per joule; None if there is no energy."""
        return self.flops / self.energy_j / 1e9 if self.energy_j else None

    @property
    def picojoules(self) -> Annotated[float | None, shown("pJ/FLOP", number)]:
        """Energy of an algorithmic FLOP; None if there is no energy."""
        return 1e12 * self.energy_j / self.flops if self.energy_j and self.flops else None

    @property
    def sustained_tflops(self) -> Annotated[float | None, shown("sustained TFLOP/s", number)]:
        """Algorithmic FLOPs over ``sustained_s``, in TFLOP/s."""
        return self.flops / self.sustained_s / 1e12 if self.sustained_s and self.flops else None

    @property
    def fewer_flops(self) -> str | None:
        """The algorithm that needs fewer FLOPs than a direct kernel: ``Winograd`` or ``FFT``.

        None for all others. Rates, percentages of peaks and the compute roof count the direct
        kernel's FLOPs: for such a kernel they tell its speed, not the utilisation of the units.
        """
        return None if self.kind == "fft" else fewer_flops(self.algorithm, *self.notes)

    @property
    def of_bandwidth(
        self,
    ) -> Annotated[float | None, shown("of bandwidth", percent, when=_of_traffic)]:
        """The rate of the least traffic over the bandwidth of the roof's memory level.

        None where that is not known. Above 1 if another level provides a part of the bytes.
        """
        if self.gbps is None or self.roofline is None or not self.roofline.bandwidth_gbps:
            return None
        return self.gbps / self.roofline.bandwidth_gbps

    @property
    def complete(self) -> bool:
        """Whether it has all requested repetitions."""
        return self.stop_rule != "interrupted"

    @property
    def ok(self) -> bool:
        """Whether the row has a valid time (perhaps a contended one)."""
        return self.status == "ok" and self.time is not None

    @property
    def tflops_executed(self) -> float | None:
        """Executed FLOPs over the median, in TFLOP/s: the numerator of percentages of peaks."""
        if self.time is None or not self.time.median > 0:
            return None
        return self.flops_executed / self.time.median / 1e12

    @property
    def of_theoretical(self) -> Annotated[float | None, shown("theoretical", percent)]:
        """The executed rate over the theoretical compute peak."""
        return self.fraction_of_peak("theoretical")

    @property
    def of_measured(self) -> Annotated[float | None, shown("measured", percent)]:
        """The executed rate over the measured compute peak."""
        return self.fraction_of_peak("measured")

    @property
    def short_layout(self) -> Annotated[str | None, shown("layout", right=False, varies=True)]:
        """The essential part of ``layout``, or all of it if it has an unknown form.

        Images: the format of source and destination (``nhwc``), or both if they differ
        (``nchw>nChw16c``). Matrix products: ``packed`` (blocked weights), ``plain`` (``kn``), or
        another order of the weights.
        """
        if not self.layout:
            return None
        formats = {role: text.strip() for role, text in _ROLE.findall(self.layout)}
        weights = formats.get("weights")
        if self.kind == "gemm" and weights is not None:
            if weights in {"kn", "gkn"}:
                return "plain"
            return "packed" if re.search(r"\d", weights) else weights
        ends = dict.fromkeys(formats[role] for role in ("src", "dst") if role in formats)
        return ">".join(ends) or self.layout

    @property
    def to_best(self) -> Annotated[str | None, shown("to best")]:
        """The time over the time of the fastest backend, with the half width of its interval."""
        if not self.ratio:
            return None
        low, high = self.ratio["ci_low"], self.ratio["ci_high"]
        text = f"{number(self.ratio['median'], 3)}x"
        cycles = self.ratio.get("cycles")
        if cycles and abs(cycles / self.ratio["median"] - 1) > _CLOCKS_DIFFER:
            return f"{text}, in cycles {number(cycles, 3)}x"
        if low is None or high is None or low == high:
            return text
        return f"{text} +-{percent((high - low) / 2 / self.ratio['median'])}"

    @property
    def later_runs(
        self,
    ) -> Annotated[str | None, shown(_LATER)]:
        """The ends of the prediction interval of a later run."""
        if self.expected_s is None:
            return None
        return f"{format_seconds(self.expected_s.low)} to {format_seconds(self.expected_s.high)}"

    @property
    def checked(self) -> Annotated[str, shown("checked", right=False)]:
        """The result of the verification: ``ok 2e-7``."""
        verdict = self.correct
        if not verdict.rel_error or verdict.status == "unchecked":
            return verdict.status
        return f"{verdict.status} {scientific(verdict.rel_error)}"

    @property
    def note(self) -> Annotated[str, shown("note", right=False)]:
        """Remarks on the row, in words; empty if there are none."""
        words = ["contended"] * self.contended + ["ratio uncertain"] * is_uncertain(self)
        words += ["interrupted"] * (not self.complete)
        words += [f"{self.fewer_flops}: % of direct FLOPs"] if self.fewer_flops else []
        return ", ".join(words)

    def fraction_of_peak(self, which: str) -> float | None:
        """Return the executed rate over the ``theoretical`` or ``measured`` compute peak."""
        peak: float | None = getattr(self.peak, which)
        rate = self.tflops_executed
        return rate / peak if rate is not None and peak else None


#: Maximum share of disturbed rows, which are upper bounds, in a sum that conclusions are drawn
#: from; a row that a verdict names may not be disturbed at all.
MATERIAL: Final = 0.05
#: Minimum share of a step for a layer, a call or a term to be named in a sentence.
MIN_NAMED_SHARE: Final = 0.005


def disturbed_share(parts: Iterable[tuple[float, bool]]) -> float:
    """Return the disturbed share of a sum of times, 0 to 1; 0 for an empty sum.

    Args:
        parts: seconds of each part, and whether other work disturbed it.
    """
    known = list(parts)
    total = sum(seconds for seconds, _ in known)
    disturbed = sum(seconds for seconds, contended in known if contended)
    return disturbed / total if total > 0 else 0.0


def time_summary(seconds: Sequence[float]) -> TimeSummary:
    """Summarise samples (seconds per execution); a single one has no interval."""
    interval = median_interval(seconds)
    return TimeSummary(
        median=median(seconds),
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
        q1=quantile(seconds, 0.25),
        q3=quantile(seconds, 0.75),
        min=min(seconds),
        n=len(seconds),
        p90=_percentile(seconds, 90),
        p99=_percentile(seconds, 99),
    )


def _percentile(seconds: Sequence[float], percent: int) -> float | None:
    """Return a percentile: the smallest sample that ``percent`` of all samples do not exceed.

    None if there are too few samples for one to be above it: 10 for 90 %, 100 for 99 %.
    """
    count = len(seconds)
    if count * (100 - percent) < 100:
        return None
    return float(sorted(seconds)[-(-count * percent // 100) - 1])


# -----------------------------------------------------------------------------
# Precision of accumulators.

# Bits of a significand, including the implied one.
_SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def less_exact(accumulate: str | None, than: str | None) -> bool:
    """Whether sums in one format are rounded more coarsely than those in another.

    Truncated sums of tensor cores count as the format that stores them. False if a format is not
    known, or if there is nothing to sum.

    Args:
        accumulate: format of the first sums, as in ``Measurement.accumulate``.
        than: format of the other sums, as in ``Measurement.accumulate``.
    """
    bits, other = (
        _SIGNIFICAND_BITS.get((name or "").removesuffix("-tensor")) for name in (accumulate, than)
    )
    return bits is not None and other is not None and bits < other


# -----------------------------------------------------------------------------
# Reliability of a row's ratio to the fastest backend.

#: Ratio to the fastest backend from which on a row is explained.
SLOW = 1.1
# Maximum half width of a ratio's interval, as a share of the ratio.
_MAX_HALF_WIDTH = 0.05

UNCERTAIN_LEGEND = (
    f"the ratio is known to no better than {100 * _MAX_HALF_WIDTH:.0f} %, may lie on either side "
    f"of {SLOW:g}x, or comes from a single repetition"
)


def is_uncertain(row: Measurement) -> bool:
    """Whether a row's ratio has a wide interval, none, or one around the threshold of slowness."""
    if row.ratio is None or _is_best(row):
        return False
    median, low, high = (row.ratio[name] for name in ("median", "ci_low", "ci_high"))
    if low is None or high is None:
        return True
    return bool((high - low) / 2 > _MAX_HALF_WIDTH * median or low < SLOW < high)


def is_tied(row: Measurement) -> bool:
    """Whether a row other than the fastest does not differ from it: its interval contains 1.

    Without an interval, which needs two rounds, the ratio itself decides.
    """
    if row.ratio is None or _is_best(row):
        return False
    low = row.ratio["ci_low"]
    return bool((row.ratio["median"] if low is None else low) <= 1)


def _is_best(row: Measurement) -> bool:
    """Whether the row is the fastest, to which the ratios refer."""
    return row.ratio is not None and row.ratio["to"] == row.who


class DevicePeaks(Record, frozen=True, kw_only=True):
    """Compute peaks of a device in a precision, in FLOP/s; a multiply-add is two FLOPs.

    The model FLOPs utilisation of a step is its FLOP/s over ``theoretical``, as publications have
    it, or over ``measured``, which a kernel can reach.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        name: name of the CPU or GPU.
        precision: one of ``pydlbench.words.PRECISIONS``.
        threads: threads of a CPU's probe; null on a GPU.
        measured: best result of the probe, at ``clock_hz``; on a CPU this includes results of
            earlier runs that a try of this run confirms.
        theoretical: peak of all units at ``clock_hz``; null where they are not known.
        nominal: peak at the nominal clock; null where that is not known.
        clock_hz: core clock during the probe.
        derivation: derivation of ``theoretical``, in words.
        kernel: the probe's instruction, or the product that a GPU's library computed.
    """

    device: str
    name: str
    precision: Precision
    threads: int | None = None
    measured: float
    theoretical: float | None = None
    nominal: float | None = None
    clock_hz: float
    derivation: str | None = None
    kernel: str | None = None

    derived = ("tflops",)

    @property
    def tflops(self) -> float:
        """The measured peak in TFLOP/s."""
        return self.measured / 1e12
