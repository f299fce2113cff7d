"""Compares two frameworks: same weights, same images, same results."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from pydlbench.records.agreement import DISTURBANCE, Agreement
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.runner.session import Session
from pydlbench.steps.run import prepare_step
from pydlbench.words import FRAMEWORKS


def agree(step: StepSpec, session: Session, frameworks: tuple[str, str] = FRAMEWORKS) -> Agreement:
    """Run a step once in each of two frameworks and compare output and gradients, whole tensors.

    In float32, without dropout, each framework in its first mode.

    Args:
        step: its model, batch and phase are used.
        session: provides the workers.
        frameworks: the two frameworks; errors are relative to the first one.

    Raises:
        PydlbenchError: a framework is missing or refuses.
    """
    with tempfile.TemporaryDirectory() as name:
        first, second = (Path(name) / framework for framework in frameworks)
        for folder in (second, first):
            _saved(step, folder.name, session, folder)
        agreement = compare(first, second)
        if agreement.check.status != "ok":
            disturbed = Path(name) / "disturbed"
            _saved(step, first.name, session, first)
            _saved(step, first.name, session, disturbed, DISTURBANCE)
            agreement = msgspec.structs.replace(agreement, floors=compare(first, disturbed).norms)
        return agreement


def _saved(
    step: StepSpec, framework: str, session: Session, folder: Path, disturbance: float = 0.0
) -> None:
    """Have a framework write output and gradients into a folder."""
    folder.mkdir(exist_ok=True)
    own = msgspec.structs.replace(
        step, framework=framework, mode=None, precision="fp32", layout="nhwc", dropout=False
    )
    how = StepPreparation(checks=False, save=str(folder), disturbance=disturbance)
    prepare_step(own, session, preparation=how).release()


def compare(first: Path, second: Path) -> Agreement:
    """Compare the results of two frameworks in folders, and delete each file once it is read.

    Args:
        first: errors are relative to it.
        second: the other folder; folders are named after their frameworks.
    """
    names = [(folder / "names.txt").read_text().splitlines() for folder in (first, second)]
    assert names[0] == names[1], (names[0], names[1])
    errors, norms = {}, {}
    for number, name in enumerate(names[0]):
        files = first / f"{number}.npy", second / f"{number}.npy"
        errors[name], norms[name] = _errors(*files)
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
        norms=norms,
    )


def _errors(first: Path, second: Path) -> tuple[float, float]:
    """Return the largest difference over the largest value, and the ratio of norms.

    If all values are zero, the difference itself. Infinite if shapes differ, or it is not finite.
    """
    own, other = np.load(first), np.load(second)
    if own.shape != other.shape:
        return math.inf, math.inf
    largest = float(np.abs(own).max())
    norm = math.sqrt(np.dot(own.ravel(), own.ravel()))
    np.subtract(own, other, out=other)
    error = float(np.abs(other).max()) / (largest or 1.0)
    whole = math.sqrt(np.dot(other.ravel(), other.ravel())) / (norm or 1.0)
    return (error, whole) if math.isfinite(error) else (math.inf, math.inf)
