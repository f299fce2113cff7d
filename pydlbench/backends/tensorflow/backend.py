"""The TensorFlow backend: layers through ``tf.function``, one operator at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pydlbench.backends.base import KernelFacts
from pydlbench.backends.frameworks.backend import (
    HostTimedBackend,
    Variant,
    rename_algorithm,
    resolve_mode,
)
from pydlbench.backends.host_clock import HostClock, Operator
from pydlbench.backends.tensorflow.layers.layer_pass import (
    FunctionOperator,
    as_array,
    upload,
    variants_of,
)
from pydlbench.backends.tensorflow.settings import Tracer, arithmetic, build_facts, choose, tf
from pydlbench.backends.tensorflow.steps.trace import calls_for, kernels_behind, trace
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UnsupportedError
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.words import CPU_PRECISIONS, GPU_PRECISIONS


class TensorflowBackend(HostTimedBackend):
    """TensorFlow on one device.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to; as many threads compute.

    Raises:
        UnsupportedError: TensorFlow cannot use the device.
    """

    name = "tensorflow"
    modes = ("graph", "xla")

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self.library = f"TensorFlow {tf.__version__}"
        self._place = choose(device, len(self.cpus))
        self._isa = frozenset(read_cpu_facts().isa)

    def describe(self) -> dict[str, Any]:
        """Return version, threads, settings, modes and precisions."""
        supported, refused = [], {}
        for precision in GPU_PRECISIONS if self.on_gpu else CPU_PRECISIONS:
            try:
                arithmetic(precision, self.on_gpu, self._isa)
                supported.append(precision)
            except UnsupportedError as error:
                refused[precision] = str(error)
        return {
            "name": self.name,
            **build_facts(),
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "device": self.device,
            "numpy": np.__version__,
            "modes": list(self.modes),
            "precisions": supported,
            "refused": refused,
            "timing": self.timing,
        }

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        mode = resolve_mode(self.name, self.modes, spec.mode)
        if spec.fuse not in ("none", "bias"):
            raise UnsupportedError(f"tensorflow: no --fuse {spec.fuse}; nearest: bias")
        self.check_timing(spec)
        numbers = arithmetic(spec.precision, self.on_gpu, self._isa)
        return variants_of(spec, Tracer(self._place, mode), numbers)

    def empty(self, mode: str | None) -> Operator:
        """Return the identity of a scalar, called as other operators are."""
        tracer = Tracer(self._place, resolve_mode(self.name, self.modes, mode))
        scalar = upload(np.ones((), np.float32), "float32", self._place)
        operator = FunctionOperator(
            tf.identity,
            [scalar],
            lambda returned: {"dst": np.atleast_1d(as_array(returned))},
            tracer,
            arithmetic("fp32", self.on_gpu, self._isa),
        )
        operator.call()
        operator.wait()
        return operator

    def clock(self, operator: Operator, cache: str = "hot") -> HostClock:  # noqa: ARG002 - there is one
        """Return the host's clock, within the operator's guard."""
        assert isinstance(operator, FunctionOperator)
        return HostClock(operator, self.cpus, operator.guard)

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return facts with the kernels of the function, and their times."""
        assert isinstance(operator, FunctionOperator)
        notes = [*facts.notes, *self.tf32_notes(spec.precision)]
        algorithm = facts.algorithm
        kernels, detail = kernels_behind(operator)
        if kernels and kernels != algorithm:
            algorithm = f"{algorithm}: {kernels}"
        stored = spec.precision.removesuffix("-tc")
        if spec.mode == "xla" and stored in ("bf16", "fp16") and kernels and "f32" in kernels:
            notes.append(f"XLA converts {stored} operands to float32 and computes in that")
        evidence = self._evidence(operator, kernels, detail)
        return rename_algorithm(
            facts, algorithm, notes=notes, timing=self.timing, evidence=evidence
        )

    def _evidence(
        self, operator: FunctionOperator, kernels: str | None, detail: str
    ) -> dict[str, Any]:
        """Return evidence on why a call is slow, see ``KernelFacts``."""
        if kernels is None:
            return {}
        evidence: dict[str, Any] = {
            "kernel": f"XLA {kernels}" if operator.mode == "xla" else kernels
        }
        if detail:
            evidence["detail"] = detail
        if not self.on_gpu:
            (once,) = self.clock(operator).sample(ChunkRequest(samples=1)).seconds
            traced = trace(operator.call, calls_for(once))
            if traced is not None:
                evidence["alone_s"], evidence["call_s"] = traced.kernel_s, traced.call_s
                evidence["alone_reorder_s"] = traced.reorder_s
                evidence["alone_by"] = "by TensorFlow's own trace"
        return evidence


def create(device: str) -> TensorflowBackend:
    """Create the backend for a device, on the CPUs of this process."""
    return TensorflowBackend(device, process_cpus())
