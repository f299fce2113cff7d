"""The JAX backend: each layer is one function, compiled ahead of time by XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pydlbench.backends import autotune
from pydlbench.backends.base import KernelFacts
from pydlbench.backends.frameworks import hlo
from pydlbench.backends.frameworks.backend import (
    HostTimedBackend,
    Variant,
    rename_algorithm,
    resolve_mode,
)
from pydlbench.backends.host_clock import Operator
from pydlbench.backends.jax.layers import JaxOperator, as_array, variants_of
from pydlbench.backends.jax.settings import choose, jax, jax_device
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.records.measurement import KernelSpec


class JaxBackend(HostTimedBackend):
    """JAX on one device; on CPUs XLA has a thread for each CPU of the process.

    On a GPU the host's clock times as many queued calls as a sample has executions. The cost of a
    launch on the host is measured separately.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: JAX cannot use the device.
    """

    name = "jax"
    library = f"JAX {jax.__version__}"
    modes = ("xla",)

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self._device = choose(device)
        if self.on_gpu:
            self.effort = autotune.GPU_EFFORT

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and settings."""
        return {
            "name": "JAX",
            "version": jax.__version__,
            "jaxlib": jax.lib.__version__,
            "numpy": np.__version__,
            "threads": len(self.cpus),
            "device": str(self._device),
            "modes": list(self.modes),
            "settings": {"async_dispatch": self.on_gpu, "donation": False, "preallocation": False},
            "timing": self.timing,
        }

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        resolve_mode(self.name, self.modes, spec.mode)
        device = jax_device(self.device, spec.precision)
        if spec.fuse != "none":
            raise UnsupportedError(f"jax has no function for --fuse {spec.fuse} here")
        self.check_timing(spec)
        return variants_of(spec.layer, spec, device)

    def empty(self, mode: str | None) -> Operator:
        """Return the identity of a scalar."""
        resolve_mode(self.name, self.modes, mode)
        device = jax_device(self.device, "fp32")
        scalar = [device.put(np.zeros((), np.float32))]
        return JaxOperator(
            lambda tensor: tensor,
            scalar,
            lambda returned: {"dst": np.atleast_1d(as_array(returned))},
            device,
        )

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return facts with XLA's kernels, and on a GPU the cost of a launch."""
        assert isinstance(operator, JaxOperator)
        known: dict[str, Any] = {
            "timing": self.timing,
            "accumulate": facts.accumulate.removesuffix("-tensor"),
        }
        if self.on_gpu:
            known["launch_s"] = operator.launch_times()
            if spec.layer.weight_elements:
                known["notes"] = [*facts.notes, *self.tf32_notes(spec.precision)]
        text = operator.program()
        kernels = hlo.kernels(text)
        if kernels is None:
            return rename_algorithm(facts, facts.algorithm, **known)
        evidence: dict[str, Any] = {**facts.evidence, "kernel": f"XLA {kernels}"}
        if not self.on_gpu and (detail := hlo.detail(text)):
            evidence["detail"] = detail
        algorithm = f"{facts.algorithm}: {kernels}"
        return rename_algorithm(facts, algorithm, evidence=evidence, **known)


def create(device: str) -> JaxBackend:
    """Create the backend for a device, on the CPUs of this process.

    Raises:
        UnsupportedError: JAX cannot use the device.
    """
    return JaxBackend(device, process_cpus())
