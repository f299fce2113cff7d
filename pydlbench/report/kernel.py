"""The verdict on one kernel: how near it is to its roof, what holds it, what to try."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydlbench.results.columns import number, percent
from pydlbench.rows import ITEM_BYTES
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.results.records import Measurement

__all__ = ["next_step", "short_name", "verdict"]

_NEAR_ROOF = 0.8
_LEVELS = {"llc": "last-level cache", "l2": "L2 cache"}
_FEW_CHANNELS = 8  # fewer than the lanes of a 256-bit float32 vector
_SMALL_BATCH = 8
# What each precision could be exchanged for, the one with the widest range of numbers first.
_CHEAPER = {
    "cpu": {"fp32": ("bf16", "fp16"), "bf16": ("fp16",)},
    "cuda": {
        "fp32": ("bf16-tc", "fp16-tc", "tf32"),
        "tf32": ("bf16-tc", "fp16-tc"),
        "fp16": ("bf16-tc", "fp16-tc"),
        "bf16-tc": ("fp8-tc",),
        "fp16-tc": ("fp8-tc",),
    },
}


def short_name(layer: str) -> str:
    """Return a catalog name without its model: ``conv3``."""
    return layer.rsplit("/", 1)[-1]


def verdict(row: Measurement) -> str:
    """Return one sentence about an ``ok`` row."""
    name, roof = short_name(row.layer), row.roofline
    if roof is None:
        time = format_seconds(row.time.median) if row.time else "an unknown time"
        return f"{name} takes {time}; without a measured peak there is no roof to hold it against."
    chip = "GPU" if _on_gpu(row) else "CPU"
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
    if roof.efficiency > 1.03:
        names = " ".join((row.algorithm or "", *row.notes))
        if re.search("wino|fft", names, re.IGNORECASE):
            return (
                f"{name} runs at {reached} of the direct kernel's limit because "
                f"{row.algorithm} needs fewer FLOPs than are counted."
            )
        return (
            f"{name} runs at {reached} of the measured peak: the clock moved between probe and "
            "kernel, or the kernel needs fewer FLOPs than are counted."
        )
    if roof.efficiency >= _NEAR_ROOF:
        return (
            f"{name} runs at {reached} of what this {chip}'s {_units(row)}: "
            f"only {_remedy(row)} would make it much faster."
        )
    return (
        f"{name} reaches {reached} of what this {chip}'s {_units(row)}: "
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
    elif roof is not None and roof.bound == "launch":
        lines.append(_larger_batch(row))
    elif roof is not None and (roof.efficiency >= _NEAR_ROOF or roof.bound == "memory"):
        lines += _lower_precision(row, peaks)
    elif row.batch < _SMALL_BATCH:
        lines.append(_larger_batch(row))
    elif row.candidates is None:
        lines.append("try: --algorithms (what the library's other kernels reach)")
    return lines


def _larger_batch(row: Measurement) -> str:
    return f"try: --batch {16 * row.batch} (more work for each start of the kernel)"


def _lower_precision(row: Measurement, peaks: Mapping[str, float]) -> list[str]:
    base = peaks.get(row.precision)
    lower = [name for name in _cheaper(row) if peaks.get(name)]
    if not base or not lower:
        return []
    if row.roofline is not None and row.roofline.bound == "memory":
        narrow = [name for name in lower if 2 * ITEM_BYTES[name] == ITEM_BYTES[row.precision]]
        return [f"try: --precision {narrow[0]} (half the bytes)"] if narrow else []
    best = max(lower, key=lambda name: peaks[name])
    gain = peaks[best] / base
    if gain < 1.05:
        return []
    return [f"try: --precision {best} (the measured {best} peak is {number(gain, 2)}x higher)"]


def _on_gpu(row: Measurement) -> bool:
    return row.device.startswith("cuda")


def _cheaper(row: Measurement) -> tuple[str, ...]:
    """The precisions that a row could be exchanged for; of fp8 only products are known."""
    found = _CHEAPER["cuda" if _on_gpu(row) else "cpu"].get(row.precision, ())
    return tuple(name for name in found if name != "fp8-tc" or row.kind == "gemm")


def _units(row: Measurement) -> str:
    """The arithmetic units that a row is held against, with their verb."""
    if row.precision == "fp32":
        return "FMA units deliver"
    if not _on_gpu(row):
        return f"{row.precision} units deliver"
    if row.precision == "fp16":
        wide = " with float32 accumulation" if row.accumulate == "float32" else ""
        return f"FMA units deliver in fp16{wide}"
    return f"tensor cores deliver in {row.precision}"


def _remedy(row: Measurement) -> str:
    if row.precision == "fp32":
        return "fewer FLOPs or lower precision"
    if not _on_gpu(row) or not _cheaper(row):
        return "fewer FLOPs"
    return f"fewer FLOPs or {'tensor cores' if row.precision == 'fp16' else 'lower precision'}"


def _cause(row: Measurement) -> str:
    if row.tensor_cores is False and row.precision not in ("fp32", "fp16"):
        return "; it uses no tensor cores"
    channels = re.match(r"(?:g\d+)?mb\d+ic(\d+)", row.problem)
    if row.kind == "conv2d" and channels and int(channels[1]) < _FEW_CHANNELS:
        count = int(channels[1])
        filled = "little of a tile" if _on_gpu(row) else "few vector lanes"
        return f"; {count} input channel{'s' if count > 1 else ''} fill {filled}"
    if row.batch < _SMALL_BATCH:
        return f"; batch {row.batch} gives it little work"
    return ""
