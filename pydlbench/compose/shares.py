"""A step's time as an interval, and each node's share of it, or that of all nodes alike."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ZERO", "LayerShare", "Range", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Seconds with hot caches and with cold ones."""

    hot: float
    cold: float

    @property
    def low(self) -> float:
        """The faster of the two: prefetchers may make a cold run the faster one, within noise."""
        return min(self.hot, self.cold)

    @property
    def high(self) -> float:
        """The slower of the two."""
        return max(self.hot, self.cold)

    @property
    def middle(self) -> float:
        """Halfway."""
        return (self.hot + self.cold) / 2

    def __add__(self, other: Range) -> Range:
        return Range(hot=self.hot + other.hot, cold=self.cold + other.cold)


#: Nothing.
ZERO: Final = Range(hot=0.0, cold=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShare:
    """One node's part in a step, all its passes together; or that of all nodes alike.

    Attributes:
        name: of the node; of several the first one's.
        kind: ``conv2d``, ``gemm``, ``pool2d``, or the operation of a pointwise layer.
        time: seconds.
        roof_s: what the roofline of the measured peaks allows, in seconds; None if unknown.
        bound: what bounds its slowest pass: ``compute``, ``memory`` or ``launch``.
        share: of the step.
        by_pass: seconds by pass; in training also of its ``l2`` terms, and of the ``update``.
        algorithms: the kernels behind it, by pass.
        like: the name of the model's first layer that runs the same kernels; its own for itself.
        count: how many layers these are, if it stands for several.
    """

    name: str
    kind: str
    time: Range
    roof_s: float | None
    bound: str | None
    share: float
    by_pass: Mapping[str, Range]
    algorithms: Mapping[str, str]
    like: str = ""
    count: int = 1

    @property
    def efficiency(self) -> float | None:
        """The roof over the time: 1 is as fast as the hardware allows."""
        return self.roof_s / self.time.middle if self.roof_s and self.time.middle > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; times in seconds."""
        return {
            "name": self.name,
            "kind": self.kind,
            "time_s": self.time.middle,
            "low": self.time.low,
            "high": self.time.high,
            "share": self.share,
            "bound": self.bound,
            "roof_s": self.roof_s,
            "efficiency": self.efficiency,
            "passes": {name: one.middle for name, one in self.by_pass.items()},
            "algorithms": dict(self.algorithms),
            "like": self.like or self.name,
        }


def joined(layers: Iterable[LayerShare]) -> list[LayerShare]:
    """Return one share for all layers that run the same kernels, in the order of the first ones."""
    alike: dict[str, list[LayerShare]] = {}
    for layer in layers:
        alike.setdefault(layer.like or layer.name, []).append(layer)
    return [_together(group) for group in alike.values()]


def _together(group: Sequence[LayerShare]) -> LayerShare:
    first = group[0]
    if len(group) == 1:
        return first
    time, passes = ZERO, dict.fromkeys(first.by_pass, ZERO)
    for layer in group:
        time += layer.time
        for name, part in layer.by_pass.items():
            passes[name] = passes.get(name, ZERO) + part
    roofs = [layer.roof_s for layer in group if layer.roof_s is not None]
    return dataclasses.replace(
        first,
        time=time,
        roof_s=sum(roofs) if len(roofs) == len(group) else None,
        share=sum(layer.share for layer in group),
        by_pass=passes,
        count=len(group),
    )
