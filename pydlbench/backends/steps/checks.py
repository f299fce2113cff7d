"""What must hold before a step is timed: it is the graph, has gradients, and learns."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from pydlbench.backends.steps.definition import FrameworkModel, StepDefinition
from pydlbench.models.counts import macs, parameters
from pydlbench.records.step import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.steps.definition import Fetch, LossKind, Step
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec

#: Steps of the descent, and by how much the first of them is to lower the loss at the most.
_STEPS = 4
_SHARE = 0.05
_LISTED = 3

_Model = TypeVar("_Model", bound=FrameworkModel)


class Inspection(abc.ABC, Generic[_Model]):
    """A framework's step, seen from outside: arrays are float32, arranged as in the graph.

    What it looks at it computes with steps of the same model and the same weights.

    Args:
        model: in its framework.
        step: built, and not timed meanwhile.
        definition: of the step.
    """

    def __init__(self, model: _Model, step: Step, definition: StepDefinition) -> None:
        self.model, self.step, self.definition = model, step, definition
        self._gradients: Step | None = None
        self._loss: Step | None = None

    @abc.abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features)."""

    @abc.abstractmethod
    def parameters(self) -> int:
        """Return the number of trained elements."""

    @abc.abstractmethod
    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in a step."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        return ()

    @abc.abstractmethod
    def gpu(self) -> dict[str, Any]:
        """Return what the framework says of the step's GPU."""

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
        found = self._forward(self._without_dropout(loss="none", fetch=("output",)))().output
        assert found is not None, "it is fetched"
        return self._plain_output(found)

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each trained tensor by name."""
        if self._gradients is None:
            self._gradients = self.model.prepare(self.gradients_only)
        found = self._gradients().gradients
        assert found is not None, "they are fetched"
        return self._plain_gradients(found)

    def loss(self) -> float:
        """Return the loss of the minibatch, dropout off."""
        if self._loss is None:
            self._loss = self._forward(
                self._without_dropout(loss=self.definition.loss, fetch=("loss",))
            )
        found = self._loss().loss
        assert found is not None, "it is fetched"
        return found

    def descend(self, rate: float) -> None:
        """Train one step at another rate; in the phase without updates, by hand."""
        if self.definition.phase == "training":
            self.step(rate=rate)
        else:
            self._move_against_gradients(rate)

    def _forward(self, definition: StepDefinition) -> Step:
        """Build a step that only looks forward."""
        return self.model.prepare(definition)

    @abc.abstractmethod
    def _plain_output(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a fetched output arranged as in the graph."""

    @abc.abstractmethod
    def _plain_gradients(
        self, arrays: tuple[NDArray[np.float32], ...]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield fetched gradients by name, arranged as in the graph."""

    @abc.abstractmethod
    def _move_against_gradients(self, rate: float) -> None:
        """Run the step, and subtract its gradients times the rate from the weights."""

    def _without_dropout(self, loss: LossKind, fetch: tuple[Fetch, ...]) -> StepDefinition:
        return StepDefinition(
            name="inspection",
            phase="forward",
            propagation=self.definition.propagation,
            running_statistics=self.definition.running_statistics,
            dropout=False,
            loss=loss,
            fetch=fetch,
        )


def run_checks(model: Model, case: StepSpec, inspection: Inspection[Any]) -> list[Check]:
    """Run all checks that the phase allows; afterwards the weights are as before.

    Args:
        model: what the step must be.
        case: how it is run.
        inspection: of the step.
    """
    backward = case.backward
    multiplied = macs(model, "training" if backward else "forward")  # for one image
    found = [
        _shapes(model, inspection),
        _same("parameters", inspection.parameters(), parameters(model)),
        _same("flops", inspection.flops(), 2 * multiplied * model.batch),
    ]
    if backward:
        verdict, norm = _gradients(inspection)
        found += [verdict, _descent(model, inspection, norm)]
        inspection.model.initialize()
    return found


def _shapes(model: Model, inspection: Inspection[Any]) -> Check:
    shapes = inspection.shapes()
    wrong = [
        f"{node.name} {shapes.get(node.name)} and not {(model.batch, *node.shape)}"
        for node in model
        if shapes.get(node.name) != (model.batch, *node.shape)
    ]
    text = "; ".join(wrong[:_LISTED]) or f"{len(model.nodes)} nodes as in the graph"
    return Check(name="shapes", status="failed" if wrong else "ok", detail=text)


def _same(name: str, found: int, expected: int) -> Check:
    if found == expected:
        return Check(name=name, status="ok", detail=f"{found:,}")
    return Check(name=name, status="failed", detail=f"{found:,} and not {expected:,}")


def _gradients(inspection: Inspection[Any]) -> tuple[Check, float]:
    """Return the verdict and the squared norm of all gradients together."""
    wrong, norm, count = [], 0.0, 0
    for name, gradient in inspection.gradients():
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


def _descent(model: Model, inspection: Inspection[Any], norm: float) -> Check:
    """Train a few steps on the same minibatch.

    Random weights may be far from where a script's own learning rate is of use: none is taken that
    promises, to first order, to lower the loss by more than a twentieth at once.
    """
    before = inspection.loss()
    rate = model.optimizer.rate
    if norm > 0 and math.isfinite(norm) and math.isfinite(before):
        rate = min(rate, _SHARE * abs(before) / norm)
    for _ in range(_STEPS):
        inspection.descend(rate)
    after = inspection.loss()
    text = f"loss {before:.6g} to {after:.6g} in {_STEPS} steps at a rate of {rate:.3g}"
    lower = math.isfinite(after) and after < before
    return Check(name="descent", status="ok" if lower else "failed", detail=text)
