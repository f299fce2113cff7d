"""The published protocols as data: script, number of steps, contents of numbers, printed lines.

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
from pydlbench.errors import UsageError, nearest, unknown_word
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
            raise unknown_word(
                f"{name}: --protocol {self.name} has no such model", name, self.models
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


def find_protocol(name: str) -> Protocol:
    """Return a protocol by name; UsageError with the nearest names for an unknown one."""
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    raise unknown_word(f"--protocol {name}: unknown protocol", name, PROTOCOLS)


# -----------------------------------------------------------------------------
# TensorFlow's AlexNet tutorial, alexnet_benchmark.py.
#
# What its number, the mean of 100 wall-clock times after 10 that do not count, includes:
#
# ============== ======================================= ====================================
# step           Forward                                 Forward-backward
# ============== ======================================= ====================================
# network        convolutions and pools only: no fully   the same, then back to conv1's weights
#                connected layer, no softmax
# input          224 x 224 x 3, normal (sd 0.1), in a variable: nothing is fed
# loss           none                                    half the sum of squares of pool5
# gradients      none                                    of the 10 parameters, not of the images
# optimizer      none                                    none
# host fetch     pool5: 4.72 MB at batch 128             all 10 gradients: 9.88 MB
# spread         of the population, sqrt(E[t^2] - E[t]^2)
# ============== ======================================= ====================================
#
# The script opens with one line per convolution and pool, ``conv1   [128, 56, 56, 64]``. Copies
# from other years lack the LRN layers or pad conv1 otherwise: those are options of the model.

_BURN_IN: Final = TimedLoop(
    line="{stamp}: step {index}, duration = {seconds:.3f}",
    stage=("{stamp}: {name} across {steps} steps, {mean:.3f} +/- {spread:.3f} sec / batch",),
    figures=(ProtocolFigure(value="mean", unit="s", spread="spread"),),
)
ALEXNET_TUTORIAL: Final = Protocol(
    name="alexnet-tutorial",
    title="TensorFlow's AlexNet tutorial",
    source="tensorflow/models tutorials/image/alexnet/alexnet_benchmark.py @1c3408026f28",
    models=("alexnet",),
    defaults=Settings(batch=128, warmup=10, steps=100, every=10),
    definitions=(
        StepDefinition(name="Forward", phase="forward", propagation="inference", fetch=("output",)),
        StepDefinition(
            name="Forward-backward", phase="forward-backward", loss="l2", fetch=("gradients",)
        ),
    ),
    loop=replace(_BURN_IN, activation="{name}   {shape}"),
)


# -----------------------------------------------------------------------------
# TensorFlow's MNIST tutorial, convolutional.py.
#
# What "Step 100 (epoch 0.12), 4.2 ms" includes, as a hundredth of the time between two reports:
#
# ============== ============================== ======================= =====================
# step           train                          report                  evaluate
# ============== ============================== ======================= =====================
# how often      100                            1                       79 (5000 images)
# phase          training                       forward, dropout on     forward, inference
# input          64 images and labels fed from the host each time       64 images fed
# loss           cross-entropy + L2 terms       the same                none
# optimizer      momentum 0.9, rate * 0.95      none                    none
#                per epoch
# host fetch     nothing                        loss, rate,             predictions
#                                               predictions
# ============== ============================== ======================= =====================
#
# So the number is ``T(train) + 0.01 T(report) + 0.79 T(evaluate)``. The first line is one step and
# one report, with the initialisation of the weights, and it too is divided by 100. The clock is
# restarted before the validation pass, which therefore counts in the next line.
#
# Training images are taken in the order of the file; the last 5000 / 64 remainder of an evaluation
# runs the last 64 images again, as the script does.

_FIRST_LINE: Final = Quirk(
    name="first-line-over-all",
    what="the first line's single step is divided by the steps between lines",
    loop={"first_over_all": False},
)
MNIST_TUTORIAL: Final = Protocol(
    name="mnist-tutorial",
    title="TensorFlow's MNIST tutorial",
    source="tensorflow/models tutorials/image/mnist/convolutional.py @48251730feb7",
    models=("mnist",),
    defaults=Settings(batch=64, warmup=0, steps=None, every=100, epochs=10.0),
    definitions=(
        StepDefinition(
            name="train",
            phase="training",
            loss="model",
            optimizer="model",
            feed="host",
            cast="whole",
        ),
        StepDefinition(
            name="report",
            phase="forward",
            loss="model",
            feed="host",
            fetch=("loss", "predictions"),
            cast="whole",
        ),
        StepDefinition(
            name="evaluate",
            phase="forward",
            propagation="inference",
            feed="host",
            fetch=("predictions",),
            cast="whole",
        ),
    ),
    loop=TrainingLoop(
        # 5 % less after each pass over the training images.
        rate=lambda step, batch, images: 0.01 * 0.95 ** (step * batch // images),
        ready=("Initialized!",),
        lines=(
            "Step {index} (epoch {epoch:.2f}), {ms:.1f} ms",
            "Minibatch loss: {loss:.3f}, learning rate: {next_rate:.6f}",
            "Minibatch error: {error:.1f}%",
        ),
        validation="Validation error: {error:.1f}%",
        test="Test error: {error:.1f}%",
        figure=("Step", "ms", "ms"),
        more="; a report; the validation pass of the report before",
    ),
    quirks=(
        Quirk(
            name="validation-in-time",
            what="a line's time covers the validation pass of the line before",
            loop={"validation_in_time": False, "more": "; a report; no validation pass"},
        ),
        _FIRST_LINE,
    ),
    data="mnist",
)


# -----------------------------------------------------------------------------
# TensorFlow's CIFAR-10 tutorial, cifar10_train.py.
#
# What "(4765.9 examples/sec; 0.027 sec/batch)" includes, a tenth of the time since the last line:
#
# ============== ==============================================================================
# steps          10 training steps: forward, cross-entropy + L2 terms (three of them with factor
#                0), gradients of all weights but not of the images, gradient descent
# input          128 images of 24 x 24 and labels fed from the host each time
# weights        live on the host and cross to the device and back (quirk ``variables-on-cpu``)
# averages       moving averages of all weights, decay 0.9999
# host fetch     the loss, every step
# not repeated   summaries for TensorBoard every 100 steps, a checkpoint every 10 minutes
# ============== ==============================================================================
#
# The clock starts before the weights are initialised, so the first line is one step plus that; it
# too is divided by 10. The script itself stops after 1,000,000 steps.
#
# What differs: the script takes its images from a queue that threads on the host fill with random
# crops, flipped and with another brightness and contrast, and its number includes waiting for it.
# Here the middle of each image is cut out and standardised, as the script's evaluation does, before
# the clock starts, and the images are taken in the order of the files. So there is no line on
# filling the queue either. Where the queue was no bottleneck, the numbers mean the same.

CIFAR10_TUTORIAL: Final = Protocol(
    name="cifar10-tutorial",
    title="TensorFlow's CIFAR-10 tutorial",
    source="tensorflow/models tutorials/image/cifar10/cifar10_train.py @00e6186d7611",
    models=("cifar10",),
    defaults=Settings(batch=128, warmup=0, steps=101, every=10),
    definitions=(
        StepDefinition(
            name="train",
            phase="training",
            loss="model",
            optimizer="model",
            feed="host",
            fetch=("loss",),
            weights="host",
            averages=0.9999,
        ),
    ),
    loop=TrainingLoop(
        # A tenth after each 350 passes over 50,000 images, however many there are.
        rate=lambda step, batch, _images: 0.1 * 0.1 ** (step // int(50_000 / batch * 350)),
        lines=(
            (
                "{stamp}: step {index}, loss = {loss:.2f} "
                "({examples:.1f} examples/sec; {seconds:.3f} sec/batch)"
            ),
        ),
        figure=("examples/sec", "examples", "examples/s"),
    ),
    quirks=(
        Quirk(
            name="variables-on-cpu",
            what="the weights live on the host: they and their gradients cross to the device "
            "every step",
            steps={"weights": "device"},
        ),
        _FIRST_LINE,
    ),
    data="cifar10",
)


# -----------------------------------------------------------------------------
# TensorFlow's tf_cnn_benchmarks, on one device with synthetic images.
#
# What "images/sec" includes:
#
# ============== ==============================================================================
# step           training: forward, softmax cross-entropy + 4e-5 of the L2 terms, gradients of all
#                weights but not of the images, optimizer (``sgd`` is plain gradient descent)
# input          synthetic, in a variable on the device: nothing is fed
# host fetch     the loss
# times          of every step since the 10 that warm up; each line covers all steps so far
# images/sec     batch / mean(times): the harmonic mean of the steps' own rates
# +/-            population's standard deviation of those rates / sqrt(steps)
# jitter         1.4826 * median(abs(rate - median(rates)))
# total          steps * batch / wall time of the loop, with everything between two steps
# ============== ==============================================================================
#
# ``forward-only`` is the script's flag of that name: no gradients, and a loss printed as 0.

TF_CNN_BENCHMARKS: Final = Protocol(
    name="tf-cnn-benchmarks",
    title="TensorFlow's tf_cnn_benchmarks",
    source="tensorflow/benchmarks scripts/tf_cnn_benchmarks @8fb790792659",
    models=(
        *("resnet50-v1", "alexnet-tfcnn", "alexnet-tfcnn-cifar10", "vgg11", "vgg16", "vgg19"),
        *("googlenet", "overfeat-fast", "inception-v3", "resnet101-v1", "resnet152-v1"),
        *("nasnet-mobile", "nasnet-large"),
    ),
    defaults=Settings(batch=32, warmup=10, steps=100, every=10),
    definitions=(
        StepDefinition(
            name="train", phase="training", loss="model", optimizer="model", fetch=("loss",)
        ),
    ),
    loop=TimedLoop(
        first=1,
        # As its ``print_info`` writes them.
        heading=(
            "{framework:<12} {version}",
            "Model:       {model}",
            "Dataset:     {dataset} (synthetic)",
            "Mode:        BenchmarkMode.{mode}",
            "SingleSess:  False",
            "Batch size:  {batch} global",
            "             {batch} per device",
            "Num batches: {steps}",
            "Num epochs:  {epochs:.2f}",
            "Devices:     ['{device}']",
            "Data format: {layout}",
            "Optimizer:   {optimizer}",
            "Variables:   parameter_server",
            "==========",
            "Generating model",
        ),
        warming=("Running warm up",),
        ready=("Done warm up", "Step\tImg/sec\ttotal_loss"),
        line=(
            "{index}\timages/sec: {rate:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})"
            "\t{loss:.3f}"
        ),
        stage=("-" * 64, "total images/sec: {total:.2f}", "-" * 64),
        figures=(
            ProtocolFigure(name="images/sec", value="rate", unit="images/s", spread="uncertainty"),
            ProtocolFigure(
                name="total images/sec",
                value="total",
                unit="images/s",
                samples=False,
                more="; whatever happens between two steps",
            ),
        ),
    ),
    batches={
        "resnet50-v1": 64,
        "alexnet-tfcnn": 512,
        "alexnet-tfcnn-cifar10": 128,
        "vgg11": 64,
        "vgg16": 64,
        "vgg19": 64,
        "nasnet-large": 16,
    },
    options={"classes": 1001, "decay": 4e-5},
    options_by_model={
        "alexnet-tfcnn-cifar10": {"classes": 11},
        "googlenet": {"form": "tfcnn"},
        "inception-v3": {"scale": False},
    },
    frameworks={"tensorflow": "TensorFlow:", "torch": "PyTorch:", "native": "pydlbench:"},
    quirks=(
        Quirk(
            name="forward-only",
            what="no gradients and no loss, as with --forward_only",
            default=False,
            definitions=(StepDefinition(name="forward", phase="forward", propagation="inference"),),
        ),
    ),
)


# -----------------------------------------------------------------------------
# deep-learning-benchmark, and the CSV that a wrapper around it writes.
#
# The mean of 20 iterations after 20 that warm up, in milliseconds, of 16 images of 224 x 224:
#
# ============== ======================================== ===================================
# framework      torch                                    tensorflow
# ============== ======================================== ===================================
# eval           forward, inference, no autograd          forward, inference
# train          gradients zeroed, forward, sum of the    gradients of the sum of the outputs,
#                outputs, backward                        batch normalisation and dropout in
#                                                         inference
# gradients      of the weights and of the images         of the weights
# optimizer      none                                     none
# input          on the device                            a constant
# host fetch     none; the device is waited for before    eval: the output; train: every
#                and after each iteration                 gradient (553 MB for VGG-16)
# fp16           the whole model and its images in half precision, no autocast
# ============== ======================================== ===================================
#
# PyTorch of those years wrote zeros over the gradients where it drops them now. The wrapper's file
# has a column of row numbers, the heading "Algoritem" and a result with its unit, ``39.3ms``;
# without it the columns are the documented ones and the result is a number of milliseconds. All
# rows carry the time at which the run began.

DEEP_LEARNING_BENCHMARK: Final = Protocol(
    name="deep-learning-benchmark",
    title="deep-learning-benchmark",
    source="u39kun/deep-learning-benchmark @9dc3e36e6f97; its wrapper in OryanOmer's fork",
    models=("vgg16", "resnet152", "densenet161"),
    defaults=Settings(batch=16, warmup=20, steps=20, every=1),
    definitions=(
        StepDefinition(name="eval", phase="forward", propagation="inference", cast="whole"),
        StepDefinition(
            name="train",
            phase="forward-backward",
            loss="sum",
            input_gradient=True,
            zero_fill=True,
            cast="whole",
        ),
    ),
    framework_definitions={
        "tensorflow": (
            StepDefinition(
                name="eval",
                phase="forward",
                propagation="inference",
                fetch=("output",),
                cast="whole",
            ),
            StepDefinition(
                name="train",
                phase="forward-backward",
                propagation="inference",
                loss="sum",
                fetch=("gradients",),
                cast="whole",
            ),
        )
    },
    loop=TimedLoop(
        waits="around",
        heading=("Timestamp,Framework,Algorithm,BenchStage,Precision,Result",),
        stage=("{began},{framework},{model},{name},{precision},{ms:.1f}",),
        figures=(ProtocolFigure(name="{model} {name}", value="ms", unit="ms"),),
    ),
    framework="torch",
    frameworks={"torch": "pytorch"},
    quirks=(
        Quirk(
            name="zero-fill",
            what="zeros are written over the gradients before each step (torch only)",
            steps={"zero_fill": False},
        ),
        Quirk(
            name="wrapper-csv",
            what="row numbers, the heading Algoritem, and the unit in the result",
            default=False,
            loop={
                "heading": (",Timestamp,Framework,Algoritem,BenchStage,Precision,Result",),
                "stage": ("{index},{began},{framework},{model},{name},{precision},{ms:.1f}ms",),
            },
        ),
    ),
)


# -----------------------------------------------------------------------------
# convnet-benchmarks' Torch7 script, imagenet_winners/benchmark.lua.
#
# Three loops of 10 passes through the whole network, each pass of one kind only, launched back to
# back with one synchronisation after the loop; so each number is a sum over layers of one pass:
#
# ======================== ==================== ==================== ========================
# line                     :updateOutput():     :updateGradInput():  :accGradParameters():
# ======================== ==================== ==================== ========================
# pass                     forward              backward-data        backward-weights
# of the first layer       yes                  no (gradInput is     yes
#                                               nil)
# gradient fed             -                    the network's own output, no loss
# optimizer, host fetch    none                 none                 none (gradients add up)
# dropout, softmax         left out
# ======================== ==================== ==================== ========================
#
# Before them, 10 dry runs of all three passes. ``:Backward:`` and ``:TOTAL:`` are sums of means.

_CONVNET_MODELS: Final = ("alexnet-owt", "overfeat-fast", "vgg11", "googlenet")
CONVNET_BENCHMARKS: Final = Protocol(
    name="convnet-benchmarks",
    title="convnet-benchmarks, Torch7 script",
    source="soumith/convnet-benchmarks torch7/imagenet_winners/benchmark.lua @b458aab61c0a",
    models=_CONVNET_MODELS,
    defaults=Settings(batch=128, warmup=10, steps=10, every=1),
    definitions=(
        StepDefinition(name=":updateOutput():", phase="forward", dropout=False),
        StepDefinition(
            name=":updateGradInput():", phase="backward-data", loss="output", dropout=False
        ),
        StepDefinition(
            name=":accGradParameters():", phase="backward-weights", loss="output", dropout=False
        ),
    ),
    loop=TimedLoop(
        clock="loop",
        together=True,
        heading=("ModelType: {title}\tKernels: {framework}\tInput shape: {shape}",),
        stage=("{framework:<30} {name:>25} {ms:10.2f}",),
        figures=(ProtocolFigure(value="ms", unit="ms", samples=False),),
        sums={":Forward:": (0,), ":Backward:": (1, 2), ":TOTAL:": (0, 1, 2)},
    ),
    framework="torch",
    batches={"vgg11": 64},
    titles={
        "alexnet-owt": "AlexNet",
        "overfeat-fast": "OverFeat[fast]",
        "vgg11": "VGG Model-A",
        "googlenet": "GoogleNet",
    },
)


# -----------------------------------------------------------------------------
# convnet-benchmarks' TensorFlow scripts, benchmark_alexnet.py and its siblings.
#
# What the number, printed like the AlexNet tutorial's, includes:
#
# ============== ================================= ==========================================
# step           Forward                           Forward-backward
# ============== ================================= ==========================================
# network        with the fully connected layers
# input          in a variable: nothing is fed
# loss           none                              mean softmax cross-entropy
# gradients      none                              of all parameters, not of the images
# optimizer      none                              none
# host fetch     none: the targets are grouped into one operation without a value
# ============== ================================= ==========================================
#
# The script tests ``i > num_steps_burn_in`` where 10 steps were meant to be dropped, so that an
# 11th is, and still divides by 100. The mean comes out 1 % low, "step 0" is never printed, and the
# spread is at least 10 % of the mean.
#
# The graphs are those of the Torch7 script. The one of this AlexNet takes images of 227 x 227
# without padding, which makes as many outputs, and a ReLU follows its last fully connected layer
# too.

CONVNET_BENCHMARKS_TF: Final = Protocol(
    name="convnet-benchmarks-tf",
    title="convnet-benchmarks, TensorFlow scripts",
    source="soumith/convnet-benchmarks tensorflow/benchmark_alexnet.py @b458aab61c0a",
    models=_CONVNET_MODELS,
    defaults=Settings(batch=128, warmup=10, steps=100, every=10),
    definitions=(
        StepDefinition(name="Forward", phase="forward", propagation="inference"),
        StepDefinition(
            name="Forward-backward", phase="forward-backward", loss="model", dropout=False
        ),
    ),
    loop=replace(_BURN_IN, drops_first=True),
    batches={"vgg11": 64},
    quirks=(
        Quirk(
            name="burn-in-off-by-one",
            what="one step more than the burn-in is dropped, and the sums are divided by all steps",
            loop={"drops_first": False},
        ),
    ),
)

#: By name, in the order in which they are listed.
PROTOCOLS: Final[dict[str, Protocol]] = {
    protocol.name: protocol
    for protocol in (
        ALEXNET_TUTORIAL,
        MNIST_TUTORIAL,
        CIFAR10_TUTORIAL,
        TF_CNN_BENCHMARKS,
        DEEP_LEARNING_BENCHMARK,
        CONVNET_BENCHMARKS,
        CONVNET_BENCHMARKS_TF,
    )
}
