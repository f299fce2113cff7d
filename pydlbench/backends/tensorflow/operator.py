"""A traced function of TensorFlow with its operands on the device, ready to be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.kernel import HostClock
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.arithmetic import Arithmetic
    from pydlbench.backends.tensorflow.recipe import Recipe
    from pydlbench.timing.chunk import Chunk, Request

__all__ = ["Clock", "FunctionOperator", "identity", "upload"]


def upload(array: NDArray[Any], dtype: str, device: str) -> Any:
    """Return a tensor on the device; nothing is converted or copied when it is used."""
    with tf.device(device):
        return tf.identity(tf.constant(array.astype(tf.as_dtype(dtype).as_numpy_dtype)))


class FunctionOperator:
    """What ``tf.function`` makes of a recipe.

    Args:
        recipe: what is computed.
        operands: the function's operands, on the device.
        mode: ``graph``, or ``xla`` for a graph that XLA compiles.
        device: TensorFlow's name of the device.
        tf32: what the process-wide switch has to be while this runs; None leaves it alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        operands: Sequence[Any],
        mode: str,
        device: str,
        tf32: bool | None = None,
    ) -> None:
        def placed(*tensors: Any) -> Any:
            with tf.device(device):
                return recipe.function(*tensors)

        # Autograph translates Python's `if` and `for`; there is none in these functions.
        self.function = tf.function(placed, autograph=False, jit_compile=mode == "xla")
        self.operands = tuple(operands)
        self.mode = mode
        self._recipe = recipe
        self._device = device
        self._tf32 = tf32

    def again(self) -> FunctionOperator:
        """Return the same operator, not traced yet."""
        return FunctionOperator(self._recipe, self.operands, self.mode, self._device, self._tf32)

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        inputs: Mapping[str, NDArray[Any]],
        arithmetic: Arithmetic,
        mode: str,
        device: str,
    ) -> FunctionOperator:
        """Make an operator from plain inputs; it has run once, so it is traced and compiled."""
        arrays = recipe.operands(inputs)
        operands = [upload(array, arithmetic.dtype, device) for array in arrays]
        with tf.device(device):
            operands = list(recipe.complete(operands))
        operator = cls(recipe, operands, mode, device, arithmetic.tf32)
        operator.settle()
        operator.call()
        operator.wait()
        return operator

    def call(self) -> Any:
        """Run it once; its result is a new tensor each time."""
        return self.function(*self.operands)

    def wait(self) -> None:
        """Return when all calls are done.

        On a CPU each call returns with its result: execution is synchronous, XLA's too, and
        ``runtime.configure`` sees to it. A GPU's stream is waited for by an operator of its own.
        """
        if self._device != "/CPU:0":
            with tf.device(self._device):
                tf.raw_ops.SyncDevice()

    def settle(self) -> None:
        """Set the process-wide switch for TF32 as this operator needs it."""
        if self._tf32 is not None:
            tf.config.experimental.enable_tensor_float_32_execution(self._tf32)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return its result by role, as float32 in the plain layout."""
        self.settle()
        result = self.call().numpy().astype(np.float32)
        return {self._recipe.result: self._recipe.plain(result)}


class Clock(HostClock):
    """The host's clock, with the switches of an operator set before its samples."""

    def __init__(
        self, operator: Any, cpus: Sequence[int], settle: Callable[[], None] | None = None
    ) -> None:
        super().__init__(operator, cpus)
        self._settle = settle

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""
        if self._settle is not None:
            self._settle()
        return super().sample(request)


def identity(tensor: Any) -> Any:
    """Do as good as nothing."""
    return tf.identity(tensor)
