"""What ``estimate`` says of a step: the sum of its layers, and what dominates it. In seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pydlbench.records.operator import RecordedCall
from pydlbench.records.own import OwnSpec
from pydlbench.records.record import Record
from pydlbench.records.specs import Phase, Precision


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


class Recorded(Record, frozen=True, kw_only=True):
    """The calls that a step without a graph was recorded as, and how much of it layers stand for.

    A call that makes no kernel run, as of a view, is in no share.

    Attributes:
        calls: each distinct one once.
        native_calls: for which part of the calls kinds of layers stand, timed or not, 0 to 1.
        native_bytes: the same of the bytes of all operands and results.
        unmapped: by operator, why no layer stands for it; several reasons follow each other
            behind semicolons.
        notes: what a reader has to know.
        types: what an ONNX file computes in, see ``StepFacts``; empty of all else.
    """

    calls: tuple[RecordedCall, ...]
    native_calls: float
    native_bytes: float
    unmapped: Mapping[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    types: str = ""


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
        options: variant of the model, as given; what the user's callable is called with.
        own: how a model of the user's own is fed and run; None of one of the catalogue.
        recorded: the calls of such a model's step, whose layers are named after its modules.
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
    own: OwnSpec | None = None
    recorded: Recorded | None = None
    device: str = ""
    threads: int | None = None
    cache_bytes: int | None = None

    omitted = ("own", "recorded")
