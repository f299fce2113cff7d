"""The TensorFlow backend: layers through ``tf.function``, one operator at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import FrameworkBackend, rename_algorithm, resolve_mode
from pydlbench.backends.host_clock import HostClock
from pydlbench.backends.tensorflow.layers.layer_pass import (
    FunctionOperator,
    as_array,
    upload,
    variants_of,
)
from pydlbench.backends.tensorflow.settings import Tracer, arithmetic, choose, in_words, tf
from pydlbench.backends.tensorflow.steps.trace import calls_for, kernels_behind, trace
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UnsupportedError
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.words import CPU_PRECISIONS, GPU_PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.frameworks.backend import Variant
    from pydlbench.backends.host_clock import Operator
    from pydlbench.records.specs import KernelSpec


#: How TensorFlow runs a function; the first is what a case without a mode gets.
MODES = ("graph", "xla")


class TensorflowBackend(FrameworkBackend):
    """TensorFlow on one device.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to; as many threads compute.

    Raises:
        UnsupportedError: TensorFlow cannot use the device.
    """

    name = "tensorflow"

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self.library = f"TensorFlow {tf.__version__}"
        self._place = choose(device, len(self.cpus))
        self._isa = frozenset(read_cpu_facts().isa)

    @property
    def _on_gpu(self) -> bool:
        return self.device != "cpu"

    def describe(self) -> dict[str, Any]:
        """Return version, threads, settings, and what it can do here."""
        precisions: dict[str, str | None] = {}
        for precision in GPU_PRECISIONS if self._on_gpu else CPU_PRECISIONS:
            try:
                arithmetic(precision, self._on_gpu, self._isa)
                precisions[precision] = None
            except UnsupportedError as error:
                precisions[precision] = str(error)
        return {
            "name": self.name,
            **in_words(),
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "device": self.device,
            "numpy": np.__version__,
            "modes": list(MODES),
            "precisions": [name for name, reason in precisions.items() if reason is None],
            "refused": {name: reason for name, reason in precisions.items() if reason},
            "timing": self._timing,
        }

    @property
    def _timing(self) -> str:
        return "host-sync" if self._on_gpu else "steady"

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        mode = resolve_mode(self.name, MODES, spec.mode)
        if spec.fuse not in ("none", "bias"):
            raise UnsupportedError(f"tensorflow: no --fuse {spec.fuse}; nearest: bias")
        if spec.timing != "auto":
            raise UnsupportedError(
                f"tensorflow: its runtime takes no stream of ours, so no --timing {spec.timing}"
            )
        numbers = arithmetic(spec.precision, self._on_gpu, self._isa)
        return variants_of(spec, Tracer(self._place, mode), numbers)

    def empty(self, mode: str | None) -> Operator:
        """Return a function of a scalar that returns it, called as the others are."""
        traced = Tracer(self._place, resolve_mode(self.name, MODES, mode))
        scalar = upload(np.ones((), np.float32), "float32", self._place)

        def results(returned: Any) -> dict[str, Any]:
            return {"dst": np.atleast_1d(as_array(returned))}

        numbers = arithmetic("fp32", self._on_gpu, self._isa)
        operator = FunctionOperator(tf.identity, [scalar], results, traced, numbers)
        operator.call()
        operator.wait()
        return operator

    def clock(self, operator: Operator, cache: str = "hot") -> HostClock:
        """Return what times an operator: the host's clock, behind its switches."""
        del cache  # there is one state
        assert isinstance(operator, FunctionOperator)
        return HostClock(operator, self.cpus, operator.guard)

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with the kernel behind the function."""
        assert isinstance(operator, FunctionOperator)
        notes = list(facts.notes)
        algorithm = facts.algorithm
        behind, detail = kernels_behind(operator)
        if behind and behind != algorithm:
            algorithm = f"{algorithm}: {behind}"
        stored = spec.precision.removesuffix("-tc")
        if self._on_gpu and spec.precision in ("fp32", "tf32"):
            notes.append(f"TF32 switched {'on' if spec.precision == 'tf32' else 'off'}")
        if spec.mode == "xla" and stored in ("bf16", "fp16") and behind and "f32" in behind:
            notes.append(f"XLA converts {stored} operands to float32 and computes in that")
        evidence = self._evidence(operator, behind, detail)
        return rename_algorithm(
            facts, algorithm, notes=notes, timing=self._timing, evidence=evidence
        )

    def _evidence(
        self, operator: FunctionOperator, behind: str | None, detail: str
    ) -> dict[str, Any]:
        """What tells why a call takes so long, see ``KernelFacts``."""
        if behind is None:
            return {}
        seen: dict[str, Any] = {"kernel": f"XLA {behind}" if operator.mode == "xla" else behind}
        if detail:
            seen["detail"] = detail
        if not self._on_gpu:
            (once,) = self.clock(operator).sample(ChunkRequest(samples=1)).seconds
            traced = trace(operator.call, calls_for(once))
            if traced is not None:
                seen["alone_s"], seen["call_s"] = traced.kernel_s, traced.call_s
                seen["alone_reorder_s"] = traced.reorder_s
                seen["alone_by"] = "by TensorFlow's own trace"
        return seen


def create(device: str) -> TensorflowBackend:
    """Make the backend on the CPUs that this process is pinned to."""
    return TensorflowBackend(device, process_cpus())
