"""Makes rows from specs, kernels' facts and samples; every output shows rows."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from pydlbench.backends.base import KernelFacts
from pydlbench.devices.cpu.record import DeviceRecord
from pydlbench.devices.gpu.record import GpuRecord
from pydlbench.devices.roofline import memory_time, roof, with_launch
from pydlbench.ops.fused import fused_bytes, fused_flops
from pydlbench.ops.table import ITEM_BYTES, item_bytes
from pydlbench.records.measurement import (
    KernelSpec,
    Measurement,
    Peaks,
    Roofline,
    TimeSummary,
    time_summary,
)
from pydlbench.records.record import plain
from pydlbench.study.estimate import Estimate, estimate
from pydlbench.study.table import Series
from pydlbench.timing.statistics import median
from pydlbench.units import format_seconds
from pydlbench.words import arithmetic

# The change from the first to the last rounds that is a warning; 1 to 2 % on an undisturbed
# machine.
_DRIFT = 0.05
_DRIFT_TEXT = (
    "although nothing on this system was in the way: the clock changed, or a neighbour of the "
    "virtual machine was busy"
)
_GPU_DRIFT_TEXT = (
    "although nothing else was seen on the GPU: its clock follows power and heat; compare cycles "
    "rather than times"
)


def empty_row(spec: KernelSpec, threads: int | None, status: str, reason: str) -> Measurement:
    """Return the row of a spec that was not timed."""
    return Measurement(
        **_base(spec, threads), status=status, reason=reason, timing=_intended_timing(spec)
    )


def measured_row(
    spec: KernelSpec,
    threads: int | None,
    facts: KernelFacts,
    samples: Series,
    *,
    clock_hz: float | None = None,
    keep_samples: bool = False,
    keep_candidates: bool = False,
) -> Measurement:
    """Return the row of a timed spec, without the limits of its device.

    Args:
        spec: what was timed.
        threads: threads of the kernel; None on a GPU.
        facts: facts of the kernel.
        samples: samples of the kernel.
        clock_hz: clock read by another backend on the same cores, if this one reads none.
        keep_samples: keep the raw samples.
        keep_candidates: keep the candidates of the search.
    """
    base = _base(spec, threads)
    estimated = estimate(samples)
    time = summary_of(samples)
    clock_hz = samples.clock_hz if clock_hz is None else clock_hz
    return Measurement(
        **base,
        status="ok",
        accumulate=facts.accumulate,
        library=facts.library,
        algorithm=facts.algorithm,
        layout=facts.layout,
        timing=facts.timing,
        time=time,
        tflops=base["flops"] / time.median / 1e12,
        gbps=base["bytes"] / time.median / 1e9,
        clock_hz=clock_hz,
        correct=facts.correct,
        contended=estimated.contended,
        contention_reason=estimated.reason if estimated.contended else None,
        stop_rule="rounds",
        stop_reason=f"{len(samples)} rounds, {samples.spent_s:.3g} s",
        inner=samples.inner,
        cycles=None if clock_hz is None else time.median * clock_hz,
        workspace_bytes=facts.workspace_bytes,
        reorder_s=facts.reorder_s,
        setup_s=facts.setup_s,
        candidates=_candidates(facts.candidates) if keep_candidates else None,
        samples_s=tuple(samples.seconds) if keep_samples else None,
        tensor_cores=facts.tensor_cores,
        notes=tuple(facts.notes),
        launch_s=facts.launch_s,
        kernels=tuple(facts.kernels),
        energy_j=facts.energy_j,
        power_w=facts.power_w,
        sustained_s=facts.sustained_s,
        sustained_hz=facts.sustained_hz,
        gpu=None if samples.gpu is None else plain(msgspec.structs.asdict(samples.gpu)),
        warnings=(
            *_warnings(samples, estimated, spec.on_gpu),
            *(
                f"{entry['algorithm']} is faster but was left out: {entry['reason']}"
                for entry in facts.candidates
                if entry["status"] == "failed"
                and entry["seconds"]
                and median(entry["seconds"]) < time.median
            ),
        ),
    )


def _intended_timing(spec: KernelSpec) -> str:
    """Return how a row without samples would have been sampled."""
    if not spec.on_gpu:
        return "steady"
    if spec.timing != "auto":
        return spec.timing
    return "cuda-graph" if spec.cache == "hot" else "events"


def _base(spec: KernelSpec, threads: int | None) -> dict[str, Any]:
    """Return the fields that every row has."""
    layer = spec.layer
    known = spec.pass_ in layer.passes
    flops = layer.flops(spec.pass_) if known else 0
    executed = layer.flops_executed(spec.pass_) if known else 0
    moved = _moved(spec) if known else 0
    if spec.pass_ == "forward":
        fused = fused_flops(layer, spec.fuse)
        flops, executed = flops + fused, executed + fused
    return {
        "layer": layer.name or layer.problem,
        "kind": layer.kind,
        "problem": layer.problem,
        "batch": layer.batch,
        "pass_": spec.pass_,
        "precision": spec.precision,
        "propagation": spec.propagation,
        "device": spec.device,
        "backend": spec.backend,
        "mode": spec.mode,
        "cache": spec.cache,
        "layout_request": spec.layout,
        "threads": threads,
        "fuse": spec.fuse,
        "flops": flops,
        "flops_executed": executed,
        "bytes": moved,
        "arithmetic_intensity": executed / moved if moved else None,
    }


def _moved(spec: KernelSpec) -> int:
    """Return the least bytes of a spec, with those that fused operations read."""
    sizes = item_bytes(spec.layer, spec.precision)
    moved = spec.layer.bytes(spec.pass_, sizes)
    if spec.pass_ == "forward" and "dst" in sizes:
        moved += fused_bytes(spec.layer, spec.fuse, sizes["dst"])
    return moved


def summary_of(samples: Series) -> TimeSummary:
    """Return the summary of a subject's samples; median and interval are those of its rounds.

    Args:
        samples: samples by round.
    """
    estimated = estimate(samples)
    interval = estimated.interval
    several = samples.preparations > 1
    laps = tuple(dict.fromkeys(visit.preparation for visit in samples.visits))
    summary = time_summary(samples.seconds)
    return msgspec.structs.replace(
        summary,
        median=estimated.median,
        # Rounds count alike, however many samples each has.
        q1=min(summary.q1, estimated.median),
        q3=max(summary.q3, estimated.median),
        ci_low=None if interval is None else interval.low,
        ci_high=None if interval is None else interval.high,
        repetitions=samples.preparations,
        visit_s=samples.preparations_s() if several else (),
        laps=None if laps == tuple(range(len(laps))) or not several else laps,
        processes=samples.processes,
    )


def _warnings(samples: Series, estimated: Estimate, on_gpu: bool) -> tuple[str, ...]:
    """Return warnings on drift and disturbances, which show in the samples only."""
    words = []
    if samples.gate_timeouts:
        words.append(
            f"{samples.gate_timeouts} samples were taken again: enqueueing them waited for the GPU "
            "behind the closed launch gate"
        )
    words += estimated.second_tries
    # A contended row has the reason in a field of its own.
    words += () if estimated.contended else estimated.disturbances
    seconds = list(samples.by_round().values())
    third = max(1, len(seconds) // 3)
    first, last = median(seconds[:third]), median(seconds[-third:])
    moved = last / first - 1 if first > 0 else 0.0
    # No warning if the row's interval covers the drift.
    width = 0.0 if estimated.interval is None else estimated.interval.high - estimated.interval.low
    if not estimated.contended and abs(moved) > _DRIFT and abs(last - first) > width:
        text = _GPU_DRIFT_TEXT if on_gpu else _DRIFT_TEXT
        how = "rose" if moved > 0 else "fell"
        words.append(
            f"the median {how} by {100 * abs(moved):.0f} % from the first rounds to the last {text}"
        )
    return tuple(words)


def _candidates(listed: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            **{name: value for name, value in entry.items() if name != "seconds"},
            "time_s": time_summary(entry["seconds"]).to_dict() if entry["seconds"] else None,
        }
        for entry in listed
    )


# -----------------------------------------------------------------------------
# A row compared with the limits of its device.


def cached_bytes(spec: KernelSpec, timing: str | None = None) -> int:
    """Return how many bytes of a spec's operands may stay in the caches.

    If operands rotate, each execution writes back the results of an earlier one. If the caches are
    flushed before each execution instead (events on a GPU), its writes may still be in the L2 cache
    at its end; the flush writes them back, outside its time.

    Args:
        spec: what is timed.
        timing: how it is timed; None for rotating operands.
    """
    sizes, moved = item_bytes(spec.layer, spec.precision), _moved(spec)
    if spec.cache == "hot":
        return moved
    if spec.cache == "all-cold":
        return _written_bytes(spec) if timing == "events" else 0
    written = spec.layer.writes(spec.pass_, spec.propagation) if timing == "events" else ()
    held = sizes.get("weights", ITEM_BYTES[spec.precision])
    weights = 0 if "weights" in written else spec.layer.weight_elements * held
    return max(0, moved - int(weights))


def _written_bytes(spec: KernelSpec) -> int:
    """Return how many of the least bytes of a spec are written."""
    item = ITEM_BYTES[spec.precision]
    operands = spec.layer.operands(spec.pass_)
    roles = spec.layer.writes(spec.pass_, spec.propagation)
    moved = spec.layer.bytes(spec.pass_, item)
    return min(moved, item * sum(operands.get(role, 0) for role in roles))


# Above this share of the power cap the clock depends on the pauses between launches.
_POWER_SHARE = 0.5


def _power_notes(row: Measurement, device: GpuRecord) -> Iterator[str]:
    """Yield how long a row takes without pauses, if its power is above half of the power cap."""
    power_w, limit_w = (row.gpu or {}).get("power_w"), device.nvml.get("power_limit_w")
    event_s = (row.launch_s or {}).get("event")
    if row.time is None or not power_w or not limit_w or not event_s:
        return
    if power_w <= _POWER_SHARE * limit_w:
        return
    yield (
        f"{power_w:.0f} of {limit_w:.0f} W: {format_seconds(row.time.median)} in rounds with "
        f"pauses, {format_seconds(event_s)} launched without; compare kernels in cycles"
    )


def with_limits(
    row: Measurement,
    spec: KernelSpec,
    device: DeviceRecord | GpuRecord,
    levels: Collection[str] | None = None,
) -> Measurement:
    """Return the row with the compute peaks at its clock and its roofline.

    Args:
        row: a row of :func:`measured_row`.
        spec: what was timed.
        device: device with the spec's precision and the bandwidths of memory and last-level cache
            probed; that of the level before it is used if it was probed.
        levels: levels whose bandwidths are used, although others may be probed for other rows; None
            for all.

    Returns:
        The row. It has a warning and no roofline if the roof would be the bandwidth of a level
        without an undisturbed probe.

    Raises:
        UnsupportedError: a peak or a bandwidth was not probed.
    """
    if row.time is None:
        return row
    warm = cached_bytes(spec, row.timing)
    if isinstance(device, GpuRecord):
        limits = device.limits(spec.precision, row.clock_hz, row.accumulate)
        launch = device.launch_in(row.timing, alone=spec.cache != "hot")
        counted = device.levels_for(levels, warm, row.bytes - warm, _written_bytes(spec))
    else:
        limits = device.limits(arithmetic(spec.precision), row.clock_hz)
        launch = device.launch_s or 0.0
        counted = device.levels(levels)
    move = memory_time(row.bytes - warm, warm, counted)
    over = roof(row.flops_executed, limits.measured, *move)
    over = with_launch(over, launch, row.time.median)
    theoretical = limits.theoretical
    slowest = next(level for level in counted if level.name == over.bandwidth)
    low = slowest.low_bytes_per_s
    median_s = row.time.median
    if isinstance(device, GpuRecord):
        row = msgspec.structs.replace(row, notes=(*row.notes, *_power_notes(row, device)))
    peak = Peaks(
        theoretical=None if theoretical is None else theoretical / 1e12,
        measured=limits.measured / 1e12,
    )
    # A disturbed probe is a lower bound of the bandwidth. If another limit is higher even so, that
    # is the roof.
    if over.bound == "memory" and slowest.disturbance is not None:
        warning = f"no roof: no probe of {slowest.name} was undisturbed ({slowest.disturbance})"
        return msgspec.structs.replace(row, peak=peak, warnings=(*row.warnings, warning))
    return msgspec.structs.replace(
        row,
        peak=peak,
        roofline=Roofline(
            bound=over.bound,
            time_s=over.time_s,
            efficiency=over.time_s / median_s,
            bandwidth=over.bandwidth,
            bandwidth_gbps=slowest.bytes_per_s / 1e9,
            bandwidth_low_gbps=None if low is None else low / 1e9,
        ),
    )
