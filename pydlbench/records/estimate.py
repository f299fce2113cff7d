"""The estimate of a step: the sum of its layers, and the layer that dominates it. In seconds."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from pydlbench.grouping import group_by, sum_by
from pydlbench.records.measurement import MATERIAL, Phase, Precision
from pydlbench.records.record import Record, shown
from pydlbench.records.trace import RecordedCall
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
        missing: parts that could not be measured and are in no sum: layer, pass and reason.
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
