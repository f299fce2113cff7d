"""An operator of TensorFlow with its operands in place: a traced function and its call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.operator import FrameworkOperator
from pydlbench.backends.tensorflow.settings import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.settings import Arithmetic, Tracer


def upload(array: NDArray[Any], dtype: str, device: str) -> Any:
    """Return a tensor on the device; nothing is converted or copied when it is used."""
    with tf.device(device):
        return tf.identity(tf.constant(array.astype(tf.as_dtype(dtype).as_numpy_dtype)))


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a tensor's (or variable's) values as float32, in memory of their own."""
    array: NDArray[Any] = np.array(tensor).astype(np.float32)
    return array


class FunctionOperator(FrameworkOperator):
    """What ``tf.function`` makes of a function of tensors.

    Args:
        body: what is traced; takes the operands as tensors, so that none becomes a constant that
            could be folded away, and returns a result, several, or nothing.
        operands: its arguments, on the device; without what takes turns.
        results: see :class:`FrameworkOperator`.
        traced: makes the function, in its mode and on its device.
        numbers: has the process-wide switch that is set when the function is called.
        changed: places of operands that it overwrites, which are variables.
        turns: see :class:`FrameworkOperator`; on the device.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        operands: Sequence[Any],
        results: Callable[[Any], Mapping[str, NDArray[Any]]],
        traced: Tracer,
        numbers: Arithmetic,
        *,
        changed: Sequence[int] = (),
        turns: Sequence[Any] = (),
    ) -> None:
        self._body, self._tracer, self._numbers = body, traced, numbers
        self.mode = traced.mode
        self.function = self.traced()
        variables = [operands[place] for place in changed]
        before = [tf.identity(one) for one in variables]

        def restore() -> None:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

        super().__init__(
            self.function,
            operands,
            results,
            guard=self._settled,
            wait=traced.wait,
            turns=turns,
            restore=restore,
        )

    def traced(self) -> Any:
        """Return the function anew: it is traced when it is called."""
        return self._tracer(self._body)

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        self._numbers.settle()
        yield
