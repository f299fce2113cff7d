"""The documents that commands write with ``--json``: a struct for each, and for their parts.

What is timed has its record elsewhere in this folder; the structs here describe what commands
put together from several of them, or from what is no record. Commands write plain objects; the
schemas that are made of these structs (:mod:`pydlbench.records.schema`) say what they hold. A field
with a default may be absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

import msgspec

from pydlbench.records.check import CheckRecord
from pydlbench.records.diagnosis import Diagnosis
from pydlbench.records.forecast import ForecastRecord
from pydlbench.records.measurement import Measurement, Status
from pydlbench.records.protocol import ProtocolNumber, ProtocolOptions
from pydlbench.records.record import SCHEMA_VERSION, SCHEMA_VERSIONS, Record, one_of
from pydlbench.records.run import RunInfo, RunRecord
from pydlbench.records.specs import Precision
from pydlbench.records.step import Framework, Phase, StepRecord

__all__ = ["DOCUMENTS", "Document"]

Verdict = Annotated[str, one_of("SAME", "FASTER", "SLOWER", "UNCLEAR")]


def _version(kind: str) -> msgspec.Meta:
    return msgspec.Meta(extra_json_schema={"const": SCHEMA_VERSIONS.get(kind, SCHEMA_VERSION)})


class Document(Record, frozen=True, kw_only=True):
    """A document.

    Attributes:
        schema_version: raised when the meaning of a field changes; fields are added without.
    """

    schema_version: Annotated[int, _version("")]


class BackendEntry(Record, frozen=True, kw_only=True):
    """A backend on a device.

    Attributes:
        backend: its name.
        device: cpu or cuda:N.
        title: in words.
        modes: how it runs a layer.
        precisions: that it knows.
        version: installed version.
        install: the command that gets it.
        usable: whether its worker started.
        reason: why not.
        about: what the worker says of itself.
    """

    backend: str
    device: str
    title: str = ""
    modes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    version: str | None = None
    install: str = ""
    usable: bool
    reason: str | None
    about: Mapping[str, Any] | None = None


class BackendsDocument(Document, frozen=True, kw_only=True):
    """What is installed, what it supports.

    Attributes:
        backends: one for each backend and device.
    """

    backends: tuple[BackendEntry, ...]


class CheckedStep(Record, frozen=True, kw_only=True):
    """A step of a model in a framework, measured rung by rung; or why it is not.

    Attributes:
        record: its fields stand in the object itself, where the status is ok.
        status: whether there is a result.
        reason: why there is none.
    """

    record: CheckRecord
    status: Status = "ok"
    reason: str | None = None

    embedded = ("record",)
    rules: ClassVar[Mapping[str, Any]] = {
        "required": ["model", "batch", "phase", "precision", "framework", "mode"],
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {
            "required": [
                *("measured_s", "rungs", "forecast_s", "forecast_error", "additivity_error"),
                *("ledger", "unexplained"),
            ]
        },
    }


class CheckDocument(Document, frozen=True, kw_only=True):
    """Checks: one object, or several under checks. Times in seconds.

    Attributes:
        interrupted: more was asked for than is here.
        run: when, where and with what; null if nothing could be run.
        measurements: the rows.
        checks: one for each framework and mode, where there are several.
    """

    interrupted: bool = False
    run: RunRecord | None
    measurements: tuple[Measurement, ...] = ()
    schema_version: Annotated[int, _version("check")]
    checks: tuple[CheckedStep, ...] = ()

    rules: ClassVar[Mapping[str, Any]] = {
        "anyOf": [{"required": ["checks"]}, {"$ref": "#/$defs/CheckedStep"}]
    }


class ForecastStep(Record, frozen=True, kw_only=True):
    """A forecast of a step in a framework; or why there is none.

    Attributes:
        record: its fields stand in the object itself.
        status: failed where operators have no row, or nothing could be listed.
        reason: what is missing.
    """

    record: ForecastRecord
    status: Status = "ok"
    reason: str | None = None

    embedded = ("record",)
    rules: ClassVar[Mapping[str, Any]] = {
        "required": ["model", "batch", "phase", "precision", "framework", "mode"],
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"required": ["forecast_s", "ci_low", "ci_high", "terms"]},
    }


class ForecastDocument(Document, frozen=True, kw_only=True):
    """Forecasts of a step. Times in seconds.

    Attributes:
        interrupted: more was asked for than is here.
        run: when, where and with what.
        forecasts: one for each framework and mode.
    """

    interrupted: bool = False
    run: RunRecord
    forecasts: tuple[ForecastStep, ...]


class OwnFigure(Record, frozen=True, kw_only=True):
    """An own result beside a published figure.

    Attributes:
        model: name of the model.
        phase: what a step computes.
        precision: of the products.
        batch: images per step.
        seconds: of a step, as measured.
        who: framework and mode.
        device: where it ran.
        run: the run that it is from.
        options: of a variant of the model; empty of the model itself.
        protocol: the published script that was played; null for a plain step.
        value: in the figure's unit.
        unit: the figure's.
        speedup: how many times as fast as the published figure.
        marks: what makes it another thing than the figure.
    """

    model: str
    phase: str = ""
    precision: str = ""
    batch: int | None = None
    seconds: float | None = None
    who: str = ""
    device: str | None = None
    run: str = ""
    options: str = ""
    protocol: str | None = None
    value: float | None
    unit: str
    speedup: float | None = None
    marks: tuple[str, ...] = ()


class PublishedFigure(Record, frozen=True, kw_only=True):
    """A published figure.

    Attributes:
        source: where it was published.
        citation: how to cite that.
        protocol: the script that measured it.
        hardware: on what.
        year: when.
        framework: with what.
        model: name of the model.
        stage: as the source calls what was timed.
        phase: what a step computes.
        precision: of the products.
        batch: images per step.
        value: in its unit.
        spread: as the source gives it.
        unit: of the value.
        seconds: of a step.
        includes: what is in the time.
        note: what a reader has to know.
        own: own results beside it.
    """

    source: str
    citation: str = ""
    protocol: str | None = None
    hardware: str
    year: int | str | None = None
    framework: str = ""
    model: str
    stage: str | None = None
    phase: str | None = None
    precision: str = ""
    batch: int | None = None
    value: float | None
    spread: float | None = None
    unit: str
    seconds: float | None = None
    includes: str | tuple[Any, ...] | None = None
    note: str | None = None
    own: tuple[OwnFigure, ...]


class PublishedDocument(Document, frozen=True, kw_only=True):
    """Published figures with own results beside them.

    Attributes:
        runs: the runs as they were given.
        published: the figures.
    """

    runs: tuple[str, ...]
    published: tuple[PublishedFigure, ...]


class ComparisonSide(Record, frozen=True, kw_only=True):
    """One side of a row.

    Attributes:
        layer: its name there.
        median: seconds per execution.
        ci_low: lower end of the median's interval within the run, in seconds.
        ci_high: upper end.
        n: samples.
        clock_hz: core clock beside them, in Hz.
        contended: other work disturbed it.
        algorithm: the implementation.
        backend: who computed it.
        mode: how a framework ran it.
        threads: threads.
        layout_request: layout that was asked for.
        cache: cache state.
        precision: storage and arithmetic.
        device: cpu or cuda:N.
        fuse: what was computed in the same call.
    """

    layer: str = ""
    median: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    clock_hz: float | None = None
    contended: bool = False
    algorithm: str | None = None
    backend: str = ""
    mode: str | None = None
    threads: int | None = None
    layout_request: str | None = None
    cache: str | None = None
    precision: str = ""
    device: str = ""
    fuse: str | None = None


class ComparisonEstimate(Record, frozen=True, kw_only=True):
    """A ratio with what is said of it.

    Attributes:
        ratio: b over A, without the drift where that is taken for the machine's.
        ci_low: lower end of the interval of this row by itself.
        ci_high: upper end.
        verdict: what can be said of B.
        p: of a ratio of one, corrected for the number of rows.
        resolution: the smallest ratio above one that is found here in four of five comparisons.
        reason: why there can be no verdict.
    """

    ratio: float
    ci_low: float | None
    ci_high: float | None
    verdict: Verdict
    p: float | None = None
    resolution: float | None = None
    reason: str | None = None


class ComparisonRow(Record, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """A row of both runs. ratio, interval and verdict are those that count: see verdict_in.

    Attributes:
        layer: name of the layer, or the model.
        kind: kind of layer, or step, estimate, check measured, check predicted, check
            native.
        problem: descriptor, or what else tells it from others.
        batch: images.
        pass_: pass of a layer, phase of a step.
        precision: storage and arithmetic.
        device: cpu or cuda:N.
        backend: who computed it.
        mode: how a framework ran it.
        cache: cache state.
        threads: threads.
        layout_request: layout that was asked for.
        fuse: what was computed in the same call.
        propagation: inference or training.
        a: one side of a row.
        b: one side of a row.
        ratio: b over A.
        ci_low: lower end of the interval of this row by itself.
        ci_high: upper end.
        verdict: what can be said of B.
        p: of a ratio of one, corrected for the number of rows.
        resolution: the smallest ratio above one that is found here in four of five comparisons.
        reason: why there can be no verdict.
        by_pass: of sides measured in turn, the ratio of each pass: lists time and cycles;
            null for stored runs.
        verdict_in: what the verdict is given in.
        time: in seconds.
        cycles: in seconds times clock; null where a clock is not known.
    """

    layer: str
    kind: str = ""
    problem: str = ""
    batch: int | None = None
    pass_: str = ""
    precision: str = ""
    device: str = ""
    backend: str = ""
    mode: str | None = None
    cache: str | None = None
    threads: int | None = None
    layout_request: str | None = None
    fuse: str | None = None
    propagation: str | None = None
    a: ComparisonSide | None = None
    b: ComparisonSide | None = None
    ratio: float
    ci_low: float | None
    ci_high: float | None
    verdict: Verdict
    p: float | None = None
    resolution: float | None = None
    reason: str | None = None
    by_pass: Mapping[str, Any] | None = None
    verdict_in: Annotated[str, one_of("time", "cycles")] = ""
    time: ComparisonEstimate | None = None
    cycles: ComparisonEstimate | None = None


class CompareDocument(Document, frozen=True, kw_only=True):
    """Two runs row by row. Ratios are B's time (or cycles) over A's.

    Attributes:
        a: the first run.
        b: the second run.
        interleaved: whether both sides were measured in turn.
        passes: how often both were prepared anew.
        matched_across: what all rows differ in, where they were matched across that.
        matched_values: what A and B have there.
        rows: rows of both.
        geomean: geometric mean of the ratios of rows that a verdict could be given on.
        geomean_ci: its interval: low and high.
        geomean_verdict: its verdict.
        geomean_in: the geometric mean in time and in cycles.
        counts: how many rows have each verdict.
        drift: what most rows have in common, as a ratio; null where that is not known.
        drift_reading: machine where two runs differ by as much anyhow, and it is taken off;
            either where it may be the machine's or of all rows; change where it is more.
        only_a: rows of A without a partner.
        only_b: rows of B without a partner.
        untimed: pairs that are not timed on both sides.
        warnings: in what the runs differ, in sentences.
        differences: the same as objects.
        notes: what a reader has to know.
        settings: what a verdict took: alpha, margin, confidence, correction; of how many
            replicates the scatter was learnt, and run_sd: what whole runs differ by.
    """

    a: Mapping[str, Any] = msgspec.field(default_factory=dict)
    b: Mapping[str, Any] = msgspec.field(default_factory=dict)
    interleaved: bool = False
    passes: int | None = None
    matched_across: str | None = None
    matched_values: tuple[str, ...] | None = None
    rows: tuple[ComparisonRow, ...]
    geomean: float | None
    geomean_ci: tuple[float | None, ...] | None = None
    geomean_verdict: str | None = None
    geomean_in: Mapping[str, Any] = msgspec.field(default_factory=dict)
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    drift: float | None = None
    drift_reading: Annotated[str, one_of("machine", "either", "change")] | None = None
    only_a: tuple[Mapping[str, Any], ...] = ()
    only_b: tuple[Mapping[str, Any], ...] = ()
    untimed: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    differences: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Advice(Record, frozen=True, kw_only=True):
    """An advice.

    Attributes:
        symptom: what was seen.
        remedy: what to do.
    """

    symptom: str
    remedy: str = ""


class DeviceEntry(Record, frozen=True, kw_only=True):
    """The device that was probed.

    Attributes:
        kind: cpu or gpu.
        name: product name.
        threads: threads of a CPU's probes.
        cores: physical cores in use.
        clock_hz: core clock during the probes, in Hz.
        facts: what the system or the driver tells.
        peaks: by precision: measured_flops_per_s, theoretical with its derivation, reason
            where there is none.
        bandwidths: by level of the memory and pattern, in bytes per second.
        bandwidth_reason: why there are none.
        launch_s: seconds to start and join all threads, or to launch a kernel.
        libraries: versions.
        warnings: what makes measurements less reliable: symptom and remedy.
    """

    kind: str
    name: str
    threads: int = 0
    cores: int = 0
    clock_hz: float | None = None
    facts: Mapping[str, Any]
    peaks: tuple[Mapping[str, Any], ...]
    bandwidths: tuple[Mapping[str, Any], ...]
    bandwidth_reason: str | None = None
    launch_s: float | None = None
    libraries: Mapping[str, Any] = msgspec.field(default_factory=dict)
    warnings: tuple[Advice, ...]


class DeviceDocument(Document, frozen=True, kw_only=True):
    """A device: facts, peaks, bandwidths. FLOP/s, B/s, bytes, Hz and seconds.

    Attributes:
        device: the device that was probed.
        environment: python, system, packages and variables.
    """

    device: DeviceEntry
    environment: Mapping[str, Any]


class DiagnosisObject(Record, frozen=True, kw_only=True):
    """What was diagnosed, before what was found.

    Attributes:
        model: name of the model.
        batch: images per step.
        phase: what a step computes.
        precision: of the products.
        framework: who ran it.
        mode: how the framework ran it.
        layout: of PyTorch's images.
        options: variant of the model.
        found: its fields stand in the object itself.
    """

    model: str
    batch: int | None
    phase: Phase
    precision: Precision
    framework: Framework
    mode: str
    layout: str
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    found: Diagnosis

    embedded = ("found",)


class DiagnoseDocument(Document, frozen=True, kw_only=True):
    """Findings on a step. Times in seconds.

    Attributes:
        run: one run of a command: when, where, and with which libraries.
        diagnosis: its fields stand in the document itself.
    """

    run: RunRecord
    diagnosis: DiagnosisObject

    embedded = ("diagnosis",)


class ProtocolDocument(Document, frozen=True, kw_only=True):
    """What a published script's protocol came to.

    Attributes:
        run: one run of a command: when, where, and with which libraries.
        played: its fields stand in the document itself.
    """

    run: RunRecord
    played: PlayedProtocol

    embedded = ("played",)


class AgreementRow(Record, frozen=True, kw_only=True):
    """How far two frameworks' numbers are apart, with the same weights.

    Attributes:
        batch: images per step.
        phase: what the step computes.
        status: whether they agree.
        detail: what was found.
        frameworks: which two; the second one's error is stated.
        output: error of the output.
        gradients: largest error of a gradient; null without a backward phase.
        worst: whose gradient that is.
        median: of the gradients' errors.
        tensors: error by name.
        floor: how far rounding alone may carry; null where nobody had to ask.
        tolerance: largest error allowed.
    """

    batch: int | None = None
    phase: str = ""
    status: Annotated[str, one_of("ok", "failed")]
    detail: str | None = None
    frameworks: tuple[str, ...] = ()
    output: float | None = None
    gradients: float | None = None
    worst: str | None = None
    median: float | None = None
    tensors: Mapping[str, Any] = msgspec.field(default_factory=dict)
    floor: float | None = None
    tolerance: float | None = None


class StepRow(Record, frozen=True, kw_only=True):
    """A timed step of a model in a framework.

    Attributes:
        record: its fields stand in the object itself.
        flops: of a step, padding counted.
        tflops: flops over the median, in TFLOP/s.
    """

    record: StepRecord
    flops: int | None = None
    tflops: float | None = None

    embedded = ("record",)


class StepsDocument(Document, frozen=True, kw_only=True):
    """Timed steps of a model in frameworks. Times in seconds.

    Attributes:
        interrupted: more was asked for than is here.
        run: one run of a command: when, where, and with which libraries.
        model: name of the model.
        steps: the rows.
        agreements: with --agree: how far the frameworks' numbers are apart, by batch and
            phase.
        conclusion: sentences.
    """

    interrupted: bool = False
    run: RunRecord
    model: str | None = None
    steps: tuple[StepRow, ...]
    agreements: tuple[AgreementRow, ...] = ()
    conclusion: tuple[str, ...] = ()


class LayersDocument(Document, frozen=True, kw_only=True):
    """Timed layers. Times in seconds, rates in TFLOP/s and GB/s, sizes in bytes.

    Attributes:
        interrupted: more was asked for than is here.
        run: one run of a command: when, where, and with which libraries.
        measurements: the rows.
    """

    interrupted: bool = False
    run: RunRecord
    measurements: tuple[Measurement, ...]


class SummaryNode(Record, frozen=True, kw_only=True):
    """A node.

    Attributes:
        name: of the node.
        op: its operation.
        inputs: nodes that it reads.
        shape: of its output for one image.
        problem: descriptor; null where nothing is computed.
        parameters: trained numbers.
        macs_forward: multiply-adds of one image.
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    shape: tuple[int, ...]
    problem: str | None = None
    parameters: int = 0
    macs_forward: int = 0


class SummaryDocument(Document, frozen=True, kw_only=True):
    """A model in numbers; nothing is timed.

    Attributes:
        model: name of the model.
        title: the model in words.
        source: where it was published.
        batch: images per step, as published.
        image: channels, height, width.
        parameters: trained numbers.
        macs_forward: multiply-adds of convolutions and products for one image, padding
            counted.
        macs_training: the same with the gradients.
        layers: every node.
    """

    model: str
    title: str = ""
    source: str = ""
    batch: int = 0
    image: tuple[int, ...] = ()
    parameters: int
    macs_forward: int
    macs_training: int
    layers: tuple[SummaryNode, ...]


class ModelDocument(Document, frozen=True, kw_only=True):
    """The estimate of a step, with the measurements that it sums. Times in seconds.

    Attributes:
        run: one run of a command: when, where, and with which libraries.
        measurements: the rows.
        estimated: its fields stand in the document itself.
    """

    run: RunRecord
    measurements: tuple[Measurement, ...]
    estimated: StepEstimate

    embedded = ("estimated",)


class RunsDocument(Document, frozen=True, kw_only=True):
    """Runs of the store, the newest first.

    Attributes:
        runs: the runs.
    """

    runs: tuple[RunInfo, ...]


class ShapeEntry(Record, frozen=True, kw_only=True):
    """A layer.

    Attributes:
        layer: name.
        kind: conv2d, deconv2d, gemm, pool2d or pointwise.
        problem: descriptor, batch included.
        pool: max, avg or avg_p; null unless a pooling.
        batch: images, or rows of a product.
        weight_elements: numbers in the weights.
        passes: by pass: flops, flops_executed and bytes.
    """

    layer: str | None = None
    kind: str
    problem: str
    pool: str | None = None
    batch: int
    weight_elements: int = 0
    passes: Mapping[str, Any]


class ShapesDocument(Document, frozen=True, kw_only=True):
    """Layers with FLOPs and bytes in fp32; nothing is timed.

    Attributes:
        layers: the layers.
    """

    layers: tuple[ShapeEntry, ...]


class PlannedTime(Record, frozen=True, kw_only=True):
    """Forecast in seconds.

    Attributes:
        low: at least.
        high: at most.
        source: where it comes from.
    """

    low: float
    high: float
    source: str = ""


class PlannedJob(Record, frozen=True, kw_only=True):
    """A job.

    Attributes:
        kind: the command.
        table: number of the table in the file.
        command: that asks for the same.
        time_s: low and high, in seconds.
        rows: what tells each row from the others.
    """

    kind: str
    table: int = 0
    command: tuple[str, ...] = ()
    time_s: Mapping[str, Any] = msgspec.field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...]


class SweepPlanDocument(Document, frozen=True, kw_only=True):
    """What a sweep would measure.

    Attributes:
        file: name of the file.
        title: what it is for.
        rows: how many there are.
        time_s: forecast in seconds.
        jobs: rows that are measured together.
    """

    file: str = ""
    title: str = ""
    rows: int
    time_s: PlannedTime | None = None
    jobs: tuple[PlannedJob, ...]

    rules: ClassVar[Mapping[str, Any]] = {"title": "pydlbench sweep --dry-run --json"}


class EstimatedStep(Record, frozen=True, kw_only=True):
    """The sum of the layers.

    Attributes:
        time_s: halfway between hot and cold caches, in seconds.
        low: lower end of the interval, in seconds.
        high: upper end, in seconds.
        hot_s: sum with hot caches, in seconds.
        cold_s: sum with cold caches, in seconds.
        half_width_s: of the statistical interval around time_s, in seconds.
        images_per_s: batch over time_s.
        roof_s: sum of the rooflines, in seconds.
        kernels_measured: distinct kernels that were measured.
        kernels_in_step: kernels in a step.
        kernels_without_cold: distinct kernels without a time with cold caches: their hot
            time stands for both.
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


class EstimatedLayer(Record, frozen=True, kw_only=True):
    """One node's part in an estimated step, all its passes together; seconds.

    Attributes:
        name: of the node.
        kind: conv2d, gemm, pool2d, or the operation of a pointwise layer.
        time_s: middle of hot and cold, in seconds.
        low: the lower of both, in seconds.
        high: the higher of both, in seconds.
        share: of the step, 0 to 1.
        bound: what bounds its slowest pass: compute, memory or launch.
        roof_s: what the roofline of the measured peaks allows, in seconds.
        efficiency: roof over time: 1 is as fast as the hardware allows.
        passes: seconds by pass; of l2 and update, the terms and updates that training has
            besides.
        algorithms: the kernels behind it, by pass.
        like: the model's first layer that runs the same kernels; its own name for itself.
        contended: other work disturbed more than 5 % of its time.
    """

    name: str
    kind: str
    time_s: float
    low: float = 0.0
    high: float = 0.0
    share: float
    bound: str | None
    roof_s: float | None = None
    efficiency: float | None
    passes: Mapping[str, float] = msgspec.field(default_factory=dict)
    algorithms: Mapping[str, Any] = msgspec.field(default_factory=dict)
    like: str = ""
    contended: bool = False


class StepEstimate(Record, frozen=True, kw_only=True):
    """What a step should take if it were its layers and nothing else.

    Attributes:
        model: name of the model.
        batch: images per step.
        phase: what a step computes.
        precision: of all layers.
        estimate: the sum of the layers.
        layers: in the order of the model.
        dominant: the single layer that takes most time.
        dominant_group: what takes most time where layers that run the same kernels count
            together: the first of them (layer), how many they are (layers), their share of
            the step (share).
        dominant_share: of that group in the step: median, ci_low and ci_high, 0 to 1, and the
            confidence of these; from the intervals of all rows, taken as independent, and without
            ends where a row has none. Null where nothing was timed.
        dominant_clear: whether that group is larger than every other beyond their intervals.
        dominant_rivals: first layers of the groups that cannot be told from it.
        disturbed_share: which part of the sum other work disturbed, 0 to 1; above 0.05 nothing is
            concluded from it.
        dominant_kind: the kind of layer that does.
        kinds: seconds of the step by kind of layer.
        what_if: the step if its largest layers ran at their roofs: layer, how many layers
            run the same kernels (layers), and step_at_its_roof_s in seconds.
        missing: what could not be measured and is in no sum: layer, pass and reason.
        memory_bytes: bytes that a step needs: weights, gradients, optimizer, activations.
        options: variant of the model, as given.
        device: cpu or cuda:N.
        threads: number of threads that its kernels ran with; null on a GPU.
        cache_bytes: size of the last cache before memory; kernels of four times that are
            measured once only.
    """

    model: str
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
    device: str = ""
    threads: int | None = None
    cache_bytes: int | None = None


class PlayedProtocol(ProtocolOptions, frozen=True, kw_only=True):
    """A published script's protocol, played.

    Attributes:
        data: where the images are from; null without any.
        library: name and version of the framework.
        numbers: what the script prints.
        environment: what the framework says of itself.
    """

    data: str | None = None
    library: str = ""
    numbers: tuple[ProtocolNumber, ...]
    environment: Mapping[str, Any] = msgspec.field(default_factory=dict)


class SweepDocument(Document, frozen=True, kw_only=True):
    """A run with everything in it, by kind; also what export writes of it.

    Attributes:
        interrupted: more was asked for than is here.
        run: one run of a command: when, where, and with which libraries.
        kind: the command that measured it.
        measurements: the rows.
        estimates: estimates of steps.
        steps: timed steps.
        checks: of steps.
        findings: diagnoses.
        not_estimated: rows of [[model]] without an estimate, with the reason.
        agreements: what came of comparing frameworks.
        protocols: published protocols that were played.
    """

    interrupted: bool = False
    run: RunRecord
    kind: str
    measurements: tuple[Measurement, ...]
    estimates: tuple[StepEstimate, ...]
    steps: tuple[StepRow, ...]
    schema_version: Annotated[int, _version("sweep")]
    checks: tuple[CheckedStep, ...]
    findings: tuple[DiagnosisObject, ...] = ()
    not_estimated: tuple[Mapping[str, Any], ...] = ()
    agreements: tuple[AgreementRow, ...] = ()
    protocols: tuple[PlayedProtocol, ...] = ()


#: By the name that ``export --schema`` knows them by.
DOCUMENTS: Final[Mapping[str, type[Document]]] = MappingProxyType(
    {
        "backends": BackendsDocument,
        "check": CheckDocument,
        "compare": CompareDocument,
        "compare-published": PublishedDocument,
        "device": DeviceDocument,
        "diagnose": DiagnoseDocument,
        "e2e": StepsDocument,
        "e2e-protocol": ProtocolDocument,
        "forecast": ForecastDocument,
        "layers": LayersDocument,
        "model": ModelDocument,
        "model-summary": SummaryDocument,
        "runs": RunsDocument,
        "shapes": ShapesDocument,
        "sweep": SweepDocument,
        "sweep-plan": SweepPlanDocument,
    }
)
