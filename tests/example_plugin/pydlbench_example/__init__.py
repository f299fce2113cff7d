"""NumPy's products of matrices as a backend of pydlbench: what is known without starting it."""

from __future__ import annotations

from pydlbench.backends.capabilities import Capabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="numpy",
    title="NumPy's products of matrices",
    distributions=("numpy",),
    install="pip install numpy",
    requires="numpy",
    modes={"cpu": (None,)},  # one way only, which has no name
    precisions={"cpu": ("fp32",)},
    start_s=(0.5, 3.0),
)
