"""The definition of a step, and the interface of a framework's models and steps."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.steps.inputs import Batch
from pydlbench.backends.steps.trace import StepTracer
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.models.graph import Model
from pydlbench.records.step import Check, StepPreparation, StepSpec

Phase: TypeAlias = Literal[
    "forward", "forward-backward", "training", "backward-data", "backward-weights"
]
Fetch: TypeAlias = Literal["output", "predictions", "loss", "gradients"]
LossKind: TypeAlias = Literal["model", "unregularised", "l2", "sum", "output", "none"]

#: Phases in which gradients are computed.
BACKWARD: Final = ("forward-backward", "training", "backward-data", "backward-weights")

_LOSSES: Final[dict[LossKind, str]] = {
    "model": "the model's loss",
    "unregularised": "the model's loss without its L2 terms",
    "l2": "loss: half the sum of squares of the output",
    "sum": "loss: sum of the output",
    "output": "no loss: the output is its own gradient",
}

#: Note on a step with gradients in float16.
UNSCALED: Final = (
    "no loss scaling, which training in float16 needs: gradients below 6e-8 become zero, and the "
    "kernels that would scale them and look for infinities are not in the time"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDefinition:
    """The parts of a step, which decide what its time includes in every framework.

    Attributes:
        name: name of the step within its protocol: ``Forward``, ``train``.
        phase: the last part of the step. ``backward-data`` and ``backward-weights`` are one pass
            through all nodes that computes one kind of gradient from existing activations.
        propagation: whether batch normalisation and dropout train.
        loss: ``model`` (with its L2 terms), ``unregularised`` (the same without them), ``l2`` (half
            the sum of squares of the output), ``sum`` (the sum of the output), ``output`` (no loss:
            the output itself is used as the gradient of the output), or ``none``.
        keep_loss: whether the loss is a result of the step even if it is not fetched: a graph
            computes only what a result depends on.
        optimizer: ``model``, or ``none``: the step ends with the gradients.
        fetch: what is copied to the host within the step: the network's ``output``,
            ``predictions`` (its softmax), the ``loss``, all weights' ``gradients``.
        feed: ``host`` if images and labels are fed with every step, ``device`` if they are on the
            device already.
        input_gradient: whether the images' gradient is computed too (the first layer's
            backward-data pass).
        dropout: False leaves dropout out even if the propagation is training.
        running_statistics: whether batch normalisation uses the running statistics even if the
            propagation is training.
        zero_fill: whether the step first writes zeros over all gradients and then adds to them.
        weights: ``host`` if the weights are kept on the host and copied to the device with every
            step.
        cast: how a precision below float32 is applied: ``mixed`` keeps the weights in float32,
            ``whole`` casts everything.
        averages: decay of the moving averages of all weights that the step computes; None if it
            computes none.
    """

    name: str
    phase: Phase
    propagation: Literal["training", "inference"] = "training"
    loss: LossKind = "none"
    keep_loss: bool = False
    optimizer: Literal["model", "none"] = "none"
    fetch: tuple[Fetch, ...] = ()
    feed: Literal["device", "host"] = "device"
    input_gradient: bool = False
    dropout: bool = True
    running_statistics: bool = False
    zero_fill: bool = False
    weights: Literal["device", "host"] = "device"
    cast: Literal["mixed", "whole"] = "mixed"
    averages: float | None = None

    @property
    def backward(self) -> bool:
        """Whether gradients are computed."""
        return self.phase in BACKWARD

    @property
    def drops(self) -> bool:
        """Whether dropout drops anything."""
        return self.propagation == "training" and self.dropout

    @property
    def batch_statistics(self) -> bool:
        """Whether batch normalisation uses the minibatch's statistics and updates the running ones.

        It does so in training.
        """
        return self.propagation == "training" and not self.running_statistics

    def includes(self) -> str:
        """Say in one line what the step's time includes."""
        parts = [f"{self.phase}, {self.propagation} propagation"]
        if self.feed == "host":
            parts.append("images and labels from the host")
        if self.weights == "host":
            parts.append("weights from the host")
        if self.loss != "none":
            parts.append(_LOSSES[self.loss])
        if self.zero_fill:
            parts.append("gradients zeroed first")
        if self.backward:
            parts.append(f"{'with' if self.input_gradient else 'no'} gradient of the images")
            parts.append("optimizer" if self.optimizer == "model" else "no optimizer")
        if self.averages is not None:
            parts.append(f"moving averages of the weights ({self.averages:g})")
        if self.propagation == "training" and not self.dropout:
            parts.append("no dropout")
        parts.append(f"to the host: {', '.join(self.fetch)}" if self.fetch else "nothing fetched")
        return "; ".join(parts)


# The results that ``fetch`` copies to the host in each phase of a user's step, as ``session.run``
# did.
_FETCHED: Final[dict[str, tuple[Fetch, ...]]] = {
    "forward": ("output",),
    "forward-backward": ("gradients",),
    "training": ("loss",),
}
_LOSS_OF_PHASE: Final[dict[str, LossKind]] = {
    "forward": "none",
    "forward-backward": "unregularised",
    "training": "model",
}


def definition_of(spec: StepSpec, model: Model | None) -> StepDefinition:
    """Return the step that a case of ``step``, ``check`` or ``diagnose`` measures.

    Args:
        spec: phase, feed, fetch, dropout and statistics.
        model: the graph, which tells whether images have a gradient and whether it can be
            trained; None for a user model.

    Raises:
        UsageError: a training phase without an optimizer.
    """
    trains = spec.phase == "training"
    if trains and model is not None:
        check_trainable(model, "--phase forward-backward")
    phase: Phase = "forward"
    if spec.backward:
        phase = "training" if trains else "forward-backward"
    return StepDefinition(
        name=spec.phase,
        phase=phase,
        propagation="training" if spec.backward else "inference",
        loss=_LOSS_OF_PHASE[spec.phase],
        keep_loss=spec.backward,
        optimizer="model" if trains else "none",
        fetch=_FETCHED[spec.phase] if spec.fetch else (),
        feed="host" if spec.feed == "host" else "device",
        input_gradient=spec.backward and model is not None and model.input_gradient,
        dropout=spec.dropout,
        running_statistics=spec.running_statistics,
    )


def check_trainable(model: Model, instead: str) -> None:
    """Make sure that a model has an optimizer to train with.

    Args:
        model: the graph.
        instead: for the message, the option that needs no optimizer, or names one.

    Raises:
        UsageError: the model has no optimizer.
    """
    if model.optimizer.kind == "none":
        raise UsageError(f"{model.name}: has no optimizer to train with; nearest: {instead}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results that a step copied to the host, see ``fetch``; None if not fetched.

    Attributes:
        output: output of the network, in the framework's layout.
        predictions: array ``(batch, classes)``; any increasing function of the logits will do.
        loss: value of the loss, with its L2 terms if the definition has them.
        gradients: gradients of all trained tensors in their order, in the framework's layout.
    """

    output: NDArray[np.float32] | None = None
    predictions: NDArray[np.float32] | None = None
    loss: float | None = None
    gradients: tuple[NDArray[np.float32], ...] | None = None

    @classmethod
    def fetched(cls, results: Mapping[Fetch, Sequence[Any]]) -> Self:
        """Return the outcome with these results: arrays in the host's memory, by ``fetch`` word."""
        firsts = {name: arrays[0] for name, arrays in results.items() if name != "gradients"}
        return cls(
            output=firsts.get("output"),
            predictions=firsts.get("predictions"),
            loss=float(firsts["loss"]) if "loss" in firsts else None,
            gradients=tuple(results["gradients"]) if "gradients" in results else None,
        )


class FrameworkStep(Protocol):
    """A step of a framework, built and ready."""

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; may return before the device has finished unless something is fetched.

        Args:
            batch: minibatch to feed if ``StepDefinition.feed`` is ``host``; None feeds the images
                and labels that the model was built with.
            rate: learning rate from this step on; None leaves the rate unchanged.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """A framework's functions for losses, which compute in float32.

    Attributes:
        total: returns the sum of all elements.
        half_square: returns half the sum of the squares of all elements.
        cross_entropy: returns the cross entropy of logits and labels, the mean over all labels.
    """

    total: Callable[[Any], Any]
    half_square: Callable[[Any], Any]
    cross_entropy: Callable[[Any, Any], Any]


class StepModel(abc.ABC):
    """A model with inputs, loss and optimizer in a framework, and the step of its case.

    A context manager, which sets the precision of the step and translates the framework's errors.

    Args:
        spec: the step.
    """

    #: The loss functions of its framework.
    losses: ClassVar[Losses]

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        #: Notes for the reader of the results.
        self.notes: list[str] = []
        if spec.backward and spec.precision == "fp16-tc":
            self.notes.append(UNSCALED)
        self._contexts = contextlib.ExitStack()

    @property
    def definition(self) -> StepDefinition:
        """The step of the case; the user's code decides what a user model computes."""
        return definition_of(self.spec, None)

    @abc.abstractmethod
    def run(self) -> Any:
        """Run the step once and return its results; a device may not have finished."""

    def gpu(self) -> dict[str, Any]:
        """Return the framework's description of the step's GPU; empty without a GPU."""
        return {}

    def swapped_calls(self) -> Callable[[], Sequence[float]] | None:
        """Return the function for seconds and page faults of swapped calls since its last call.

        None if the step has none that the host's clock can time.
        """
        return None

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished; nothing to do on a CPU."""

    @abc.abstractmethod
    def tracer(self, run: Callable[[], Any]) -> StepTracer:
        """Return the tracer of the case's step; recording the step may run it.

        Args:
            run: runs the step once without a trace.

        Raises:
            UnsupportedError: the calls of the step cannot be told apart; the message has the
                reason.
        """

    def change_fusion(self) -> None:
        """Fuse operators in another way than the framework does, before the first run.

        In PyTorch batch normalisations are folded into the convolutions before them. In TensorFlow
        operators are not fused, in the whole process.

        Raises:
            UnsupportedError: the framework has no such step, or there is nothing to fold.
        """
        raise UnsupportedError(
            f"{self.spec.framework} {self.spec.mode} has no step that differs in this alone"
        )

    @abc.abstractmethod
    def checks(self, result: Any) -> tuple[Check, ...]:
        """Check the step.

        Args:
            result: result of the step.
        """

    @abc.abstractmethod
    def facts(self, result: Any) -> dict[str, Any]:
        """Return the fields of :class:`~pydlbench.records.step.StepFacts` that describe the model.

        Args:
            result: result of the step.
        """

    def exchange(self, preparation: StepPreparation) -> None:
        """Take weights and inputs of another step, and write those that it runs with.

        Called before the first run. Models of the catalogue have the same ones for the same seed.

        Args:
            preparation: its folders ``save`` and ``load``, and the disturbance of the weights.
        """
        del preparation

    @abc.abstractmethod
    def save(self, folder: Path, result: Any) -> None:
        """Write output and gradients; see :func:`save_results`.

        Args:
            folder: where to write.
            result: result of the step's first run.
        """

    @property
    @abc.abstractmethod
    def batch(self) -> int:
        """The number of images or sequences of a step."""

    @abc.abstractmethod
    def guards(self) -> Iterable[contextlib.AbstractContextManager[Any]]:
        """Return the contexts of the step, the outermost first."""

    def __enter__(self) -> Self:
        """Enter the contexts."""
        for context in self.guards():
            self._contexts.enter_context(context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the contexts, the innermost first; one may translate an exception."""
        self._contexts.__exit__(kind, error, trace)
