"""Reading the measured compute peaks out of a run's device record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["measured_peaks"]


def measured_peaks(device: Mapping[str, Any]) -> dict[str, float]:
    """Return the measured peak by precision, in the unit of the record; empty if unknown.

    ``device["peaks"]`` maps precisions to objects, or lists objects with a ``precision``; the
    measured number is their first field whose name starts with ``measured``, itself a number or an
    object with ``flops_per_s``.
    """
    peaks = device.get("peaks")
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(peaks, Mapping):
        items = peaks.items()
    elif isinstance(peaks, (list, tuple)):
        items = [(item.get("precision"), item) for item in peaks if isinstance(item, Mapping)]
    found = {}
    for precision, item in items:
        value = _measured(item)
        if isinstance(precision, str) and value:
            found[precision] = value
    return found


def _measured(item: Any) -> float | None:
    if not isinstance(item, Mapping):
        return None
    for name, value in item.items():
        if not str(name).startswith("measured"):
            continue
        number = value.get("flops_per_s") if isinstance(value, Mapping) else value
        if isinstance(number, (int, float)) and not isinstance(number, bool) and number > 0:
            return float(number)
    return None
