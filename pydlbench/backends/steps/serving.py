"""A worker's side of steps: builds the model in the worker's framework and makes it ready."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.steps.checks import run_checks
from pydlbench.backends.steps.definition import Guarded, definition_of
from pydlbench.backends.steps.device import step_kernel
from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.registry import worker_of
from pydlbench.backends.steps.trace import TracedSteps, facts_of
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.models import build_model
from pydlbench.models.counts import parameters
from pydlbench.records.step import StepFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.steps.checks import Inspection
    from pydlbench.backends.steps.definition import StepModel
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.backends.steps.trace import StepTracer
    from pydlbench.models.graph import Model
    from pydlbench.records.step import Check, StepKernel, StepPreparation, StepSpec


def prepare_step(
    backend: FrameworkBackend, case: StepSpec, preparation: StepPreparation
) -> StepKernel:
    """Make the step of a case ready to be timed; see ``operations.prepare_step``.

    Args:
        backend: of the worker.
        case: the step.
        preparation: with which checks.
    """
    worker = worker_of(case.framework)
    if case.own is None and not worker.runs_files:
        model = build_model(case.model, batch=case.batch, **case.options)
        return prepare_model(backend, model, case, preparation)
    return _prepared(backend, case, preparation, lambda: worker.own_model(backend, case))


def prepare_model(
    backend: FrameworkBackend,
    model: Model,
    case: StepSpec,
    preparation: StepPreparation,
    batch: Batch | None = None,
) -> StepKernel:
    """Make a step of a given graph ready.

    Args:
        backend: PyTorch's, TensorFlow's or JAX's.
        model: the graph; the case's name and options are not looked at.
        case: how it is run.
        preparation: with which checks.
        batch: images and labels; None for synthetic ones.
    """
    made = batch or make_batch(model, case.seed)
    return _prepared(backend, case, preparation, lambda: _Catalogue(model, case, preparation, made))


def _prepared(
    backend: FrameworkBackend,
    case: StepSpec,
    preparation: StepPreparation,
    make: Callable[[], StepModel],
) -> StepKernel:
    if backend.name != case.framework:
        raise UsageError(f"--framework {case.framework}: asked of a worker of {backend.name}")
    start = time.perf_counter()
    made = make()
    with made:
        found = made.run()
        made.synchronize()
        setup_s = time.perf_counter() - start
        start = time.perf_counter()
        checks = made.checks(found) if preparation.checks else ()
        known = made.facts(found)
        del found
        tracer, untraced = _tracer(made, case) if preparation.trace else (None, "")
    environment = {**backend.describe(), **known.pop("environment")}
    facts = StepFacts(
        library=backend.library,
        timing="host-sync" if case.on_gpu else "steady",
        setup_s=setup_s,
        checks=checks,
        checks_s=time.perf_counter() - start,
        notes=tuple(made.notes),
        environment=environment,
        trace=None if tracer is None else facts_of(tracer),
        untraced=untraced,
        **known,
    )
    # It has no outputs by role, which the clock never asks for.
    operator: Any = SimpleNamespace(call=made.run, wait=made.synchronize)
    # Meanwhile the framework computes in the step's precision.
    traced = None if tracer is None else TracedSteps(tracer, made.run, backend.cpus, lambda: made)
    return step_kernel(
        backend, operator, lambda: made, facts, graph=preparation.graph, traced=traced
    )


def _tracer(made: StepModel, case: StepSpec) -> tuple[StepTracer | None, str]:
    """Return what runs a step traced; None, and why, where nothing does."""
    try:
        if case.on_gpu:
            raise UnsupportedError(
                "on a GPU calls return before their kernels run; nearest: --device cpu"
            )
        return made.tracer(made.run), ""
    except UnsupportedError as error:
        return None, str(error)


class _Catalogue(Guarded):
    """A model of the catalogue with its step; see ``steps.definition.StepModel``.

    Args:
        model: the graph.
        case: how it is run.
        preparation: how weights are changed, and where results are saved.
        batch: images and labels.
    """

    def __init__(
        self, model: Model, case: StepSpec, preparation: StepPreparation, batch: Batch
    ) -> None:
        super().__init__()
        self._graph, self._case, self._saves = model, case, preparation.save
        weights = make_weights(model, case.seed, preparation.disturbance)
        self._inspection = build_step(model, weights, case, batch)
        self.run = self._inspection.step
        self.notes = list(self._inspection.notes)

    def guards(self) -> Iterable[AbstractContextManager[Any]]:
        """Return the model of the framework."""
        return (self._inspection.model,)

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        self._inspection.model.synchronize()

    def tracer(self, run: Callable[[], Any]) -> StepTracer:
        """Return what runs the step traced."""
        found: StepTracer = self._inspection.model.tracer(run)
        self._restore()
        return found

    def checks(self, found: Any) -> tuple[Check, ...]:
        """Hold the step against its graph."""
        del found
        self._restore()
        return tuple(run_checks(self._graph, self._case, self._inspection))

    def facts(self, found: Any) -> dict[str, Any]:
        """Return what is known of the model; save its results first, where that was asked for."""
        del found
        self._restore()
        if self._saves is not None:
            _save(self._inspection, Path(self._saves), self._case.backward)
            self._inspection.model.initialize()  # running statistics have moved
        model = self._graph
        return {
            "batch": model.batch,
            "output": (model.batch, *model.output.shape),
            "parameters": parameters(model),
            "environment": {"gpu": self._inspection.gpu()} if self._case.on_gpu else {},
        }

    def _restore(self) -> None:
        """Forget that the step has run: it has moved running statistics, or trained."""
        if self._case.backward:
            self._inspection.model.initialize()


def build_step(
    model: Model, weights: Mapping[str, NDArray[Any]], case: StepSpec, batch: Batch
) -> Inspection[Any]:
    """Build a step in this process; nothing has been run.

    Args:
        model: the graph.
        weights: by name.
        case: how it is run.
        batch: images and labels.

    Returns:
        The step with its model, ready to be looked at.

    Raises:
        UnsupportedError: the framework has no such precision, layout or operator on this device.
        UsageError: a training phase without an optimizer.
    """
    made, inspect = worker_of(case.framework).catalogue_model(model, weights, case, batch)
    definition = definition_of(case, model)
    with made:
        step = made.prepare(definition)
    found: Inspection[Any] = inspect(made, step, definition)
    return found


def _save(inspection: Inspection[Any], folder: Path, backward: bool) -> None:
    """Write output and gradients as numbered files, and their names in that order."""
    names = ["output"]
    np.save(folder / "0.npy", inspection.output())
    if backward:
        for number, (name, gradient) in enumerate(inspection.gradients(), start=1):
            np.save(folder / f"{number}.npy", gradient)
            names.append(name)
    (folder / "names.txt").write_text("\n".join(names))
