"""``--fail-on slower:3%``: from which slowdown on a comparison ends with exit code 3."""

from __future__ import annotations

import re
from typing import Final

from pydlbench.errors import UsageError

__all__ = ["FOUND", "read_threshold"]

#: Exit code of a finding.
FOUND: Final = 3
_USUAL: Final = "slower:3%"
_LARGEST: Final = 1000.0


def read_threshold(text: str) -> float:
    """Return the fraction: 0.03 for ``slower:3%``, 0 for ``slower``.

    Raises:
        UsageError: it is not written so; with the nearest that is.
    """
    found = re.fullmatch(r"slower(?::([0-9]{1,4}(?:\.[0-9]{1,6})?)%)?", text)
    value = float(found[1] or 0) if found else 0.0
    if found and value <= _LARGEST:
        return value / 100
    reason = "more than anybody measures" if found else "expected slower:P%, P a percentage"
    raise UsageError(f"--fail-on {text}: {reason}; nearest: {_nearest(text)}")


def _nearest(text: str) -> str:
    number = re.search(r"[0-9]*\.?[0-9]+", text)
    if number is None:
        return "slower" if text.strip().lower().startswith("slow") and ":" not in text else _USUAL
    value = float(number[0])
    if value > _LARGEST:
        return f"slower:{_LARGEST:g}%"
    # A fraction without a sign is one: 0.03 means 3 %; 1.03 does, too.
    if "%" not in text and 0 < value < 1:
        value *= 100
    elif "%" not in text and 1 < value < 2 and "." in number[0]:
        value = 100 * (value - 1)
    # As many digits as are taken, and no exponent.
    return f"slower:{f'{value:.6f}'.rstrip('0').rstrip('.')}%"
