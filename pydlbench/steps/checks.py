"""What must hold before a step is timed: it is the graph, has gradients, learns, and agrees."""

from __future__ import annotations

import abc
import dataclasses
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from pydlbench.models.counts import macs, parameters
from pydlbench.records.record import Record
from pydlbench.records.step import Check, StepPreparation
from pydlbench.steps.definition import FrameworkModel, StepDefinition
from pydlbench.steps.run import prepare_step
from pydlbench.words import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.steps.definition import Fetch, LossKind, Step

__all__ = ["Agreement", "Inspection", "agree", "compare", "run_checks"]


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
    @abc.abstractmethod
    def library(self) -> str:
        """Name and version of the framework."""

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


# -----------------------------------------------------------------------------
# PyTorch and TensorFlow held against each other: same weights, same images, same numbers.

#: The largest relative error of a float32 output or gradient that still is rounding: each of a
#: hundred layers sums thousands of products in an order of its own.
TOLERANCE = 1e-3
#: Relative change of the weights that tells how far rounding carries: a ReLU that opens in one
#: of two computations changes the gradients of everything before it.
DISTURBANCE = 1e-6
_FLOORS = 2.0


class Agreement(Record, frozen=True, kw_only=True):
    """How far two frameworks' float32 numbers are apart.

    An error is the largest difference in a tensor over the largest value in it.

    Attributes:
        frameworks: which two; the second one's error is stated.
        output: error of the output.
        gradients: largest error of a gradient; None without a backward phase.
        worst: whose gradient that is.
        median: of the gradients' errors.
        tensors: error by name, ``output`` among them.
        floor: the same error of the first framework against itself, all weights changed by one
            part in a million: how far rounding alone may carry; None where nobody had to ask.
        tolerance: largest error allowed, or twice the floor.
    """

    frameworks: tuple[str, ...]
    output: float
    gradients: float | None
    worst: str | None
    median: float | None
    tensors: dict[str, float]
    floor: float | None = None
    tolerance: float = TOLERANCE

    @property
    def check(self) -> Check:
        """The same as a check, to stand beside the others."""
        largest = max(self.tensors.values())
        text = f"output {self.output:.2g}"
        if self.gradients is not None:
            text += f", gradients {self.gradients:.2g} ({self.worst}), half below {self.median:.2g}"
        allowed = max(self.tolerance, _FLOORS * (self.floor or 0.0))
        text += f" relative, tolerance {self.tolerance:g}"
        if self.floor is not None:
            text += (
                f"; {self.frameworks[0]} itself moves by {self.floor:.2g} when its weights do by "
                f"{DISTURBANCE:g}"
            )
        # Whatever the gradients of a deep network do, its output does not jump.
        good = largest <= allowed and self.output <= max(self.tolerance, self.floor or 0.0)
        return Check(name="agreement", status="ok" if good else "failed", detail=text)


def agree(case: StepSpec, session: Session, tolerance: float = TOLERANCE) -> Agreement:
    """Run a step once in each framework and compare output and gradients, whole tensors.

    In float32, with dropout off, each framework in its first mode.

    Args:
        case: model, batch and phase; the rest is as said.
        session: whose workers are used.
        tolerance: see :class:`Agreement`.

    Raises:
        PydlbenchError: a framework is missing or refuses.
    """
    with tempfile.TemporaryDirectory() as name:
        first, second, disturbed = (Path(name) / one for one in (*FRAMEWORKS, "disturbed"))
        for framework, folder in zip(FRAMEWORKS, (first, second), strict=True):
            _saved(case, framework, session, folder)
        found = compare(first, second, tolerance)
        if found.check.status != "ok":
            _saved(case, FRAMEWORKS[0], session, first)
            _saved(case, FRAMEWORKS[0], session, disturbed, DISTURBANCE)
            floor = max(compare(first, disturbed).tensors.values())
            found = msgspec.structs.replace(found, floor=floor)
        return found


def _saved(
    case: StepSpec, framework: str, session: Session, folder: Path, disturbance: float = 0.0
) -> None:
    """Have a framework write output and gradients into a folder."""
    folder.mkdir(exist_ok=True)
    own = msgspec.structs.replace(
        case, framework=framework, mode=None, precision="fp32", layout="nhwc", dropout=False
    )
    how = StepPreparation(checks=False, save=str(folder), disturbance=disturbance)
    prepare_step(own, session, preparation=how).release()


def compare(first: Path, second: Path, tolerance: float = TOLERANCE) -> Agreement:
    """Compare what two frameworks have saved in folders; deletes each file once it is read.

    Args:
        first: the one that errors are relative to.
        second: the other; folders are named after their frameworks.
        tolerance: see :class:`Agreement`.
    """
    names = [(folder / "names.txt").read_text().splitlines() for folder in (first, second)]
    assert names[0] == names[1], (names[0], names[1])
    errors = {}
    for number, name in enumerate(names[0]):
        files = first / f"{number}.npy", second / f"{number}.npy"
        errors[name] = _error(*files)
        for file in files:
            file.unlink()
    gradients = {name: error for name, error in errors.items() if name != "output"}
    ranked = sorted(gradients, key=lambda name: gradients[name])
    return Agreement(
        frameworks=(first.name, second.name),
        output=errors["output"],
        gradients=gradients[ranked[-1]] if ranked else None,
        worst=ranked[-1] if ranked else None,
        median=gradients[ranked[len(ranked) // 2]] if ranked else None,
        tensors=errors,
        tolerance=tolerance,
    )


def _error(first: Path, second: Path) -> float:
    """The largest difference over the largest value; infinite where shapes or NaNs differ."""
    import numpy as np

    one, other = np.load(first), np.load(second)
    if one.shape != other.shape:
        return math.inf
    largest: Any = np.abs(one).max()
    np.subtract(one, other, out=other)
    error = float(np.abs(other).max() / largest) if largest > 0 else float(np.abs(other).max())
    return error if math.isfinite(error) else math.inf
