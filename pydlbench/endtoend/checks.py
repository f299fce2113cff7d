"""What must hold before a step is timed: it is the graph, it has gradients, it learns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pydlbench.endtoend.facts import Check
from pydlbench.models.counts import macs, parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["Subject", "run_checks"]

#: Steps of the descent, and by how much the first of them is to lower the loss at the most.
_STEPS = 4
_SHARE = 0.05
_LISTED = 3


class Subject(Protocol):
    """A framework's step, seen from outside: arrays are float32, arranged as in the graph."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features)."""

    def parameters(self) -> int:
        """Return the number of trained elements."""

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in a step."""

    def output(self) -> NDArray[np.float32]:
        """Return the output as the phase computes it, dropout off."""

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each trained tensor by name."""

    def loss(self) -> float:
        """Return the loss of the minibatch, dropout off."""

    def descend(self, rate: float) -> None:
        """Train one step at another rate."""

    def reset(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Go back to the weights, and forget what training has left."""


def run_checks(
    model: Model, case: StepCase, subject: Subject, weights: Mapping[str, NDArray[np.float32]]
) -> list[Check]:
    """Run all checks that the phase allows; afterwards the weights are as before.

    Args:
        model: what the step must be.
        case: how it is run.
        subject: the step.
        weights: that it has started from.
    """
    backward = case.backward
    multiplied = macs(model, "training" if backward else "forward")  # for one image
    found = [
        _shapes(model, subject),
        _same("parameters", subject.parameters(), parameters(model)),
        _same("flops", subject.flops(), 2 * multiplied * model.batch),
    ]
    if backward:
        verdict, norm = _gradients(subject)
        found += [verdict, _descent(model, subject, norm)]
        subject.reset(weights)
    return found


def _shapes(model: Model, subject: Subject) -> Check:
    shapes = subject.shapes()
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


def _gradients(subject: Subject) -> tuple[Check, float]:
    """Return the verdict and the squared norm of all gradients together."""
    wrong, norm, count = [], 0.0, 0
    for name, gradient in subject.gradients():
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


def _descent(model: Model, subject: Subject, norm: float) -> Check:
    """Train a few steps on the same minibatch.

    Random weights may be far from where a script's own learning rate is of use: none is taken that
    promises, to first order, to lower the loss by more than a twentieth at once.
    """
    before = subject.loss()
    rate = model.optimizer.rate
    if norm > 0 and math.isfinite(norm) and math.isfinite(before):
        rate = min(rate, _SHARE * abs(before) / norm)
    for _ in range(_STEPS):
        subject.descend(rate)
    after = subject.loss()
    text = f"loss {before:.6g} to {after:.6g} in {_STEPS} steps at a rate of {rate:.3g}"
    lower = math.isfinite(after) and after < before
    return Check(name="descent", status="ok" if lower else "failed", detail=text)
