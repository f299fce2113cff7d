"""A network of the catalogue in a framework: its steps, and what they say of themselves."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.layouts import arranged, plain
from pydlbench.backends.steps.checks import run_checks
from pydlbench.backends.steps.definition import StepDefinition, StepModel, definition_of
from pydlbench.backends.steps.inputs import trained
from pydlbench.models.counts import parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from pydlbench.backends.steps.definition import Fetch, LossKind, Outcome, Step
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.models.graph import Model
    from pydlbench.records.step import Check


class CatalogueModel(StepModel):
    """A network with its weights in a framework, which makes its steps of definitions.

    All its steps share one set of weights. What it says of itself are float32 arrays, arranged as
    in the graph; it computes them with further steps.
    """

    #: The graph.
    model: Model
    #: To start from, by name.
    weights: Mapping[str, NDArray[Any]]
    #: Those that have been prepared.
    steps: list[Any]

    # -------------------------------------------------------------------------
    # What a framework does.

    @abc.abstractmethod
    def prepare(self, definition: StepDefinition) -> Step:
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
    def gpu(self) -> dict[str, Any]:
        """Return what the framework says of the step's GPU."""

    @abc.abstractmethod
    def plain(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return values of a tensor, or of its gradient, as they are by name, in float32."""

    def plain_output(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a fetched output arranged as in the graph."""
        return plain(array, self.case.layout) if array.ndim == 4 else array

    @abc.abstractmethod
    def subtract_gradients(self, rate: float) -> None:
        """Run the step, and subtract its gradients times the rate from the weights."""

    def prepare_forward(self, definition: StepDefinition) -> Step:
        """Build a step that only looks forward, and is not timed."""
        return self.prepare(definition)

    # -------------------------------------------------------------------------
    # The step of the case.

    @property
    def definition(self) -> StepDefinition:
        """The step of the case."""
        return definition_of(self.case, self.model)

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
        found: Outcome = self.step()
        return found

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
            "environment": {"gpu": self.gpu()} if self.case.on_gpu else {},
        }

    def restore(self) -> None:
        """Forget that the step has run: it has moved running statistics, or trained."""
        if self.case.backward:
            self.initialize()

    def save(self, folder: Path) -> None:
        """Write output and gradients as numbered files, and their names in that order."""
        self.restore()
        names = ["output"]
        np.save(folder / "0.npy", self.output())
        if self.case.backward:
            for number, (name, gradient) in enumerate(self.gradients(), start=1):
                np.save(folder / f"{number}.npy", gradient)
                names.append(name)
        (folder / "names.txt").write_text("\n".join(names))
        self.initialize()  # running statistics have moved

    # -------------------------------------------------------------------------
    # What is looked at, by steps that are not timed.

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
        found = self._without_dropout("none", "output")().output
        assert found is not None, "it is fetched"
        return self.plain_output(found.astype(np.float32, copy=False))

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each trained tensor by name."""
        found = self._gradients().gradients
        assert found is not None, "they are fetched"
        for name, array in zip(trained(self.model), found, strict=True):
            yield name, self.plain(name, array)

    def batch_loss(self) -> float:
        """Return the loss of the minibatch, dropout off."""
        found = self._loss().loss
        assert found is not None, "it is fetched"
        return found

    def descend(self, rate: float) -> None:
        """Train one step at another rate; in the phase without updates, by hand."""
        if self.definition.phase == "training":
            self.step(rate=rate)
        else:
            self.subtract_gradients(rate)

    @functools.cached_property
    def _gradients(self) -> Step:
        return self.prepare(self.gradients_only)

    @functools.cached_property
    def _loss(self) -> Step:
        return self._without_dropout(self.definition.loss, "loss")

    def _without_dropout(self, loss: LossKind, fetch: Fetch) -> Step:
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

    def loss_form(self, kind: LossKind) -> str:
        """Return what a loss computes of an output: ``cross-entropy``, ``l2`` or ``sum``."""
        return self.model.loss.kind if kind in ("model", "unregularised") else kind

    def decays(self, kind: LossKind) -> list[tuple[str, float]]:
        """Return the L2 terms of a loss: names of tensors, and factors."""
        decays = self.model.decays if kind == "model" else ()
        return [(f"{one.node}/{one.tensor}", one.factor) for one in decays]


def host_arrays(batch: Batch, layout: str) -> tuple[NDArray[Any], ...]:
    """Return images and labels as frameworks take them whose labels are 32 bits wide."""
    images = arranged(batch.images, layout)
    return (images,) if batch.labels is None else (images, batch.labels.astype(np.int32))
