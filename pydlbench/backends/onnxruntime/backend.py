"""The onnxruntime backend: a session per ONNX file, its threads on the CPUs of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.devices.cpu.affinity import own_cpus
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.backend import Variant
    from pydlbench.backends.host_clock import Operator
    from pydlbench.records.specs import KernelSpec

__all__ = ["OnnxruntimeBackend", "create"]

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
                "intra_op_num_threads": len(self.cpus),
                "intra_op_thread_affinities": self._affinities(),
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
        found = onnxruntime.SessionOptions()
        found.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if mode == "optimized" else levels.ORT_DISABLE_ALL
        )
        found.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        found.intra_op_num_threads = len(self.cpus)
        found.inter_op_num_threads = 1
        found.log_severity_level = _ERRORS
        if affinities := self._affinities():
            found.add_session_config_entry("session.intra_op_thread_affinities", affinities)
        return found

    def _affinities(self) -> str:
        """Return the CPU of each thread but the caller's, counted from 1 as onnxruntime does."""
        return ";".join(str(cpu + 1) for cpu in self.cpus[1:])

    def variants(self, case: KernelSpec) -> list[Variant]:
        """Refuse: a layer would have to be written into a file first."""
        raise UnsupportedError(
            f"{self.name} runs whole ONNX files, not {case.layer.kind} layers; nearest: "
            "pydlbench e2e FILE.onnx"
        )

    def empty(self, mode: str | None) -> Operator:
        """Refuse, as for layers."""
        del mode
        raise UnsupportedError(f"{self.name} runs whole ONNX files: it has no empty call")


def create(device: str) -> OnnxruntimeBackend:
    """Create the backend for the CPUs that this process may use.

    Raises:
        UnsupportedError: on GPUs.
    """
    if device != "cpu":
        raise UnsupportedError("onnxruntime is run on CPUs so far; ask for --device cpu")
    return OnnxruntimeBackend(device, own_cpus())
