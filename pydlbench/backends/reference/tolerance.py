r"""How far a correct result may be from the exact one.

Errors are relative to ``|ref| + s`` with ``s = sqrt(sum_j x_j**2 w_j**2)``, the typical size of a
sum of ``K`` products whose signs are random. Let ``u`` be the unit roundoff of the accumulator.

A rounding to nearest is off by at most ``u`` and by about ``0.43 u`` in the root mean square over
random significands. Summing K products one after the other rounds every partial sum; after j terms
it has size ``s sqrt(j / K)``, so the squared errors add up to
``(0.43 u)**2 s**2 sum_j j / K = (0.43 u s)**2 K / 2``: a root mean square of ``0.3 sqrt(K) u s``.
(N. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", 2019, prove the
growth with sqrt(K); blocked or parallel sums do better.) Relative to ``|ref| + s`` that is
``0.15 sqrt(K) u``. The tail is longer than a normal distribution's, because the partial sums of
some elements wander further: in simulated sums one element in 10**3, 10**4 and 10**5 lies beyond
0.7, 0.9 and 1.2 ``sqrt(K) u``. ``3 sqrt(K) u`` is seven such steps further, or twenty times the
root mean square. Four more ``u`` are for what does not grow: products that are rounded without FMA,
and a final scaling.

Storing the result rounds once more, by at most the unit roundoff of the storage format. Together::

    tolerance = u_storage + (3 sqrt(K) + 4) u_accumulate

A TF32 kernel rounds both factors, which is off by ``0.3 * 2**-11`` in the root mean square; a
float32 kernel is told from it for sums of up to about 10**6 terms. Beyond, one chain of float32
additions may be as inexact.

Fast convolutions (Winograd, FFT) sum transformed data, whose entries are larger than the result.
For Winograd's F(4x4, 3x3) A. Lavin and S. Gray ("Fast algorithms for convolutional neural
networks", 2016) find errors up to an order of magnitude above those of direct convolution, and
larger tiles are worse; so the second term is allowed 32 times as much for them.

Tensor cores add a block of products to a float32 accumulator and cut off what does not fit, instead
of rounding to nearest (M. Fasi, N. Higham, M. Mikaitis and S. Pranesh, "Numerical behavior of
NVIDIA tensor cores", 2021). Cutting off always points towards zero, so the errors of the partial
sums do not cancel: with at least 8 products per block, and at most ``2 u`` lost of each partial
sum, ``sum_j 2 u s sqrt(8 j / K)`` over ``K / 8`` blocks is ``K u s / 6``, half of it on average.
The accumulator ``float32-tensor`` is allowed ``K / 12`` units more.
"""

from __future__ import annotations

import math

from pydlbench.backends.reference.rounding import UNIT_ROUNDOFF, significand_bits
from pydlbench.errors import UsageError, nearest

__all__ = ["TENSOR_ACCUMULATOR", "tolerance"]

#: The float32 accumulator of a tensor core, which cuts off instead of rounding.
TENSOR_ACCUMULATOR = "float32-tensor"
_CUT_OFF = 1 / 12

_TRANSFORMED = ("wino", "fft")
_TRANSFORM_FACTOR = 32.0


def tolerance(
    precision: str, terms: int, accumulate: str = "float32", algorithm: str | None = None
) -> float:
    """Return the largest error, relative to ``|ref| + s``, of a correct kernel.

    Args:
        precision: Storage and arithmetic, such as ``fp32`` or ``bf16``.
        terms: Length K of the sums.
        accumulate: Format of the partial sums: ``float32``, ``float16``, ``bfloat16``, ``float64``,
            or ``float32-tensor``.
        algorithm: The library's name for the kernel; Winograd and FFT are recognised.

    Raises:
        UsageError: There is no such precision or format.
    """
    storage = UNIT_ROUNDOFF["float32"]
    if precision != "tf32":
        storage = 2.0 ** -significand_bits(precision)
    cut_off = _CUT_OFF * terms if accumulate == TENSOR_ACCUMULATOR else 0.0
    rounding = accumulate.removesuffix("-tensor") if cut_off else accumulate
    if rounding not in UNIT_ROUNDOFF:
        choices = ", ".join(nearest(accumulate, UNIT_ROUNDOFF) or UNIT_ROUNDOFF)
        raise UsageError(f"accumulate {accumulate}: no such format; nearest: {choices}")
    summing = (3 * math.sqrt(terms) + 4 + cut_off) * UNIT_ROUNDOFF[rounding]
    if algorithm is not None and any(word in algorithm.lower() for word in _TRANSFORMED):
        summing *= _TRANSFORM_FACTOR
    return storage + summing
