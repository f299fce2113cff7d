"""Functions of several results, of operands in several types, and of operands that they overwrite.

A plain :class:`~pydlbench.backends.tensorflow.recipe.Recipe` has one result and one type of number.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.operator import FunctionOperator, upload
from pydlbench.backends.tensorflow.recipe import Recipe
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.arithmetic import Arithmetic

__all__ = ["RolesOperator", "RolesRecipe", "operator_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesRecipe(Recipe):
    """A recipe whose function has several results, types, or operands that it overwrites.

    Attributes:
        by_role: brings what the function returned (as arrays, in a list) and the variables behind
            it (as arrays too) back to plain layouts, by role, the main result first.
        types: TensorFlow's type of each operand; None is that of the precision. All are None where
            there are no types.
        variables: places of operands that the function overwrites; they become ``tf.Variable``.
        turns: values of a last operand, a scalar of the precision's type, that take turns from call
            to call: an optimizer that steps forth and back does the same work and leaves the
            weights where they were, however often it runs.
    """

    by_role: Callable[[list[NDArray[Any]], list[NDArray[Any]]], dict[str, NDArray[Any]]]
    types: tuple[str | None, ...] = ()
    variables: tuple[int, ...] = ()
    turns: tuple[float, ...] = ()


class RolesOperator(FunctionOperator):
    """What ``tf.function`` makes of such a recipe."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        inputs: Mapping[str, NDArray[Any]],
        arithmetic: Arithmetic,
        mode: str,
        device: str,
    ) -> RolesOperator:
        """Make an operator from plain inputs; it has run once, so it is traced and compiled."""
        assert isinstance(recipe, RolesRecipe)
        arrays = recipe.operands(inputs)
        types = recipe.types or (None,) * len(arrays)
        operands = [
            upload(array, of or arithmetic.dtype, device)
            for array, of in zip(arrays, types, strict=True)
        ]
        with tf.device(device):
            operands = list(recipe.complete(operands))
            for place in recipe.variables:
                operands[place] = tf.Variable(operands[place], trainable=False)
        turns = [
            upload(np.asarray(value, np.float32), arithmetic.dtype, device)
            for value in recipe.turns
        ]
        operator = cls(recipe, [*operands, *turns[:1]], mode, device, arithmetic.tf32)
        operator._prepare(recipe, turns)
        operator.settle()
        operator.call()
        operator.wait()
        return operator

    def _prepare(self, recipe: RolesRecipe, turns: Sequence[Any]) -> None:
        """Keep what the variables start with, and line up the operands of the following calls."""
        self._roles = recipe
        self._variables = [self.operands[place] for place in recipe.variables]
        self._before = [tf.identity(variable) for variable in self._variables]
        if turns:
            lists = [(*self.operands[:-1], turn) for turn in turns]
            self._following = itertools.cycle(lists).__next__
            # In place of the method: only what takes turns pays for it.
            self.call = self._call_in_turn  # type: ignore[method-assign]  # another way to be called

    def _call_in_turn(self) -> Any:
        return self.function(*self._following())

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once, on its first operands, and return its results as float32 in plain layouts.

        Operands that it overwrites are what they were before any call, in this call.
        """
        self.settle()
        self._restore()
        results = self._results()
        found = self._roles.by_role(results, [_array(one) for one in self._variables])
        self._restore()
        return found

    def _results(self) -> list[NDArray[Any]]:
        returned = self.function(*self.operands)
        # An update of variables returns nothing.
        return [] if returned is None else [_array(one) for one in tf.nest.flatten(returned)]

    def _restore(self) -> None:
        for variable, before in zip(self._variables, self._before, strict=True):
            variable.assign(before)


def operator_of(
    recipe: Recipe,
    inputs: Mapping[str, NDArray[Any]],
    arithmetic: Arithmetic,
    mode: str,
    device: str,
) -> FunctionOperator:
    """Make the operator of a recipe of either kind; see :meth:`FunctionOperator.of`."""
    kind = RolesOperator if isinstance(recipe, RolesRecipe) else FunctionOperator
    return kind.of(recipe, inputs, arithmetic, mode, device)


def _array(tensor: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.array(tensor.numpy()).astype(np.float32)
    return array
