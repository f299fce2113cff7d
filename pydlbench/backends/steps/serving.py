"""A worker's side of steps: builds the model in the worker's framework and makes it ready."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pydlbench.backends.steps.catalogue import CatalogueModel
from pydlbench.backends.steps.device import step_kernel
from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.registry import worker_of
from pydlbench.backends.steps.trace import TracedSteps
from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.records.step import StepFacts, StepPreparation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.steps.definition import StepModel
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepKernel, StepSpec


def model_of(backend: FrameworkBackend, spec: StepSpec, disturbance: float = 0.0) -> StepModel:
    """Return the model of a case in its framework, whoever has written it; nothing has been run.

    Args:
        backend: of the worker.
        spec: the step.
        disturbance: see :class:`StepPreparation`.

    Raises:
        UnsupportedError: the framework has no such precision, layout or operator on this device.
        UsageError: a training phase without an optimizer.
    """
    worker = worker_of(spec.framework)
    if spec.own is not None or worker.runs_files:
        return worker.user_model(backend, spec)
    model = build_model(spec.model, batch=spec.batch, **spec.options)
    return catalogue_model(model, spec, disturbance=disturbance)


def catalogue_model(
    model: Model, spec: StepSpec, batch: Batch | None = None, disturbance: float = 0.0
) -> CatalogueModel:
    """Return a given graph in a case's framework.

    Args:
        model: the graph; the case's name and options are not looked at.
        spec: how it is run.
        batch: images and labels; None for synthetic ones.
        disturbance: see :class:`StepPreparation`.
    """
    weights = make_weights(model, spec.seed, disturbance)
    make = worker_of(spec.framework).catalogue_model
    return make(model, weights, spec, batch or make_batch(model, spec.seed))


def serve_step(
    backend: FrameworkBackend, spec: StepSpec, preparation: StepPreparation
) -> StepKernel:
    """Make the step of a case ready to be timed; see ``requests.request_step``.

    Args:
        backend: of the worker.
        spec: the step.
        preparation: with which checks.
    """
    return _prepared(
        backend, spec, preparation, lambda: model_of(backend, spec, preparation.disturbance)
    )


def serve_graph(
    backend: FrameworkBackend,
    model: Model,
    spec: StepSpec,
    preparation: StepPreparation,
    batch: Batch | None = None,
) -> StepKernel:
    """Make a step of a given graph ready; see :func:`catalogue_model` and :func:`serve_step`."""
    return _prepared(
        backend,
        spec,
        preparation,
        lambda: catalogue_model(model, spec, batch, preparation.disturbance),
    )


def _prepared(
    backend: FrameworkBackend,
    spec: StepSpec,
    preparation: StepPreparation,
    make: Callable[[], StepModel],
) -> StepKernel:
    if backend.name != spec.framework:
        raise UsageError(f"--framework {spec.framework}: asked of a worker of {backend.name}")
    start = time.perf_counter()
    made = make()
    with made:
        if preparation.folded:
            made.fold_normalisations()
        result = made.run()
        made.synchronize()
        setup_s = time.perf_counter() - start
        start = time.perf_counter()
        checks = made.checks(result) if preparation.checks else ()
        if preparation.save is not None and isinstance(made, CatalogueModel):
            made.save(Path(preparation.save))
        known = made.facts(result)
        del result
    environment = {**backend.describe(), **known.pop("environment")}
    if spec.on_gpu:
        environment["gpu"] = made.gpu()
    facts = StepFacts(
        library=backend.library,
        timing="host-sync" if spec.on_gpu else "steady",
        setup_s=setup_s,
        checks=checks,
        checks_s=time.perf_counter() - start,
        notes=tuple(made.notes),
        environment=environment,
        **known,
    )
    # It has no outputs by role, which the clock never asks for.
    operator: Any = SimpleNamespace(call=made.run, wait=made.synchronize)

    def traced() -> TracedSteps:
        with made:
            tracer = made.tracer(made.run)
            if isinstance(made, CatalogueModel):
                made.restore()  # recording has run the step
        # Meanwhile the framework computes in the step's precision.
        return TracedSteps(tracer, made.run, backend.cpus, lambda: made)

    return step_kernel(backend, operator, lambda: made, facts, traced)
