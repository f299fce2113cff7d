"""JAX itself: on one device, taking memory as it needs it, in the precisions that we ask for.

The other modules take ``jax`` from here, so that what it reads when it makes its client is set.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.backends.base import check_precision
from pydlbench.errors import UnsupportedError
from pydlbench.verification.verify import TENSOR_ACCUMULATOR

# Else three quarters of a card's memory are taken at once, from the other workers too.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import jax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

__all__ = ["JaxArithmetic", "JaxDevice", "arithmetic", "choose", "jax", "jax_device"]


@functools.cache
def choose(device: str) -> Any:
    """Choose what JAX computes on, before anything is computed, and return that device of JAX's.

    On a CPU a call then computes in the thread that makes it, and returns when its result is there.

    Args:
        device: ``cpu`` or ``cuda:N``.

    Raises:
        UnsupportedError: JAX cannot use such a GPU; says why.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if device == "cpu":
        # It would look for GPUs and TPUs, and report what it does not find.
        jax.config.update("jax_platforms", "cpu")
        return jax.devices("cpu")[0]
    jax.config.update("jax_platforms", "cuda,cpu")
    # Others would get a context of this process, too.
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
# What JAX stores and computes in: which precisions it has on which device.


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxArithmetic:
    """How numbers are stored and multiplied.

    Attributes:
        dtype: name of the storage type.
        products: of convolutions and products, by the words of ``jax.default_matmul_precision``.
            XLA rounds float32 operands to TF32 on GPUs that have it, unless it is told ``float32``.
        accumulate: format of the sums of products.
    """

    dtype: str
    products: str
    accumulate: str


#: On GPUs; ``fp16`` and ``fp8-tc`` are missing, see :func:`arithmetic`.
_GPU = {
    "fp32": JaxArithmetic(dtype="float32", products="float32", accumulate="float32"),
    "tf32": JaxArithmetic(dtype="float32", products="tensorfloat32", accumulate=TENSOR_ACCUMULATOR),
    "fp16-tc": JaxArithmetic(dtype="float16", products="default", accumulate=TENSOR_ACCUMULATOR),
    "bf16-tc": JaxArithmetic(dtype="bfloat16", products="default", accumulate=TENSOR_ACCUMULATOR),
}


def arithmetic(precision: str, on_gpu: bool) -> JaxArithmetic:
    """Return how JAX computes in a precision.

    Args:
        precision: one of ``pydlbench.words.PRECISIONS``.
        on_gpu: whether a GPU computes.

    Raises:
        UnsupportedError: JAX does not have it here.
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
# Where and in what a function computes.


@dataclass(frozen=True, slots=True)
class JaxDevice:
    """A device and the arithmetic there.

    Attributes:
        device: of JAX's.
        numbers: see :class:`JaxArithmetic`.
        queues: whether calls return before they are done, as a GPU's do.
    """

    device: Any
    numbers: JaxArithmetic
    queues: bool

    def put(self, array: Any, dtype: str | None = None) -> Any:
        """Return an array on the device, in the storage type unless another one is named."""
        kind = jax.numpy.dtype(dtype or self.numbers.dtype)
        return jax.device_put(array.astype(kind), self.device)

    def compiled(
        self, function: Callable[..., Any], operands: Sequence[Any], donated: Sequence[int] = ()
    ) -> Any:
        """Return a function as XLA's program, compiled ahead of time.

        Args:
            function: of arrays.
            operands: on the device; what is compiled is for their shapes and types.
            donated: places of operands whose memory the results may take.
        """
        with self.exact():
            jitted = jax.jit(function, donate_argnums=tuple(donated))
            return jitted.lower(*operands).compile()

    def exact(self) -> AbstractContextManager[Any]:
        """Return the context in which functions are traced: products in this precision."""
        context: AbstractContextManager[Any] = jax.default_matmul_precision(self.numbers.products)
        return context


def jax_device(device: str, precision: str) -> JaxDevice:
    """Return a device with how it computes in a precision.

    Args:
        device: ``cpu`` or ``cuda:N``; a process has one.
        precision: one of ``pydlbench.words.PRECISIONS``.

    Raises:
        UnsupportedError: JAX has not the one or the other.
    """
    on_gpu = device != "cpu"
    return JaxDevice(choose(device), arithmetic(precision, on_gpu), on_gpu)
