"""The worker's side of steps: builds a model in the worker's framework and prepares its step."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.steps.catalogue import CatalogueModel
from pydlbench.backends.steps.definition import StepModel
from pydlbench.backends.steps.device import step_kernel
from pydlbench.backends.steps.inputs import Batch, make_batch, make_weights
from pydlbench.backends.steps.registry import worker_of
from pydlbench.backends.steps.timed_results import TimedResults
from pydlbench.backends.steps.trace import TracedSteps
from pydlbench.backends.steps.user_model import UserModel
from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.models.graph import Model
from pydlbench.records.step import StepFacts, StepKernel, StepPreparation, StepSpec


def model_of(backend: FrameworkBackend, spec: StepSpec, disturbance: float = 0.0) -> StepModel:
    """Build the model of a case, from the catalogue or the user's code; nothing has run yet.

    Args:
        backend: the worker's backend.
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
    """Build a given graph in a case's framework.

    Args:
        model: the graph, instead of the one that the case names.
        spec: how the model is run.
        batch: images and labels; None for synthetic ones.
        disturbance: see :class:`StepPreparation`.
    """
    weights = make_weights(model, spec.seed, disturbance)
    make = worker_of(spec.framework).catalogue_model
    return make(model, weights, spec, batch or make_batch(model, spec.seed))


def _timed_results(
    model: StepModel, backend: FrameworkBackend, preparation: StepPreparation
) -> TimedResults | None:
    """Replay results of other processes; return the recorder of this one's, if requested."""
    # TensorFlow's inputs are constants, and a GPU's samples are not taken one by one.
    if not isinstance(model, UserModel) or backend.name != "torch" or backend.runtime is not None:
        return None
    if preparation.load is None:
        return None
    timed = TimedResults(model, preparation.load, preparation.timed)
    for folder in preparation.replays:
        timed.replay(Path(folder))
    return None if preparation.timed is None or not timed.changes else timed


def serve_step(
    backend: FrameworkBackend,
    spec: StepSpec,
    preparation: StepPreparation,
    graph: Model | None = None,
    batch: Batch | None = None,
) -> StepKernel:
    """Prepare the step of a case to be timed; see ``requests.request_step``.

    Args:
        backend: the worker's backend.
        spec: the step.
        preparation: which checks are made, and what is saved.
        graph: graph to run instead of the model that the case names.
        batch: images and labels for that graph; None for synthetic ones.
    """
    if backend.name != spec.framework:
        raise UsageError(f"--framework {spec.framework}: asked of a worker of {backend.name}")
    start = time.perf_counter()
    if graph is None:
        model = model_of(backend, spec, preparation.disturbance)
    else:
        model = catalogue_model(graph, spec, batch, preparation.disturbance)
    with model:
        if preparation.other_fusion:
            model.change_fusion()
        if preparation.save is not None or preparation.load is not None:
            model.exchange(preparation)
        result = model.run()
        model.synchronize()
        setup_s = time.perf_counter() - start
        start = time.perf_counter()
        checks = model.checks(result) if preparation.checks else ()
        if preparation.save is not None:
            model.save(Path(preparation.save), result)
        model_facts = model.facts(result)
        del result
        timed = _timed_results(model, backend, preparation)
    environment = {**backend.describe(), **model_facts.pop("environment")}
    if spec.on_gpu:
        environment["gpu"] = model.gpu()
    facts = StepFacts(
        library=backend.library,
        timing="host-sync" if spec.on_gpu else "steady",
        setup_s=setup_s,
        checks=checks,
        checks_s=time.perf_counter() - start,
        notes=tuple(model.notes),
        environment=environment,
        **model_facts,
    )
    # The clock never reads outputs, so that the operator has none.
    call = model.run if timed is None else timed.call
    operator: Any = SimpleNamespace(call=call, wait=model.synchronize)

    def traced() -> TracedSteps:
        with model:
            tracer = model.tracer(model.run)
            if isinstance(model, CatalogueModel):
                model.restore()  # recording has run the step
                model.run()  # the recorded step has an optimizer's state
        # The model is also the context that sets the precision.
        return TracedSteps(tracer, model.run, backend.cpus, lambda: model)

    kernel = step_kernel(backend, operator, lambda: model, facts, traced)
    if timed is not None:
        timed.watch(kernel.clock)
    kernel.clock.parts = model.swapped_calls()
    return kernel
