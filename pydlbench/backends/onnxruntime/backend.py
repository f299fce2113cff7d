"""The onnxruntime backend: ONNX files in sessions that share one pool of pinned threads.

After a run threads spin for a while. Threads of one session would disturb runs of another, so that
all sessions share them.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant
from pydlbench.backends.host_clock import Operator
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.records.specs import KernelSpec

# Level of onnxruntime's log: errors only, which are raised as well.
_LOG_LEVEL: Final = 3


class OnnxruntimeBackend(FrameworkBackend):
    """onnxruntime on the CPUs that this process is pinned to."""

    name = "onnxruntime"
    library = f"onnxruntime {onnxruntime.__version__}"

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and settings."""
        return {
            "name": self.name,
            "version": onnxruntime.__version__,
            "numpy": np.__version__,
            "threads": len(self.cpus),
            "settings": {
                "provider": "CPUExecutionProvider",
                "execution_mode": "sequential",
                "use_per_session_threads": False,
                "intra_op_num_threads": len(self.cpus),
                "inter_op_num_threads": 1,
                # onnxruntime's default: threads spin until the next operator.
                "allow_spinning": True,
            },
        }

    def options(self, mode: str) -> onnxruntime.SessionOptions:
        """Return the settings of a session.

        Args:
            mode: ``optimized`` (onnxruntime's default: all optimizations of the graph) or
                ``unoptimized``.
        """
        levels = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if mode == "optimized" else levels.ORT_DISABLE_ALL
        )
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.use_per_session_threads = False
        options.log_severity_level = _LOG_LEVEL
        return options

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """Refuse all layers, as onnxruntime runs whole files."""
        raise UnsupportedError(
            f"{self.name} runs whole ONNX files, not {spec.layer.kind} layers; nearest: "
            "pydlbench step FILE.onnx"
        )

    def empty(self, mode: str | None) -> Operator:
        """Refuse, as onnxruntime runs whole files."""
        del mode
        raise UnsupportedError(f"{self.name} runs whole ONNX files: it has no empty call")


def create(device: str) -> OnnxruntimeBackend:
    """Create the backend for the CPUs of this process.

    Raises:
        UnsupportedError: the device is a GPU, or onnxruntime is too old.
    """
    if device != "cpu":
        raise UnsupportedError("onnxruntime is run on CPUs so far; ask for --device cpu")
    cpus = process_cpus()
    _share_threads(tuple(cpus))
    return OnnxruntimeBackend(device, cpus)


@functools.cache
def _share_threads(cpus: tuple[int, ...]) -> None:
    """Create the threads that all sessions share, each pinned to a CPU; the caller is one of them.

    Raises:
        UnsupportedError: this version of onnxruntime has no shared threads.
    """
    make = getattr(onnxruntime, "set_global_thread_pool_sizes", None)
    if make is None:
        raise UnsupportedError(
            f"onnxruntime {onnxruntime.__version__} has no threads that sessions share; nearest: "
            "pip install -U onnxruntime"
        )
    before = _threads()
    make(len(cpus), 1)
    for thread, cpu in zip(sorted(_threads() - before), cpus[1:], strict=False):
        os.sched_setaffinity(thread, {cpu})


def _threads() -> set[int]:
    """Return the threads of this process; empty if the system does not list threads."""
    folder = Path("/proc/self/task")
    return {int(path.name) for path in folder.iterdir()} if folder.is_dir() else set()
