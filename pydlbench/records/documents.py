"""The documents that commands write with ``--json``: a struct for each, and for their parts.

Measurements have their records elsewhere in this folder; these structs describe the objects that
commands compose from several of them. Commands write plain objects, of which these structs give the
schemas (:mod:`pydlbench.records.schema`). A field with a default may be absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

import msgspec

from pydlbench.records.agreement import Agreement
from pydlbench.records.breakdown import BreakdownRecord
from pydlbench.records.comparison import CompareDocument
from pydlbench.records.diagnosis import Diagnosis
from pydlbench.records.estimate import ForecastRecord, StepEstimate
from pydlbench.records.fleet import FleetComparison, FleetVerdict
from pydlbench.records.ledger import CollectiveSkew, LedgerDifference, RankStep, StepLedger
from pydlbench.records.measurement import Measurement, Status
from pydlbench.records.published import ProtocolNumber, ProtocolOptions, PublishedDocument
from pydlbench.records.record import Document, Record, one_of, shown, version
from pydlbench.records.run import RunInfo, RunRecord
from pydlbench.records.step import StepRow, StepSpec
from pydlbench.units import format_bytes, format_flops

_words = partial(shown, right=False)


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


class RunDocument(Document, frozen=True, kw_only=True):
    """The measurements of a run.

    Attributes:
        interrupted: whether the run ended before it had measured everything that was requested.
        unfinished: labels of the rows that it lacks, completely or in part.
        run: one run of a command: when, where, and with which libraries.
    """

    interrupted: bool = False
    unfinished: tuple[str, ...] = ()
    run: RunRecord


class BackendEntry(Record, frozen=True, kw_only=True):
    """A backend on a device.

    Attributes:
        backend: name of the backend.
        device: cpu or cuda:N.
        title: name in words.
        modes: modes in which it runs a layer.
        precisions: supported precisions.
        version: installed version.
        install: the command that installs it.
        usable: whether its worker started.
        reason: reason why the worker did not start.
        about: facts that the worker reports.
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
    """Installed backends, and what they support.

    Attributes:
        backends: one for each backend and device.
    """

    backends: tuple[BackendEntry, ...]


class StepAnswer(Record, frozen=True, kw_only=True):
    """The result of a step in a framework, or the reason why there is none.

    Attributes:
        status: whether there is a result.
        reason: reason why there is no result.
    """

    status: Status = "ok"
    reason: str | None = None

    embedded = ("record",)


_NAMES: Final = ("model", "batch", "phase", "precision", "framework", "mode")


def _answer(*results: str, names: Sequence[str] = _NAMES) -> dict[str, Any]:
    """Return the schema rules of an answer: names, and results that an ok status requires."""
    return {
        "required": list(names),
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"required": list(results)},
    }


class BrokenDownStep(StepAnswer, frozen=True, kw_only=True):
    """The breakdown of a model's step in a framework, or the reason why there is none.

    Attributes:
        record: the breakdown; its fields are merged into the object, if the status is ok.
    """

    record: BreakdownRecord

    rules: ClassVar[Mapping[str, Any]] = _answer(
        *("measured_s", "levels", "terms", "calls", "not_measured", "unexplained"),
        *("forecast_s", "forecast_error", "additivity_error"),
    )


class BreakdownDocument(RunDocument, frozen=True, kw_only=True):
    """Breakdowns of a step: one object, or several under breakdowns. Times in seconds.

    Attributes:
        breakdowns: one for each framework and mode, if there are several.
    """

    breakdowns: tuple[BrokenDownStep, ...] = ()

    rules: ClassVar[Mapping[str, Any]] = {
        "anyOf": [{"required": ["breakdowns"]}, {"$ref": "#/$defs/BrokenDownStep"}]
    }


class ForecastStep(StepAnswer, frozen=True, kw_only=True):
    """The forecast of a step in a framework, or the reason why there is none.

    Attributes:
        record: the forecast; its fields are merged into the object.
    """

    record: ForecastRecord

    rules: ClassVar[Mapping[str, Any]] = _answer("forecast_s", "ci_low", "ci_high", "terms")


class ForecastDocument(RunDocument, frozen=True, kw_only=True):
    """Forecasts of a step. Times in seconds.

    Attributes:
        forecasts: one for each framework and mode.
    """

    forecasts: tuple[ForecastStep, ...]


class TraceDocument(RunDocument, frozen=True, kw_only=True):
    """The ledger of a recorded step; of two steps, what differs as well. Times in seconds.

    Attributes:
        recorded: the ledger; the ledgers of all files, if there are several; null if there is no
            result.
        a: file of the first of two steps; see :class:`~pydlbench.records.ledger.LedgerComparison`.
        b: file of the second step.
        a_s: time of the first step.
        b_s: time of the second step.
        rows: differences, which add up to the difference between the steps.
        difference_s: time by which the second step is longer.
        ranks: of a job's ranks each one's step; see
            :class:`~pydlbench.records.ledger.RankComparison`.
        collectives: the skew of each kind of collective.
        matched: number of collectives that were found in several files.
        unmatched_s: time of the mean rank in collectives that were found in its file only.
        notes: restrictions for the reader.
    """

    recorded: StepLedger | tuple[StepLedger, ...] | None
    a: str | None = None
    b: str | None = None
    a_s: float | None = None
    b_s: float | None = None
    rows: tuple[LedgerDifference, ...] = ()
    difference_s: float | None = None
    ranks: tuple[RankStep, ...] = ()
    collectives: tuple[CollectiveSkew, ...] = ()
    matched: int | None = None
    unmatched_s: float | None = None
    notes: tuple[str, ...] = ()


class Advice(Record, frozen=True, kw_only=True):
    """An observation with its remedy.

    Attributes:
        symptom: what was observed.
        remedy: what to do about it.
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
        facts: facts from the system or the driver.
        peaks: peaks by precision: measured_flops_per_s, theoretical with its derivation, and the
            reason if there is no peak.
        bandwidths: bandwidths in bytes per second, by level of the memory and pattern.
        bandwidth_reason: reason why there are no bandwidths.
        launch_s: seconds to start and join all threads, or to launch a kernel.
        libraries: versions of the libraries.
        warnings: circumstances that make measurements less reliable: symptom and remedy.
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
        environment: Python, system, packages and variables.
    """

    device: DeviceEntry
    environment: Mapping[str, Any]


class DiagnosisObject(Record, frozen=True, kw_only=True):
    """A diagnosed step with its findings.

    Attributes:
        spec: specification of the step; its fields are merged into the object.
        diagnosis: the diagnosis; its fields are merged into the object.
    """

    spec: StepSpec
    diagnosis: Diagnosis

    embedded = ("spec", "diagnosis")


class DiagnoseDocument(RunDocument, frozen=True, kw_only=True):
    """Findings on a step. Times in seconds.

    Attributes:
        diagnosis: the diagnosed step; its fields are merged into the document.
    """

    diagnosis: DiagnosisObject

    embedded = ("diagnosis",)


class ProtocolDocument(Document, frozen=True, kw_only=True):
    """The results of a published script's protocol.

    Attributes:
        run: one run of a command: when, where, and with which libraries.
        result: the results; their fields are merged into the document.
    """

    run: RunRecord
    result: PlayedProtocol

    embedded = ("result",)


class AgreementVerdict(Record, frozen=True, kw_only=True):
    """Whether two frameworks' results with the same weights agree.

    Attributes:
        batch: images per step.
        phase: phase of the step.
        status: whether they agree.
        detail: the differences in words.
    """

    batch: int | None = None
    phase: str = ""
    status: Annotated[str, one_of("ok", "failed")]
    detail: str | None = None


class AgreementRow(AgreementVerdict, frozen=True, kw_only=True):
    """Differences between two frameworks' results with the same weights.

    Attributes:
        record: the differences; their fields are merged into the object, if both frameworks have
            results.
    """

    record: Agreement

    embedded = ("record",)
    rules: ClassVar[Mapping[str, Any]] = _answer(
        "frameworks", "output", "tensors", names=("batch", "phase", "status")
    )


class StepsDocument(RunDocument, frozen=True, kw_only=True):
    """Timed steps of a model in frameworks. Times in seconds.

    Attributes:
        model: name of the model.
        steps: one row for each step and setting.
        agreements: with --agree: differences between the frameworks' results, by batch and phase.
        conclusion: conclusions in sentences.
    """

    model: str | None = None
    steps: tuple[StepRow, ...]
    agreements: tuple[AgreementRow, ...] = ()
    conclusion: tuple[str, ...] = ()


class LayersDocument(RunDocument, frozen=True, kw_only=True):
    """Timed layers. Times in seconds, rates in TFLOP/s and GB/s, sizes in bytes.

    Attributes:
        measurements: one row for each layer and setting.
        recorded: the log from which the problems were taken; absent if layers were named.
    """

    measurements: tuple[Measurement, ...]
    recorded: StepLedger | None = None


class SummaryNode(Record, frozen=True, kw_only=True):
    """A node of a model.

    Attributes:
        name: name of the node.
        op: operation of the node.
        inputs: nodes that it reads.
        shape: shape of the node's output for one image.
        problem: descriptor; null if it computes nothing.
        parameters: number of trained elements.
        macs_forward: multiply-adds of one image.
    """

    name: Annotated[str, _words("layer")]
    op: Annotated[str, _words("operation")]
    inputs: tuple[str, ...] = ()
    shape: Annotated[tuple[int, ...], _words("output", lambda shape: "x".join(map(str, shape)))]
    problem: Annotated[str | None, _words("problem")] = None
    parameters: Annotated[int, shown("parameters", _count)] = 0
    macs_forward: Annotated[int, shown("multiply-adds", _count)] = 0


class SummaryDocument(Document, frozen=True, kw_only=True):
    """Size of a model; nothing is timed.

    Attributes:
        model: name of the model.
        title: title of the model.
        source: publication of the model.
        batch: images per step, as published.
        image: channels, height, width.
        parameters: number of trained elements.
        macs_forward: multiply-adds of convolutions and products for one image, padding
            counted.
        macs_training: multiply-adds of the same layers and their gradients.
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


class EstimateDocument(RunDocument, frozen=True, kw_only=True):
    """The estimate of a step, with the measurements that it sums. Times in seconds.

    Attributes:
        measurements: one row for each layer and setting.
        estimated: the estimate; its fields are merged into the document.
    """

    measurements: tuple[Measurement, ...]
    estimated: StepEstimate

    embedded = ("estimated",)


class RunsDocument(Document, frozen=True, kw_only=True):
    """Stored runs, the newest first.

    Attributes:
        runs: the runs.
    """

    runs: tuple[RunInfo, ...]


class ShapePass(Record, frozen=True, kw_only=True):
    """FLOPs and least bytes of a pass of a layer.

    Attributes:
        flops: two per multiply-add, padding counted.
        flops_executed: FLOPs without taps on padding.
        bytes: least traffic in fp32.
    """

    flops: Annotated[int, shown("FLOPs", format_flops, unit="FLOP")]
    flops_executed: Annotated[int, shown(unit="FLOP")]
    bytes: Annotated[int, shown("bytes", format_bytes, unit="B")]

    @property
    def executed(self) -> Annotated[str, shown("executed")]:
        """The share of FLOPs that are not on padding."""
        return f"{100 * self.flops_executed / self.flops:.1f} %" if self.flops else "-"

    @property
    def intensity(self) -> Annotated[float, shown("FLOP/byte", "{:.2f}".format)]:
        """Executed FLOPs over bytes."""
        return self.flops_executed / self.bytes


class ShapeEntry(Record, frozen=True, kw_only=True):
    """A layer.

    Attributes:
        layer: name of the layer.
        kind: kind of the layer: conv2d, gemm, pool2d, pointwise and so on.
        problem: descriptor, batch included.
        pool: max, avg or avg_p; null if the layer is no pooling.
        batch: images, or rows of a product.
        weight_elements: number of weights.
        passes: flops, flops_executed and bytes of each pass.
    """

    layer: Annotated[str | None, _words("layer")] = None
    kind: str
    problem: str
    pool: str | None = None
    batch: int
    weight_elements: int = 0
    passes: Mapping[str, ShapePass]

    @property
    def pooled(self) -> Annotated[str, _words("problem")]:
        """The descriptor, followed by the kind of pooling, which a descriptor does not contain."""
        return " ".join(filter(None, (self.problem, self.pool)))

    @property
    def forward(self) -> ShapePass:
        """The forward pass, which all layers have."""
        return self.passes["forward"]


class ShapesDocument(Document, frozen=True, kw_only=True):
    """Layers with FLOPs and bytes in fp32; nothing is timed.

    Attributes:
        layers: the layers.
    """

    layers: tuple[ShapeEntry, ...]


class PlannedTime(Record, frozen=True, kw_only=True):
    """Forecast of a sweep's duration in seconds.

    Attributes:
        low: lower end of the forecast.
        high: upper end of the forecast.
        source: what the forecast is based on.
    """

    low: float
    high: float
    source: str = ""


class PlannedJob(Record, frozen=True, kw_only=True):
    """A job of a sweep.

    Attributes:
        kind: the command.
        table: number of the table in the file.
        command: command line of the same measurement.
        time_s: low and high, in seconds.
        rows: the settings in which rows differ, for each row.
    """

    kind: str
    table: int = 0
    command: tuple[str, ...] = ()
    time_s: Mapping[str, Any] = msgspec.field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...]


class SweepPlanDocument(Document, frozen=True, kw_only=True):
    """The plan of a sweep, which would be measured.

    Attributes:
        file: name of the file.
        title: title of the sweep.
        rows: number of rows.
        time_s: forecast in seconds.
        jobs: rows that are measured together.
    """

    file: str = ""
    title: str = ""
    rows: int
    time_s: PlannedTime | None = None
    jobs: tuple[PlannedJob, ...]

    rules: ClassVar[Mapping[str, Any]] = {"title": "pydlbench sweep --dry-run --json"}


class PlayedProtocol(ProtocolOptions, frozen=True, kw_only=True):
    """A run of a published script's protocol.

    Attributes:
        data: source of the images; null if there is none.
        library: name and version of the framework.
        numbers: numbers that the script prints.
        environment: the framework's version, threads and settings.
    """

    data: str | None = None
    library: str = ""
    numbers: tuple[ProtocolNumber, ...]
    environment: Mapping[str, Any] = msgspec.field(default_factory=dict)


class SweepDocument(RunDocument, frozen=True, kw_only=True):
    """A complete run, by kind of entry; also written by export.

    Attributes:
        kind: the command that measured it.
        measurements: one row for each layer and setting.
        estimates: estimates of steps.
        steps: timed steps.
        breakdowns: breakdowns of steps.
        findings: diagnoses.
        not_estimated: rows of [[estimate]] without an estimate, with the reason.
        agreements: comparisons between frameworks.
        protocols: runs of published protocols.
    """

    kind: str
    measurements: tuple[Measurement, ...]
    estimates: tuple[StepEstimate, ...]
    steps: tuple[StepRow, ...]
    schema_version: Annotated[int, version("sweep")]
    breakdowns: tuple[BrokenDownStep, ...]
    findings: tuple[DiagnosisObject, ...] = ()
    not_estimated: tuple[Mapping[str, Any], ...] = ()
    agreements: tuple[AgreementRow, ...] = ()
    protocols: tuple[PlayedProtocol, ...] = ()


class FleetDocument(RunDocument, frozen=True, kw_only=True):
    """The verdict on the nodes of a fleet.

    Attributes:
        kind: fleet.
        verdict: the verdict; its fields are merged into the document.
    """

    kind: str
    verdict: FleetVerdict

    embedded = ("verdict",)


class FleetComparisonDocument(Document, frozen=True, kw_only=True):
    """Two runs of a fleet, node by node.

    Attributes:
        kind: compare-fleets.
        runs: ids of the two runs.
        comparison: the comparison; its fields are merged into the document.
    """

    kind: str
    runs: tuple[str, ...]
    comparison: FleetComparison

    embedded = ("comparison",)


#: Documents by their name in ``export --schema``.
DOCUMENTS: Final[Mapping[str, type[Document]]] = MappingProxyType(
    {
        "backends": BackendsDocument,
        "breakdown": BreakdownDocument,
        "compare": CompareDocument,
        "compare-fleets": FleetComparisonDocument,
        "compare-published": PublishedDocument,
        "device": DeviceDocument,
        "diagnose": DiagnoseDocument,
        "estimate": EstimateDocument,
        "estimate-summary": SummaryDocument,
        "fleet": FleetDocument,
        "forecast": ForecastDocument,
        "layers": LayersDocument,
        "runs": RunsDocument,
        "shapes": ShapesDocument,
        "step": StepsDocument,
        "step-protocol": ProtocolDocument,
        "sweep": SweepDocument,
        "sweep-plan": SweepPlanDocument,
        "trace": TraceDocument,
    }
)
