"""What TensorFlow stores and computes in: which precisions it has on which device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.backends.case import CPU_PRECISIONS, GPU_PRECISIONS
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Arithmetic", "arithmetic"]

# Instruction sets without which a CPU only emulates a type, so that its time would mean nothing.
_NEEDS = {"bf16": ("avx512_bf16", "amx_bf16"), "fp16": ("avx512_fp16", "amx_fp16")}
_STORED = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """How numbers are stored and multiplied.

    Attributes:
        dtype: TensorFlow's name of the storage type.
        tf32: whether float32 products may be rounded to TF32; None where that switch has no effect.
        accumulate: format of the sums of products.
    """

    dtype: str
    tf32: bool | None
    accumulate: str

    def accumulator(self, sums: str) -> str:
        """Return the accumulator of a recipe, from what its ``sums`` says."""
        return {"products": self.accumulate, "float32": "float32", "stored": self.dtype}[sums]


def arithmetic(precision: str, on_gpu: bool, isa: Collection[str]) -> Arithmetic:
    """Return how TensorFlow computes in a precision.

    Args:
        precision: one of ``pydlbench.backends.case.PRECISIONS``.
        on_gpu: whether a GPU computes.
        isa: instruction sets of the CPU, by the kernel's names.

    Raises:
        UnsupportedError: TensorFlow or this device does not have it.
    """
    if precision not in (GPU_PRECISIONS if on_gpu else CPU_PRECISIONS):
        raise UnsupportedError(f"{precision} is a precision of {'CPUs' if on_gpu else 'GPUs'}")
    if not on_gpu:
        needs = _NEEDS.get(precision, ())
        if needs and not any(name in isa for name in needs):
            raise UnsupportedError(
                f"{precision} needs {' or '.join(needs)}; this CPU would emulate it"
            )
        return Arithmetic(dtype=_STORED[precision], tf32=None, accumulate="float32")
    if precision == "fp16":
        raise UnsupportedError("TensorFlow cannot keep float16 off the tensor cores; see fp16-tc")
    if precision == "fp8-tc":
        raise UnsupportedError("TensorFlow has no products of 8-bit floating-point numbers")
    if precision == "fp32":
        return Arithmetic(dtype="float32", tf32=False, accumulate="float32")
    stored = _STORED[precision.removesuffix("-tc")]
    tf32 = True if precision == "tf32" else None
    return Arithmetic(dtype=stored, tf32=tf32, accumulate="float32-tensor")
