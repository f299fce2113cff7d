"""The onnxruntime backend: ONNX files in sessions that share threads, each on a CPU of the process.

Threads go on spinning for a while behind a run. Those of another session would take the CPUs from
the one that computes next, so that all sessions have the same.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.backend import Variant
    from pydlbench.backends.host_clock import Operator
    from pydlbench.records.specs import KernelSpec

# Of onnxruntime's log: errors, which it raises as well.
_ERRORS: Final = 3


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
                # onnxruntime's default: threads wait for the next operator without sleeping.
                "allow_spinning": True,
            },
        }

    def options(self, mode: str) -> onnxruntime.SessionOptions:
        """Return the settings of a session.

        Args:
            mode: ``optimized`` (onnxruntime's default: all its rewriting of the graph) or
                ``unoptimized``.
        """
        levels = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if mode == "optimized" else levels.ORT_DISABLE_ALL
        )
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.use_per_session_threads = False
        options.log_severity_level = _ERRORS
        return options

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """Refuse: a layer would have to be written into a file first."""
        raise UnsupportedError(
            f"{self.name} runs whole ONNX files, not {spec.layer.kind} layers; nearest: "
            "pydlbench step FILE.onnx"
        )

    def empty(self, mode: str | None) -> Operator:
        """Refuse, as for layers."""
        del mode
        raise UnsupportedError(f"{self.name} runs whole ONNX files: it has no empty call")


def create(device: str) -> OnnxruntimeBackend:
    """Create the backend for the CPUs that this process may use.

    Raises:
        UnsupportedError: on GPUs, and with an onnxruntime that is too old.
    """
    if device != "cpu":
        raise UnsupportedError("onnxruntime is run on CPUs so far; ask for --device cpu")
    cpus = process_cpus()
    _share_threads(tuple(cpus))
    return OnnxruntimeBackend(device, cpus)


@functools.cache
def _share_threads(cpus: tuple[int, ...]) -> None:
    """Make the threads that all sessions of this process share, each on a CPU; the caller has one.

    Raises:
        UnsupportedError: this onnxruntime has none that sessions share.
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
    """Return the threads of this process, where the system tells them."""
    folder = Path("/proc/self/task")
    return {int(each.name) for each in folder.iterdir()} if folder.is_dir() else set()
