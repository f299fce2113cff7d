"""The JAX backend: each layer one function, compiled ahead of time by XLA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends import autotune
from pydlbench.backends.frameworks import hlo
from pydlbench.backends.frameworks.backend import FrameworkBackend, rename_algorithm, resolve_mode
from pydlbench.backends.jax.layers import JaxOperator, as_array, variants_of
from pydlbench.backends.jax.settings import choose, jax, jax_device
from pydlbench.devices.cpu.affinity import own_cpus
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.frameworks.backend import Variant
    from pydlbench.backends.host_clock import Operator
    from pydlbench.records.specs import KernelSpec

MODES = ("xla",)


class JaxBackend(FrameworkBackend):
    """JAX on one device: on CPUs XLA starts a thread for each that this process is pinned to.

    A GPU is timed on the host's clock, over as many calls in its queue as a sample wants: JAX gives
    nobody its streams, so no event of ours stands between them. What a launch costs the host is
    measured apart.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: JAX cannot use the device.
    """

    name = "jax"
    library = f"JAX {jax.__version__}"

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self._device = choose(device)
        if self._on_gpu:
            self.effort = autotune.GPU_EFFORT

    @property
    def _on_gpu(self) -> bool:
        return self.device != "cpu"

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and settings."""
        return {
            "name": "JAX",
            "version": jax.__version__,
            "jaxlib": jax.lib.__version__,
            "numpy": np.__version__,
            "threads": len(self.cpus),
            "device": str(self._device),
            "modes": list(MODES),
            "settings": {"async_dispatch": self._on_gpu, "donation": False, "preallocation": False},
            "timing": self._timing,
        }

    @property
    def _timing(self) -> str:
        return "host-sync" if self._on_gpu else "steady"

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        resolve_mode(self.name, MODES, spec.mode)
        place = jax_device(self.device, spec.precision)
        if spec.fuse != "none":
            raise UnsupportedError(f"jax has no function for --fuse {spec.fuse} here")
        if spec.timing != "auto":
            raise UnsupportedError(
                f"jax: its runtime gives nobody its streams, so no --timing {spec.timing}"
            )
        return variants_of(spec.layer, spec, place)

    def empty(self, mode: str | None) -> Operator:
        """Return a function of a scalar that returns it."""
        resolve_mode(self.name, MODES, mode)
        place = jax_device(self.device, "fp32")
        scalar = [place.put(np.zeros((), np.float32))]

        def results(returned: Any) -> dict[str, Any]:
            return {"dst": np.atleast_1d(as_array(returned))}

        return JaxOperator(lambda each: each, scalar, results, place)

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with what XLA made of the function, and on a GPU what a launch costs."""
        assert isinstance(operator, JaxOperator)
        known: dict[str, Any] = {
            "timing": self._timing,
            "accumulate": facts.accumulate.removesuffix("-tensor"),
        }
        if self._on_gpu:
            known["launch_s"] = operator.launch_times()
            if spec.precision in ("fp32", "tf32") and spec.layer.weight_elements:
                tf32 = "on" if spec.precision == "tf32" else "off"
                known["notes"] = [*facts.notes, f"TF32 switched {tf32}"]
        text = operator.program()
        behind = hlo.kernels(text)
        if behind is None:
            return rename_algorithm(facts, facts.algorithm, **known)
        seen: dict[str, Any] = {"kernel": f"XLA {behind}"}
        detail = "" if self._on_gpu else hlo.detail(text)
        if detail:
            seen["detail"] = detail
        known["evidence"] = {**facts.evidence, **seen}
        return rename_algorithm(facts, f"{facts.algorithm}: {behind}", **known)


def create(device: str) -> JaxBackend:
    """Create the backend for a device, on the CPUs that this process may use.

    Raises:
        UnsupportedError: JAX cannot use the device.
    """
    return JaxBackend(device, own_cpus())
