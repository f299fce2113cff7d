"""A published protocol as data: whose script, how many steps, what is in its number, its lines.

A protocol declares; :mod:`pydlbench.protocols.interpreter` runs what it declares. Lines are
templates in the manner of ``str.format``; :data:`FIELDS` lists what they may name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping  # noqa: TC003 - the defaults below need them
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydlbench.backends.steps.catalogue import CatalogueModel
    from pydlbench.backends.steps.definition import StepDefinition
    from pydlbench.protocols.data.datasets import Dataset

#: What templates of lines may name. Seconds are of one step.
FIELDS: Final[Mapping[str, str]] = {
    # Of every line.
    "stamp": "time of day, with microseconds",
    "began": "time of day at which the run began, in ISO's form",
    "model": "its name",
    "title": "what the script calls the model",
    "framework": "what the script calls the framework",
    "version": "of the framework: 2.13",
    "precision": "as the scripts call it: fp16",
    "layout": "NCHW or NHWC",
    "optimizer": "sgd",
    "device": "as TensorFlow calls it: /gpu:0",
    "batch": "images per step",
    "steps": "that count",
    "shape": "of the input: 128x3x224x224",
    "dataset": "cifar10 for images of 32 x 32, else imagenet",
    "epochs": "that the steps are of the data set",
    "mode": "TRAIN, or FORWARD_ONLY",
    # Of lines between steps.
    "index": "of the step, or of the line within the protocol's last lines",
    "seconds": "of the last step; between two lines of a training script their mean",
    "loss": "that was fetched; 0 without",
    # Of timed steps: of the line's and all before it.
    "name": "of the step's definition",
    "mean": "sum of the seconds over the number of steps that should count",
    "ms": "the mean in milliseconds",
    "spread": "of the seconds: the population's, sqrt(E[t^2] - E[t]^2)",
    "rate": "images over the sum of the seconds: the harmonic mean of the steps' rates",
    "uncertainty": "population's standard deviation of the steps' rates over sqrt(steps)",
    "jitter": "1.4826 * median(abs(rate - median(rates)))",
    "total": "all images over the wall time of the loop, with everything between two steps",
    # Of lines of a training script.
    "epoch": "that the step is in",
    "examples": "images per second since the line before",
    "next_rate": "learning rate of the next step",
    "error": "percentage of predictions that are wrong",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that a timed script comes to, in terms of :data:`FIELDS`.

    Attributes:
        value: the field.
        unit: of the value and the spread.
        name: template of its name.
        spread: the field of its spread; None where the script prints none.
        samples: whether the seconds of all steps stand behind it.
        more: what its time includes besides the step.
    """

    value: str
    unit: str
    name: str = "{name}"
    spread: str | None = None
    samples: bool = True
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLoop:
    """Steps of one kind after the other, on images that lie there.

    Attributes:
        clock: around each ``step``, or around the whole ``loop`` with one synchronisation.
        waits: for the device: ``unfetched`` after a step that brings nothing to the host, as such a
            step would return early; ``around``, before and after each.
        together: whether all kinds warm up in turn before the first is timed.
        drops_first: whether the first counted step is left out of all sums, which are divided by
            the full number of steps all the same.
        first: number of the first step in lines.
        heading: lines before anything is computed.
        activation: line for each activation after the heading; none where empty.
        warming: lines before the warm-up.
        ready: lines after it.
        line: after the first step and each whose number ``Settings.every`` divides.
        stage: lines after all steps of a kind.
        figures: what each kind comes to.
        sums: names of further figures with the kinds, by index, whose means they add up.
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
    figures: tuple[Figure, ...]
    sums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """A script that trains and prints the time since its last line.

    Images are taken in the order of the file, over and over. The first definition trains; a second
    one reports on the same images before each line; a third one evaluates after it, and at the end.

    Attributes:
        rate: learning rate as a function of the step, the batch and the number of images.
        first_over_all: whether the first line's single step is divided by the steps between lines.
        validation_in_time: whether a line's time covers the validation pass of the line before.
        ready: lines after the weights have got their values.
        lines: of a report.
        validation: line after a validation pass.
        test: line at the end.
        figure: name, field and unit of what all lines but the first come to on average.
        more: what the figure's time includes besides the step.
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
    """Something a script does that changes its number and could be done otherwise.

    Attributes:
        name: as typed on the command line.
        what: one sentence.
        default: whether the script does it, so that it is on unless switched off.
        steps: fields of all definitions where it is not as by default.
        loop: fields of the loop likewise.
        definitions: the steps that are run instead likewise; empty for the protocol's own.
    """

    name: str
    what: str
    default: bool = True
    steps: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    definitions: tuple[StepDefinition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a protocol runs.

    Attributes:
        batch: images per step.
        warmup: steps before the first that counts.
        steps: steps that count; None where ``epochs`` and the data decide.
        every: steps from one line to the next.
        epochs: passes over the training images; None where the protocol has none.
        quirks: names of those that are on.
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
        name: as typed on the command line.
        title: in words.
        source: the script and its revision.
        models: those it was written for; the first is the default.
        defaults: what the script does when nothing is asked for.
        definitions: the steps, by what can be said about them before a run.
        loop: how they are run, timed and printed.
        own_definitions: the steps of frameworks for which the script has others.
        framework: in which the script was written; the default.
        batches: images per step of models for which the script has another number.
        options: of the models' graphs, as ``build_model`` takes them, where the script differs.
        own_options: further ones by model.
        titles: what the script calls models, where it is another name.
        frameworks: what the script calls frameworks, likewise.
        quirks: what can be switched.
        data: whose images it needs.
    """

    name: str
    title: str
    source: str
    models: tuple[str, ...]
    defaults: Settings
    definitions: tuple[StepDefinition, ...]
    loop: TimedLoop | TrainingLoop
    own_definitions: Mapping[str, tuple[StepDefinition, ...]] = field(default_factory=dict)
    framework: Literal["torch", "tensorflow"] = "tensorflow"
    batches: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    own_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
            settings: with which quirks; None is the script's own.
        """
        definitions = self.own_definitions.get(framework, self.definitions)
        for quirk in self._switched(settings):
            definitions = quirk.definitions or tuple(
                replace(definition, **quirk.steps) for definition in definitions
            )
        return definitions

    def loop_with(self, settings: Settings) -> TimedLoop | TrainingLoop:
        """Return the loop as it is with the quirks of some settings."""
        loop = self.loop
        for quirk in self._switched(settings):
            loop = replace(loop, **quirk.loop)
        return loop

    def model_options(self, model: str) -> dict[str, Any]:
        """Return the options of a model's graph as the script has it."""
        return {**self.options, **self.own_options.get(model, {})}

    def check_model(self, name: str) -> None:
        """Make sure that the script has a model.

        Raises:
            UsageError: it has not; with the nearest of those that it has.
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
        """Return the script's settings with changes.

        Args:
            model: its name; some have a batch of their own.
            batch: images per step.
            warmup: steps before those that count; 0 is none.
            steps: that count.
            every: steps between lines.
            epochs: passes over the training images.
            quirks: names of quirks to switch on.
            without: names of quirks to switch off.

        Raises:
            UsageError: a count that is none, an option the protocol lacks, an unknown quirk.
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
            raise UsageError(f"--epochs {epochs:g}: {self.name} counts no epochs; use --steps")
        if epochs is not None and not epochs > 0:
            raise UsageError(f"--epochs {epochs:g}: not positive; {self.name} runs 10 by itself")
        known = {quirk.name for quirk in self.quirks}
        on, off = set(quirks), set(without)
        for name in sorted(on | off):
            if name not in known:
                near = nearest(name, known) or sorted(known)
                hint = f"nearest: {', '.join(near)}" if near else "it has none"
                raise UsageError(f"--quirk {name}: unknown to {self.name}; {hint}")
        changes = {"batch": batch, "warmup": warmup, "steps": steps, "every": every}
        own = {"batch": self.batches.get(model or "", self.defaults.batch)}
        chosen = {quirk.name for quirk in self.quirks if quirk.default}
        return replace(
            self.defaults,
            **own | {name: value for name, value in changes.items() if value is not None},
            epochs=self.defaults.epochs if epochs is None else epochs,
            quirks=frozenset((chosen | on) - off),
        )

    def _switched(self, settings: Settings | None) -> list[Quirk]:
        """Return the quirks that are not as by default."""
        if settings is None:
            return []
        return [quirk for quirk in self.quirks if (quirk.name in settings.quirks) != quirk.default]


# -----------------------------------------------------------------------------
# One run of a protocol: on what, in which framework, with which clock; and what it comes to.


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is run; the lines name it.

    Attributes:
        model: name of the model.
        image: ``(channels, height, width)``.
        activations: name and shape ``(batch, height, width, channels)`` or ``(batch, features)``
            of the outputs that a script prints.
        framework: ``torch``, ``tensorflow`` or ``native``.
        version: of the framework: ``2.13.0``.
        precision: ``fp32``, ``fp16``, ...
        device: ``cpu`` or ``cuda:0``.
        layout: ``NCHW`` or ``NHWC``.
        optimizer: the model's: ``sgd``.
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
    """Where lines go and what time it is; tests invent both.

    Attributes:
        write: takes one line as the script prints it, without the line feed.
        note: takes a remark that is not the script's: it belongs on standard error.
        now: seconds of a monotonic clock.
        today: the time of day for lines that carry it.
    """

    write: Callable[[str], None]
    note: Callable[[str], None]
    now: Callable[[], float] = time.perf_counter
    today: Callable[[], datetime] = datetime.now

    def stamp(self) -> str:
        """Return the time of day as Python prints it: ``2019-01-08 10:01:15.496202``."""
        # str() leaves the microseconds out when they happen to be zero.
        return self.today().isoformat(sep=" ", timespec="microseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that the interpreter needs."""

    protocol: Protocol
    model: CatalogueModel
    subject: Subject
    settings: Settings
    log: LogStream
    data: Dataset | None = None
