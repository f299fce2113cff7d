"""Requests that onnxruntime's worker serves; see ``steps.registry.FrameworkWorker``."""

from typing import Final

from pydlbench.backends.onnxruntime.step import OnnxModel, serve_call_list, serve_calls

__all__ = [
    "runs_files",
    "serve_call_list",
    "serve_calls",
    "user_model",
]

#: Whether the worker runs model files.
runs_files: Final = True
user_model: Final = OnnxModel
