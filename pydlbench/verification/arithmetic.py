"""Float64 arithmetic that propagates rounding errors, with reverse-mode differentiation.

This module replaces NumPy in the formulas of :mod:`pydlbench.ops`. Each number carries the expected
square of a kernel's error, in units of roundoff. Errors have random signs, so squares add up: a
result is off by one unit of itself, and by the errors of its operands times its slopes. The size of
an error thus follows from the formula; where a gate discards a state, it discards its error, too.

Gradients are computed with the same arithmetic: a number that depends on a watched one records its
operands and slopes (A. Griewank and A. Walther, "Evaluating Derivatives", 2008, chapter 3).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

#: Number of terms of a result that must be right to the last bit.
EXACT: Final = 0
#: Number of further terms where a root, a power, an exponential or a logarithm is part of the
#: result: three roots of 16 are 12 units, which leaves room for fast versions of these functions.
TRANSCENDENTAL: Final = 16
#: A logarithm may be off by this many times the error of a root; oneDNN's own test has the same
#: ratio (tests/benchdnn/eltwise/eltwise.cpp: 4e-5, and 4e-6).
_LOGARITHM_UNITS: Final = 10

#: Errors are relative to this times the root of all squared roundings: two roundings of a value
#: count as much as the value itself.
_SIZE_FACTOR: Final = math.sqrt(0.5)

_serial = itertools.count()


class Rounded:
    """An array of a computation that rounds each result.

    Attributes:
        value: Exact values.
        square: Square of the error of each value, in units of roundoff; broadcasts to ``value``.
        length: Number of terms of the longest sum in the computation; zero if nothing was rounded.
        transcendental: Whether the computation contains a transcendental function.
        watched: Whether gradients with respect to it are wanted.
        sources: For each operand: the operand, the function from the result's gradient to the
            operand's gradient, and the elements of the operand that were used.
    """

    __slots__ = ("length", "serial", "sources", "square", "transcendental", "value", "watched")
    #: Makes NumPy arrays return NotImplemented, so that Python calls the methods of this class.
    __array_ufunc__ = None

    def __init__(
        self,
        value: Any,
        square: Any = 0.0,
        length: int = 0,
        *,
        transcendental: bool = False,
        watched: bool = False,
    ) -> None:
        self.value: F64 = np.asarray(value, dtype=np.float64)
        self.square = square
        self.length = length
        self.transcendental = transcendental
        self.watched = watched
        self.sources: list[tuple[Rounded, Callable[[Rounded], Rounded], Any]] = []
        self.serial = next(_serial)

    @property
    def exact(self) -> bool:
        """Whether nothing was rounded."""
        return isinstance(self.square, float)

    @property
    def terms(self) -> int:
        """Number of terms that determines the tolerance."""
        return EXACT if self.exact else max(1, self.length) + TRANSCENDENTAL * self.transcendental

    @property
    def size(self) -> F64:
        """Scale of the error beside the value itself, in its shape."""
        return np.broadcast_to(_SIZE_FACTOR * np.sqrt(self.square), self.value.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.value.shape

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self.value)

    def __iter__(self) -> Iterator[Rounded]:
        """Iterate over the first axis."""
        return (self[at] for at in range(len(self.value)))

    def __gt__(self, other: Any) -> NDArray[np.bool_]:
        """Compare element by element."""
        return np.asarray(self.value > _rounded(other).value)

    def __add__(self, other: Any) -> Rounded:
        """Add."""
        other = _rounded(other)
        value = self.value + other.value
        return _elementwise(value, value**2, (self, _unit_slope), (other, _unit_slope), length=2)

    def __sub__(self, other: Any) -> Rounded:
        """Subtract."""
        return self + -_rounded(other)

    def __neg__(self) -> Rounded:
        """Negate."""
        return _elementwise(-self.value, 0.0, (self, lambda: Rounded(-1)))

    def __mul__(self, other: Any) -> Rounded:
        """Multiply; products with truth values are exact."""
        if isinstance(other, np.ndarray) and other.dtype == np.bool_:
            return _elementwise(self.value * other, 0.0, (self, lambda: other))
        other = _rounded(other)
        value = self.value * other.value
        if other is self:  # the errors of both factors are the same, so they do not cancel
            double = _detach(self).scale(2)
            return _elementwise(value, value**2, (self, lambda: double))
        factors = _detach(other), _detach(self)
        return _elementwise(
            value, value**2, (self, lambda: factors[0]), (other, lambda: factors[1])
        )

    def __truediv__(self, other: Any) -> Rounded:
        """Divide."""
        inverse = reciprocal(_rounded(other), rounding=0.0)
        return self * inverse

    def __rsub__(self, other: Any) -> Rounded:
        """Subtract from a number."""
        return _rounded(other) + -self

    def __rtruediv__(self, other: Any) -> Rounded:
        """Divide a number."""
        return _rounded(other) / self

    def __matmul__(self, other: Rounded) -> Rounded:
        """Multiply matrices, which are the last two axes."""
        return _products(
            np.matmul,
            self,
            other,
            self.value.shape[-1],
            lambda g, _, y: g @ swapaxes(y, -1, -2),
            lambda g, x, _: swapaxes(x, -1, -2) @ g,
        )

    __radd__ = __add__
    __rmul__ = __mul__

    def __pow__(self, power: float) -> Rounded:
        """Raise to a power; squares and cubes are products."""
        if power in (2, 3):
            square = self * self
            return square if power == 2 else square * self
        inverse = reciprocal(_detach(self)) * power
        value = self.value**power
        # The exponential of a product: an error of the logarithm is multiplied by the exponent.
        rounding = value**2 * (1 + max(1.0, power**2))
        return _unary(value, self, lambda result: result * inverse, rounding)

    def __getitem__(self, at: Any) -> Rounded:
        """Index or slice."""
        return _rearrange(self, lambda array: array[at], lambda g: g, at)

    def reshape(self, *shape: Any) -> Rounded:
        """Reshape."""
        back = self.value.shape
        return _rearrange(self, lambda array: array.reshape(*shape), lambda g: g.reshape(back))

    def sum(self, axis: Any = None, *, keepdims: bool = False, slack: float = 1.0) -> Rounded:
        """Sum over some axes; errors are ``slack`` times as large as usual."""
        value = self.value.sum(axis, keepdims=True)
        square = slack**2 * np.square(self.value) + self.square
        shape = self.value.shape

        def spread(gradient: Rounded) -> Rounded:
            reduced = gradient.reshape(value.shape)
            return _rearrange(reduced, lambda array: np.broadcast_to(array, shape), lambda g: g)

        length = self.value.size // max(1, value.size)
        square = square.sum(axis, keepdims=True)
        total = _combine(value, square, [(self, spread, ...)], length=length)
        return total if keepdims else total.reshape(np.squeeze(value, axis).shape)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Rounded:
        """Average over some axes."""
        total = self.sum(axis, keepdims=keepdims)
        return total.scale(total.value.size / self.value.size)

    def var(self, axis: Any = None, *, keepdims: bool = False) -> Rounded:
        """Compute variances over some axes.

        The terms are the mean square and the squared mean: many kernels subtract one from the
        other.
        """
        assert self.exact
        assert not self.watched
        value = self.value.var(axis, keepdims=keepdims)
        length = self.value.size // max(1, value.size)
        square = np.square(np.square(self.value)).mean(axis, keepdims=keepdims) / length
        square += self.value.mean(axis, keepdims=keepdims) ** 4
        return Rounded(value, square, length)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Rounded:
        """Return maxima as exact constants.

        A softmax subtracts the maximum only for stability: its result does not depend on it.
        """
        return Rounded(self.value.max(axis, keepdims=keepdims))

    def scale(self, factor: float) -> Rounded:
        """Multiply by a number without a rounding of its own."""
        square = 0.0 if self.exact else self.square * factor**2
        return _combine(self.value * factor, square, [(self, lambda g: g.scale(factor), ...)])


def _rounded(values: Any) -> Rounded:
    return values if isinstance(values, Rounded) else Rounded(values)


def _detach(numbers: Rounded) -> Rounded:
    """Return the same numbers without their sources: a constant of differentiation."""
    return Rounded(
        numbers.value, numbers.square, numbers.length, transcendental=numbers.transcendental
    )


def _unit_slope() -> Rounded:
    return Rounded(1)


def _combine(
    value: F64,
    square: Any,
    sources: Sequence[tuple[Rounded, Callable[[Rounded], Rounded], Any]],
    *,
    length: int = 0,
    transcendental: bool = False,
) -> Rounded:
    """Return the result of an operation, with the properties that it inherits from its sources."""
    result = Rounded(
        value,
        square,
        max(length, *(source.length for source, _, _ in sources)),
        transcendental=transcendental or any(source.transcendental for source, _, _ in sources),
    )
    result.sources = [entry for entry in sources if entry[0].watched]
    result.watched = bool(result.sources)
    return result


def _rearrange(
    x: Rounded,
    move: Callable[[NDArray[Any]], NDArray[Any]],
    back: Callable[[Rounded], Rounded],
    at: Any = ...,
) -> Rounded:
    """Apply a data movement; ``back`` applies the inverse to the gradient."""
    square = x.square if x.exact else move(np.broadcast_to(x.square, x.value.shape))
    return _combine(move(x.value), square, [(x, back, at)])


def _elementwise(
    value: F64,
    rounding: Any,
    *operands: tuple[Rounded, Callable[[], Any]],
    length: int = 1,
    transcendental: bool = False,
) -> Rounded:
    """Return the result of an elementwise operation.

    Args:
        value: Exact values of the result.
        rounding: Square of the error if the operands are exact.
        operands: Each operand with the derivative with respect to it: numbers, or truth values.
        length: Number of terms, if the result is a sum.
        transcendental: Whether the function is transcendental.
    """
    square = rounding
    sources = []
    for operand, slope in operands:
        if not operand.exact:
            factor = slope()
            factor = factor.value if isinstance(factor, Rounded) else factor
            weight = np.square(factor, dtype=np.float64)
            unit = weight.ndim == 0 and weight == 1
            square = square + (operand.square if unit else operand.square * weight)
        sources.append((operand, functools.partial(_pull_back, slope, operand.value.shape), ...))
    if isinstance(square, float):
        length = 0
    return _combine(value, square, sources, length=length, transcendental=transcendental)


def _pull_back(slope: Callable[[], Any], shape: tuple[int, ...], gradient: Rounded) -> Rounded:
    """Multiply a gradient by a slope, and sum over the axes along which the operand was repeated.

    A slope of 1 or -1 adds no rounding.
    """
    factor = slope()
    if not (isinstance(factor, Rounded) and factor.value.ndim == 0 and factor.value**2 == 1):
        gradient = gradient * factor
    elif factor.value < 0:
        gradient = -gradient
    more = gradient.value.ndim - len(shape)
    axes = tuple(
        axis
        for axis, size in enumerate(gradient.value.shape)
        if axis < more or (shape[axis - more] == 1 and size != 1)
    )
    return gradient.sum(axes, keepdims=True).reshape(shape) if axes else gradient.reshape(shape)


def gradients(result: Rounded, gradient: Rounded, wanted: Sequence[Rounded]) -> list[Rounded]:
    """Differentiate ``sum(result * gradient)`` with respect to watched numbers."""
    nodes = {result.serial: result}
    pending = [result]
    while pending:
        for source, _, _ in pending.pop().sources:
            if source.serial not in nodes:
                nodes[source.serial] = source
                pending.append(source)
    totals = {result.serial: _Total(result)}
    totals[result.serial].add(gradient, ...)
    for serial in sorted(nodes, reverse=True):
        node = nodes.pop(serial)
        if not node.sources:
            continue
        slope = totals.pop(serial).numbers
        for source, contribution, at in node.sources:
            total = totals.setdefault(source.serial, _Total(source))
            total.add(contribution(slope), at)
    return [totals[source.serial].numbers for source in wanted]


class _Total:
    """A gradient to which contributions are added."""

    def __init__(self, source: Rounded) -> None:
        self.shape = source.value.shape
        self.numbers = Rounded(np.zeros(self.shape))
        self.count = 0

    def add(self, part: Rounded, at: Any) -> None:
        """Add a contribution to the elements at an index; the first one rounds nothing."""
        before, self.count = self.count, self.count + 1
        if at is ... and not before:
            self.numbers = part
            return
        if before <= 1:
            first = self.numbers
            square = np.array(np.broadcast_to(first.square, self.shape))
            if at is ...:
                square += np.square(first.value)
            self.numbers = Rounded(
                first.value.copy(), square, first.length, transcendental=first.transcendental
            )
        self.numbers.value[at] += part.value
        self.numbers.square[at] += part.square
        self.numbers.square[at] += np.square(part.value)
        self.numbers.length = max(self.numbers.length, part.length, self.count)
        self.numbers.transcendental |= part.transcendental


# -----------------------------------------------------------------------------
# The functions of NumPy that formulas use.


def _unary(
    value: F64,
    x: Rounded,
    slope: Callable[[Rounded], Rounded],
    rounding: Any = None,
    *,
    transcendental: bool = True,
) -> Rounded:
    """Return the result of a function of one argument.

    Args:
        value: Exact values of the result.
        x: Argument of the function.
        slope: Derivative as a function of the result.
        rounding: Square of the error for an exact argument; by default one unit of the value.
        transcendental: Whether the function is transcendental.
    """
    results = [Rounded(value)]
    rounding = value**2 if rounding is None else rounding
    result = _elementwise(
        value, rounding, (x, lambda: slope(results[-1])), transcendental=transcendental
    )
    results.append(_detach(result))
    return result


def reciprocal(x: Rounded, rounding: Any = None) -> Rounded:
    """Compute ``1 / x``; a quotient is rounded once, in the product."""
    return _unary(1 / x.value, x, lambda result: -(result * result), rounding, transcendental=False)


def exp(x: Rounded) -> Rounded:
    """Compute exponentials."""
    return _unary(np.exp(x.value), x, lambda result: result)


def expm1(x: Rounded) -> Rounded:
    """Compute ``exp(x) - 1``: kernels subtract the one, and add it again for the slope."""
    value = np.expm1(x.value)
    return _unary(value, x, lambda result: result + 1, 1 + (value + 1) ** 2)


def log(x: Rounded) -> Rounded:
    """Compute logarithms; near one their error is absolute, not relative."""
    detached = _detach(x)
    value = np.log(x.value)
    rounding = value**2 + _LOGARITHM_UNITS**2 * (value**2 + 1)
    return _unary(value, x, lambda _: reciprocal(detached), rounding)


def log1p(x: Rounded) -> Rounded:
    """Compute ``log(1 + x)``."""
    detached = _detach(x)
    return _unary(np.log1p(x.value), x, lambda _: reciprocal(detached + 1))


def sin(x: Rounded) -> Rounded:
    """Compute sines."""
    detached = _detach(x)
    return _unary(np.sin(x.value), x, lambda _: cos(detached))


def cos(x: Rounded) -> Rounded:
    """Compute cosines."""
    detached = _detach(x)
    return _unary(np.cos(x.value), x, lambda _: -sin(detached))


def _steps(function: Callable[[F64], F64]) -> Callable[[Rounded], Rounded]:
    """Return a function that is constant between its steps, and exact."""

    def apply(x: Rounded) -> Rounded:
        return _unary(function(x.value), x, lambda _: _rounded(0.0), 0.0, transcendental=False)

    return apply


sign, floor, ceil, rint = map(_steps, (np.sign, np.floor, np.ceil, np.rint))


def sqrt(x: Rounded) -> Rounded:
    """Compute square roots."""
    return _unary(np.sqrt(x.value), x, lambda result: reciprocal(result * 2))


def tanh(x: Rounded) -> Rounded:
    """Compute hyperbolic tangents; kernels compute the slope from the result."""
    return _unary(np.tanh(x.value), x, lambda result: 1 - result * result)


def sigmoid(x: Rounded) -> Rounded:
    """Compute ``1 / (1 + exp(-x))``; kernels compute the slope from the result.

    16-bit kernels round the exponential, the sum and the quotient.
    """
    value = 0.5 * (1 + np.tanh(0.5 * x.value))
    rounding = (value * (1 - value)) ** 2 + 2 * value**2
    return _unary(value, x, lambda result: result * (1 - result), rounding)


def logaddexp(zero: float, x: Rounded) -> Rounded:
    """Compute ``log(1 + exp(x))``; the one in the sum sets the scale of the error."""
    assert zero == 0
    detached = _detach(x)
    value = np.logaddexp(0, x.value)
    return _unary(value, x, lambda _: sigmoid(detached), 1 + value**2)


_ERROR_FUNCTION: Final = np.vectorize(math.erf, otypes=[float])


def erf(x: Rounded) -> Rounded:
    """Compute the error function with Python's, since NumPy has no error function."""
    detached = _detach(x)
    factor = 2 / math.sqrt(math.pi)
    return _unary(_ERROR_FUNCTION(x.value), x, lambda _: exp(-(detached * detached)) * factor)


def where(chosen: NDArray[np.bool_], x: Any, y: Any) -> Rounded:
    """Choose elements from ``x`` or ``y``."""
    x, y = _rounded(x), _rounded(y)
    value = np.where(chosen, x.value, y.value)
    return _elementwise(value, 0.0, (x, lambda: chosen), (y, lambda: ~chosen))


def maximum(x: Any, y: Any) -> Rounded:
    """Compute elementwise maxima."""
    return where(_rounded(x) > y, x, y)


def minimum(x: Any, y: Any) -> Rounded:
    """Compute elementwise minima."""
    return where(_rounded(y) > x, x, y)


def clip(x: Rounded, least: float, most: float) -> Rounded:
    """Limit values to an interval."""
    return minimum(maximum(x, least), most)


def cumsum(x: Rounded, axis: int, *, from_end: bool = False) -> Rounded:
    """Sum all elements up to each one along an axis, or from each one to the end."""

    def sums(array: F64) -> F64:
        array = np.flip(array, axis) if from_end else array
        array = np.cumsum(array, axis)
        return np.flip(array, axis) if from_end else array

    square = sums(np.square(x.value) + x.square)
    back = functools.partial(cumsum, axis=axis, from_end=not from_end)
    return _combine(sums(x.value), square, [(x, back, ...)], length=x.shape[axis])


def cumprod(x: Rounded, axis: int) -> Rounded:
    """Multiply all elements up to each one along an axis; each product rounds once more."""
    assert x.exact
    assert not x.watched
    value = np.cumprod(x.value, axis)
    along = np.arange(x.shape[axis]).reshape(-1, *(1 for _ in x.shape[axis + 1 :]))
    return Rounded(value, np.square(value) * along, 1)


def absolute(x: Rounded) -> Rounded:
    """Compute absolute values."""
    return where(x > 0, x, -x)


def concatenate(parts: Sequence[Rounded], axis: int = 0) -> Rounded:
    """Concatenate along an axis."""
    square: Any = 0.0
    if not all(part.exact for part in parts):
        square = np.concatenate([np.broadcast_to(p.square, p.value.shape) for p in parts], axis)
    axis %= parts[0].value.ndim
    sources = []
    first = 0
    for part in parts:
        last = first + part.value.shape[axis]
        at = (*(slice(None),) * axis, slice(first, last))
        sources.append((part, lambda g, at=at: g[at], ...))
        first = last
    return _combine(np.concatenate([part.value for part in parts], axis), square, sources)


def stack(parts: Sequence[Rounded]) -> Rounded:
    """Concatenate along a new first axis."""
    return concatenate([part.reshape(1, *part.value.shape) for part in parts])


def pad(x: Rounded, widths: Sequence[tuple[int, int]], constant_values: float = 0.0) -> Rounded:
    """Pad with constants."""
    inner = tuple(
        slice(before, before + size)
        for (before, _), size in zip(widths, x.value.shape, strict=True)
    )
    square = x.square if x.exact else np.pad(np.broadcast_to(x.square, x.value.shape), widths)
    value = np.pad(x.value, widths, constant_values=constant_values)
    return _combine(value, square, [(x, lambda g: g[inner], ...)])


def swapaxes(x: Rounded, first: int, second: int) -> Rounded:
    """Exchange two axes."""
    turn = functools.partial(np.swapaxes, axis1=first, axis2=second)
    return _rearrange(x, turn, lambda g: swapaxes(g, first, second))


def einsum(letters: str, x: Rounded, y: Rounded) -> Rounded:
    """Contract two tensors."""
    operands, result = letters.split("->")
    first, second = operands.split(",")
    sizes = dict(zip(first + second, x.value.shape + y.value.shape, strict=True))
    length = math.prod(size for letter, size in sizes.items() if letter not in result)
    return _products(
        functools.partial(np.einsum, letters, optimize=True),
        x,
        y,
        length,
        lambda g, _, y: einsum(f"{result},{second}->{first}", g, y),
        lambda g, x, _: einsum(f"{first},{result}->{second}", x, g),
    )


_Pull = Callable[[Rounded, Rounded, Rounded], Rounded]


def _products(
    multiply: Callable[[Any, Any], Any], x: Rounded, y: Rounded, length: int, *pulls: _Pull
) -> Rounded:
    """Return sums of products.

    ``pulls`` compute the gradient of each operand from the result's gradient and both operands.
    """
    squares = np.square(x.value), np.square(y.value)
    square = multiply(squares[0] if x.exact else squares[0] + x.square, squares[1])
    if not y.exact:
        square += multiply(squares[0], np.broadcast_to(y.square, y.value.shape))
    detached = _detach(x), _detach(y)
    sources = [
        (operand, lambda g, pull=pull: pull(g, *detached), ...)
        for operand, pull in zip((x, y), pulls, strict=True)
    ]
    return _combine(multiply(x.value, y.value), square, sources, length=length)


arange = np.arange
