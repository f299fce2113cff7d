"""What TensorFlow's worker is asked for; see ``steps.registry.FrameworkWorker``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.operators import OperatorsKernel
from pydlbench.backends.tensorflow.calls import prepare_allocation, prepare_calls
from pydlbench.backends.tensorflow.inspection import TensorflowInspection
from pydlbench.backends.tensorflow.own import OwnModel
from pydlbench.backends.tensorflow.step import TensorflowModel, TracedModel
from pydlbench.models import build_model
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec

__all__ = [
    "catalogue_model",
    "own_model",
    "prepare_allocation",
    "prepare_calls",
    "record_calls",
    "runs_files",
]

#: Whether files are run, and no modules.
runs_files: Final = False


def own_model(backend: FrameworkBackend, case: StepSpec) -> OwnModel:
    """Build a model of the user's own."""
    del backend
    return OwnModel(case)


def catalogue_model(
    model: Model,
    weights: Mapping[str, NDArray[Any]],
    case: StepSpec,
    batch: Batch,
    *,
    separate: bool = False,
) -> tuple[TensorflowModel, type[TensorflowInspection]]:
    """Build a model of the catalogue; passes of one kind of gradient need nothing special."""
    del separate
    return TensorflowModel(model, weights, case, batch), TensorflowInspection


def record_calls(backend: FrameworkBackend, case: StepSpec) -> OperatorsKernel:
    """List the nodes of a step's graph as it is run, or the groups that XLA makes of them."""
    begin = time.perf_counter()
    made: TracedModel
    if case.own is not None:
        made = OwnModel(case)
        batch = made.batch
    else:
        model = build_model(case.model, batch=case.batch, **case.options)
        images, batch = make_batch(model, case.seed), model.batch
        made = TensorflowModel(model, make_weights(model, case.seed), case, images)
    with made:
        calls = made.record()
    facts = OperatorsFacts(
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        calls=calls,
        batch=batch,
        notes=tuple(made.notes),
    )
    return OperatorsKernel([], facts, backend.cpus)
