"""JAX: functions that XLA compiles ahead of time."""

from pydlbench.backends.capabilities import Capabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="jax",
    rank=5,
    title="JAX's functions, compiled by XLA",
    distributions=("jax",),
    install="pip install 'pydlbench[jax]'",
    requires="jax",
    tested="0.10",
    modes={"cpu": ("xla",), "cuda": ("xla",)},
    # XLA's compiler for CPUs converts narrower operands to float32.
    precisions={"cpu": ("fp32",), "cuda": ("fp32", "tf32", "fp16-tc", "bf16-tc")},
    start_s=(2.0, 15.0),
    fresh_results=True,
    preload=("jax", "pydlbench.backends.jax.backend"),
    settings=("XLA_FLAGS", "XLA_PYTHON_CLIENT_", "JAX_"),
)
