"""JSON objects made safe for records: what is missing, no number or of the wrong type is told."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.results.parts import Correctness
from pydlbench.results.records import Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["clean_measurement", "finite", "mapping", "objects", "positive"]

_WORDS: Final = ("layer", "kind", "problem", "pass", "precision", "status")
_COUNTS: Final = ("flops", "flops_executed", "bytes", "batch")
# Texts that have a default, and those that may be missing.
_DEFAULTED: Final = (
    *("backend", "cache", "device", "timing", "layout_request", "fuse", "propagation"),
)
_TEXTS: Final = (
    *("accumulate", "mode", "library", "algorithm", "layout", "reason", "stop_reason"),
    *("contention_reason", "stop_rule", "clock_from"),
)
_NUMBERS: Final = (
    *("tflops", "gbps", "arithmetic_intensity", "clock_hz", "energy_j", "power_w", "warm_s"),
    *("setup_s", "cycles", "empty_call_s"),
)
_WHOLES: Final = ("threads", "workspace_bytes", "inner", "retries")
_STATUSES: Final = ("ok", "skipped", "failed")


def finite(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer that no float can hold
        return None


def positive(value: Any) -> float | None:
    """Return a finite number above zero, or None."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def mapping(value: Any) -> dict[str, Any]:
    """Return an object; an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; anything else is left out."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def clean_measurement(document: Mapping[str, Any]) -> Measurement:
    """Read a row; an ``ok`` one without a usable time becomes a failed one that says so.

    Args:
        document: ``Measurement.to_dict()``'s, perhaps with NaN or null in it.
    """
    data = dict(document)
    _texts(data)
    _numbers(data)
    data["time_s"] = _time(data.get("time_s"))
    if data["status"] not in _STATUSES:
        data["status"], data["reason"] = "failed", f"its status is {data['status']}"
    for name, there in (("time", data["time_s"] is not None), ("batch", data["batch"] > 0)):
        if data["status"] == "ok" and not there:
            data["status"], data["reason"] = "failed", f"its record has no usable {name}"
    peaks = mapping(data.get("peak_tflops"))
    data["peak_tflops"] = {name: positive(peaks.get(name)) for name in ("theoretical", "measured")}
    data["roofline"] = _roof(data.get("roofline"))
    data["ratio"] = _ratio(data.get("ratio"))
    data["correct"] = _correct(data.get("correct"))
    data["causes"] = [one for one in objects(data.get("causes")) if _is_cause(one)]
    data["candidates"] = None
    data["gpu"] = mapping(data.get("gpu")) or None
    return Measurement.from_dict(data)


def _texts(data: dict[str, Any]) -> None:
    for name in _WORDS:
        data[name] = str(data.get(name) or "unknown")
    for name in _DEFAULTED:
        if not isinstance(data.get(name), str):
            data.pop(name, None)
    for name in _TEXTS:
        data[name] = data[name] if isinstance(data.get(name), str) else None
    for name in ("notes", "warnings"):
        given = data.get(name)
        data[name] = [str(one) for one in given] if isinstance(given, (list, tuple)) else []


def _numbers(data: dict[str, Any]) -> None:
    for name in (*_COUNTS, "discarded"):
        data[name] = int(finite(data.get(name)) or 0)
    for name in _NUMBERS:
        data[name] = finite(data.get(name))
    for name in _WHOLES:
        number = finite(data.get(name))
        data[name] = None if number is None else int(number)
    data["contended"] = data.get("contended") is True
    data["tensor_cores"] = (
        data["tensor_cores"] if isinstance(data.get("tensor_cores"), bool) else None
    )
    for name in ("launch_s", "faults"):
        data[name] = _seconds(data.get(name)) or None
    data["reorder_s"] = _seconds(data.get("reorder_s"))


def _seconds(value: Any) -> dict[str, float]:
    found = {key: finite(one) for key, one in mapping(value).items()}
    return {key: one for key, one in found.items() if one is not None}


def _time(value: Any) -> dict[str, Any] | None:
    found = mapping(value)
    median = positive(found.get("median"))
    if median is None:
        return None
    ends = {name: positive(found.get(name)) for name in ("ci_low", "ci_high")}
    if None in ends.values():
        ends = dict.fromkeys(ends)
    inner = {name: positive(found.get(name)) or median for name in ("q1", "q3", "min")}
    level = positive(found.get("confidence")) or 0.95
    return {"median": median, **ends, **inner, "n": int(finite(found.get("n")) or 0)} | {
        "confidence": level
    }


def _roof(value: Any) -> dict[str, Any] | None:
    found = mapping(value)
    seconds, reached = positive(found.get("time_s")), positive(found.get("efficiency"))
    if seconds is None or reached is None:
        return None
    words = {
        name: str(found[name]) for name in ("bound", "bandwidth") if found.get(name) is not None
    }
    return {"bound": "unknown", **words, "time_s": seconds, "efficiency": reached}


def _ratio(value: Any) -> dict[str, Any] | None:
    found = mapping(value)
    median = positive(found.get("median"))
    if median is None or not isinstance(found.get("to"), str):
        return None
    ends = {name: positive(found.get(name)) for name in ("ci_low", "ci_high")}
    if None in ends.values():
        ends = dict.fromkeys(ends)
    return {**found, "median": median, **ends}


def _correct(value: Any) -> dict[str, Any]:
    found = dict(mapping(value))
    known = Correctness().to_dict()
    status = str(found.get("status") or known["status"])
    return {**found, "status": status, "rel_error": finite(found.get("rel_error"))}


def _is_cause(value: Any) -> bool:
    found = mapping(value)
    numbers = all(finite(found.get(name)) is not None for name in ("seconds", "share"))
    return numbers and isinstance(found.get("cause"), str)
