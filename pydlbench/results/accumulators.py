"""Formats that sums are kept in, and which of them are less exact than others."""

from __future__ import annotations

__all__ = ["less_exact"]

# Bits of a significand, the implied one included.
_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def less_exact(accumulate: str | None, than: str | None) -> bool:
    """Whether sums in one format are rounded more coarsely than those in another.

    What cuts the sums of tensor cores off counts as the format that they are kept in; nobody is
    called less exact for a format that is not known, or where there is nothing to sum.

    Args:
        accumulate: as in ``Measurement.accumulate``.
        than: likewise.
    """
    own, other = (_BITS.get((name or "").removesuffix("-tensor")) for name in (accumulate, than))
    return own is not None and other is not None and own < other
