"""What tells the rows of a table apart, and what they share and is said once above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.results.records import Measurement

__all__ = ["AXES", "axis_values", "common_model", "label", "varying"]


def _propagation(row: Measurement) -> str:
    # Only a forward pass knows two kinds; "forward" alone means inference.
    return "training" if row.pass_ == "forward" and row.propagation == "training" else ""


AXES: dict[str, Callable[[Measurement], str]] = {
    "layer": lambda row: row.layer,
    "batch": lambda row: str(row.batch),
    "pass": lambda row: row.pass_,
    "propagation": _propagation,
    "precision": lambda row: row.precision,
    "accumulate": lambda row: row.accumulate or "",
    "device": lambda row: row.device,
    "threads": lambda row: "" if row.threads is None else str(row.threads),
    "cache": lambda row: row.cache,
    "timing": lambda row: row.timing if row.ok else "",
    "fuse": lambda row: row.fuse,
    "layout": lambda row: row.layout_request,
    "backend": lambda row: row.backend,
    "mode": lambda row: row.mode or "",
}

# These follow from others, or are empty in a row that was never run: no difference by themselves.
_BLANK_IS_NO_VALUE = {"threads", "accumulate", "timing"}
# One that follows from another says nothing more: bf16 beside fp32 differs in the accumulator too,
# and cold caches on a GPU are timed otherwise than hot ones.
_FOLLOWS = {"accumulate": "precision", "timing": "cache"}


def axis_values(rows: Sequence[Measurement], axis: str) -> list[str]:
    """Return the distinct values of one axis, in order of appearance."""
    if axis == "propagation":
        rows = [row for row in rows if row.pass_ == "forward"]
    values = dict.fromkeys(AXES[axis](row) for row in rows)
    if axis in _BLANK_IS_NO_VALUE and len(values) > 1:
        values.pop("", None)
    return list(values)


def varying(rows: Sequence[Measurement]) -> list[str]:
    """Return the axes along which ``rows`` differ, in the order of their columns."""
    found = [axis for axis in AXES if len(axis_values(rows, axis)) > 1]
    for axis, leader in _FOLLOWS.items():
        if axis in found and leader in found:
            pairs = {(AXES[leader](row), AXES[axis](row)) for row in rows if AXES[axis](row)}
            if len(pairs) == len({value for value, _ in pairs}):
                found.remove(axis)
    return found


def common_model(rows: Sequence[Measurement]) -> str:
    """Return the model that all of several layers belong to, or nothing: ``vgg16``."""
    models = {row.layer.rpartition("/")[0] for row in rows}
    return models.pop() if len(models) == 1 and len(axis_values(rows, "layer")) > 1 else ""


def label(row: Measurement, axes: Sequence[str]) -> str:
    """Name one row by its layer and what tells it apart: ``alexnet/conv3 backward-data bf16``."""
    words = [row.layer]
    for axis in axes:
        value = AXES[axis](row)
        if axis == "layer" or not value:
            continue
        threads = "1 thread" if value == "1" else f"{value} threads"
        words.append({"batch": f"batch {value}", "threads": threads}.get(axis, value))
    return " ".join(words)
