"""Float64 arithmetic that counts what roundings add up to, and gradients of what it computed.

This module stands in for NumPy in the formulas of :mod:`pydlbench.ops`. Each number comes with the
square of the error that a kernel's may have, in units of a rounding, added up as errors of random
signs are: a result is off by one unit of itself, and by what its operands are off by times its
slopes. So the size of an error follows from the formula, and what a step forgets is forgotten of
the errors, too.

Gradients are formulas of the same kind: a number that depends on a watched one knows the slopes of
what it was made of (A. Griewank and A. Walther, "Evaluating Derivatives", 2008, chapter 3).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

F64 = NDArray[np.float64]

#: Terms of a result that must be right to the last bit.
EXACT: Final = 0
#: Further terms where a root, a power, an exponential or a logarithm is part of the result: three
#: roots of 16 are 12 units, which leaves room for the fast versions of these functions.
TRANSCENDENTAL: Final = 16
#: How much more than a root a logarithm may be off: what oneDNN's own test allows its
#: (tests/benchdnn/eltwise/eltwise.cpp: 4e-5, and 4e-6).
_LOGARITHM: Final = 10

#: What of the root of all squared roundings an error is measured against: two roundings of a value
#: count as much as the value itself.
_SIZE: Final = math.sqrt(0.5)

_serial = itertools.count()


class Rounded:
    """Numbers of a computation that rounds each result.

    Attributes:
        value: What they should be.
        square: Of their error, in units of a rounding; of a shape that spreads over ``value``.
        length: Terms of the longest sum behind them; zero where nothing was rounded.
        bent: Whether a transcendental function is behind them.
        watched: Whether gradients with respect to them are wanted.
        sources: What they were made of, and the contribution to its gradient by their own.
    """

    __slots__ = ("bent", "length", "serial", "sources", "square", "value", "watched")
    #: Makes arrays leave arithmetic with these numbers to them.
    __array_ufunc__ = None

    def __init__(
        self,
        value: Any,
        square: Any = 0.0,
        length: int = 0,
        *,
        bent: bool = False,
        watched: bool = False,
    ) -> None:
        self.value: F64 = np.asarray(value, dtype=np.float64)
        self.square = square
        self.length = length
        self.bent = bent
        self.watched = watched
        self.sources: list[tuple[Rounded, Callable[[Rounded], Rounded], Any]] = []
        self.serial = next(_serial)

    @property
    def exact(self) -> bool:
        """Whether nothing was rounded."""
        return isinstance(self.square, float)

    @property
    def terms(self) -> int:
        """Terms that the tolerance is that of."""
        return EXACT if self.exact else max(1, self.length) + TRANSCENDENTAL * self.bent

    @property
    def size(self) -> F64:
        """What an error is measured against beside the value, in its shape."""
        return np.broadcast_to(_SIZE * np.sqrt(self.square), self.value.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.value.shape

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self.value)

    def __iter__(self) -> Iterator[Rounded]:
        """Yield what lies along the first axis."""
        return (self[at] for at in range(len(self.value)))

    def __gt__(self, other: Any) -> NDArray[np.bool_]:
        """Return which values are larger."""
        return np.asarray(self.value > _rounded(other).value)

    def __add__(self, other: Any) -> Rounded:
        """Return sums."""
        other = _rounded(other)
        value = self.value + other.value
        return _by_element(value, value**2, (self, _unit), (other, _unit), length=2)

    def __sub__(self, other: Any) -> Rounded:
        """Return differences."""
        return self + -_rounded(other)

    def __neg__(self) -> Rounded:
        """Return the negative numbers."""
        return _by_element(-self.value, 0.0, (self, lambda: Rounded(-1)))

    def __mul__(self, other: Any) -> Rounded:
        """Return products; those with truth values are exact."""
        if isinstance(other, np.ndarray) and other.dtype == np.bool_:
            return _by_element(self.value * other, 0.0, (self, lambda: other))
        other = _rounded(other)
        value = self.value * other.value
        if other is self:  # whose errors are not independent of themselves
            double = _kept(self).scaled(2)
            return _by_element(value, value**2, (self, lambda: double))
        factors = _kept(other), _kept(self)
        return _by_element(value, value**2, (self, lambda: factors[0]), (other, lambda: factors[1]))

    def __truediv__(self, other: Any) -> Rounded:
        """Return quotients."""
        inverse = reciprocal(_rounded(other), rounding=0.0)
        return self * inverse

    def __rsub__(self, other: Any) -> Rounded:
        """Return differences from a number."""
        return _rounded(other) + -self

    def __rtruediv__(self, other: Any) -> Rounded:
        """Return quotients of a number."""
        return _rounded(other) / self

    def __matmul__(self, other: Rounded) -> Rounded:
        """Return the products of matrices, the last two axes."""
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
        """Return powers; small whole ones are products."""
        if power in (2, 3):
            square = self * self
            return square if power == 2 else square * self
        inverse = reciprocal(_kept(self)) * power
        value = self.value**power
        # The exponential of a product: an error of the logarithm is multiplied by the exponent.
        rounding = value**2 * (1 + max(1.0, power**2))
        return _function(value, self, lambda result: result * inverse, rounding)

    def __getitem__(self, at: Any) -> Rounded:
        """Return some of them."""
        return _moved(self, lambda array: array[at], lambda g: g, at)

    def reshape(self, *shape: Any) -> Rounded:
        """Return them in another shape."""
        back = self.value.shape
        return _moved(self, lambda array: array.reshape(*shape), lambda g: g.reshape(back))

    def sum(self, axis: Any = None, *, keepdims: bool = False, slack: float = 1.0) -> Rounded:
        """Return sums over some axes, whose errors are larger than usual by ``slack``."""
        value = self.value.sum(axis, keepdims=True)
        own = np.square(self.value)
        own = (slack**2 * own if self.exact else slack**2 * own + self.square).sum(
            axis, keepdims=True
        )
        shape = self.value.shape

        def spread(gradient: Rounded) -> Rounded:
            kept = gradient.reshape(value.shape)
            return _moved(kept, lambda array: np.broadcast_to(array, shape), lambda g: g)

        length = self.value.size // max(1, value.size)
        total = _made(value, own, [(self, spread, ...)], length=length)
        return total if keepdims else total.reshape(np.squeeze(value, axis).shape)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Rounded:
        """Return means over some axes."""
        total = self.sum(axis, keepdims=keepdims)
        return total.scaled(total.value.size / self.value.size)

    def var(self, axis: Any = None, *, keepdims: bool = False) -> Rounded:
        """Return variances over some axes.

        Their terms are the squares of elements and that of the mean: many kernels subtract one from
        the other.
        """
        assert self.exact
        assert not self.watched
        squares = np.square(self.value)
        own = np.square(squares).mean(axis, keepdims=keepdims) / (
            self.value.size // self.value.mean(axis).size
        )
        own += self.value.mean(axis, keepdims=keepdims) ** 4
        value = self.value.var(axis, keepdims=keepdims)
        return Rounded(value, own, self.value.size // max(1, value.size))

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Rounded:
        """Return the largest numbers, as if they were exact and no function of these.

        A result that they are taken off and put back to does not depend on them.
        """
        return Rounded(self.value.max(axis, keepdims=keepdims))

    def scaled(self, factor: float) -> Rounded:
        """Return them times a number that is as if nothing were rounded."""
        made = _made(self.value * factor, 0.0, [(self, lambda g: g.scaled(factor), ...)])
        if not self.exact:
            made.square = self.square * factor**2
        return made


def _rounded(values: Any) -> Rounded:
    return values if isinstance(values, Rounded) else Rounded(values)


def _kept(numbers: Rounded) -> Rounded:
    """Return numbers without what they were made of."""
    return Rounded(numbers.value, numbers.square, numbers.length, bent=numbers.bent)


def _unit() -> Rounded:
    return Rounded(1)


def _made(
    value: F64,
    square: Any,
    sources: Sequence[tuple[Rounded, Callable[[Rounded], Rounded], Any]],
    *,
    length: int = 0,
    bent: bool = False,
) -> Rounded:
    """Return numbers made of others."""
    made = Rounded(
        value,
        square,
        max(length, *(source.length for source, _, _ in sources)),
        bent=bent or any(source.bent for source, _, _ in sources),
    )
    made.sources = [entry for entry in sources if entry[0].watched]
    made.watched = bool(made.sources)
    return made


def _moved(
    x: Rounded,
    move: Callable[[NDArray[Any]], NDArray[Any]],
    back: Callable[[Rounded], Rounded],
    at: Any = ...,
) -> Rounded:
    """Return numbers in other places, with what moves their gradient back."""
    square = x.square if x.exact else move(np.broadcast_to(x.square, x.value.shape))
    return _made(move(x.value), square, [(x, back, at)])


def _by_element(
    value: F64,
    rounding: Any,
    *operands: tuple[Rounded, Callable[[], Any]],
    length: int = 1,
    bent: bool = False,
) -> Rounded:
    """Return numbers made of operands, element by element.

    Args:
        value: The numbers.
        rounding: The square of what they are off by if the operands are exact.
        operands: Each with the slope with respect to it: numbers, or truth values.
        length: Terms of a sum.
        bent: Whether the function is transcendental.
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
        sources.append((operand, functools.partial(_pulled, slope, operand.value.shape), ...))
    if isinstance(square, float):
        length = 0
    return _made(value, square, sources, length=length, bent=bent)


def _pulled(slope: Callable[[], Any], shape: tuple[int, ...], gradient: Rounded) -> Rounded:
    """Return a gradient times a slope, summed over what the operand was spread along."""
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
    """Return the gradients of ``sum(result * gradient)`` with respect to watched numbers."""
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
        own = totals.pop(serial).numbers
        for source, contribution, at in node.sources:
            total = totals.setdefault(source.serial, _Total(source))
            total.add(contribution(own), at)
    return [totals[source.serial].numbers for source in wanted]


class _Total:
    """A gradient to which contributions are added."""

    def __init__(self, source: Rounded) -> None:
        self.shape = source.value.shape
        self.numbers = Rounded(np.zeros(self.shape))
        self.count = 0

    def add(self, part: Rounded, at: Any) -> None:
        """Add a contribution to the elements at some place; the first one rounds nothing."""
        before, self.count = self.count, self.count + 1
        if at is ... and not before:
            self.numbers = part
            return
        if before <= 1:
            own = self.numbers
            square = np.array(np.broadcast_to(own.square, self.shape))
            if at is ...:
                square += np.square(own.value)
            self.numbers = Rounded(own.value.copy(), square, own.length, bent=own.bent)
        self.numbers.value[at] += part.value
        self.numbers.square[at] += part.square
        self.numbers.square[at] += np.square(part.value)
        self.numbers.length = max(self.numbers.length, part.length, self.count)
        self.numbers.bent |= part.bent


# -----------------------------------------------------------------------------
# NumPy's functions, as far as formulas use them.


def _function(
    value: F64,
    x: Rounded,
    slope: Callable[[Rounded], Rounded],
    rounding: Any = None,
    *,
    bent: bool = True,
) -> Rounded:
    """Return values of a function.

    Args:
        value: The values.
        x: Its argument.
        slope: Of the values.
        rounding: The square of what they are off by for an exact argument; by default they are
            right to a unit of themselves.
        bent: Whether the function is transcendental.
    """
    results = [Rounded(value)]
    rounding = value**2 if rounding is None else rounding
    made = _by_element(value, rounding, (x, lambda: slope(results[-1])), bent=bent)
    results.append(_kept(made))
    return made


def reciprocal(x: Rounded, rounding: Any = None) -> Rounded:
    """Return ``1 / x``; a quotient is rounded once, with the product."""
    return _function(1 / x.value, x, lambda result: -(result * result), rounding, bent=False)


def exp(x: Rounded) -> Rounded:
    """Return exponentials."""
    return _function(np.exp(x.value), x, lambda result: result)


def expm1(x: Rounded) -> Rounded:
    """Return exponentials less one: kernels subtract it, and add it again for the slope."""
    value = np.expm1(x.value)
    return _function(value, x, lambda result: result + 1, 1 + (value + 1) ** 2)


def log(x: Rounded) -> Rounded:
    """Return logarithms: near one they are a difference from that of one."""
    kept = _kept(x)
    value = np.log(x.value)
    rounding = value**2 + _LOGARITHM**2 * (value**2 + 1)
    return _function(value, x, lambda _: reciprocal(kept), rounding)


def sqrt(x: Rounded) -> Rounded:
    """Return roots."""
    return _function(np.sqrt(x.value), x, lambda result: reciprocal(result * 2))


def tanh(x: Rounded) -> Rounded:
    """Return hyperbolic tangents, whose slopes kernels take of the results."""
    return _function(np.tanh(x.value), x, lambda result: 1 - result * result)


def sigmoid(x: Rounded) -> Rounded:
    """Return ``1 / (1 + exp(-x))``, whose slopes kernels take of the results.

    Kernels in 16 bits round the exponential, the sum and the quotient.
    """
    value = 0.5 * (1 + np.tanh(0.5 * x.value))
    rounding = (value * (1 - value)) ** 2 + 2 * value**2
    return _function(value, x, lambda result: result * (1 - result), rounding)


def logaddexp(zero: float, x: Rounded) -> Rounded:
    """Return ``log(1 + exp(x))``: one is a term of the sum that the logarithm is taken of."""
    assert zero == 0
    kept = _kept(x)
    value = np.logaddexp(0, x.value)
    return _function(value, x, lambda _: sigmoid(kept), 1 + value**2)


_ERROR_FUNCTION: Final = np.vectorize(math.erf, otypes=[float])


def erf(x: Rounded) -> Rounded:
    """Return the error function, which NumPy has not: Python's, one number at a time."""
    kept = _kept(x)
    factor = 2 / math.sqrt(math.pi)
    return _function(_ERROR_FUNCTION(x.value), x, lambda _: exp(-(kept * kept)) * factor)


def where(chosen: NDArray[np.bool_], x: Any, y: Any) -> Rounded:
    """Return one or the other."""
    x, y = _rounded(x), _rounded(y)
    value = np.where(chosen, x.value, y.value)
    return _by_element(value, 0.0, (x, lambda: chosen), (y, lambda: ~chosen))


def maximum(x: Any, y: Any) -> Rounded:
    """Return the larger ones."""
    return where(_rounded(x) > y, x, y)


def minimum(x: Any, y: Any) -> Rounded:
    """Return the smaller ones."""
    return where(_rounded(y) > x, x, y)


def clip(x: Rounded, least: float, most: float) -> Rounded:
    """Return numbers within limits."""
    return minimum(maximum(x, least), most)


def absolute(x: Rounded) -> Rounded:
    """Return sizes."""
    return where(x > 0, x, -x)


def concatenate(parts: Sequence[Rounded], axis: int = 0) -> Rounded:
    """Return numbers behind one another."""
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
    return _made(np.concatenate([part.value for part in parts], axis), square, sources)


def stack(parts: Sequence[Rounded]) -> Rounded:
    """Return numbers behind one another, along a new first axis."""
    return concatenate([part.reshape(1, *part.value.shape) for part in parts])


def pad(x: Rounded, widths: Sequence[tuple[int, int]], constant_values: float = 0.0) -> Rounded:
    """Return numbers with others around them."""
    inner = tuple(
        slice(before, before + size)
        for (before, _), size in zip(widths, x.value.shape, strict=True)
    )
    square = x.square if x.exact else np.pad(np.broadcast_to(x.square, x.value.shape), widths)
    value = np.pad(x.value, widths, constant_values=constant_values)
    return _made(value, square, [(x, lambda g: g[inner], ...)])


def swapaxes(x: Rounded, first: int, second: int) -> Rounded:
    """Return numbers with two axes exchanged."""
    turn = functools.partial(np.swapaxes, axis1=first, axis2=second)
    return _moved(x, turn, lambda g: swapaxes(g, first, second))


def einsum(letters: str, x: Rounded, y: Rounded) -> Rounded:
    """Return sums of products of two tensors."""
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
    """Return sums of products, with functions of gradient and operands to those of either."""
    squares = np.square(x.value), np.square(y.value)
    square = multiply(squares[0] if x.exact else squares[0] + x.square, squares[1])
    if not y.exact:
        square += multiply(squares[0], np.broadcast_to(y.square, y.value.shape))
    kept = _kept(x), _kept(y)
    sources = [
        (operand, lambda g, pull=pull: pull(g, *kept), ...)
        for operand, pull in zip((x, y), pulls, strict=True)
    ]
    return _made(multiply(x.value, y.value), square, sources, length=length)


arange = np.arange
