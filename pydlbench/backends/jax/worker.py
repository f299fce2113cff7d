"""Requests that JAX's worker serves; see ``steps.registry.FrameworkWorker``."""

from typing import Final

from pydlbench.backends.jax.calls import serve_call_list, serve_calls
from pydlbench.backends.jax.step import JaxModel

__all__ = ["catalogue_model", "runs_files", "serve_call_list", "serve_calls"]

#: Whether the worker runs model files.
runs_files: Final = False
catalogue_model: Final = JaxModel
