"""Storage precisions: rounding float32 values to them, and their unit roundoffs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["UNIT_ROUNDOFF", "round_to", "significand_bits"]

#: Significand bits of the values a kernel of each precision works on, implicit bit included.
#: ``tf32`` is stored as float32, but its arithmetic sees eleven bits: inputs that already fit are
#: seen by the reference and by the kernel alike.
_SIGNIFICAND = {
    "fp32": 24,
    "tf32": 11,
    "fp16": 11,
    "fp16-tc": 11,
    "bf16": 8,
    "bf16-tc": 8,
    "fp8-tc": 4,
}

#: Largest relative error of one rounding to nearest, by name of the format.
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3": 2.0**-4,
}


def significand_bits(precision: str) -> int:
    """Return the significand bits of ``precision``, the implicit one included.

    Raises:
        UsageError: There is no such precision.
    """
    bits = _SIGNIFICAND.get(precision)
    if bits is None:
        choices = ", ".join(nearest(precision, _SIGNIFICAND) or _SIGNIFICAND)
        raise UsageError(f"precision {precision}: no such precision; nearest: {choices}")
    return bits


def round_to(precision: str, array: NDArray[Any]) -> NDArray[np.float32]:
    """Round to the nearest value of a storage precision, ties to even; the result is float32.

    Args:
        precision: ``fp32``, ``tf32``, ``fp16``, ``fp16-tc``, ``bf16``, ``bf16-tc`` or ``fp8-tc``
            (e4m3, finite values saturating at 448 as its conversions do).
        array: Values of any shape; left as they are.

    Raises:
        UsageError: There is no such precision.
    """
    bits = significand_bits(precision)
    values = np.asarray(array, dtype=np.float32)
    if bits == 24:
        return values.copy()
    if precision.startswith("fp16"):
        return values.astype(np.float16).astype(np.float32)
    if precision == "fp8-tc":
        # Below 2**-6 numbers of e4m3 are subnormal: multiples of 2**-9.
        _, exponent = np.frexp(values)
        spacing = np.ldexp(np.float32(1), np.maximum(exponent - bits, -9))
        with np.errstate(invalid="ignore"):  # a signalling NaN
            rounded: NDArray[np.float32] = np.rint(values / spacing) * spacing
        return np.clip(rounded, np.float32(-448), np.float32(448))
    return _drop_bits(values, 24 - bits)


def _drop_bits(values: NDArray[np.float32], dropped: int) -> NDArray[np.float32]:
    """Round away the lowest significand bits of float32, ties to even; NaN stays NaN."""
    pattern = values.view(np.uint32) if values.flags.c_contiguous else values.copy().view(np.uint32)
    shift = np.uint32(dropped)
    last = (pattern >> shift) & np.uint32(1)
    half = np.uint32((1 << (dropped - 1)) - 1)
    with np.errstate(over="ignore"):
        rounded = ((pattern + half + last) >> shift) << shift
    result: NDArray[np.float32] = rounded.view(np.float32)
    # The carry could turn a NaN with a full significand into an infinity.
    unordered = np.isnan(values)
    if unordered.any():
        result[unordered] = np.nan
    return result
