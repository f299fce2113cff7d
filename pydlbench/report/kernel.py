"""The verdict on one kernel: how near it is to its roof, what holds it, what to try."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydlbench.results.columns import number, percent
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.results.records import Measurement

__all__ = ["next_step", "short_name", "verdict"]

_NEAR_ROOF = 0.8
_LEVELS = {"llc": "last-level cache", "l2": "L2 cache"}
_FEW_CHANNELS = 8  # fewer than the lanes of a 256-bit float32 vector
_SMALL_BATCH = 8
_PRECISIONS = {"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "tf32", "fp16-tc", "bf16-tc")}


def short_name(layer: str) -> str:
    """Return a catalog name without its model: ``conv3``."""
    return layer.rsplit("/", 1)[-1]


def verdict(row: Measurement) -> str:
    """Return one sentence about an ``ok`` row."""
    name, roof = short_name(row.layer), row.roofline
    if roof is None:
        time = format_seconds(row.time.median) if row.time else "an unknown time"
        return f"{name} takes {time}; without a measured peak there is no roof to hold it against."
    chip = "GPU" if row.device.startswith("cuda") else "CPU"
    reached = percent(roof.efficiency)
    left = f"{number(1 / roof.efficiency, 2)}x" if roof.efficiency > 0 else "everything"
    if roof.bound == "launch":
        return f"{name} is too short for this {chip}: starting it costs more than computing it."
    if roof.bound == "memory":
        where = _LEVELS.get(roof.bandwidth, roof.bandwidth)
        if roof.efficiency >= _NEAR_ROOF:
            return (
                f"{name} moves its bytes at {reached} of the measured {where} bandwidth: "
                "only fewer bytes (fusion, lower precision) would make it much faster."
            )
        return (
            f"{name} is bound by {where} bandwidth but reaches {reached} of it: "
            f"up to {left} is left in the kernel."
        )
    units = "FMA units" if row.precision == "fp32" else f"{row.precision} units"
    if roof.efficiency > 1.03:
        if re.search("wino|fft", row.algorithm or "", re.IGNORECASE):
            return (
                f"{name} runs at {reached} of the direct kernel's limit because "
                f"{row.algorithm} needs fewer FLOPs than are counted."
            )
        return (
            f"{name} runs at {reached} of the measured peak: the clock moved between probe and "
            "kernel, or the kernel needs fewer FLOPs than are counted."
        )
    if roof.efficiency >= _NEAR_ROOF:
        cheaper = (
            "only fewer FLOPs or lower precision"
            if row.precision == "fp32"
            else ("only fewer FLOPs")
        )
        return (
            f"{name} runs at {reached} of what this {chip}'s {units} deliver: "
            f"{cheaper} would make it much faster."
        )
    return (
        f"{name} reaches {reached} of what this {chip}'s {units} deliver: "
        f"up to {left} is left in the kernel{_cause(row)}."
    )


def next_step(row: Measurement, peaks: Mapping[str, float]) -> list[str]:
    """Return at most one line about costs beside the kernel and one with an option to try."""
    lines = []
    reorders = sum(row.reorder_s.values())
    if row.time is not None and reorders > 0.05 * row.time.median:
        roles = ", ".join(role for role, seconds in row.reorder_s.items() if seconds)
        share = percent(reorders / row.time.median)
        lines.append(
            f"beside it: bringing {roles} into the kernel's layout costs "
            f"{format_seconds(reorders)} ({share} more) wherever it is not kept there."
        )
    roof = row.roofline
    if row.layout_request != "best":
        lines.append("try: --layout best (times every layout and keeps the fastest)")
    elif roof is not None and (roof.efficiency >= _NEAR_ROOF or roof.bound == "memory"):
        lines += _lower_precision(row, peaks)
    elif row.batch < _SMALL_BATCH:
        lines.append(f"try: --batch {16 * row.batch} (more work for each start of the kernel)")
    elif row.candidates is None:
        lines.append("try: --algorithms (what the library's other kernels reach)")
    return lines


def _lower_precision(row: Measurement, peaks: Mapping[str, float]) -> list[str]:
    order = _PRECISIONS["cuda" if row.device.startswith("cuda") else "cpu"]
    base = peaks.get(row.precision)
    if row.precision not in order or not base:
        return []
    lower = [name for name in order[order.index(row.precision) + 1 :] if peaks.get(name)]
    if not lower:
        return []
    if row.roofline is not None and row.roofline.bound == "memory":
        if row.precision != "fp32":
            return []
        return [f"try: --precision {lower[0]} (half the bytes)"]
    best = max(lower, key=lambda name: peaks[name])
    gain = peaks[best] / base
    if gain < 1.05:
        return []
    return [f"try: --precision {best} (the measured {best} peak is {number(gain, 2)}x higher)"]


def _cause(row: Measurement) -> str:
    channels = re.match(r"(?:g\d+)?mb\d+ic(\d+)", row.problem)
    if row.kind == "conv2d" and channels and int(channels[1]) < _FEW_CHANNELS:
        count = int(channels[1])
        return f"; {count} input channel{'s' if count > 1 else ''} fill few vector lanes"
    if row.batch < _SMALL_BATCH:
        return f"; batch {row.batch} gives it little work"
    return ""
