"""Student's t for whole degrees of freedom, and Holm's correction; arrays in, arrays out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["holm", "quantile", "quantiles", "two_sided"]


def two_sided(t: NDArray[Any], freedom: NDArray[Any]) -> NDArray[Any]:
    """Return the probability that Student's t is at least as far from zero.

    For whole degrees of freedom the distribution is a finite sum in the angle whose tangent is
    t / sqrt(n) (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    Args:
        t: values, any sign; NaN gives NaN.
        freedom: degrees of freedom, whole, at least 1; as many.
    """
    found = np.full(t.shape, np.nan)
    for n in np.unique(freedom):
        rows = freedom == n
        found[rows] = _tail(np.abs(t[rows]), int(n))
    return found


def _tail(t: NDArray[Any], n: int) -> NDArray[Any]:
    angle = np.arctan2(t, math.sqrt(n))
    sine, cosine = np.sin(angle), np.cos(angle)
    if n % 2:
        inner = np.zeros_like(t)
        term = cosine.copy()
        for k in range(1, n - 1, 2):
            inner += term
            term = term * cosine**2 * (k + 1) / (k + 2)
        inside = 2 / math.pi * (angle + sine * inner)
    else:
        inside = np.zeros_like(t)
        term = np.ones_like(t)
        for k in range(0, n - 1, 2):
            inside += term
            term = term * cosine**2 * (k + 1) / (k + 2)
        inside = sine * inside
    # Beyond the precision of a difference from one; never zero, which nothing measured is.
    outside: NDArray[Any] = np.maximum(1 - inside, 1e-15)
    return outside


@lru_cache(maxsize=256)
def quantile(p: float, n: int) -> float:
    """Return what Student's t with ``n`` degrees of freedom stays within with probability ``p``.

    Both tails are counted: ``quantile(0.95, 10)`` is 2.228.
    """
    low, high = 0.0, 1.0
    one = np.ones(1)
    while two_sided(one * high, one * n)[0] > 1 - p and high < 1e12:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if two_sided(one * middle, one * n)[0] > 1 - p:
            low = middle
        else:
            high = middle
    return high


def quantiles(p: float, freedom: NDArray[Any]) -> NDArray[Any]:
    """Return :func:`quantile` for each of many degrees of freedom."""
    found = np.empty(freedom.shape)
    for n in np.unique(freedom):
        found[freedom == n] = quantile(p, int(n))
    return found


def holm(p: NDArray[Any]) -> NDArray[Any]:
    """Return p-values corrected for their number by Holm's step-down method.

    Whoever is called below ``alpha`` then: the chance that any of them is called wrongly is at most
    ``alpha``, however they depend on each other (Holm, Scand. J. Statist. 6 (1979) 65). NaN is not
    counted and stays NaN.
    """
    found = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    found[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(order) else steps
    return found
