"""Published figures, and measured results beside them; options and numbers of protocols."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec

from pydlbench.records.record import Document, Record, shown
from pydlbench.units import number

_words = partial(shown, right=False)


def _times(speedup: float) -> str:
    return f"{number(speedup, 2)}x"


class OwnFigure(Record, frozen=True, kw_only=True):
    """A measured result, and how it differs from the published figure beside it.

    Attributes:
        model: name of the model.
        phase: phase of the step.
        precision: precision of the products.
        batch: images per step.
        seconds: measured time of a step.
        who: framework and mode, or another origin: ``torch eager``, ``native layers, summed``.
        device: processor it ran on.
        run: id of its run.
        options: options of the model: ``lrn=off``; empty for the defaults.
        protocol: the published script that was run; null for a plain step.
        stage: stage of that script.
        value: value in the figure's unit.
        unit: the figure's unit.
        speedup: published time of an image over ours: above 1 where ours is faster.
        marks: differences from the figure: ``per image, batch 32``.
    """

    model: str
    phase: str
    precision: str
    batch: int
    seconds: float
    who: Annotated[str, _words("by")]
    device: str = ""
    run: str = ""
    options: str = ""
    protocol: str | None = None
    stage: str | None = None
    value: Annotated[float, shown("ours", number)] = 0.0
    unit: str = ""
    speedup: Annotated[float, shown("speed", _times)] = 0.0
    marks: Annotated[tuple[str, ...], _words("note", ", ".join)] = ()

    unlisted = ("stage",)
    promised = ("value", "unit")


class PublishedFigure(Record, frozen=True, kw_only=True):
    """A published figure.

    Attributes:
        source: title of the page where it was published.
        citation: repository, file and revision.
        protocol: the script that printed it, as in ``pydlbench step --protocol``.
        hardware: hardware that it ran on.
        year: year of the measurement, or of the software.
        framework: framework, with its version if published.
        model: pydlbench's name of the model.
        stage: the source's name of the timed part: ``eval``, ``train``, ``forward``...
        phase: pydlbench's phase; ``backward`` alone is no step.
        precision: the source's name; ``fp16`` may be with or without tensor cores.
        batch: images per step.
        value: published value, in ``unit``.
        spread: spread of the value, as the source defines it; null where it gives none.
        unit: ``ms/batch`` or ``ms/step``, a time per step; ``images/s`` or ``examples/s``, a rate.
        includes: parts of the step that the time includes.
        note: remark for the reader.
        own: measured results that match the figure.
    """

    source: str
    citation: str
    protocol: str
    hardware: Annotated[str, _words("hardware")]
    year: Annotated[int, shown("year")]
    framework: Annotated[str, _words("framework")]
    model: Annotated[str, _words("model")]
    stage: Annotated[str, _words("stage")]
    phase: str
    precision: Annotated[str, _words("precision")]
    batch: Annotated[int, shown("batch")]
    value: float
    spread: float | None = None
    unit: Annotated[str, _words("unit")]
    includes: str
    note: Annotated[str | None, _words("note")] = None
    own: tuple[OwnFigure, ...] = ()

    derived = ("seconds",)
    promised = ("own",)

    @property
    def published(self) -> Annotated[str, shown("published")]:
        """The value with its spread."""
        return f"{self.value:g}" + ("" if self.spread is None else f" +- {self.spread:g}")

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.value / 1e3 if self.unit.startswith("ms") else self.batch / self.value

    def in_unit(self, seconds: float, batch: int) -> float:
        """Convert a measured step time to the unit and the batch of this figure.

        Args:
            seconds: time of a step.
            batch: batch of that step; times are scaled to this figure's batch.
        """
        return 1e3 * seconds / batch * self.batch if self.unit.startswith("ms") else batch / seconds


class MatchedFigure(Record, frozen=True, kw_only=True):
    """A published figure with one measured result.

    Attributes:
        figure: the published figure.
        own: the measured result.
    """

    figure: PublishedFigure
    own: OwnFigure


class PublishedDocument(Document, frozen=True, kw_only=True):
    """Published figures with measured results beside them.

    Attributes:
        runs: the runs as given on the command line.
        published: the figures.
    """

    runs: tuple[str, ...]
    published: tuple[PublishedFigure, ...]


# -----------------------------------------------------------------------------
# Options of a published protocol, and the numbers that it prints.


class ProtocolOptions(Record, frozen=True, kw_only=True):
    """A published script with the options that it runs with.

    Attributes:
        protocol: name of the script.
        model: name of the model.
        options: options of the model, besides those that the script sets.
        framework: torch or tensorflow.
        mode: mode of the framework.
        precision: precision of the products.
        cast: below float32: mixed or whole; null is the script's own choice.
        layout: nhwc or nchw.
        device: cpu or cuda:N.
        seed: seed of weights and images.
        batch: images per step; null is the script's own number, as in the following fields.
        warmup: untimed steps before the timed ones.
        steps: timed steps.
        every: steps between printed lines.
        epochs: passes over the training images.
        quirks: quirks that are switched on.
        without: quirks that are switched off.
    """

    protocol: str
    model: str | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    framework: str | None = None
    mode: str | None = None
    precision: str = "fp32"
    cast: str | None = None
    layout: str = "nhwc"
    device: str = "cpu"
    seed: int = 0
    batch: int | None = None
    warmup: int | None = None
    steps: int | None = None
    every: int | None = None
    epochs: float | None = None
    quirks: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class ProtocolNumber(Record, frozen=True, kw_only=True):
    """A number that a script prints.

    Attributes:
        name: label of the number: Forward, vgg16 eval.
        value: the number as printed, unrounded.
        unit: unit of value and spread.
        spread: spread of the value, as the script defines it; null where it prints none.
        times: the samples behind the value, in seconds.
        includes: parts of the step that the time includes.
    """

    name: str
    value: float | None
    unit: str
    spread: float | None = None
    times: tuple[float, ...] = ()
    includes: str = ""
