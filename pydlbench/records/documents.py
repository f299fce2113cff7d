"""The documents that commands write with ``--json``: a struct for each, and for their parts.

What is timed has its record elsewhere in this folder; the structs here describe what commands
put together from several of them, or from what is no record. Commands write plain objects; the
schemas that are made of these structs (:mod:`pydlbench.records.schema`) say what they hold. A field
with a default may be absent.
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
from pydlbench.records.estimate import StepEstimate
from pydlbench.records.fields import shown
from pydlbench.records.fleet import FleetComparison, FleetVerdict
from pydlbench.records.forecast import ForecastRecord
from pydlbench.records.measurement import Measurement, Status
from pydlbench.records.protocol import ProtocolNumber, ProtocolOptions
from pydlbench.records.published import PublishedDocument
from pydlbench.records.record import Document, Record, one_of, version
from pydlbench.records.recorded import RecordedDocument, RecordedSteps
from pydlbench.records.run import RunInfo, RunRecord
from pydlbench.records.specs import Framework, Phase, Precision
from pydlbench.records.step import StepRow
from pydlbench.units import format_bytes, format_flops

_words = partial(shown, right=False)


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


class RunDocument(Document, frozen=True, kw_only=True):
    """What a run has measured.

    Attributes:
        interrupted: more was asked for than is here.
        run: one run of a command: when, where, and with which libraries.
    """

    interrupted: bool = False
    run: RunRecord


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


class StepAnswer(Record, frozen=True, kw_only=True):
    """What came of a step in a framework; of one without a result only why.

    Attributes:
        status: whether there is a result.
        reason: why there is none.
    """

    status: Status = "ok"
    reason: str | None = None

    embedded = ("record",)


_NAMES: Final = ("model", "batch", "phase", "precision", "framework", "mode")


def _answer(*results: str, names: Sequence[str] = _NAMES) -> dict[str, Any]:
    """Return the rules of an answer: its names, and the results where its status is ok."""
    return {
        "required": list(names),
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"required": list(results)},
    }


class BrokenDownStep(StepAnswer, frozen=True, kw_only=True):
    """A step of a model in a framework, broken down; or why it is not.

    Attributes:
        record: its fields stand in the object itself, where the status is ok.
    """

    record: BreakdownRecord

    rules: ClassVar[Mapping[str, Any]] = _answer(
        *("measured_s", "levels", "terms", "calls", "not_measured", "unexplained"),
        *("forecast_s", "forecast_error", "additivity_error"),
    )


class BreakdownDocument(RunDocument, frozen=True, kw_only=True):
    """Breakdowns of a step: one object, or several under breakdowns. Times in seconds.

    Attributes:
        breakdowns: one for each framework and mode, where there are several.
    """

    breakdowns: tuple[BrokenDownStep, ...] = ()

    rules: ClassVar[Mapping[str, Any]] = {
        "anyOf": [{"required": ["breakdowns"]}, {"$ref": "#/$defs/BrokenDownStep"}]
    }


class ForecastStep(StepAnswer, frozen=True, kw_only=True):
    """A forecast of a step in a framework; or why there is none: what is missing.

    Attributes:
        record: its fields stand in the object itself.
    """

    record: ForecastRecord

    rules: ClassVar[Mapping[str, Any]] = _answer("forecast_s", "ci_low", "ci_high", "terms")


class ForecastDocument(RunDocument, frozen=True, kw_only=True):
    """Forecasts of a step. Times in seconds.

    Attributes:
        forecasts: one for each framework and mode.
    """

    forecasts: tuple[ForecastStep, ...]


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
        diagnosis: its fields stand in the object itself.
    """

    model: str
    batch: int | None
    phase: Phase
    precision: Precision
    framework: Framework
    mode: str
    layout: str
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    diagnosis: Diagnosis

    embedded = ("diagnosis",)


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
        result: its fields stand in the document itself.
    """

    run: RunRecord
    result: PlayedProtocol

    embedded = ("result",)


class AgreementRow(Record, frozen=True, kw_only=True):
    """How far two frameworks' numbers are apart, with the same weights.

    Attributes:
        batch: images per step.
        phase: what the step computes.
        status: whether they agree.
        detail: what was found.
        record: its fields stand in the object itself, where there are numbers of both.
    """

    batch: int | None = None
    phase: str = ""
    status: Annotated[str, one_of("ok", "failed")]
    detail: str | None = None
    record: Agreement

    embedded = ("record",)
    rules: ClassVar[Mapping[str, Any]] = _answer(
        "frameworks", "output", "tensors", names=("batch", "phase", "status")
    )


class StepsDocument(RunDocument, frozen=True, kw_only=True):
    """Timed steps of a model in frameworks. Times in seconds.

    Attributes:
        model: name of the model.
        steps: the rows.
        agreements: with --agree: how far the frameworks' numbers are apart, by batch and
            phase.
        conclusion: sentences.
    """

    model: str | None = None
    steps: tuple[StepRow, ...]
    agreements: tuple[AgreementRow, ...] = ()
    conclusion: tuple[str, ...] = ()


class LayersDocument(RunDocument, frozen=True, kw_only=True):
    """Timed layers. Times in seconds, rates in TFLOP/s and GB/s, sizes in bytes.

    Attributes:
        measurements: the rows.
        recorded: the log whose problems they are; absent where layers were named.
    """

    measurements: tuple[Measurement, ...]
    recorded: RecordedSteps | None = None


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

    name: Annotated[str, _words("layer")]
    op: Annotated[str, _words("operation")]
    inputs: tuple[str, ...] = ()
    shape: Annotated[tuple[int, ...], _words("output", lambda shape: "x".join(map(str, shape)))]
    problem: Annotated[str | None, _words("problem")] = None
    parameters: Annotated[int, shown("parameters", _count)] = 0
    macs_forward: Annotated[int, shown("multiply-adds", _count)] = 0


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


class EstimateDocument(Document, frozen=True, kw_only=True):
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


class ShapePass(Record, frozen=True, kw_only=True):
    """What a pass of a layer computes and moves at the least.

    Attributes:
        flops: two per multiply-add, padding counted.
        flops_executed: those on real elements.
        bytes: to be moved, in fp32.
    """

    flops: Annotated[int, shown("FLOPs", format_flops, unit="FLOP")]
    flops_executed: Annotated[int, shown(unit="FLOP")]
    bytes: Annotated[int, shown("bytes", format_bytes, unit="B")]

    @property
    def executed(self) -> Annotated[str, shown("executed")]:
        """The part of the FLOPs that is on real elements."""
        return f"{100 * self.flops_executed / self.flops:.1f} %" if self.flops else "-"

    @property
    def intensity(self) -> Annotated[float, shown("FLOP/byte", "{:.2f}".format)]:
        """Executed FLOPs over bytes."""
        return self.flops_executed / self.bytes


class ShapeEntry(Record, frozen=True, kw_only=True):
    """A layer.

    Attributes:
        layer: name.
        kind: of layer: conv2d, gemm, pool2d, pointwise and so on.
        problem: descriptor, batch included.
        pool: max, avg or avg_p; null unless a pooling.
        batch: images, or rows of a product.
        weight_elements: numbers in the weights.
        passes: by pass: flops, flops_executed and bytes.
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
        """The descriptor, with what pooling does, which descriptors leave to an option."""
        return " ".join(filter(None, (self.problem, self.pool)))

    @property
    def forward(self) -> ShapePass:
        """The pass that all layers have."""
        return self.passes["forward"]


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


class SweepDocument(RunDocument, frozen=True, kw_only=True):
    """A run with everything in it, by kind; also what export writes of it.

    Attributes:
        kind: the command that measured it.
        measurements: the rows.
        estimates: estimates of steps.
        steps: timed steps.
        breakdowns: of steps.
        findings: diagnoses.
        not_estimated: rows of [[estimate]] without an estimate, with the reason.
        agreements: what came of comparing frameworks.
        protocols: published protocols that were played.
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
    """Which nodes of a fleet are slow.

    Attributes:
        kind: fleet.
        verdict: its fields stand in the document itself.
    """

    kind: str
    verdict: FleetVerdict

    embedded = ("verdict",)


class FleetComparisonDocument(Document, frozen=True, kw_only=True):
    """Two runs of a fleet, node by node.

    Attributes:
        kind: compare-fleets.
        runs: ids of the two.
        comparison: its fields stand in the document itself.
    """

    kind: str
    runs: tuple[str, ...]
    comparison: FleetComparison

    embedded = ("comparison",)


#: By the name that ``export --schema`` knows them by.
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
        "step-trace": RecordedDocument,
        "sweep": SweepDocument,
        "sweep-plan": SweepPlanDocument,
    }
)
