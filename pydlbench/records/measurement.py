"""The record of a row: what was timed, how long it took, against which limit, and was it right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from pydlbench.records.fields import shown
from pydlbench.records.record import Record, one_of
from pydlbench.records.specs import Cache, LayerKind, PassName, Precision, Propagation
from pydlbench.timing.statistics import median, median_interval, quantile
from pydlbench.units import cut, format_bytes, format_seconds, number, percent, scientific, si

# As libraries name them: wino, winograd, jit_wino_4x3; fft, FFT_TILING; no part of another word.
_FEWER_FLOPS: Final = (("Winograd", r"(?<![a-z])wino"), ("FFT", r"(?<![a-z])fft(?![a-z])"))


def fewer_flops(*names: str | None) -> str | None:
    """Return ``Winograd`` or ``FFT`` where an algorithm's name or notes tell of one, else None."""
    words = " ".join(filter(None, names)).lower()
    return next((name for name, sign in _FEWER_FLOPS if re.search(sign, words)), None)


# The kernel's own name among the arguments of a template that stands for many.
_CUTLASS: Final = re.compile(r"cutlass::\w+<(\w+)")
_NAME_LENGTH: Final = 100


def kernel_name(kernel: Mapping[str, Any]) -> str:
    """Return a GPU's kernel by name: without result, parameters and the template's arguments."""
    name = str(kernel["name"]).removeprefix("void ").replace("(anonymous namespace)::", "")
    if named := _CUTLASS.search(name):
        return named[1]
    return name.partition("<")[0].partition("(")[0][:_NAME_LENGTH]


#: A kernel with so much of its roof is near it: another one would bring little.
NEAR_ROOF: Final = 0.8

#: What became of a row.
Status = Annotated[str, one_of("ok", "skipped", "failed")]


def _sampled(rows: Sequence[Any]) -> bool:
    """Whether rows have their samples, and so many that a percentile says something."""
    return any(row.samples_s and row.time and row.time.p90 for row in rows)


def _repeated(rows: Sequence[Any]) -> bool:
    """Whether a row was made ready several times: its interval is that of its repetitions then."""
    return any(row.time is not None and row.time.repetitions > 1 for row in rows)


def _confidence(rows: Sequence[Any]) -> str:
    """Return what the intervals of rows are called: ``95 % CI``."""
    levels = {row.time.confidence for row in rows if row.time is not None}
    return f"{100 * levels.pop():g} % CI" if len(levels) == 1 else "CI"


def _moves(rows: Sequence[Any]) -> bool:
    """Whether the time of some rows is not that of their arithmetic."""
    return any(row.roofline is not None and row.roofline.bound != "compute" for row in rows)


class TimeSummary(Record, frozen=True, kw_only=True):
    """Seconds per execution, and how far to trust them.

    Attributes:
        median: Median of the samples.
        ci_low: Lower end of the confidence interval of the median, which takes two to five values
            for normal and assumes nothing of more; ``None`` of a single one.
        ci_high: Upper end.
        q1: First quartile.
        q3: Third quartile.
        min: Fastest sample.
        n: Samples.
        confidence: Level of the interval.
        p90: Tenth of the samples, or fewer, are above it; None where there are fewer than 10. A
            sample is the mean of ``inner`` executions: single ones scatter more.
        p99: Likewise a hundredth; None where there are fewer than 100.
        repetitions: How often the row was made ready anew over the run, each time with new memory.
            The median and its interval are those of the rounds' medians, of which each repetition
            has one; a single one has several.
        visit_s: Median of each repetition, by lap over the run's rows; empty with a single one.
            Rows of one run that were visited in the same laps share what the machine did then.
        processes: How many processes the repetitions were made in.
    """

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
    processes: int = 1

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width relative to the median; ``None`` without an interval."""
        if self.ci_low is None or self.ci_high is None or not self.median > 0:
            return None
        return (self.ci_high - self.ci_low) / 2 / self.median

    @property
    def spread(self) -> Annotated[str, shown(_confidence)]:
        """The interval's half width in per cent, or what there is where there is no interval."""
        if self.half_width is not None:
            return percent(self.half_width)
        return "no spread" if self.iqr is None else f"IQR {percent(self.iqr)}"

    @property
    def interval(self) -> Annotated[str | None, shown("95 % CI")]:
        """The ends of the interval; None without one."""
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
        measured: What a probe kernel reached, at this clock.
    """

    theoretical: Annotated[float | None, shown(unit="TFLOP/s")] = None
    measured: Annotated[float | None, shown(unit="TFLOP/s")] = None


class Roofline(Record, frozen=True, kw_only=True):
    """The measured limit of one kernel.

    Attributes:
        bound: ``compute``, ``memory`` or ``launch``: which limit is the highest.
        time_s: Least time under that limit, in seconds.
        efficiency: ``time_s`` over the measured median: 1 is the roof. Kernels that need fewer
            FLOPs than a direct one (Winograd, FFT) can exceed it.
        bandwidth: The slowest level of the memory roof: ``memory``, ``llc`` or ``l2``.
        bandwidth_gbps: Its measured bandwidth in GB/s: what the fastest probe reached.
        bandwidth_low_gbps: What the slowest undisturbed probe reached; null where there was one.
    """

    bound: Annotated[str, one_of("compute", "memory", "launch"), shown("bound", right=False)]
    time_s: Annotated[float, shown(unit="s")]
    # Of two peaks a memory-bound kernel can reach neither; its own roof says what is left.
    efficiency: Annotated[float, shown("of roof", percent, when=_moves)]
    bandwidth: str = "memory"
    bandwidth_gbps: Annotated[float | None, shown(unit="GB/s")] = None
    bandwidth_low_gbps: Annotated[float | None, shown(unit="GB/s")] = None

    @property
    def efficiency_high(self) -> float:
        """The efficiency where only the slowest probe's bandwidth is to be had.

        The same as ``efficiency`` where no bandwidth is the limit, or it was probed once.
        """
        low, high = self.bandwidth_low_gbps, self.bandwidth_gbps
        if self.bound != "memory" or not low or not high:
            return self.efficiency
        return self.efficiency * high / low


#: Fewer runs know badly what the next one brings.
OCCASIONS: Final = 3
#: The share of later runs in which a row's median lies within what is expected.
LATER_LEVEL: Final = 0.9
_LATER: Final = f"{100 * LATER_LEVEL:g} % of later runs"


class Expected(Record, frozen=True, kw_only=True):
    """Where a row's median lies in a later run: an interval from stored runs of the same code.

    Attributes:
        low: its lower end, in seconds.
        high: its upper end.
        occasions: of how many runs are known, half an hour apart or more.
        level: the share of later runs in which the median lies within.
    """

    low: Annotated[float, shown(unit="s")]
    high: Annotated[float, shown(unit="s")]
    occasions: int
    level: float = LATER_LEVEL


class Correctness(Record, frozen=True, kw_only=True):
    """Verdict of the verification.

    Attributes:
        status: ``ok``, ``failed`` or ``unchecked``.
        rel_error: Largest relative error found.
        tolerance: Largest one allowed.
        detail: What was checked, or where it went wrong.
    """

    status: Annotated[str, one_of("ok", "failed", "unchecked")] = "unchecked"
    rel_error: float | None = None
    tolerance: float | None = None
    detail: str | None = None

    promised = ("status",)


def _kernel(algorithm: str) -> str:
    """Return the kernel behind a framework's function, which says more than the function."""
    behind = _BEHIND.fullmatch(algorithm)
    text = behind.group(1) if behind else algorithm
    # "Pad, Conv2D: _MklNativeFusedConv2D"
    return cut(text.rpartition(": ")[2] if len(text) > _ALGORITHM else text, _ALGORITHM)


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _giga(flops: int) -> str:
    return number(flops / 1e9)


def _layers(rows: Sequence[Any]) -> bool:
    return len({row.layer for row in rows}) > 1


def _megahertz(hertz: float) -> str:
    return f"{hertz / 1e6:.0f}"


def _joules(energy: float) -> str:
    return si(energy, "J")


def _of_traffic(rows: Sequence[Any]) -> bool:
    """Whether rows are bound by memory: of others their traffic says nothing."""
    known = [row for row in rows if row.of_bandwidth is not None]
    return any(row.roofline.bound == "memory" for row in known)


_GPU: Final = "sm_clock_hz memory_clock_hz power_w temperature_c reasons others readings"
_ROLE: Final = re.compile(r"(src|weights|dst) ([^,]+)")
_BEHIND: Final = re.compile(r"\S+ \((.+)\)")
_ALGORITHM: Final = 40  # characters of an algorithm in tables


class Candidate(Record, frozen=True, kw_only=True, rename={"time": "time_s"}):
    """An implementation that a search tried; what it did not know is absent.

    Attributes:
        algorithm: as the library names it.
        layout: memory formats.
        chosen: whether the row's kernel is this one.
        status: ``ok``, ``skipped`` or ``failed``.
        reason: why it was skipped or failed.
        time: a trial's seconds per execution, with what is known of their spread.
        reorder_s: seconds to bring each operand into its layout, by role.
        workspace_bytes: scratch memory.
        tensor_cores: whether a GPU's tensor cores did it.
        setup_s: seconds to create it.
        correct: verdict of the verification: status and rel_error.
    """

    algorithm: Annotated[str | None, shown("algorithm", right=False)] = None
    layout: Annotated[str | None, shown("layout", right=False)] = None
    chosen: bool = False
    status: str = "ok"
    reason: str | None = None
    time: Mapping[str, Any] | float | None = None
    reorder_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    workspace_bytes: Annotated[int | None, shown("workspace", format_bytes)] = None
    tensor_cores: Annotated[bool | None, shown("tensor cores", _yes)] = None
    setup_s: Annotated[float | None, shown("built in", format_seconds)] = None
    correct: Mapping[str, Any] | None = None

    @property
    def star(self) -> Annotated[str, shown("", right=False)]:
        """A mark at the row's kernel."""
        return "*" if self.chosen else ""

    @property
    def summary(self) -> TimeSummary | None:
        """Its time; trials are short, and what they do not know is shown as unknown."""
        if self.status != "ok" or not self.time:
            return None
        unknown = dict.fromkeys(("q1", "q3", "min"), math.nan) | {"ci_low": None, "ci_high": None}
        known = self.time if isinstance(self.time, Mapping) else {"median": self.time}
        return TimeSummary.from_dict({**unknown, "n": 1, **known})

    @property
    def reorders(self) -> Annotated[float | None, shown("reorders", format_seconds)]:
        """Seconds to bring all operands into its layout; None where that is nothing."""
        return sum(self.reorder_s.values()) or None

    @property
    def verdict(self) -> Annotated[str, shown("verdict", right=False)]:
        """Whether it is right, and how far off; or why it has no time."""
        if self.reason:
            return f"{self.status}: {' '.join(self.reason.split())}"
        if self.status != "ok" or self.correct:
            error = (self.correct or {}).get("rel_error")
            return f"{self.status} {scientific(error)}" if error else self.status
        # Candidates that cannot win are not worth a verification unless asked for.
        return f"{self.status}, unchecked"


class Measurement(
    Record,
    frozen=True,
    kw_only=True,
    rename={"pass_": "pass", "time": "time_s", "peak": "peak_tflops"},
):
    """One kernel in one setting: one row of every table and one object of the JSON output.

    Attributes:
        layer: Name (``alexnet/conv3``), or the problem itself where the layer has no name.
        kind: Of layer: ``conv2d``, ``gemm``, ``pool2d``, ``pointwise`` and so on.
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
        layout: Memory formats that the kernel really used.
        layout_request: The layout that was asked for: ``best``, ``any``, ``nhwc``...
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
        clock_from: Whose samples it was read beside, in the same rounds and on the same cores,
            where this backend's process reads none; ``None`` where it is the row's own.
        peak: Compute peaks at this clock, precision and number of threads (JSON:
            ``peak_tflops``).
        roofline: The roof over this kernel, and how much of it was reached.
        correct: Verdict of the verification.
        contended: Other work disturbed half of the rounds or more, and the others were shorter; the
            time is an upper bound.
        stop_reason: Why sampling stopped, in words.
        propagation: ``inference`` or ``training``; only meaningful for ``forward``.
        threads: Threads of the kernel, one pinned per core.
        workspace_bytes: Scratch memory of the kernel.
        reorder_s: Seconds to bring each operand from its plain layout into the kernel's, by role;
            not timed in rows of an estimate.
        setup_s: Seconds to create and compile the plan.
        candidates: With ``--algorithms``, every implementation tried; each a dict with
            ``algorithm``, ``layout``, ``status``, ``reason``, ``time_s`` (as above), ``chosen``,
            ``workspace_bytes``, ``reorder_s``.
        samples_s: With ``--samples``, the raw samples in seconds.
        warnings: What makes this row less reliable, in words.
        contention_reason: The counters behind ``contended``, in words.
        stop_rule: ``rounds``, or ``interrupted`` where it was to have more of them.
        inner: Executions per sample.
        cycles: Core cycles per execution: the median in seconds times ``clock_hz``.
        fuse: What the same kernel computed besides: ``none`` or ``bias-relu``.
        tensor_cores: Whether a GPU's tensor cores did it; ``None`` where the library does not say.
        notes: The library's numerical and behaviour notes on the algorithm.
        launch_s: Seconds per execution by three clocks: ``event`` (between CUDA events), ``graph``
            (in a CUDA graph), ``host`` (launched one by one, on the host's clock); and ``enqueue``,
            what the host needs to launch one.
        kernels: What a GPU runs for one execution, by the driver's word: dicts with ``name``,
            ``grid`` and ``block`` (three numbers each), ``shared_bytes`` of a block and
            ``registers`` of a thread; of what cannot be captured into a CUDA graph none.
        energy_j: Energy of one execution in joules, with ``--energy``.
        power_w: Mean power during that measurement, in watts.
        sustained_s: Seconds of an execution among a second of them in a row, with ``--energy``:
            what power and heat leave of a burst.
        sustained_hz: The multiprocessors' clock meanwhile.
        gpu: What was read from the GPU beside the samples: clocks in Hz, power in W, temperature in
            degrees Celsius, what held the clock down.
        ratio: Beside other backends, this one's time over the fastest one's, from rounds that both
            were in: ``to`` (its backend and mode), ``median``, ``ci_low``, ``ci_high``, and in
            ``rounds`` how many values these are of: visits, of each the median of its rounds'
            ratios; of a single visit its rounds.
        warm_s: The same call with an allocator that keeps its pages, seconds; frameworks only.
        faults: Page faults per call, as it is and with that allocator: ``default``, ``warm``.
        empty_call_s: Seconds of a call that does nothing, made the same way; subtracted nowhere.
        expected_s: Where its median lies in a later run, as stored runs of the same code tell;
            None where there are fewer than three, half an hour apart or more.
        causes: Why this backend is slower than the fastest; dicts with ``cause``, ``seconds``,
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
    energy_j: Annotated[float | None, shown("energy", _joules, unit="J")] = None
    power_w: Annotated[float | None, shown("W", number, unit="W")] = None
    sustained_s: Annotated[float | None, shown(unit="s")] = None
    sustained_hz: Annotated[float | None, shown("MHz", _megahertz, unit="Hz")] = None
    gpu: Annotated[Mapping[str, Any] | None, shown(keys=_GPU)] = None
    ratio: Annotated[Mapping[str, Any] | None, shown(keys="to median ci_low ci_high rounds")] = None
    warm_s: Annotated[float | None, shown("pages kept", format_seconds, unit="s")] = None
    faults: Annotated[Mapping[str, float] | None, shown(keys="default warm")] = None
    empty_call_s: Annotated[float | None, shown(unit="s")] = None
    expected_s: Expected | None = None
    causes: tuple[Mapping[str, Any], ...] = ()
    clock_from: str | None = None

    #: Of a table of rows, in the order of its columns.
    columns: ClassVar[str] = (
        "algorithm short_layout flops time.median time.spread later_runs time.n time.repetitions "
        "time.p90 time.p99 tflops gbps of_theoretical of_measured roofline.efficiency of_bandwidth "
        "roofline.bound energy_j gflops_per_watt to_best warm_s checked note"
    )
    derived = ("gflops_per_watt", "of_bandwidth", "fewer_flops")
    omitted = ("candidates", "samples_s", "sustained_s", "sustained_hz")
    promised = ("device", "backend", "cache", "reason", "time", "correct")

    def __repr__(self) -> str:
        """Return one line: what was measured, and its median with the interval."""
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
        """Algorithmic GFLOP/s per watt, which is GFLOP per joule; None without an energy."""
        return self.flops / self.energy_j / 1e9 if self.energy_j else None

    @property
    def picojoules(self) -> Annotated[float | None, shown("pJ/FLOP", number)]:
        """Energy of an algorithmic FLOP; None without an energy."""
        return 1e12 * self.energy_j / self.flops if self.energy_j and self.flops else None

    @property
    def sustained_tflops(self) -> Annotated[float | None, shown("sustained TFLOP/s", number)]:
        """Algorithmic FLOPs of an execution among a second of them, in TFLOP/s."""
        return self.flops / self.sustained_s / 1e12 if self.sustained_s and self.flops else None

    @property
    def fewer_flops(self) -> str | None:
        """The algorithm that needs fewer FLOPs than a direct kernel: ``Winograd`` or ``FFT``.

        None for all others. Rates, percentages of peaks and the compute roof count the direct
        kernel's FLOPs, and say of such a kernel how fast it is rather than how busy its units are.
        """
        return fewer_flops(self.algorithm, *self.notes)

    @property
    def of_bandwidth(
        self,
    ) -> Annotated[float | None, shown("of bandwidth", percent, when=_of_traffic)]:
        """The least traffic's rate over the bandwidth of the level that has most of it.

        None where that is not known. Above 1 where another level brings a part of the bytes.
        """
        if self.gbps is None or self.roofline is None or not self.roofline.bandwidth_gbps:
            return None
        return self.gbps / self.roofline.bandwidth_gbps

    @property
    def complete(self) -> bool:
        """Whether it has all the visits that it was to have."""
        return self.stop_rule != "interrupted"

    @property
    def ok(self) -> bool:
        """Whether the row has a time that may be believed (perhaps a contended one)."""
        return self.status == "ok" and self.time is not None

    @property
    def tflops_executed(self) -> float | None:
        """Executed FLOPs over the median, in TFLOP/s: what percent of peak is computed from."""
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
        """What matters of ``layout``, or all of it where it has another form.

        Images: the format of source and destination (``nhwc``), or both where they differ
        (``nchw>nChw16c``). Matrix products: whether the weights are ``packed`` (blocked), ``plain``
        (``kn``) or in which other order.
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
        """The time over the fastest backend's, with the half width of its interval."""
        if not self.ratio:
            return None
        low, high = self.ratio["ci_low"], self.ratio["ci_high"]
        text = f"{number(self.ratio['median'], 3)}x"
        if low is None or high is None or low == high:
            return text
        return f"{text} +-{percent((high - low) / 2 / self.ratio['median'])}"

    @property
    def later_runs(
        self,
    ) -> Annotated[str | None, shown(_LATER)]:
        """The ends of the interval of what is expected of a later run."""
        if self.expected_s is None:
            return None
        return f"{format_seconds(self.expected_s.low)} to {format_seconds(self.expected_s.high)}"

    @property
    def checked(self) -> Annotated[str, shown("checked", right=False)]:
        """The verdict of the verification: ``ok 2e-7``."""
        verdict = self.correct
        if not verdict.rel_error or verdict.status == "unchecked":
            return verdict.status
        return f"{verdict.status} {scientific(verdict.rel_error)}"

    @property
    def note(self) -> Annotated[str, shown("note", right=False)]:
        """What makes the row another one than it seems, in words; empty where nothing does."""
        words = ["contended"] * self.contended + ["ratio uncertain"] * is_uncertain(self)
        words += ["interrupted"] * (not self.complete)
        words += [f"{self.fewer_flops}: % of direct FLOPs"] if self.fewer_flops else []
        return ", ".join(words)

    def fraction_of_peak(self, which: str) -> float | None:
        """Return the executed rate over the ``theoretical`` or ``measured`` compute peak."""
        peak: float | None = getattr(self.peak, which)
        rate = self.tflops_executed
        return rate / peak if rate is not None and peak else None


#: The part of a sum that disturbed rows may have, which are upper bounds, for the sum to tell
#: anything; what is named in a verdict may not be disturbed at all.
MATERIAL: Final = 0.05
#: The share of a step below which a layer, a call or a term is not named in a sentence.
MIN_NAMED_SHARE: Final = 0.005


def disturbed_share(parts: Iterable[tuple[float, bool]]) -> float:
    """Return which part of a sum of times is disturbed, 0 to 1; none of an empty one.

    Args:
        parts: seconds, and whether other work disturbed them.
    """
    known = list(parts)
    total = sum(seconds for seconds, _ in known)
    disturbed = sum(seconds for seconds, contended in known if contended)
    return disturbed / total if total > 0 else 0.0


def time_summary(seconds: Sequence[float]) -> TimeSummary:
    """Summarise samples (seconds per execution); the interval is None of a single one."""
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
    """Return the smallest sample that so many percent of them do not exceed.

    None where there are too few for one to be above it: fewer than 10 for 90, 100 for 99.
    """
    count = len(seconds)
    if count * (100 - percent) < 100:
        return None
    return float(sorted(seconds)[-(-count * percent // 100) - 1])


# -----------------------------------------------------------------------------
# Formats that sums are kept in, and which of them are less exact than others.

# Bits of a significand, the implied one included.
_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def less_exact(accumulate: str | None, than: str | None) -> bool:
    """Whether sums in one format are rounded more coarsely than those in another.

    What cuts the sums of tensor cores off counts as the format that they are kept in; nobody is
    called less exact for a format that is not known, or where there is nothing to sum.

    Args:
        accumulate: as in ``Measurement.accumulate``.
        than: likewise.
    """
    own, other = (_BITS.get((name or "").removesuffix("-tensor")) for name in (accumulate, than))
    return own is not None and other is not None and own < other


# -----------------------------------------------------------------------------
# How far the ratio of a row to the fastest backend can be trusted.

#: From this ratio to the fastest on, a row is explained.
SLOW = 1.1
# Half of an interval's width, as a share of the ratio.
_WIDE = 0.05

UNCERTAIN_LEGEND = (
    f"the ratio is known to no better than {100 * _WIDE:.0f} %, may lie on either side of "
    f"{SLOW:g}x, or comes from a single repetition"
)


def is_uncertain(row: Measurement) -> bool:
    """Whether a row's ratio has a wide interval, none, or one around the threshold of slowness."""
    if row.ratio is None or _is_best(row):
        return False
    median, low, high = (row.ratio[name] for name in ("median", "ci_low", "ci_high"))
    if low is None or high is None:
        return True
    return bool((high - low) / 2 > _WIDE * median or low < SLOW < high)


def is_tied(row: Measurement) -> bool:
    """Whether a row that is not the fastest cannot be told from it: its interval holds 1.

    Without an interval, which takes two rounds, the ratio itself has to do.
    """
    if row.ratio is None or _is_best(row):
        return False
    low = row.ratio["ci_low"]
    return bool((row.ratio["median"] if low is None else low) <= 1)


def _is_best(row: Measurement) -> bool:
    """Whether the ratio is that of the fastest to itself."""
    return row.ratio is not None and row.ratio["to"] == row.who
