"""A worker's side of steps: builds the model in the worker's framework and makes it ready."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.errors import UsageError
from pydlbench.models.counts import parameters
from pydlbench.records.step import StepFacts
from pydlbench.steps.definition import definition_of
from pydlbench.steps.device import step_kernel
from pydlbench.steps.inputs import make_batch, make_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepKernel, StepPreparation, StepSpec
    from pydlbench.steps.checks import Inspection
    from pydlbench.steps.inputs import Batch


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
    if backend.name != case.framework:
        raise UsageError(f"--framework {case.framework}: asked of a worker of {backend.name}")
    start = time.perf_counter()
    weights = make_weights(model, case.seed, preparation.disturbance)
    batch = batch or make_batch(model, case.seed)
    inspection = build_step(model, weights, case, batch)
    made = inspection.model
    setup_s = time.perf_counter() - start
    start = time.perf_counter()
    with made:
        if case.backward:  # the first call has moved running statistics, or trained
            made.initialize()
        checks = []
        if preparation.checks:
            from pydlbench.steps.checks import run_checks

            checks = run_checks(model, case, inspection)
        if preparation.save is not None:
            _save(inspection, Path(preparation.save), case.backward)
            # Running statistics have moved.
            made.initialize()
    facts = StepFacts(
        library=backend.library,
        timing="host-sync" if case.on_gpu else "steady",
        batch=model.batch,
        output=(model.batch, *model.output.shape),
        parameters=parameters(model),
        setup_s=setup_s,
        checks=tuple(checks),
        checks_s=time.perf_counter() - start,
        notes=inspection.notes,
        environment={**backend.describe(), **({"gpu": inspection.gpu()} if case.on_gpu else {})},
    )
    # It has no outputs by role, which the clock never asks for.
    operator: Any = SimpleNamespace(call=inspection.step, wait=made.synchronize)
    # Meanwhile the framework computes in the step's precision.
    return step_kernel(backend, operator, lambda: made, facts, graph=preparation.graph)


def build_step(
    model: Model, weights: Mapping[str, NDArray[Any]], case: StepSpec, batch: Batch
) -> Inspection[Any]:
    """Build a step in this process; it has been called once, so it is traced and compiled.

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
    made: Any
    inspect: Any
    # Each framework is imported in its own process only.
    if case.framework == "torch":
        from pydlbench.steps.torch.inspection import TorchInspection
        from pydlbench.steps.torch.step import TorchModel

        made, inspect = TorchModel(model, weights, case, batch), TorchInspection
    elif case.framework == "jax":
        from pydlbench.steps.jax.inspection import JaxInspection
        from pydlbench.steps.jax.step import JaxModel

        made, inspect = JaxModel(model, weights, case, batch), JaxInspection
    else:
        from pydlbench.steps.tensorflow.inspection import TensorflowInspection
        from pydlbench.steps.tensorflow.step import TensorflowModel

        made, inspect = TensorflowModel(model, weights, case, batch), TensorflowInspection
    definition = definition_of(case, model)
    with made:
        step = made.prepare(definition)
        step()
        made.synchronize()
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
