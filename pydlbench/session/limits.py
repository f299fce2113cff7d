"""A row held against the limits of its device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydlbench.results import Peaks, Roofline
from pydlbench.rows import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydlbench.backends.case import Case
    from pydlbench.devices import DeviceRecord
    from pydlbench.devices.gpu import GpuRecord
    from pydlbench.results import Measurement

__all__ = ["cached_bytes", "with_limits"]


def cached_bytes(case: Case) -> int:
    """Return how many bytes of a case's operands its cache state may leave in the caches."""
    moved = case.layer.bytes(case.pass_, ITEM_BYTES[case.precision])
    weights = case.layer.weight_elements * ITEM_BYTES[case.precision]
    return {"hot": moved, "weights-cold": max(0, moved - weights), "all-cold": 0}[case.cache]


def with_limits(
    row: Measurement,
    case: Case,
    device: DeviceRecord | GpuRecord,
    levels: Collection[str] | None = None,
) -> Measurement:
    """Return the row with the compute peaks at its clock and the roof over it.

    Args:
        row: of :func:`measured_row`.
        case: what was timed.
        device: with the case's precision and the bandwidths of memory and last-level cache probed;
            that of the level before it counts where it was probed.
        levels: the levels that count, whatever else was probed for other rows; None is all.

    Raises:
        UnsupportedError: a peak or a bandwidth was not probed.
    """
    from pydlbench.devices.gpu import GpuRecord
    from pydlbench.devices.roofline import memory_time, roof, with_launch

    if row.time is None:
        return row
    if isinstance(device, GpuRecord):
        limits = device.limits(case.precision, row.clock_hz, row.accumulate)
        launch = device.launch_in(row.timing)
    else:
        limits = device.limits(case.precision, row.clock_hz)
        launch = device.launch_s or 0.0
    warm = cached_bytes(case)
    move = memory_time(row.bytes - warm, warm, device.levels(levels))
    over = roof(row.flops_executed, limits.measured, *move)
    over = with_launch(over, launch, row.time.median)
    theoretical = limits.theoretical
    return dataclasses.replace(
        row,
        peak=Peaks(
            theoretical=None if theoretical is None else theoretical / 1e12,
            measured=limits.measured / 1e12,
        ),
        roofline=Roofline(
            bound=over.bound,
            time_s=over.time_s,
            efficiency=over.time_s / row.time.median,
            bandwidth=over.bandwidth,
        ),
    )
