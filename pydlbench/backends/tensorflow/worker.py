"""What TensorFlow's worker is asked for; see ``steps.registry.FrameworkWorker``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.backends.steps.serving import model_of
from pydlbench.backends.steps.timed_calls import OperatorsKernel
from pydlbench.backends.tensorflow.steps.calls_alone import serve_calls
from pydlbench.backends.tensorflow.steps.step import TensorflowModel, TracedModel
from pydlbench.backends.tensorflow.steps.user_model import UserTensorflowModel
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.records.step import StepSpec

__all__ = [
    "catalogue_model",
    "runs_files",
    "serve_call_list",
    "serve_calls",
    "user_model",
]

#: Whether files are run, and no modules.
runs_files: Final = False
catalogue_model: Final = TensorflowModel
user_model: Final = UserTensorflowModel


def serve_call_list(backend: FrameworkBackend, spec: StepSpec) -> OperatorsKernel:
    """List the nodes of a step's graph as it is run, or the groups that XLA makes of them."""
    made = model_of(backend, spec)
    assert isinstance(made, TracedModel), "all models of this worker are"
    with made:
        calls = made.record()
    facts = OperatorsFacts(
        calls=calls,
        batch=made.batch,
        notes=tuple(made.notes),
    )
    return OperatorsKernel([], facts, backend.cpus)
