"""A network of the catalogue in a framework: its steps, and the checks of a step."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.operands import arrange, plain
from pydlbench.backends.steps.definition import (
    Fetch,
    FrameworkStep,
    LossKind,
    Outcome,
    StepDefinition,
    StepModel,
    definition_of,
)
from pydlbench.backends.steps.inputs import Batch, save_results, trained
from pydlbench.calls.seen import meaning_of
from pydlbench.models.graph import Model
from pydlbench.models.passes import macs, parameters
from pydlbench.records.step import Check, StepSpec
from pydlbench.records.trace import RecordedCall

#: Number of steps of the descent, and the maximum share by which the first may reduce the loss.
_DESCENT_STEPS = 4
_MAX_LOSS_SHARE = 0.05
_MAX_LISTED_FAULTS = 3


class CatalogueModel(StepModel):
    """A network with its weights in a framework, which builds its steps from definitions.

    All its steps share one set of weights. For checks, further steps compute its results as float32
    arrays in the layout of the graph.

    Args:
        model: the graph.
        weights: initial values, by name.
        spec: device, precision, cast, layout, mode and seed; other fields are not used.
        batch: images and labels for steps that are not fed.
        separate: whether single passes of one kind of gradient will be prepared; in that
            case no node overwrites its input.

    Raises:
        UnsupportedError: the framework has no such precision or layout on this device.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        spec: StepSpec,
        batch: Batch,
        *,
        separate: bool = False,
    ) -> None:
        super().__init__(spec)
        self.model, self.weights = model, weights
        #: The steps prepared so far.
        self.steps: list[Any] = []
        self._build(batch, separate=separate)

    @abc.abstractmethod
    def _build(self, batch: Batch, *, separate: bool) -> None:
        """Build the network and place the minibatch; for arguments see :class:`CatalogueModel`."""

    # -------------------------------------------------------------------------
    # Defined by each framework.

    @abc.abstractmethod
    def prepare(self, definition: StepDefinition) -> FrameworkStep:
        """Build a step.

        Raises:
            UnsupportedError: the framework does not support the step.
            UsageError: training without an optimizer.
        """

    @abc.abstractmethod
    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights and running statistics by name, and drop all gradients."""

    @abc.abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each node's output in the step, NCHW or (batch, features)."""

    @abc.abstractmethod
    def elements(self) -> int:
        """Return the number of trained elements."""

    @abc.abstractmethod
    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in the step."""

    @abc.abstractmethod
    def plain(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor, or its gradient, in the layout of the graph and float32."""

    def plain_output(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a fetched output in the layout of the graph."""
        return plain(array, self.spec.layout) if array.ndim == 4 else array

    @abc.abstractmethod
    def subtract_gradients(self, rate: float) -> None:
        """Run the step, and subtract its gradients times the rate from the weights."""

    def prepare_forward(self, definition: StepDefinition) -> FrameworkStep:
        """Build a forward step that is not timed."""
        return self.prepare(definition)

    # -------------------------------------------------------------------------
    # The step of the case.

    @property
    def definition(self) -> StepDefinition:
        """The step of the case."""
        return definition_of(self.spec, self.model)

    @functools.cached_property
    def step(self) -> Any:
        """The step of the case; it is built within the model's contexts."""
        return self.prepare(self.definition)

    @property
    def batch(self) -> int:
        """The number of images of a step."""
        return self.model.batch

    def run(self) -> Outcome:
        """Run the step once; a device may not have finished unless something is fetched."""
        outcome: Outcome = self.step()
        return outcome

    def initialize(self) -> None:
        """Give all weights their initial values, and reset the state of training."""
        self.load(self.weights)
        for step in self.steps:
            step.reset()

    def checks(self, result: Any) -> tuple[Check, ...]:  # noqa: ARG002 - as its base class
        """Check the step against its graph, then reset the weights to their initial values."""
        self.restore()
        return tuple(run_checks(self.model, self))

    def facts(self, result: Any) -> dict[str, Any]:  # noqa: ARG002 - as its base class
        """Return batch, shape of the output and number of parameters."""
        self.restore()
        return {
            "batch": self.batch,
            "output": (self.batch, *self.model.output.shape),
            "parameters": parameters(self.model),
            "environment": {},
        }

    def restore(self) -> None:
        """Undo the effects of a step that has run, on weights and running statistics."""
        if self.spec.backward:
            self.initialize()

    def save(self, folder: Path, result: Any) -> None:  # noqa: ARG002 - as its base class
        """Write output and gradients, of steps of their own."""
        self.restore()
        save_results(folder, self.results())
        self.initialize()  # running statistics have changed

    # -------------------------------------------------------------------------
    # Results for checks, computed by steps that are not timed.

    def results(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the output, then all gradients by name."""
        yield "output", self.output()
        if self.spec.backward:
            yield from self.gradients()

    @property
    def gradients_only(self) -> StepDefinition:
        """The same step, ending with the gradients, which are fetched."""
        return dataclasses.replace(
            self.definition,
            name="gradients",
            phase="forward-backward",
            optimizer="none",
            averages=None,
            fetch=("gradients",),
        )

    def output(self) -> NDArray[np.float32]:
        """Return the output of the phase, without dropout."""
        output = self._without_dropout("none", "output")().output
        assert output is not None, "it is fetched"
        return self.plain_output(output.astype(np.float32, copy=False))

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each trained tensor by name."""
        gradients = self._gradients().gradients
        assert gradients is not None, "they are fetched"
        for name, array in zip(trained(self.model), gradients, strict=True):
            yield name, self.plain(name, array)

    def batch_loss(self) -> float:
        """Return the loss of the minibatch, without dropout."""
        loss = self._loss().loss
        assert loss is not None, "it is fetched"
        return loss

    def descend(self, rate: float) -> None:
        """Train one step at another rate; in a phase without optimizer, by plain descent."""
        if self.definition.phase == "training":
            self.step(rate=rate)
        else:
            self.subtract_gradients(rate)

    @functools.cached_property
    def _gradients(self) -> FrameworkStep:
        return self.prepare(self.gradients_only)

    @functools.cached_property
    def _loss(self) -> FrameworkStep:
        return self._without_dropout(self.definition.loss, "loss")

    def _without_dropout(self, loss: LossKind, fetch: Fetch) -> FrameworkStep:
        return self.prepare_forward(
            StepDefinition(
                name="inspection",
                phase="forward",
                propagation=self.definition.propagation,
                running_statistics=self.definition.running_statistics,
                dropout=False,
                loss=loss,
                fetch=(fetch,),
            )
        )

    def loss(self, kind: LossKind) -> Callable[[Any, Any, Mapping[str, Any]], Any]:
        """Return a loss as a function of output, labels and all tensors by name.

        Args:
            kind: ``model`` has L2 terms of tensors; ``l2`` and ``sum`` take no labels.
        """
        form = self.model.loss.kind if kind in ("model", "unregularised") else kind
        decays = self.model.decays if kind == "model" else ()
        terms = [(f"{decay.node}/{decay.tensor}", decay.factor) for decay in decays]
        # Plain functions, which compilers can trace.
        cross_entropy, half_square = self.losses.cross_entropy, self.losses.half_square
        measure = half_square if form == "l2" else self.losses.total

        def loss(output: Any, labels: Any, tensors: Mapping[str, Any]) -> Any:
            classified = form == "cross-entropy" and labels is not None
            total = cross_entropy(output, labels) if classified else measure(output)
            for name, factor in terms:
                total = total + factor * half_square(tensors[name])
            return total

        return loss


def pass_step(passes: Any, definition: StepDefinition) -> FrameworkStep:
    """Return a step that computes one kind of gradient of all nodes.

    Args:
        passes: backward passes of the network, by ``data`` and by ``weights``.
        definition: the definition of one of them.
    """
    run = passes.data if definition.phase == "backward-data" else passes.weights

    def step(
        batch: Batch | None = None,  # noqa: ARG001 - as all steps
        rate: float | None = None,  # noqa: ARG001 - as all steps
    ) -> Outcome:
        run()
        return Outcome()

    return step


def product_flops(calls: Iterable[RecordedCall]) -> int:
    """Return the FLOPs of all convolutions and products among a step's calls."""
    return sum(call.count * (meaning_of(call).product_flops or 0) for call in calls)


def host_arrays(batch: Batch, layout: str) -> tuple[NDArray[Any], ...]:
    """Return images and labels for frameworks whose labels are 32 bits wide."""
    images = arrange(batch.images, layout)
    return (images,) if batch.labels is None else (images, batch.labels.astype(np.int32))


# -----------------------------------------------------------------------------
# Checks before a step is timed: it computes the graph, has gradients, and learns.


def run_checks(model: Model, built: CatalogueModel) -> list[Check]:
    """Run all checks that the phase allows, then reset the weights to their initial values.

    Args:
        model: the graph that the step must compute.
        built: the framework's model.
    """
    backward = built.spec.backward
    image_macs = macs(model, "training" if backward else "forward")
    checks = [
        _shapes(model, built),
        _same("parameters", built.elements(), parameters(model)),
        _same("flops", built.flops(), 2 * image_macs * model.batch),
    ]
    if backward:
        verdict, norm = _gradients(built)
        checks += [verdict, _descent(model, built, norm)]
        built.initialize()
    return checks


def _shapes(model: Model, built: CatalogueModel) -> Check:
    shapes = built.shapes()
    wrong = [
        f"{node.name} {shapes.get(node.name)} and not {(model.batch, *node.shape)}"
        for node in model
        if shapes.get(node.name) != (model.batch, *node.shape)
    ]
    text = "; ".join(wrong[:_MAX_LISTED_FAULTS]) or f"{len(model.nodes)} nodes as in the graph"
    return Check(name="shapes", status="failed" if wrong else "ok", detail=text)


def _same(name: str, number: int, expected: int) -> Check:
    if number == expected:
        return Check(name=name, status="ok", detail=f"{number:,}")
    return Check(name=name, status="failed", detail=f"{number:,} and not {expected:,}")


def _gradients(built: CatalogueModel) -> tuple[Check, float]:
    """Return the verdict on gradients, and the squared norm of all of them together."""
    wrong, norm, count = [], 0.0, 0
    for name, gradient in built.gradients():
        flat = gradient.reshape(-1)
        square = float(np.dot(flat, flat))
        if not math.isfinite(square):
            wrong.append(f"{name} is not finite")
        elif square == 0:
            wrong.append(f"{name} is zero")
        norm, count = norm + square, count + 1
    text = "; ".join(wrong[:_MAX_LISTED_FAULTS]) or f"{count} tensors, all finite, none zero"
    status = "failed" if wrong else "ok"
    return Check(name="gradients", status=status, detail=text), norm


def _descent(model: Model, built: CatalogueModel, norm: float) -> Check:
    """Train a few steps on the same minibatch, and check that the loss falls.

    A script's own learning rate may be too large for random weights. It is reduced so that, to
    first order, a step lowers the loss by at most a twentieth.
    """
    before = built.batch_loss()
    rate = model.optimizer.rate
    if norm > 0 and math.isfinite(norm) and math.isfinite(before):
        rate = min(rate, _MAX_LOSS_SHARE * abs(before) / norm)
    for _ in range(_DESCENT_STEPS):
        built.descend(rate)
    after = built.batch_loss()
    text = f"loss {before:.6g} to {after:.6g} in {_DESCENT_STEPS} steps at a rate of {rate:.3g}"
    lower = math.isfinite(after) and after < before
    return Check(name="descent", status="ok" if lower else "failed", detail=text)
