"""The figures as they were published, read from the package's own files."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["UNITS", "Figure", "Source", "find_figures", "read_figures", "read_sources"]

_FOLDER: Final = Path(__file__).parent
#: Units of the sources. A time is per step; a rate is of images.
UNITS: Final = ("ms/batch", "ms/step", "images/s", "examples/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where figures were published.

    Attributes:
        title: of the page.
        citation: repository, file and revision.
    """

    title: str
    citation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published figure.

    Attributes:
        source: key of its :class:`Source`.
        protocol: of the script that printed it, as ``pydlbench e2e --protocol`` calls it.
        hardware: on which it ran.
        year: in which it ran, or that of the software it ran with.
        framework: with its version, as far as it was said.
        model: as pydlbench calls it.
        stage: as the source calls it: ``eval``, ``train``, ``forward``...
        phase: what that is here; ``backward`` is no step of ours.
        precision: as the source calls it; ``fp16`` may be with or without tensor cores.
        batch: images per step.
        value: in ``unit``.
        spread: as the source defines it; None where it gives none.
        unit: one of :data:`UNITS`.
        note: what else is said of it.
        includes: what the number includes.
    """

    source: str
    protocol: str
    hardware: str
    year: int
    framework: str
    model: str
    stage: str
    phase: str
    precision: str
    batch: int
    value: float
    spread: float | None
    unit: str
    note: str
    includes: str

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.value / 1e3 if self.unit.startswith("ms") else self.batch / self.value

    def in_unit(self, seconds: float, batch: int) -> float:
        """Return a time of ours in this figure's unit.

        Args:
            seconds: of a step.
            batch: of that step. Where it is another one, a time is scaled to this figure's batch,
                image for image.
        """
        return 1e3 * seconds / batch * self.batch if self.unit.startswith("ms") else batch / seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, with its citation."""
        source = read_sources()[self.source]
        return {
            "source": source.title,
            "citation": source.citation,
            "protocol": self.protocol,
            "hardware": self.hardware,
            "year": self.year,
            "framework": self.framework,
            "model": self.model,
            "stage": self.stage,
            "phase": self.phase,
            "precision": self.precision,
            "batch": self.batch,
            "value": self.value,
            "spread": self.spread,
            "unit": self.unit,
            "seconds": self.seconds,
            "includes": self.includes,
            "note": self.note or None,
        }


@cache
def read_sources() -> Mapping[str, Source]:
    """Return the sources by their keys, in the order in which they are listed."""
    found = _toml()["sources"]
    return MappingProxyType({name: Source(**fields) for name, fields in found.items()})


@cache
def read_figures() -> tuple[Figure, ...]:
    """Return all figures."""
    includes = _toml()["includes"]
    with (_FOLDER / "figures.csv").open(encoding="utf-8", newline="") as file:
        return tuple(_figure(line, includes) for line in csv.DictReader(file))


def find_figures(model: str | None = None) -> tuple[Figure, ...]:
    """Return the figures of one model, or of a family of them; all without a model.

    Args:
        model: as pydlbench calls it (``vgg16``), or how such names begin (``vgg``, ``resnet``).

    Raises:
        UsageError: nobody has published a figure of it.
    """
    figures = read_figures()
    if model is None:
        return figures
    exact = tuple(one for one in figures if one.model == model)
    found = exact or tuple(one for one in figures if model and one.model.startswith(model))
    if not found:
        names = list(dict.fromkeys(one.model for one in figures))
        near = ", ".join(nearest(model, names) or names)
        raise UsageError(f"--model {model}: no published figure of it; nearest: {near}")
    return found


@cache
def _toml() -> dict[str, Any]:
    return tomllib.loads((_FOLDER / "sources.toml").read_text(encoding="utf-8"))


def _figure(line: Mapping[str, str], includes: Mapping[str, Mapping[str, str]]) -> Figure:
    return Figure(
        source=line["source"],
        protocol=line["protocol"],
        hardware=line["hardware"],
        year=int(line["year"]),
        framework=line["framework"],
        model=line["model"],
        stage=line["stage"],
        phase=line["phase"],
        precision=line["precision"],
        batch=int(line["batch"]),
        value=float(line["value"]),
        spread=float(line["spread"]) if line["spread"] else None,
        unit=line["unit"],
        note=line["note"],
        includes=includes[line["protocol"]][line["stage"]],
    )
