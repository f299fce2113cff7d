"""A published protocol: whose script, how many steps, which quirks, and what it results in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydlbench.endtoend.data import Dataset
    from pydlbench.endtoend.protocols.spec import StepSpec
    from pydlbench.endtoend.protocols.stepper import Stepper, Surroundings

__all__ = ["Driver", "Number", "Published", "Quirk", "Run", "Settings", "Subject"]


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
