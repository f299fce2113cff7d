"""From a case, its kernel's facts and its samples to the row that every output shows."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from pydlbench.layers import result_role
from pydlbench.results import Correctness, Measurement, Peaks, Roofline
from pydlbench.results.summary import time_summary
from pydlbench.timing.statistics import median as _median
from pydlbench.timing.statistics import median_interval

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.devices import DeviceRecord
    from pydlbench.devices.gpu import GpuRecord
    from pydlbench.layers import Layer
    from pydlbench.results.parts import TimeSummary
    from pydlbench.timing.procedure import Samples

__all__ = [
    "ITEM_BYTES",
    "cached_bytes",
    "empty_row",
    "measured_row",
    "memory_held",
    "memory_needed",
    "with_limits",
]

#: Bytes of one stored element, by precision.
ITEM_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "fp16-tc": 2, "bf16-tc": 2, "bf16": 2, "fp8-tc": 1}

# What a search holds at once: layouts of every operand, and pools of a race of two finalists.
_LAYOUTS = 3
_POOLS = 2

# Fewer rounds have no interval at 95 %.
_ROUNDS = 6

# Rounds of a quiet machine agree within 1 to 2 %; from here on the row says that they did not.
_DRIFT = 0.05
_DRIFT_TEXT = (
    f"the median moved by over {100 * _DRIFT:.0f} % between rounds although nothing on this "
    "system was in the way: the clock changed, or a neighbour of the virtual machine was busy"
)
_GPU_DRIFT_TEXT = (
    f"the median moved by over {100 * _DRIFT:.0f} % between rounds although nothing else was seen "
    "on the GPU: its clock follows power and heat; compare cycles rather than times"
)


def empty_row(case: Case, threads: int | None, status: str, reason: str) -> Measurement:
    """Return the row of a case that was not timed."""
    return Measurement(
        **_base(case, threads), status=status, reason=reason, timing=_intended_timing(case)
    )


def measured_row(
    case: Case,
    threads: int | None,
    facts: dict[str, Any],
    samples: Samples,
    *,
    keep_samples: bool = False,
    keep_candidates: bool = False,
) -> Measurement:
    """Return the row of a timed case, still without the limits that it is held against.

    Samples of one round are not independent: a round's clock and its neighbours are theirs in
    common, and their interval says nothing of the next round. With six rounds or more, the interval
    of the median is therefore the wider one of two: that of all samples, and that of the rounds'
    medians (both distribution-free), extended to the median where that lies outside.

    Args:
        case: what was timed.
        threads: of the kernel; None on a GPU.
        facts: what the backend says of the kernel (``KernelFacts`` in its JSON form).
        samples: its times.
        keep_samples: keep the raw samples.
        keep_candidates: keep what was tried.
    """
    base = _base(case, threads)
    time = _time(samples)
    candidates = _candidates(facts["candidates"], samples.confidence)
    return Measurement(
        **base,
        status="ok",
        accumulate=facts["accumulate"],
        library=facts["library"],
        algorithm=facts["algorithm"],
        layout=facts["layout"],
        timing=facts["timing"],
        time=time,
        tflops=base["flops"] / time.median / 1e12,
        gbps=base["bytes"] / time.median / 1e9,
        clock_hz=samples.clock_hz,
        correct=Correctness.from_dict(facts["correct"]),
        contended=samples.contended,
        contention_reason=samples.contention_reason,
        stop_rule=samples.stop_reason,
        stop_reason=samples.stop_detail,
        inner=samples.inner,
        retries=samples.retries,
        cycles=None if samples.clock_hz is None else time.median * samples.clock_hz,
        workspace_bytes=facts["workspace_bytes"],
        reorder_s=facts["reorder_s"],
        setup_s=facts["setup_s"],
        discarded=samples.discarded,
        candidates=candidates if keep_candidates else None,
        samples_s=samples.all_seconds if keep_samples else None,
        tensor_cores=facts.get("tensor_cores"),
        notes=tuple(facts.get("notes", ())),
        launch_s=facts.get("launch_s"),
        energy_j=facts.get("energy_j"),
        power_w=facts.get("power_w"),
        gpu=None if samples.gpu is None else samples.gpu.to_dict(),
        warnings=(*_warnings(samples, case.on_gpu), *_wrong_ones(facts["candidates"], time.median)),
    )


def cached_bytes(case: Case) -> int:
    """Return how many bytes of a case's operands its cache state may leave in the caches."""
    moved = case.layer.bytes(case.pass_, ITEM_BYTES[case.precision])
    weights = case.layer.weight_elements * ITEM_BYTES[case.precision]
    return {"hot": moved, "weights-cold": max(0, moved - weights), "all-cold": 0}[case.cache]


def memory_needed(case: Case, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that measuring a case takes, verification and race included.

    The float32 originals; every operand in up to three layouts in the storage type; a float32 copy
    of the output; where caches are cold, two pools of rotating copies, each of which spans
    ``cold_bytes`` and ends with whole copies.

    Args:
        case: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: what the rotating copies of a cold cache state span at least.
    """
    operands = layer.operands(case.pass_)
    output = result_role(layer, case.pass_)
    elements = sum(operands.values())
    stored = elements * ITEM_BYTES[case.precision]
    needed = 4 * elements + _LAYOUTS * stored + 4 * operands[output]
    return needed if case.cache == "hot" else needed + _POOLS * (cold_bytes + 2 * stored)


def memory_held(case: Case, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that a prepared case keeps until it is released.

    Every operand once, in the storage type; where caches are cold, one pool of rotating copies
    instead, which ends with a whole copy. A GPU's row holds nothing on the host.

    Args:
        case: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: see :func:`memory_needed`.
    """
    if case.on_gpu:
        return 0
    stored = sum(layer.operands(case.pass_).values()) * ITEM_BYTES[case.precision]
    return stored if case.cache == "hot" else cold_bytes + 2 * stored


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


def _intended_timing(case: Case) -> str:
    """How a row without samples would have been sampled."""
    if not case.on_gpu:
        return "steady"
    if case.timing != "auto":
        return case.timing
    return "cuda-graph" if case.cache == "hot" else "events"


def _base(case: Case, threads: int | None) -> dict[str, Any]:
    """What a row says whatever happens to it."""
    layer = case.layer
    known = case.pass_ in layer.passes
    flops = layer.flops(case.pass_) if known else 0
    executed = layer.flops_executed(case.pass_) if known else 0
    moved = layer.bytes(case.pass_, ITEM_BYTES[case.precision]) if known else 0
    return {
        "layer": layer.name or layer.problem,
        "kind": layer.kind,
        "problem": layer.problem,
        "batch": layer.batch,
        "pass_": case.pass_,
        "precision": case.precision,
        "propagation": case.propagation,
        "device": case.device,
        "backend": case.backend,
        "mode": case.mode,
        "cache": case.cache,
        "layout_request": case.layout,
        "threads": threads,
        "fuse": case.fuse,
        "flops": flops,
        "flops_executed": executed,
        "bytes": moved,
        "arithmetic_intensity": executed / moved if moved else None,
    }


def _time(samples: Samples) -> TimeSummary:
    """The samples' summary with the wider interval, see :func:`measured_row`."""
    summary = time_summary(samples.seconds, samples.confidence)
    rounds = samples.by_round().values()
    if len(rounds) < _ROUNDS:
        return summary
    between = median_interval(rounds, samples.confidence)
    if between is None or summary.ci_low is None or summary.ci_high is None:
        return summary
    if between.high - between.low <= summary.ci_high - summary.ci_low:
        return summary
    return dataclasses.replace(
        summary,
        ci_low=min(between.low, summary.median),
        ci_high=max(between.high, summary.median),
    )


def _warnings(samples: Samples, on_gpu: bool) -> tuple[str, ...]:
    """What no counter of this system saw, but the samples show."""
    found = []
    if not samples.warmup.steady:
        found.append(f"the warm-up ended before times were steady: {samples.warmup.detail}")
    if not samples.contended and math.isfinite(samples.drift) and samples.drift > _DRIFT:
        found.append(_GPU_DRIFT_TEXT if on_gpu else _DRIFT_TEXT)
    return tuple(found)


def _wrong_ones(candidates: Sequence[dict[str, Any]], median: float) -> tuple[str, ...]:
    """Faster candidates whose results are not right: others may be using them."""
    return tuple(
        f"{entry['algorithm']} is faster but was left out: {entry['reason']}"
        for entry in candidates
        if entry["status"] == "failed" and entry["seconds"] and _median(entry["seconds"]) < median
    )


def _candidates(listed: Sequence[dict[str, Any]], confidence: float) -> tuple[dict[str, Any], ...]:
    rows = []
    for entry in listed:
        row = dict(entry)
        seconds = row.pop("seconds")
        row["time_s"] = time_summary(seconds, confidence).to_dict() if seconds else None
        rows.append(row)
    return tuple(rows)
