"""JAX on one device, without preallocation of memory, and its precisions.

The other modules import ``jax`` from here, so that its environment is set before.
"""

import functools
import os
from dataclasses import dataclass
from typing import Any

from pydlbench.backends.base import check_precision
from pydlbench.errors import UnsupportedError
from pydlbench.verification.verify import TENSOR_ACCUMULATOR

# By default JAX allocates three quarters of a GPU's memory at once, which leaves other workers too
# little.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import jax

__all__ = ["JaxArithmetic", "JaxDevice", "arithmetic", "choose", "jax", "jax_device"]


@functools.cache
def choose(device: str) -> Any:
    """Choose JAX's device, before anything is computed, and return it.

    On a CPU a call then computes in the calling thread, and returns with its result.

    Args:
        device: ``cpu`` or ``cuda:N``.

    Raises:
        UnsupportedError: JAX cannot use the GPU; the message has the reason.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if device == "cpu":
        # Otherwise JAX looks for GPUs and TPUs, and reports missing ones.
        jax.config.update("jax_platforms", "cpu")
        return jax.devices("cpu")[0]
    jax.config.update("jax_platforms", "cuda,cpu")
    # Otherwise this process creates a context on each GPU.
    jax.config.update("jax_cuda_visible_devices", device.removeprefix("cuda:"))
    try:
        return jax.devices("cuda")[0]
    except (RuntimeError, IndexError) as error:
        reason = " ".join(str(error).split())[:200] or "it finds none"
        raise UnsupportedError(
            f"JAX {jax.__version__} cannot use {device}: {reason}; "
            "CUDA comes with pip install 'jax[cuda13]'"
        ) from error


# -----------------------------------------------------------------------------
# Precisions on CPUs and GPUs.


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxArithmetic:
    """How numbers are stored and multiplied.

    Attributes:
        dtype: name of the storage type.
        products: precision of convolutions and products, for ``jax.default_matmul_precision``. With
            another value than ``float32``, XLA rounds float32 operands to TF32 on GPUs that have
            it.
        accumulate: format of the sums of products.
    """

    dtype: str
    products: str
    accumulate: str


#: Precisions on GPUs; ``fp16`` and ``fp8-tc`` are missing, see :func:`arithmetic`.
_GPU = {
    "fp32": JaxArithmetic(dtype="float32", products="float32", accumulate="float32"),
    "tf32": JaxArithmetic(dtype="float32", products="tensorfloat32", accumulate=TENSOR_ACCUMULATOR),
    "fp16-tc": JaxArithmetic(dtype="float16", products="default", accumulate=TENSOR_ACCUMULATOR),
    "bf16-tc": JaxArithmetic(dtype="bfloat16", products="default", accumulate=TENSOR_ACCUMULATOR),
}


def arithmetic(precision: str, on_gpu: bool) -> JaxArithmetic:
    """Return the arithmetic of a precision.

    Args:
        precision: one of ``pydlbench.words.PRECISIONS``.
        on_gpu: whether a GPU computes.

    Raises:
        UnsupportedError: JAX does not have the precision on this device.
    """
    check_precision(precision, on_gpu)
    if not on_gpu and precision != "fp32":
        raise UnsupportedError(
            f"jax has no {precision} on CPUs: XLA converts narrower operands to float32 "
            "and computes in that"
        )
    if precision == "fp16":
        raise UnsupportedError("jax cannot keep float16 off the tensor cores; see fp16-tc")
    if precision not in _GPU:
        raise UnsupportedError(f"jax has no {precision} here; nearest: bf16-tc")
    return _GPU[precision]


# -----------------------------------------------------------------------------
# Devices.


@dataclass(frozen=True, slots=True)
class JaxDevice:
    """A device and the arithmetic of a precision.

    Attributes:
        device: JAX's device.
        numbers: arithmetic of the precision.
        queues: whether calls return before they have finished, as on a GPU.
    """

    device: Any
    numbers: JaxArithmetic
    queues: bool

    def put(self, array: Any, dtype: str | None = None) -> Any:
        """Return an array on the device, by default in the storage type."""
        kind = jax.numpy.dtype(dtype or self.numbers.dtype)
        return jax.device_put(array.astype(kind), self.device)

    def compile(
        self, function: Callable[..., Any], operands: Sequence[Any], donated: Sequence[int] = ()
    ) -> Any:
        """Compile a function ahead of time.

        Args:
            function: a function of arrays.
            operands: arrays on the device; the program is specialised to their shapes and types.
            donated: positions of operands whose memory may be used for results.
        """
        with self.exact():
            jitted = jax.jit(function, donate_argnums=tuple(donated))
            return jitted.lower(*operands).compile()

    def exact(self) -> AbstractContextManager[Any]:
        """Return the context for tracing functions, which sets the precision of products."""
        context: AbstractContextManager[Any] = jax.default_matmul_precision(self.numbers.products)
        return context


def jax_device(device: str, precision: str) -> JaxDevice:
    """Return a device and the arithmetic of a precision.

    Args:
        device: ``cpu`` or ``cuda:N``; one per process.
        precision: one of ``pydlbench.words.PRECISIONS``.

    Raises:
        UnsupportedError: JAX lacks the device or the precision.
    """
    on_gpu = device != "cpu"
    return JaxDevice(choose(device), arithmetic(precision, on_gpu), on_gpu)
