"""An operator of TensorFlow with its operands in place: recipe, traced function, call."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.settings import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.settings import Arithmetic


def upload(array: NDArray[Any], dtype: str, device: str) -> Any:
    """Return a tensor on the device; nothing is converted or copied when it is used."""
    with tf.device(device):
        return tf.identity(tf.constant(array.astype(tf.as_dtype(dtype).as_numpy_dtype)))


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a tensor's (or variable's) values as float32, in memory of their own."""
    array: NDArray[Any] = np.array(tensor.numpy()).astype(np.float32)
    return array


# -----------------------------------------------------------------------------
# A recipe: which function of TensorFlow computes a pass, on operands in which layout.


def as_they_are(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return the operands themselves: nothing has to be computed from them beforehand."""
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How TensorFlow computes one pass of one layer, on whatever device, in whatever precision.

    The backend makes a ``Variant`` of it by its own device, arithmetic and mode.

    Attributes:
        algorithm: TensorFlow's names of the operators.
        layout: layouts of the operands, for the reader.
        variant: ``nhwc``, ``nchw``, ``plain`` or ``transposed``.
        function: what is traced; takes the operands as tensors, so that none becomes a constant
            that could be folded away, and returns a result, several, or nothing.
        operands: makes arrays in the function's layouts from the plain inputs, by role.
        by_role: brings what the function returned (as arrays, in a list) back to plain layouts, by
            role, the main result first. It is given the operands too: some are overwritten.
        complete: computes further operands, on the device and outside the timed function.
        detail: what is special about the problem, for refusals: ``with 2 groups``.
        sums: what it sums in: ``products`` as the arithmetic says, ``float32``, ``stored``: in the
            storage type, or ``BiasAddGrad``: as that operator does, which depends on the mode.
        types: TensorFlow's type of each operand; None is that of the precision. Empty where all
            are of that type.
        variables: places of operands that the function overwrites; they become ``tf.Variable``.
        turns: values of a last operand, a scalar of the precision's type, that take turns from call
            to call: an optimizer that steps forth and back does the same work and leaves the
            weights where they were, however often it runs.
    """

    algorithm: str
    layout: str
    variant: str
    function: Callable[..., Any]
    operands: Callable[[Mapping[str, NDArray[Any]]], tuple[NDArray[Any], ...]]
    by_role: Callable[[Sequence[NDArray[Any]], Sequence[Any]], dict[str, NDArray[Any]]]
    complete: Callable[[Sequence[Any]], Sequence[Any]] = as_they_are
    detail: str = ""
    sums: str = "products"
    types: tuple[str | None, ...] = ()
    variables: tuple[int, ...] = ()
    turns: tuple[float, ...] = ()


def only(
    role: str, plain: Callable[[NDArray[Any]], NDArray[Any]]
) -> Callable[[Sequence[NDArray[Any]], Sequence[Any]], dict[str, NDArray[Any]]]:
    """Return the ``by_role`` of a function with one result, which ``plain`` brings back."""

    def by_role(
        results: Sequence[NDArray[Any]], operands: Sequence[Any]
    ) -> dict[str, NDArray[Any]]:
        del operands
        (result,) = results
        return {role: plain(result)}

    return by_role


# -----------------------------------------------------------------------------
# A traced function of TensorFlow with its operands on the device, ready to be called.


class FunctionOperator:
    """What ``tf.function`` makes of a recipe.

    Args:
        recipe: what is computed.
        operands: the function's operands, on the device; without what takes turns.
        mode: ``graph``, or ``xla`` for a graph that XLA compiles.
        device: TensorFlow's name of the device.
        tf32: what the process-wide switch has to be while this runs; None leaves it alone.
        turns: last operands, see :class:`Recipe`, on the device.
    """

    def __init__(
        self,
        recipe: Recipe,
        operands: Sequence[Any],
        mode: str,
        device: str,
        tf32: bool | None = None,
        turns: Sequence[Any] = (),
    ) -> None:
        self.operands = (*operands, *turns[:1])
        self.mode = mode
        self._recipe = recipe
        self._device = device
        self._tf32 = tf32
        self.function = self.traced()
        self._variables = [operands[place] for place in recipe.variables]
        self._before = [tf.identity(variable) for variable in self._variables]
        if turns:
            self._following = itertools.cycle([(*operands, turn) for turn in turns]).__next__
            # In place of the method: only what takes turns pays for it.
            self.call = self._call_in_turn  # type: ignore[method-assign]  # another way to be called

    def traced(self) -> Any:
        """Return the function anew: it is traced when it is called."""

        def placed(*tensors: Any) -> Any:
            with tf.device(self._device):
                return self._recipe.function(*tensors)

        # Autograph translates Python's `if` and `for`; there is none in these functions.
        return tf.function(placed, autograph=False, jit_compile=self.mode == "xla")

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
        types = recipe.types or (None,) * len(arrays)
        operands = [
            upload(array, kind or arithmetic.dtype, device)
            for array, kind in zip(arrays, types, strict=True)
        ]
        with tf.device(device):
            operands = list(recipe.complete(operands))
            for place in recipe.variables:
                operands[place] = tf.Variable(operands[place], trainable=False)
        turns = [upload(np.asarray(one), arithmetic.dtype, device) for one in recipe.turns]
        operator = cls(recipe, operands, mode, device, arithmetic.tf32, turns)
        with operator.guard():
            operator.call()
            operator.wait()
        return operator

    def call(self) -> Any:
        """Run it once; its results are new tensors each time."""
        return self.function(*self.operands)

    def _call_in_turn(self) -> Any:
        return self.function(*self._following())

    def wait(self) -> None:
        """Return when all calls are done.

        On a CPU each call returns with its result: execution is synchronous, XLA's too, and
        ``settings.choose`` sees to it. A GPU's stream is waited for by an operator of its own.
        """
        if self._device != "/CPU:0":
            with tf.device(self._device):
                tf.raw_ops.SyncDevice()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Set the process-wide switch for TF32 as this operator needs it; entered to call it."""
        if self._tf32 is not None:
            tf.config.experimental.enable_tensor_float_32_execution(self._tf32)
        yield

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once, on its first operands, and return its results as float32 in plain layouts.

        Operands that it overwrites are what they were before any call, in this call.
        """
        self._restore()
        with self.guard():
            returned = self.function(*self.operands)
        # An update of variables returns nothing.
        results = [] if returned is None else [as_array(one) for one in tf.nest.flatten(returned)]
        found = self._recipe.by_role(results, self.operands)
        self._restore()
        return found

    def _restore(self) -> None:
        for variable, before in zip(self._variables, self._before, strict=True):
            variable.assign(before)
