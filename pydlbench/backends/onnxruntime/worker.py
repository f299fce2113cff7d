"""What onnxruntime's worker is asked for; see ``steps.registry.FrameworkWorker``."""

from __future__ import annotations

from typing import Final

from pydlbench.backends.onnxruntime.replay import prepare_calls, record_calls
from pydlbench.backends.onnxruntime.step import OnnxModel

__all__ = [
    "own_model",
    "prepare_calls",
    "record_calls",
    "runs_files",
]

#: Files are run, and no modules: a network of the catalogue is written as one.
runs_files: Final = True
own_model: Final = OnnxModel
