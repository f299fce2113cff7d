"""The columns of a layer's row that can be read without its document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LAYER_COLUMNS", "layer_values"]

#: Names, in the order of ``Store.columns``'s tuples: the fields of the JSON document, but
#: ``median``, ``ci_low``, ``ci_high`` and ``n``, which are those of its ``time_s``. Seconds, Hz,
#: FLOPs, bytes. None is what the document has not.
LAYER_COLUMNS: Final = (
    *("layer", "kind", "problem", "batch", "pass", "precision", "device", "backend", "mode"),
    *("cache", "timing", "threads", "fuse", "layout_request", "propagation", "status"),
    *("median", "ci_low", "ci_high", "n", "clock_hz", "contended", "algorithm"),
    *("flops", "flops_executed", "bytes"),
)
_OF_TIME: Final = frozenset(("median", "ci_low", "ci_high", "n"))
_LARGEST: Final = (1 << 63) - 1


def layer_values(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a layer's document as the values of :data:`LAYER_COLUMNS`, as SQLite can hold them.

    NaN becomes None, as SQLite has none; the document keeps it.
    """
    found = document.get("time_s")
    time = found if isinstance(found, dict) else {}
    return tuple(
        _cell(time.get(name) if name in _OF_TIME else document.get(name)) for name in LAYER_COLUMNS
    )


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else float(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    # Names may hold bytes of the command line that are no text.
    return value if value is None else str(value).encode("utf-8", "backslashreplace").decode()
