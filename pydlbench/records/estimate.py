"""What ``estimate`` says of a step: the sum of its layers, and what dominates it. In seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from pydlbench.records.fields import shown
from pydlbench.records.measurement import MATERIAL
from pydlbench.records.operator import RecordedCall
from pydlbench.records.record import Record
from pydlbench.records.specs import Phase, Precision
from pydlbench.records.user_model import UserModelSpec
from pydlbench.units import format_seconds, percent


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
        without_cold: why the first of these has none; empty without them.
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
        name: of the node; of several alike the first one's.
        kind: conv2d, gemm, pool2d, or the operation of a pointwise layer.
        time_s: middle of hot and cold, in seconds.
        low: the lower of both, in seconds.
        high: the higher of both, in seconds.
        hot_s: with hot caches, in seconds.
        cold_s: with cold caches, in seconds.
        share: of the step, 0 to 1.
        bound: what bounds its slowest pass: compute, memory or launch.
        roof_s: what the roofline of the measured peaks allows, in seconds.
        efficiency: roof over time: 1 is as fast as the hardware allows.
        passes: seconds by pass; of l2 and update, the terms and updates that training has
            besides.
        algorithms: the kernels behind it, by pass.
        like: the model's first layer that runs the same kernels; its own name for itself.
        contended: other work disturbed more than 5 % of its time.
        count: how many layers these are, where it stands for all alike.
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
        """The name, with the number of layers where it stands for several."""
        return self.name if self.count == 1 else f"{self.name} x{self.count}"

    @property
    def bar(self) -> Annotated[str, shown("", right=False)]:
        """The share as a bar; a blank title leaves it out of Markdown and pages."""
        return "#" * round(20 * self.share)

    @property
    def note(self) -> Annotated[str, shown("note", right=False)]:
        """A word on what makes the time less certain."""
        return "contended" if self.contended else ""

    @property
    def at_roof_s(self) -> float:
        """Its time if it ran at its roof; that which it takes where the roof is not known."""
        return self.time_s if self.roof_s is None else self.roof_s

    @property
    def excess_s(self) -> float:
        """What it takes above its roof; nothing where it is faster than that."""
        return max(0.0, self.time_s - self.at_roof_s)


def joined(layers: Iterable[EstimatedLayer]) -> list[EstimatedLayer]:
    """Return one for all layers that run the same kernels, in the order of the first ones."""
    alike: dict[str, list[EstimatedLayer]] = {}
    for layer in layers:
        alike.setdefault(layer.like, []).append(layer)
    return [_together(group) for group in alike.values()]


def _together(group: list[EstimatedLayer]) -> EstimatedLayer:
    sums = ("time_s", "low", "high", "hot_s", "cold_s", "share")
    known = all(layer.roof_s is not None for layer in group)
    passes = dict.fromkeys((name for layer in group for name in layer.passes), 0.0)
    for layer in group:
        for name, seconds in layer.passes.items():
            passes[name] += seconds
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
        title: what it is, in words.
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
        """The layers, those that run the same kernels as one: ResNet-152 has 700, and 60 kinds."""
        return joined(self.layers)

    @property
    def tells(self) -> bool:
        """Whether so little of the sum was disturbed that something can be concluded from it."""
        return self.disturbed_share <= MATERIAL
