"""Requests that TensorFlow's worker serves; see ``steps.registry.FrameworkWorker``."""

from typing import Final

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.steps.serving import model_of
from pydlbench.backends.steps.timed_calls import OperatorsKernel
from pydlbench.backends.tensorflow.steps.calls_alone import serve_calls, serve_logged_calls
from pydlbench.backends.tensorflow.steps.step import TensorflowModel, TracedModel
from pydlbench.backends.tensorflow.steps.user_model import UserTensorflowModel
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts

__all__ = [
    "catalogue_model",
    "runs_files",
    "serve_call_list",
    "serve_calls",
    "serve_logged_calls",
    "user_model",
]

#: Whether the worker runs model files.
runs_files: Final = False
catalogue_model: Final = TensorflowModel
user_model: Final = UserTensorflowModel


def serve_call_list(backend: FrameworkBackend, spec: StepSpec) -> OperatorsKernel:
    """List the nodes of a step's optimized graph, or the groups that XLA compiles."""
    model = model_of(backend, spec)
    assert isinstance(model, TracedModel), "all models of this worker are"
    with model:
        calls = model.record()
    facts = OperatorsFacts(calls=calls, batch=model.batch, notes=tuple(model.notes))
    return OperatorsKernel([], facts, backend.cpus)
