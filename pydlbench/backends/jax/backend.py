"""The JAX backend: each layer one function, compiled ahead of time by XLA for the CPU."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks import hlo
from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant, checked_mode, renamed
from pydlbench.devices.cpu.affinity import own_cpus
from pydlbench.errors import UnsupportedError

# Read when JAX is imported: it would look for GPUs and TPUs, and reports what it does not find.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from pydlbench.backends.jax.layers import recipes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.host_clock import Operator
    from pydlbench.backends.jax.layers import Recipe
    from pydlbench.records.specs import KernelSpec

__all__ = ["JaxBackend", "JaxOperator", "create"]

MODES = ("xla",)


class JaxOperator:
    """A compiled function with its operands on the device.

    Nothing is donated: each call gets new memory for its result, as a user's line does.

    Args:
        function: what is compiled.
        operands: all arguments, arranged.
        role: of the result.
        plain: brings the result into its plain layout.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[NDArray[Any]],
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> None:
        self._operands = [jax.device_put(one) for one in operands]
        self._compiled = jax.jit(function).lower(*self._operands).compile()
        self._role = role
        self._plain = plain
        self.call()  # touches what is touched once

    def call(self) -> Any:
        """Run it once and wait for the result."""
        return self._compiled(*self._operands).block_until_ready()

    def wait(self) -> None:
        """Return at once: calls return when they are done."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return what it wrote."""
        return {self._role: self._plain(np.asarray(self.call()))}

    def program(self) -> str:
        """Return the text of the optimised program."""
        return str(self._compiled.as_text())


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
        return [
            Variant(
                algorithm=one.algorithm,
                layout=one.layout,
                variant=one.variant,
                build=functools.partial(_build, one),
            )
            for one in recipes(case.layer, case.pass_)
        ]

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


def _build(recipe: Recipe, inputs: dict[str, NDArray[Any]]) -> JaxOperator:
    operands = [recipe.arrange(role, inputs[role]) for role in recipe.reads]
    return JaxOperator(recipe.function, operands, recipe.role, recipe.plain)


def create(device: str) -> JaxBackend:
    """Create the backend for the CPUs that this process may use.

    Raises:
        UnsupportedError: on GPUs.
    """
    if device != "cpu":
        raise UnsupportedError("jax is run on CPUs so far; ask for --device cpu")
    return JaxBackend(own_cpus())
