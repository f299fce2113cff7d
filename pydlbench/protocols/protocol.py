"""A published protocol as data: script, number of steps, contents of its numbers, printed lines.

:mod:`pydlbench.protocols.interpreter` runs protocols. Lines are templates for ``str.format`` with
the fields of :data:`FIELDS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from pydlbench.backends.steps.definition import StepDefinition
from pydlbench.errors import UsageError, nearest
from pydlbench.protocols.data.datasets import Dataset

if TYPE_CHECKING:
    from pydlbench.backends.steps.catalogue import CatalogueModel

#: Fields of line templates. Seconds are per step.
FIELDS: Final[Mapping[str, str]] = {
    # Fields of all lines.
    "stamp": "time of day, with microseconds",
    "began": "time of day at the start of the run, in ISO format",
    "model": "name of the model",
    "title": "the script's name of the model",
    "framework": "the script's name of the framework",
    "version": "version of the framework: 2.13",
    "precision": "the scripts' name: fp16",
    "layout": "NCHW or NHWC",
    "optimizer": "sgd",
    "device": "TensorFlow's name: /gpu:0",
    "batch": "images per step",
    "steps": "number of timed steps",
    "shape": "shape of the input: 128x3x224x224",
    "dataset": "cifar10 for images of 32 x 32, else imagenet",
    "epochs": "epochs of the data set in these steps",
    "mode": "TRAIN, or FORWARD_ONLY",
    # Fields of lines between steps.
    "index": "index of the step, or of the kind of step in the last lines",
    "seconds": "time of the last step; for training scripts the mean between two lines",
    "loss": "the fetched loss; 0 without",
    # Fields of timed steps, up to the line.
    "name": "name of the step's definition",
    "mean": "sum of the seconds over the nominal number of steps",
    "ms": "the mean in milliseconds",
    "spread": "population's standard deviation of the seconds, sqrt(E[t^2] - E[t]^2)",
    "rate": "images over the sum of the seconds: the harmonic mean of the steps' rates",
    "uncertainty": "population's standard deviation of the steps' rates over sqrt(steps)",
    "jitter": "1.4826 * median(abs(rate - median(rates)))",
    "total": "all images over the wall time of the loop, time between steps included",
    # Fields of a training script's lines.
    "epoch": "epoch of the step",
    "examples": "images per second since the last line",
    "next_rate": "learning rate of the next step",
    "error": "percentage of wrong predictions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolFigure:
    """A result of a timed script, in terms of :data:`FIELDS`.

    Attributes:
        value: name of the field with the value.
        unit: unit of value and spread.
        name: template of the result's name.
        spread: name of the field with the spread; None if the script prints no spread.
        samples: whether the times of all steps are recorded with the result.
        more: what the measured time includes besides the step.
    """

    value: str
    unit: str
    name: str = "{name}"
    spread: str | None = None
    samples: bool = True
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLoop:
    """Timed steps of one kind after the other, on resident images.

    Attributes:
        clock: part that is timed: each ``step``, or the whole ``loop`` with one synchronisation.
        waits: synchronisation with the device: ``unfetched``, after steps that copy nothing to the
            host and would return early; ``around``, before and after each step.
        together: whether all kinds are warmed up in turn before the first is timed.
        drops_first: whether sums exclude the first timed step but are divided by the full number of
            steps.
        first: number of the first step in lines.
        heading: lines at the start.
        activation: line for each activation after the heading; empty to print no such lines.
        warming: lines before the warm-up.
        ready: lines after the warm-up.
        line: line after the first step and each step whose number is divisible by
            ``Settings.every``.
        stage: lines after all steps of a kind.
        figures: results of each kind of step.
        sums: names of further results, with the indices of the kinds whose means they add up.
    """

    clock: Literal["step", "loop"] = "step"
    waits: Literal["unfetched", "around"] = "unfetched"
    together: bool = False
    drops_first: bool = False
    first: int = 0
    heading: tuple[str, ...] = ()
    activation: str = ""
    warming: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    line: str = ""
    stage: tuple[str, ...] = ()
    figures: tuple[ProtocolFigure, ...]
    sums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """A script that trains and prints the time since its last line.

    Images are used in the order of the file, repeatedly. The first definition trains, the second
    one reports on the same images before each line, the third one evaluates after it and at the
    end.

    Attributes:
        rate: learning rate as a function of the step, the batch and the number of images.
        first_over_all: whether the first line's single step is divided by the steps between lines.
        validation_in_time: whether a line's time covers the validation pass of the line before.
        ready: lines after the initialisation of weights.
        lines: lines of a report.
        validation: line after a validation pass.
        test: line at the end.
        figure: name, field and unit of the mean over all lines but the first.
        more: what the measured time includes besides the step.
    """

    rate: Callable[[int, int, int], float]
    first_over_all: bool = True
    validation_in_time: bool = True
    ready: tuple[str, ...] = ()
    lines: tuple[str, ...]
    validation: str = ""
    test: str = ""
    figure: tuple[str, Literal["ms", "examples"], str]
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """A property of a script that affects its numbers and can be switched.

    Attributes:
        name: name as typed on the command line.
        what: description in one sentence.
        default: whether the script has it, so that it is on by default.
        steps: fields that switching the quirk changes in every step definition.
        loop: fields that switching the quirk changes in the loop.
        definitions: definitions that replace the protocol's when the quirk is switched; empty to
            keep them.
    """

    name: str
    what: str
    default: bool = True
    steps: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    definitions: tuple[StepDefinition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Counts and quirks of a run.

    Attributes:
        batch: number of images per step.
        warmup: number of untimed steps at the start.
        steps: number of timed steps; None if ``epochs`` and the data determine it.
        every: number of steps between two log lines.
        epochs: number of passes over the training images; None if the protocol does not count
            epochs.
        quirks: names of the quirks that are on.
    """

    batch: int
    warmup: int
    steps: int | None
    every: int
    epochs: float | None = None
    quirks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A published protocol.

    Attributes:
        name: name as typed on the command line.
        title: description of the protocol in a few words.
        source: name of the script, and its revision.
        models: models of the script; the first is the default.
        defaults: default settings of the script.
        definitions: definitions of the steps.
        loop: how steps are run, timed and printed.
        framework_definitions: definitions of the steps for frameworks whose definitions differ.
        framework: framework of the script, which is the default.
        batches: number of images per step for models whose default differs.
        options: options of the models' graphs, for ``build_model``, where the script differs.
        options_by_model: further options by model.
        titles: names of models in the script, if different from ours.
        frameworks: names of frameworks in the script, if different from ours.
        quirks: properties of the script that can be switched.
        data: data set that the script needs.
    """

    name: str
    title: str
    source: str
    models: tuple[str, ...]
    defaults: Settings
    definitions: tuple[StepDefinition, ...]
    loop: TimedLoop | TrainingLoop
    framework_definitions: Mapping[str, tuple[StepDefinition, ...]] = field(default_factory=dict)
    framework: Literal["torch", "tensorflow"] = "tensorflow"
    batches: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    options_by_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    frameworks: Mapping[str, str] = field(default_factory=dict)
    quirks: tuple[Quirk, ...] = ()
    data: Literal["mnist", "cifar10"] | None = None

    def definitions_in(
        self, framework: str, settings: Settings | None = None
    ) -> tuple[StepDefinition, ...]:
        """Return the steps as the script runs them in a framework.

        Args:
            framework: ``torch``, ``tensorflow`` or ``native``.
            settings: settings with quirks; None for the settings of the script.
        """
        definitions = self.framework_definitions.get(framework, self.definitions)
        for quirk in self._switched(settings):
            definitions = quirk.definitions or tuple(
                replace(definition, **quirk.steps) for definition in definitions
            )
        return definitions

    def loop_with(self, settings: Settings) -> TimedLoop | TrainingLoop:
        """Return the loop with the quirks of the settings."""
        loop = self.loop
        for quirk in self._switched(settings):
            loop = replace(loop, **quirk.loop)
        return loop

    def model_options(self, model: str) -> dict[str, Any]:
        """Return the options of a model's graph for this script."""
        return {**self.options, **self.options_by_model.get(model, {})}

    def check_model(self, name: str) -> None:
        """Check that the script has a model.

        Raises:
            UsageError: it has no such model; names the nearest one.
        """
        if name not in self.models:
            near = nearest(name, self.models) or list(self.models)
            raise UsageError(
                f"{name}: --protocol {self.name} has no such model; nearest: {', '.join(near)}"
            )

    def settings(
        self,
        model: str | None = None,
        *,
        batch: int | None = None,
        warmup: int | None = None,
        steps: int | None = None,
        every: int | None = None,
        epochs: float | None = None,
        quirks: Iterable[str] = (),
        without: Iterable[str] = (),
    ) -> Settings:
        """Return the script's settings with the given values replaced.

        Args:
            model: name of the model, for its default batch.
            batch: number of images per step.
            warmup: number of untimed steps at the start, possibly 0.
            steps: number of timed steps.
            every: number of steps between two log lines.
            epochs: number of passes over the training images.
            quirks: names of quirks to switch on.
            without: names of quirks to switch off.

        Raises:
            UsageError: a count is invalid, the protocol lacks an option, or a quirk is unknown.
        """
        for option, count, least in (
            ("--batch", batch, 1),
            ("--warmup", warmup, 0),
            ("--steps", steps, 1),
            ("--every", every, 1),
        ):
            if count is not None and count < least:
                raise UsageError(f"{option} {count}: too few for {self.name}; nearest: {least}")
        if epochs is not None and self.defaults.epochs is None:
            raise UsageError(f"--epochs {epochs:g}: {self.name} has no epochs; use --steps")
        if epochs is not None and not epochs > 0:
            raise UsageError(
                f"--epochs {epochs:g}: not positive; nearest: {self.defaults.epochs:g}"
            )
        known = {quirk.name for quirk in self.quirks}
        on, off = set(quirks), set(without)
        for name in sorted(on | off):
            if name not in known:
                near = nearest(name, known) or sorted(known)
                hint = f"nearest: {', '.join(near)}" if near else "it has none"
                raise UsageError(f"--quirk {name}: unknown to {self.name}; {hint}")
        changes = {"batch": batch, "warmup": warmup, "steps": steps, "every": every}
        counts = {"batch": self.batches.get(model or "", self.defaults.batch)}
        counts |= {name: value for name, value in changes.items() if value is not None}
        default = {quirk.name for quirk in self.quirks if quirk.default}
        return replace(
            self.defaults,
            **counts,
            epochs=self.defaults.epochs if epochs is None else epochs,
            quirks=frozenset((default | on) - off),
        )

    def _switched(self, settings: Settings | None) -> list[Quirk]:
        """Return the quirks that differ from the default."""
        if settings is None:
            return []
        return [quirk for quirk in self.quirks if (quirk.name in settings.quirks) != quirk.default]


# -----------------------------------------------------------------------------
# A run of a protocol: model, framework, clock, and results.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSubject:
    """The model and environment of a run, for its lines.

    Attributes:
        model: name of the model.
        image: shape of an image, ``(channels, height, width)``.
        activations: name and shape ``(batch, height, width, channels)`` or ``(batch, features)``
            of the outputs that a script prints.
        framework: ``torch``, ``tensorflow`` or ``native``.
        version: version of the framework: ``2.13.0``.
        precision: precision of the steps: ``fp32``, ``fp16``, ...
        device: name of the device: ``cpu`` or ``cuda:0``.
        layout: order of an image's dimensions: ``NCHW`` or ``NHWC``.
        optimizer: optimizer of the model: ``sgd``.
    """

    model: str
    image: tuple[int, int, int]
    activations: tuple[tuple[str, tuple[int, ...]], ...] = ()
    framework: str = "torch"
    version: str = ""
    precision: str = "fp32"
    device: str = "cpu"
    layout: str = "NCHW"
    optimizer: str = "sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStream:
    """Output of lines, and the clock; tests replace both.

    Attributes:
        write: called with a line of the script, without line feed.
        note: called with a note for standard error.
        now: seconds of a monotonic clock.
        today: returns the time of day.
    """

    write: Callable[[str], None]
    note: Callable[[str], None]
    now: Callable[[], float] = time.perf_counter
    today: Callable[[], datetime] = datetime.now

    def stamp(self) -> str:
        """Return the time of day as Python prints it: ``2019-01-08 10:01:15.496202``."""
        # str() omits microseconds that are zero.
        return self.today().isoformat(sep=" ", timespec="microseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRun:
    """The input of the interpreter."""

    protocol: Protocol
    model: CatalogueModel
    subject: ProtocolSubject
    settings: Settings
    log: LogStream
    data: Dataset | None = None
