"""A published protocol: whose script, how many steps, what is inside its number, what it prints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.steps.data.datasets import Dataset

__all__ = [
    "Batch",
    "Number",
    "Outcome",
    "Published",
    "Quirk",
    "Run",
    "Settings",
    "Step",
    "StepSpec",
    "Stepper",
    "Subject",
    "Surroundings",
]


# -----------------------------------------------------------------------------
# A published protocol: whose script, how many steps, which quirks, and what it results in.


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """Something a script does that changes its number and could be done otherwise.

    Attributes:
        name: as typed on the command line.
        what: one sentence.
        default: whether the script does it, so that it is on unless switched off.
    """

    name: str
    what: str
    default: bool = True


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
class Number:
    """A number that the script prints, with what pydlbench needs to judge it.

    Attributes:
        name: ``Forward``, ``vgg16 eval``.
        value: as printed, unrounded.
        unit: of the value and the spread.
        spread: as the script defines it; None where it prints none.
        times: seconds of every sample behind the value, in order.
        includes: what the time includes.
    """

    name: str
    value: float
    unit: str
    spread: float | None = None
    times: tuple[float, ...] = ()
    includes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything a driver needs."""

    stepper: Stepper
    subject: Subject
    settings: Settings
    surroundings: Surroundings
    data: Dataset | None = None


class Driver(Protocol):
    """Runs a protocol, prints its lines and returns its numbers."""

    def __call__(self, run: Run) -> tuple[Number, ...]:
        """Run it with checked settings and data."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A protocol.

    Attributes:
        name: as typed on the command line.
        title: in words.
        source: the script and its revision.
        models: those it was written for; the first is the default.
        defaults: what the script does when nothing is asked for.
        specs: the steps, by what pydlbench can say about them before a run.
        drive: runs it.
        own_specs: the steps of frameworks for which the script has others.
        framework: in which the script was written; the default.
        batches: images per step of models for which the script has another number.
        options: of the models' graphs, as ``build_model`` takes them, where the script differs.
        own_options: further ones by model.
        quirks: what can be switched.
        data: whose images it needs.
    """

    name: str
    title: str
    source: str
    models: tuple[str, ...]
    defaults: Settings
    specs: tuple[StepSpec, ...]
    drive: Driver
    framework: Literal["torch", "tensorflow"] = "tensorflow"
    own_specs: Mapping[str, tuple[StepSpec, ...]] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    own_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quirks: tuple[Quirk, ...] = field(default=())
    data: Literal["mnist", "cifar10"] | None = None

    def specs_in(self, framework: str) -> tuple[StepSpec, ...]:
        """Return the steps as the script runs them in a framework."""
        return self.own_specs.get(framework, self.specs)

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
        defaults = self.defaults
        own = self.batches.get(model or "", defaults.batch)
        defaults = replace(defaults, batch=own)
        found = {quirk.name for quirk in self.quirks if quirk.default}
        return replace(
            defaults,
            **{name: value for name, value in changes.items() if value is not None},
            epochs=defaults.epochs if epochs is None else epochs,
            quirks=frozenset((found | on) - off),
        )

    def run(self, run: Run) -> tuple[Number, ...]:
        """Run it; UsageError without the data that it needs."""
        if self.data is not None and run.data is None:
            raise UsageError(f"--protocol {self.name}: needs images; give --data or generated ones")
        if self.data is not None and run.data is not None and run.data.name != self.data:
            raise UsageError(
                f"--protocol {self.name}: {run.data.name} is not its data; nearest: {self.data}"
            )
        if run.data is not None and run.data.remark:
            run.surroundings.note(run.data.remark)
        return self.drive(run)


# -----------------------------------------------------------------------------
# What one step of a published script does, and what of it comes back to the host.

Phase: TypeAlias = Literal[
    "forward", "forward-backward", "training", "backward-data", "backward-weights"
]
Fetch: TypeAlias = Literal["output", "predictions", "loss", "gradients"]

#: The phases in which gradients arise.
BACKWARD: Final = ("forward-backward", "training", "backward-data", "backward-weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """A step, as a framework has to build it so that its time is the script's.

    Attributes:
        name: of the step within its protocol: ``Forward``, ``train``.
        phase: how far it goes. ``backward-data`` and ``backward-weights`` are one pass through all
            nodes, of one kind of gradient, the activations being there already.
        propagation: whether batch normalisation and dropout train.
        loss: ``model`` (with its L2 terms), ``l2`` (half the sum of squares of the output),
            ``sum`` (of the output), ``output`` (no loss: the output itself is taken as the gradient
            of the output), or ``none``.
        optimizer: ``model``, or ``none``: the step ends with the gradients.
        fetch: what is copied to the host within the step: the network's ``output``,
            ``predictions`` (its softmax), the ``loss``, all weights' ``gradients``.
        feed: ``host`` where images and labels are handed over with every step, ``device`` where
            they lie there already.
        input_gradient: whether the images' gradient is computed too (the first layer's
            backward-data pass).
        dropout: False leaves dropout out even where the propagation is training.
        zero_fill: whether the step first writes zeros over all gradients and then adds to them.
        weights: ``host`` where they live there and cross to the device with every step.
        cast: below float32: ``mixed`` keeps the weights in float32, ``whole`` narrows everything.
        averages: decay of moving averages kept of all weights within the step; None for none.
    """

    name: str
    phase: Phase
    propagation: Literal["training", "inference"] = "training"
    loss: Literal["model", "l2", "sum", "output", "none"] = "none"
    optimizer: Literal["model", "none"] = "none"
    fetch: tuple[Fetch, ...] = ()
    feed: Literal["device", "host"] = "device"
    input_gradient: bool = False
    dropout: bool = True
    zero_fill: bool = False
    weights: Literal["device", "host"] = "device"
    cast: Literal["mixed", "whole"] = "mixed"
    averages: float | None = None

    def __post_init__(self) -> None:
        """Reject what contradicts itself: a protocol's table is wrong then."""
        backward = self.phase in BACKWARD
        wrong = [
            words
            for words, found in (
                ("gradients without a backward pass", "gradients" in self.fetch and not backward),
                ("a backward pass of nothing", backward and self.loss == "none"),
                ("a loss that is not computed", "loss" in self.fetch and self.loss == "none"),
                ("an optimizer outside training", (self.optimizer == "model") != self._trains),
                ("an input gradient without a backward pass", self.input_gradient and not backward),
                ("averages outside training", self.averages is not None and not self._trains),
            )
            if found
        ]
        if wrong:
            raise ValueError(f"step {self.name}: {wrong[0]}")

    @property
    def _trains(self) -> bool:
        return self.phase == "training"

    def includes(self) -> str:
        """Say in one line what the step's time includes."""
        parts = [f"{self.phase}, {self.propagation} propagation"]
        if self.feed == "host":
            parts.append("images and labels from the host")
        if self.weights == "host":
            parts.append("weights from the host")
        if self.loss != "none":
            losses = {
                "model": "the model's loss",
                "l2": "loss: half the sum of squares of the output",
                "sum": "loss: sum of the output",
                "output": "no loss: the output is its own gradient",
            }
            parts.append(losses[self.loss])
        if self.zero_fill:
            parts.append("gradients zeroed first")
        if self.phase in BACKWARD:
            parts.append(f"{'with' if self.input_gradient else 'no'} gradient of the images")
            parts.append("optimizer" if self.optimizer == "model" else "no optimizer")
        if self.averages is not None:
            parts.append(f"moving averages of the weights ({self.averages:g})")
        if self.propagation == "training" and not self.dropout:
            parts.append("no dropout")
        parts.append(f"to the host: {', '.join(self.fetch)}" if self.fetch else "nothing fetched")
        return "; ".join(parts)


# -----------------------------------------------------------------------------
# What a protocol drives: a model in some framework, and the clock and the paper beside it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Images ``(batch, channels, height, width)`` in float32, labels ``(batch,)`` in int64."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step brought to the host, as its ``fetch`` says.

    Attributes:
        loss: with the L2 terms; None where it was not asked for.
        predictions: ``(batch, classes)``; any increasing function of the logits will do.
    """

    loss: float | None = None
    predictions: NDArray[np.float32] | None = None


class Step(Protocol):
    """One kind of step, built and ready."""

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; may return before the device has finished unless something is fetched.

        Args:
            batch: what is fed where ``StepSpec.feed`` is ``host``, else None.
            rate: learning rate of this step; None for the model's own.
        """
        ...


class Stepper(Protocol):
    """A model in a framework. All its steps share one set of weights."""

    def prepare(self, spec: StepSpec) -> Step:
        """Build a step; UnsupportedError where the framework cannot do what the script does."""
        ...

    def initialize(self) -> None:
        """Give all weights their starting values."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all steps; nothing to do on a CPU."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where lines go and what time it is; tests invent both.

    Attributes:
        write: takes one line as the script prints it, without the line feed.
        note: takes a remark that is not the script's: it belongs on standard error.
        now: seconds of a monotonic clock.
        today: the time of day for lines that carry it.
    """

    write: Callable[[str], None]
    note: Callable[[str], None]
    now: Callable[[], float] = field(default=time.perf_counter)
    today: Callable[[], datetime] = field(default=datetime.now)

    def stamp(self) -> str:
        """Return the time of day as Python prints it: ``2019-01-08 10:01:15.496202``."""
        # str() leaves the microseconds out when they happen to be zero.
        return self.today().isoformat(sep=" ", timespec="microseconds")
