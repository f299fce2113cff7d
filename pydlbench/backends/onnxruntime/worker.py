"""What onnxruntime's worker is asked for; see ``steps.registry.FrameworkWorker``."""

from __future__ import annotations

from typing import Final

from pydlbench.backends.onnxruntime.replay import serve_call_list, serve_calls
from pydlbench.backends.onnxruntime.step import OnnxModel

__all__ = [
    "runs_files",
    "serve_call_list",
    "serve_calls",
    "user_model",
]

#: Files are run, and no modules: a network of the catalogue is written as one.
runs_files: Final = True
user_model: Final = OnnxModel
