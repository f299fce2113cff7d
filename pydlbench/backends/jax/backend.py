"""The JAX backend: each layer one function, compiled ahead of time by XLA for the CPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks import hlo
from pydlbench.backends.frameworks.backend import FrameworkBackend, checked_mode, renamed
from pydlbench.devices.cpu.affinity import own_cpus
from pydlbench.errors import UnsupportedError

# Read when JAX is imported: it would look for GPUs and TPUs, and reports what it does not find.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from pydlbench.backends.jax.layers import variants_of
from pydlbench.backends.jax.operator import JaxOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.frameworks.backend import Variant
    from pydlbench.backends.host_clock import Operator
    from pydlbench.records.specs import KernelSpec

__all__ = ["JaxBackend", "create"]

MODES = ("xla",)


class JaxBackend(FrameworkBackend):
    """JAX on the CPUs that this process is pinned to: XLA starts a thread for each.

    Args:
        cpus: logical CPUs that the process is pinned to.
    """

    name = "jax"
    library = f"JAX {jax.__version__}"

    def __init__(self, cpus: Sequence[int]) -> None:
        super().__init__("cpu", cpus)
        # A call computes in the thread that makes it, and returns when its result is there.
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and settings."""
        return {
            "name": "JAX",
            "version": jax.__version__,
            "jaxlib": jax.lib.__version__,
            "numpy": np.__version__,
            "threads": len(self.cpus),
            "device": str(jax.devices("cpu")[0]),
            "modes": list(MODES),
            "settings": {"async_dispatch": False, "donation": False},
        }

    def variants(self, case: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        checked_mode(self.name, MODES, case.mode)
        if case.precision != "fp32":
            raise UnsupportedError(
                f"jax has no {case.precision} on CPUs: XLA converts narrower operands to float32 "
                "and computes in that"
            )
        if case.fuse != "none":
            raise UnsupportedError(f"jax has no function for --fuse {case.fuse} here")
        return variants_of(case.layer, case.pass_)

    def empty(self, mode: str | None) -> Operator:
        """Return a function of a scalar that returns it."""
        checked_mode(self.name, MODES, mode)
        return JaxOperator(lambda scalar: scalar, [np.zeros((), np.float32)], "dst", np.atleast_1d)

    def completed(self, facts: KernelFacts, operator: Operator, case: KernelSpec) -> KernelFacts:
        """Return the facts with what XLA made of the function."""
        del case
        assert isinstance(operator, JaxOperator)
        text = operator.program()
        behind = hlo.kernels(text)
        if behind is None:
            return facts
        algorithm = f"{facts.algorithm}: {behind}"
        seen: dict[str, Any] = {"kernel": f"XLA {behind}"}
        if detail := hlo.detail(text):
            seen["detail"] = detail
        return renamed(facts, algorithm, evidence={**facts.evidence, **seen})


def create(device: str) -> JaxBackend:
    """Create the backend for the CPUs that this process may use.

    Raises:
        UnsupportedError: on GPUs.
    """
    if device != "cpu":
        raise UnsupportedError("jax is run on CPUs so far; ask for --device cpu")
    return JaxBackend(own_cpus())
