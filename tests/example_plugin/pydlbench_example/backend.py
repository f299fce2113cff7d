"""The backend itself, which lives in a worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.backends.host_clock import Operator
    from pydlbench.records.measurement import KernelSpec


class Product:
    """An operator: runs once per call, as a user's line of code would.

    Attributes:
        operands: arrays in plain shapes by the order of their roles, the result last. pydlbench
            writes other inputs there before each timed call, and compares the results.
    """

    def __init__(self, *operands: NDArray[Any]) -> None:
        self.operands = operands

    def call(self) -> Any:
        """Run it; what it returns is dropped at once."""
        src, weights, dst = self.operands
        return np.matmul(src, weights, out=dst)

    def wait(self) -> None:
        """NumPy has finished when it returns."""

    def outputs(self) -> dict[str, Any]:
        """Return the result by role, in a plain layout."""
        self.operands[-1].fill(np.nan)  # shows elements that are not written
        return {"dst": self.call()}


class NumpyBackend(FrameworkBackend):
    """Matrix products with NumPy's BLAS."""

    name = "numpy"
    library = f"NumPy {np.__version__}"

    def describe(self) -> dict[str, Any]:
        """Return what `pydlbench backends` shows."""
        return {"name": "NumPy", "version": np.__version__, "threads": len(self.cpus)}

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; the fastest that is right becomes the row."""
        if spec.layer.op != "gemm" or spec.pass_ != "forward":
            raise UnsupportedError("numpy: forward passes of matrix products only")
        if spec.precision != "fp32":
            raise UnsupportedError(f"numpy: no {spec.precision}, fp32 only")

        dst = np.empty(spec.layer.shapes()["dst"], np.float32)

        def plain(inputs: dict[str, Any]) -> Operator:
            return Product(inputs["src"], inputs["weights"], dst)

        def transposed(inputs: dict[str, Any]) -> Operator:
            weights = np.ascontiguousarray(np.swapaxes(inputs["weights"], -1, -2))
            return Product(inputs["src"], np.swapaxes(weights, -1, -2), dst)

        return [
            Variant(algorithm="numpy.matmul", layout="weights kn", variant="plain", build=plain),
            Variant(
                algorithm="numpy.matmul",
                layout="weights nk",
                variant="transposed",
                build=transposed,
            ),
        ]

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - there is one way to call
        """Return an operator that does next to nothing."""
        return Product(*np.zeros((3, 1, 1), np.float32))


def create(device: str) -> NumpyBackend:
    """Return the backend for a device; a worker calls this."""
    return NumpyBackend(device, process_cpus())
