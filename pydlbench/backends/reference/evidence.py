"""What a comparison found: its worst deviation, where that was, and how much was compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["CHECKSUM_UNIT", "Deviation", "Evidence", "checksum_weights", "larger", "worst_of"]

#: A checksum adds up errors with random signs, so their root sum of squares is its standard
#: deviation. It is measured in units of three of them: a rounding error of ``u`` at most, and of
#: 0.3 ``u`` in the root mean square of ``(|ref|**2 + s**2)**0.5``, would have to be at ten standard
#: deviations to reach the tolerance ``u`` that holds for single elements.
CHECKSUM_UNIT = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One place where the result was compared with the reference.

    Attributes:
        error: Relative error; infinite or NaN where the result is not finite.
        where: Name of the element or of the checksum, in words.
        got: What the kernel computed.
        expected: What the reference computed.
    """

    error: float
    where: str
    got: float
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that was compared for one result.

    Attributes:
        terms: Length of the sums that the result consists of; 0 where it must be exact.
        points: Elements recomputed exactly.
        checksums: Checksums over all elements; 0 where every element was recomputed.
        worst: The largest deviation of any of them.
    """

    terms: int
    points: int
    checksums: int
    worst: Deviation


def checksum_weights(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return random weights, all different: sizes from 0.5 to 1.5, and random signs."""
    signs = 2.0 * rng.integers(0, 2, count) - 1.0
    return signs * rng.uniform(0.5, 1.5, count)


def worst_of(
    got: NDArray[Any],
    expected: NDArray[Any],
    scale: NDArray[Any],
    where: Callable[[Sequence[int]], str],
) -> Deviation:
    """Return the largest ``|got - expected| / scale``; zero over zero is zero, NaN the largest.

    Args:
        got: Computed values.
        expected: Reference values of the same shape.
        scale: What one is measured against, of the same shape.
        where: Names the place of an index into these arrays.
    """
    got = np.asarray(got, dtype=np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(got - expected)
        error = np.where(error == 0, 0.0, error / scale)
    flat = int(np.argmax(error))
    index = [int(one) for one in np.unravel_index(flat, error.shape)]
    return Deviation(
        error=float(error.flat[flat]),
        where=where(index),
        got=float(got.flat[flat]),
        expected=float(expected.flat[flat]),
    )


def larger(first: Deviation, second: Deviation) -> Deviation:
    """Return the worse of two deviations; one that is not a number is worse than any number."""
    if math.isnan(first.error) or first.error >= second.error:
        return first
    return second
