"""A recipe says which function computes a pass; traced, with its operands, it is an operator."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.host_clock import HostClock
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.backend import Arithmetic
    from pydlbench.layers.pointwise import Pointwise
    from pydlbench.timing.chunk import Chunk, Request

__all__ = [
    "FORMATS",
    "Clock",
    "FunctionOperator",
    "Recipe",
    "RolesOperator",
    "RolesRecipe",
    "as_they_are",
    "from_plain",
    "identity",
    "image_recipes",
    "operator_of",
    "spatial",
    "to_plain",
    "unused_plain",
    "upload",
]


# -----------------------------------------------------------------------------
# A traced function of TensorFlow with its operands on the device, ready to be called.


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


# -----------------------------------------------------------------------------
# A recipe: which function of TensorFlow computes a pass, on operands in which layout.

#: Layouts of images, in the order of preference: CPUs often have the first one only.
FORMATS = ("NHWC", "NCHW")


def as_they_are(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return the operands themselves: nothing has to be computed from them beforehand."""
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How TensorFlow computes one pass of one layer.

    Attributes:
        algorithm: TensorFlow's name of the operator.
        layout: layouts of the operands, for the reader.
        variant: ``nhwc``, ``nchw``, ``plain`` or ``transposed``.
        function: what is traced; takes the operands as tensors, so that none becomes a constant
            that could be folded away.
        operands: makes arrays in the function's layouts from the plain inputs, by role.
        result: role of what the function returns.
        plain: brings the function's result back to the plain layout.
        complete: computes further operands, on the device and outside the timed function.
        detail: what is special about the problem, for refusals: ``with 2 groups``.
        sums: what it sums in: ``products`` as the arithmetic says, ``float32``, or ``stored``: in
            the storage type.
    """

    algorithm: str
    layout: str
    variant: str
    function: Callable[..., Any]
    operands: Callable[[Mapping[str, NDArray[Any]]], tuple[NDArray[Any], ...]]
    result: str
    plain: Callable[[NDArray[Any]], NDArray[Any]]
    complete: Callable[[Sequence[Any]], Sequence[Any]] = as_they_are
    detail: str = ""
    sums: str = "products"


def from_plain(image: NDArray[Any], data_format: str) -> NDArray[Any]:
    """Return an NCHW image in TensorFlow's format, contiguous."""
    moved = image.transpose(0, 2, 3, 1) if data_format == "NHWC" else image
    return np.ascontiguousarray(moved)


def to_plain(image: NDArray[Any], data_format: str) -> NDArray[Any]:
    """Return an image of TensorFlow's as NCHW."""
    return image.transpose(0, 3, 1, 2) if data_format == "NHWC" else image


def spatial(data_format: str, height: int, width: int) -> list[int]:
    """Return what TensorFlow wants per dimension: 1 for images and channels."""
    return [1, height, width, 1] if data_format == "NHWC" else [1, 1, height, width]


# -----------------------------------------------------------------------------
# Functions of several results, of operands in several types, and of operands that they overwrite.
#
# A plain :class:`Recipe` has one result and one type of number.


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


# -----------------------------------------------------------------------------
# Recipes of memory-bound layers on images, from a function and the roles of its operands.


def unused_plain(result: NDArray[Any]) -> NDArray[Any]:
    """Stand where a recipe of one result has a function for it; ``by_role`` does that here."""
    return result


def image_recipes(
    layer: Pointwise,
    pass_: str,
    algorithm: str,
    function: Callable[[str], Callable[..., Any]],
    reads: Sequence[str],
    writes: Sequence[str],
    *,
    further: Sequence[NDArray[Any]] = (),
    types: tuple[str | None, ...] = (),
    variables: tuple[int, ...] = (),
    complete: Callable[[Sequence[Any]], Sequence[Any]] = as_they_are,
    formats: Sequence[str] = FORMATS,
    sums: str = "float32",
    finish: Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]] = dict,
) -> list[Recipe]:
    """Return one recipe per format of images.

    Args:
        layer: the layer.
        pass_: one of its passes.
        algorithm: TensorFlow's names.
        function: makes what is traced, for a format.
        reads: roles of its operands, in order.
        writes: roles of its results, in order; those of variables follow.
        further: NCHW images behind them.
        types: of all operands, where they differ.
        variables: places of operands that become variables.
        complete: computes on operands beforehand.
        formats: that there are operators for.
        sums: see :class:`Recipe`.
        finish: makes results by role of what the function computed by role.
    """
    words = dict.fromkeys((*layer.reads(pass_), *layer.writes(pass_)))
    names = [role for role in words if role.startswith(("src", "dst"))]
    names.sort(key=lambda role: (role == "dst", int(role[3:] or 1)))

    def recipe(data_format: str) -> Recipe:
        def arranged(array: NDArray[Any]) -> NDArray[Any]:
            return from_plain(array, data_format) if array.ndim == 4 else array

        def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
            return tuple(arranged(array) for array in (*(inputs[role] for role in reads), *further))

        def by_role(
            results: list[NDArray[Any]], stands: list[NDArray[Any]]
        ) -> dict[str, NDArray[Any]]:
            plain = (
                to_plain(one, data_format) if one.ndim == 4 else one for one in (*results, *stands)
            )
            return finish(dict(zip(writes, plain, strict=True)))

        images = data_format.lower()
        return RolesRecipe(
            algorithm=algorithm,
            layout=", ".join(f"{role} {images}" for role in names),
            variant=images,
            function=function(data_format),
            operands=operands,
            result=writes[0],
            plain=unused_plain,
            complete=complete,
            sums=sums,
            by_role=by_role,
            types=types,
            variables=variables,
        )

    return [recipe(data_format) for data_format in formats]
