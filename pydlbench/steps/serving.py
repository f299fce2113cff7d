"""A worker's side of steps: builds the model in the worker's framework and makes it ready."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.models.counts import parameters
from pydlbench.records.step import StepCase, StepFacts, StepKernel, StepPreparation
from pydlbench.steps.inputs import make_batch, make_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.backends.base import Backend
    from pydlbench.backends.frameworks.backend import HostClock
    from pydlbench.models.graph import Model
    from pydlbench.steps.checks import Subject
    from pydlbench.steps.inputs import Batch

__all__ = ["Connection", "prepare", "prepare_model"]


def prepare(
    backend: Backend, case: Mapping[str, Any], preparation: Mapping[str, Any]
) -> StepKernel:
    """Make a step ready in the process of its framework.

    Args:
        backend: of the worker.
        case: a :class:`StepCase` in its JSON form.
        preparation: a :class:`StepPreparation` likewise.

    Raises:
        UsageError: no such model or option, or the worker is another framework's.
        UnsupportedError: the framework has not what is asked for.
    """
    step = StepCase.from_dict(case)
    model = build_model(step.model, batch=step.batch, **step.options)
    return prepare_model(backend, model, step, StepPreparation(**preparation))


def prepare_model(
    backend: Backend,
    model: Model,
    case: StepCase,
    preparation: StepPreparation,
    batch: Batch | None = None,
) -> StepKernel:
    """Make a step of a given graph ready.

    Args:
        backend: PyTorch's or TensorFlow's.
        model: the graph; the case's name and options are not looked at.
        case: how it is run.
        preparation: with which checks.
        batch: images and labels; None for synthetic ones.
    """
    if backend.name != case.framework:
        raise UsageError(f"--framework {case.framework}: asked of a worker of {backend.name}")
    connect = _connector(case.framework)
    weights = make_weights(model, case.seed, preparation.disturbance)
    start = time.perf_counter()
    made = connect(backend, model, weights, case, batch or make_batch(model, case.seed))
    setup_s = time.perf_counter() - start
    start = time.perf_counter()
    if case.backward:  # the first call has moved running statistics, or trained
        made.subject.reset(weights)
    checks = []
    if preparation.checks:
        from pydlbench.steps.checks import run_checks

        checks = run_checks(model, case, made.subject, weights)
    if preparation.save is not None:
        _save(made.subject, Path(preparation.save), case.backward)
        # Running statistics have moved.
        made.subject.reset(weights)
    facts = StepFacts(
        library=made.library,
        timing="host-sync" if case.on_gpu else "steady",
        batch=model.batch,
        output=(model.batch, *model.output.shape),
        parameters=parameters(model),
        setup_s=setup_s,
        checks=tuple(checks),
        checks_s=time.perf_counter() - start,
        notes=made.notes,
        environment={**backend.describe(), **({"gpu": made.gpu} if made.gpu else {})},
    )
    return StepKernel(made.clock, facts)


def _connector(framework: str) -> Callable[..., Any]:
    """Import what builds steps in a framework, which only its own process may do."""
    if framework == "torch":
        from pydlbench.steps.torch.inspection import connect as torch_connect

        return torch_connect
    from pydlbench.steps.tensorflow.inspection import connect as tensorflow_connect

    return tensorflow_connect


def _save(subject: Subject, folder: Path, backward: bool) -> None:
    """Write output and gradients as numbered files, and their names in that order."""
    names = ["output"]
    np.save(folder / "0.npy", subject.output())
    if backward:
        for number, (name, gradient) in enumerate(subject.gradients(), start=1):
            np.save(folder / f"{number}.npy", gradient)
            names.append(name)
    (folder / "names.txt").write_text("\n".join(names))


# -----------------------------------------------------------------------------
# What a framework's builder hands to whoever prepares a step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A step in its framework.

    Attributes:
        subject: what is checked.
        clock: what times it.
        library: name and version of the framework.
        notes: what a reader has to know.
        gpu: name, capability and memory of the GPU that runs it; None on a CPU.
    """

    subject: Subject
    clock: HostClock
    library: str
    notes: tuple[str, ...] = ()
    gpu: dict[str, Any] | None = None
