"""Own results beside published figures of the same model, phase and precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.published.figures import Figure
    from pydlbench.published.own import Own

__all__ = ["Beside", "beside"]

# What a source calls fp16 ran on tensor cores where the card had some.
_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {"fp16": ("fp16", "fp16-tc")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A published figure with one result of ours.

    Attributes:
        figure: the published one.
        own: ours.
        value: ours in the source's own unit.
        speedup: the published time of an image over ours: above 1 where we are faster.
        marks: in what the two are not the same: ``per image, batch 32``, ``another protocol``.
    """

    figure: Figure
    own: Own
    value: float
    speedup: float
    marks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of our side."""
        return {
            **self.own.to_dict(),
            "value": self.value,
            "unit": self.figure.unit,
            "speedup": self.speedup,
            "marks": list(self.marks),
        }


def beside(figures: Iterable[Figure], own: Sequence[Own]) -> list[tuple[Figure, list[Beside]]]:
    """Return each figure with our results that it can stand beside, maybe none.

    Model, phase and precision are the same. Of each framework and mode of a run the result with
    the figure's batch is taken, else the one with the nearest batch, per image and marked. What was
    run as the published script is taken before a plain step.
    """
    return [(figure, _beside(figure, own)) for figure in figures]


def _beside(figure: Figure, own: Sequence[Own]) -> list[Beside]:
    groups: dict[tuple[str, ...], list[Own]] = {}
    for one in own:
        if _fits(figure, one):
            name = (one.run, one.who, one.device, one.precision, one.options)
            groups.setdefault(name, []).append(one)
    found = []
    for group in groups.values():
        played = [one for one in group if one.protocol is not None] or group
        nearest = min(played, key=lambda one: (abs(_away(figure, one)), one.batch))
        found.append(_pair(figure, nearest))
    return found


def _fits(figure: Figure, own: Own) -> bool:
    same = own.model == figure.model
    same = same and own.precision in _PRECISIONS.get(figure.precision, (figure.precision,))
    if own.protocol is None:
        return same and own.phase == figure.phase
    return same and own.protocol == figure.protocol and own.stage == figure.stage


def _away(figure: Figure, own: Own) -> float:
    """Batches are near by their ratio: 16 is nearer to 32 than to 4."""
    return max(own.batch, figure.batch) / min(own.batch, figure.batch)


def _pair(figure: Figure, own: Own) -> Beside:
    marks = []
    if own.batch != figure.batch:
        marks.append(f"per image, batch {own.batch}")
    if own.protocol is None:
        marks.append("plain step")
    if own.options:
        marks.append(own.options)
    if own.precision != figure.precision:
        marks.append(own.precision)
    return Beside(
        figure=figure,
        own=own,
        value=figure.in_unit(own.seconds, own.batch),
        speedup=(figure.seconds / figure.batch) / (own.seconds / own.batch),
        marks=tuple(marks),
    )
