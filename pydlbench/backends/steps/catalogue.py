"""A network of the catalogue in a framework: its steps, and what they say of themselves."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.operands import arranged, plain
from pydlbench.backends.steps.definition import StepDefinition, StepModel, definition_of
from pydlbench.backends.steps.inputs import save_results, trained
from pydlbench.calls.seen import meaning_of
from pydlbench.models.counts import macs, parameters
from pydlbench.records.step import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from pydlbench.backends.steps.definition import Fetch, FrameworkStep, LossKind, Outcome
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.models.graph import Model
    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.step import StepSpec


#: Steps of the descent, and by how much the first of them is to lower the loss at the most.
_STEPS = 4
_SHARE = 0.05
_LISTED = 3


class CatalogueModel(StepModel):
    """A network with its weights in a framework, which makes its steps of definitions.

    All its steps share one set of weights. What it says of itself are float32 arrays, arranged as
    in the graph; it computes them with further steps.

    Args:
        model: the graph.
        weights: to start from, by name.
        spec: device, precision, cast, layout, mode and seed; the rest is not looked at.
        batch: images and labels, for steps that are handed none.
        separate: whether there will be passes of one kind of gradient, for which no node may
            overwrite its input.

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
        #: Those that have been prepared.
        self.steps: list[Any] = []
        self._build(batch, separate=separate)

    @abc.abstractmethod
    def _build(self, batch: Batch, *, separate: bool) -> None:
        """Make the network and put the minibatch where steps read it; see the class."""

    # -------------------------------------------------------------------------
    # What a framework does.

    @abc.abstractmethod
    def prepare(self, definition: StepDefinition) -> FrameworkStep:
        """Build a step.

        Raises:
            UnsupportedError: the framework cannot do what is defined.
            UsageError: training without an optimizer.
        """

    @abc.abstractmethod
    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights and running statistics by name, and forget all gradients."""

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
        """Return values of a tensor, or of its gradient, as they are by name, in float32."""

    def plain_output(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a fetched output arranged as in the graph."""
        return plain(array, self.spec.layout) if array.ndim == 4 else array

    @abc.abstractmethod
    def subtract_gradients(self, rate: float) -> None:
        """Run the step, and subtract its gradients times the rate from the weights."""

    def prepare_forward(self, definition: StepDefinition) -> FrameworkStep:
        """Build a step that only looks forward, and is not timed."""
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
        """The images of a step."""
        return self.model.batch

    def run(self) -> Outcome:
        """Run the step once; a device may not have finished unless something is fetched."""
        outcome: Outcome = self.step()
        return outcome

    def initialize(self) -> None:
        """Give all weights their starting values, and forget what training has left."""
        self.load(self.weights)
        for step in self.steps:
            step.reset()

    def checks(self, result: Any) -> tuple[Check, ...]:
        """Hold the step against its graph; afterwards the weights are as before."""
        del result
        self.restore()
        return tuple(run_checks(self.model, self))

    def facts(self, result: Any) -> dict[str, Any]:
        """Return what is known of the model."""
        del result
        self.restore()
        return {
            "batch": self.batch,
            "output": (self.batch, *self.model.output.shape),
            "parameters": parameters(self.model),
            "environment": {},
        }

    def restore(self) -> None:
        """Forget that the step has run: it has moved running statistics, or trained."""
        if self.spec.backward:
            self.initialize()

    def save(self, folder: Path) -> None:
        """Write output and gradients; see :func:`save_results`."""
        self.restore()
        save_results(folder, self.results())
        self.initialize()  # running statistics have moved

    # -------------------------------------------------------------------------
    # What is looked at, by steps that are not timed.

    def results(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the output and, behind it, all gradients by name."""
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
        """Return the output as the phase computes it, dropout off."""
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
        """Return the loss of the minibatch, dropout off."""
        loss = self._loss().loss
        assert loss is not None, "it is fetched"
        return loss

    def descend(self, rate: float) -> None:
        """Train one step at another rate; in the phase without updates, by hand."""
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
        """Return the function of output, labels and all tensors by name to a loss.

        Args:
            kind: ``model`` has L2 terms of tensors; ``l2`` and ``sum`` take no labels.
        """
        form = self.model.loss.kind if kind in ("model", "unregularised") else kind
        decays = self.model.decays if kind == "model" else ()
        terms = [(f"{decay.node}/{decay.tensor}", decay.factor) for decay in decays]
        # Plain functions: a compiler follows them.
        cross_entropy, half_square = self.losses.cross_entropy, self.losses.half_square
        measure = half_square if form == "l2" else self.losses.total

        def loss(output: Any, labels: Any, tensors: Mapping[str, Any]) -> Any:
            classified = form == "cross-entropy" and labels is not None
            total = cross_entropy(output, labels) if classified else measure(output)
            for name, factor in terms:
                total = total + factor * half_square(tensors[name])
            return total

        return loss


def product_flops(calls: Iterable[RecordedCall]) -> int:
    """Return the FLOPs of all convolutions and products among a step's calls."""
    return sum(call.count * (meaning_of(call).product_flops or 0) for call in calls)


def host_arrays(batch: Batch, layout: str) -> tuple[NDArray[Any], ...]:
    """Return images and labels as frameworks take them whose labels are 32 bits wide."""
    images = arranged(batch.images, layout)
    return (images,) if batch.labels is None else (images, batch.labels.astype(np.int32))


# -----------------------------------------------------------------------------
# What must hold before a step is timed: it is the graph, has gradients, and learns.


def run_checks(model: Model, made: CatalogueModel) -> list[Check]:
    """Run all checks that the phase allows; afterwards the weights are as before.

    Args:
        model: what the step must be.
        made: with the step.
    """
    backward = made.spec.backward
    multiplied = macs(model, "training" if backward else "forward")  # for one image
    checks = [
        _shapes(model, made),
        _same("parameters", made.elements(), parameters(model)),
        _same("flops", made.flops(), 2 * multiplied * model.batch),
    ]
    if backward:
        verdict, norm = _gradients(made)
        checks += [verdict, _descent(model, made, norm)]
        made.initialize()
    return checks


def _shapes(model: Model, made: CatalogueModel) -> Check:
    shapes = made.shapes()
    wrong = [
        f"{node.name} {shapes.get(node.name)} and not {(model.batch, *node.shape)}"
        for node in model
        if shapes.get(node.name) != (model.batch, *node.shape)
    ]
    text = "; ".join(wrong[:_LISTED]) or f"{len(model.nodes)} nodes as in the graph"
    return Check(name="shapes", status="failed" if wrong else "ok", detail=text)


def _same(name: str, number: int, expected: int) -> Check:
    if number == expected:
        return Check(name=name, status="ok", detail=f"{number:,}")
    return Check(name=name, status="failed", detail=f"{number:,} and not {expected:,}")


def _gradients(made: CatalogueModel) -> tuple[Check, float]:
    """Return the verdict and the squared norm of all gradients together."""
    wrong, norm, count = [], 0.0, 0
    for name, gradient in made.gradients():
        flat = gradient.reshape(-1)
        square = float(np.dot(flat, flat))
        if not math.isfinite(square):
            wrong.append(f"{name} is not finite")
        elif square == 0:
            wrong.append(f"{name} is zero")
        norm, count = norm + square, count + 1
    text = "; ".join(wrong[:_LISTED]) or f"{count} tensors, all finite, none zero"
    status = "failed" if wrong else "ok"
    return Check(name="gradients", status=status, detail=text), norm


def _descent(model: Model, made: CatalogueModel, norm: float) -> Check:
    """Train a few steps on the same minibatch.

    Random weights may be far from where a script's own learning rate is of use: none is taken that
    promises, to first order, to lower the loss by more than a twentieth at once.
    """
    before = made.batch_loss()
    rate = model.optimizer.rate
    if norm > 0 and math.isfinite(norm) and math.isfinite(before):
        rate = min(rate, _SHARE * abs(before) / norm)
    for _ in range(_STEPS):
        made.descend(rate)
    after = made.batch_loss()
    text = f"loss {before:.6g} to {after:.6g} in {_STEPS} steps at a rate of {rate:.3g}"
    lower = math.isfinite(after) and after < before
    return Check(name="descent", status="ok" if lower else "failed", detail=text)
