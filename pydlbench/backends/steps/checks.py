"""What must hold before a step is timed: it is the graph, has gradients, and learns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pydlbench.models.counts import macs, parameters
from pydlbench.records.step import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec

#: Steps of the descent, and by how much the first of them is to lower the loss at the most.
_STEPS = 4
_SHARE = 0.05
_LISTED = 3


class _Checked(Protocol):
    """What a network says of itself, see ``steps.catalogue.CatalogueModel``."""

    case: StepSpec

    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def elements(self) -> int: ...

    def flops(self) -> int: ...

    def gradients(self) -> Iterator[tuple[str, NDArray[Any]]]: ...

    def batch_loss(self) -> float: ...

    def descend(self, rate: float) -> None: ...

    def initialize(self) -> None: ...


def run_checks(model: Model, made: _Checked) -> list[Check]:
    """Run all checks that the phase allows; afterwards the weights are as before.

    Args:
        model: what the step must be.
        made: with the step.
    """
    backward = made.case.backward
    multiplied = macs(model, "training" if backward else "forward")  # for one image
    found = [
        _shapes(model, made),
        _same("parameters", made.elements(), parameters(model)),
        _same("flops", made.flops(), 2 * multiplied * model.batch),
    ]
    if backward:
        verdict, norm = _gradients(made)
        found += [verdict, _descent(model, made, norm)]
        made.initialize()
    return found


def _shapes(model: Model, made: _Checked) -> Check:
    shapes = made.shapes()
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


def _gradients(made: _Checked) -> tuple[Check, float]:
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


def _descent(model: Model, made: _Checked, norm: float) -> Check:
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
