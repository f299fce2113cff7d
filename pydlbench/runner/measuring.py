"""How one case is made ready, timed and turned into the row that every output shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.backends import capabilities
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.records.measurement import Correctness, Measurement, Peaks, Roofline, time_summary
from pydlbench.timing.statistics import median as _median
from pydlbench.timing.statistics import median_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pydlbench.backends.base import Preparation
    from pydlbench.backends.frameworks.verbose import Turn
    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.devices.cpu.record import DeviceRecord
    from pydlbench.devices.gpu.record import GpuRecord
    from pydlbench.records.measurement import TimeSummary
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.session import Devices, Options
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = [
    "ITEM_BYTES",
    "Measuring",
    "cached_bytes",
    "empty_row",
    "measured_row",
    "summary_of",
    "with_limits",
]


# -----------------------------------------------------------------------------
# How one case is made ready, timed and turned into a row, in the workers of a session.

# Rotating copies of a cold cache state span this many last-level caches.
_COLD_FACTOR = 3
# Rotating copies on a GPU span this many L2 caches: its replacement is not strictly the oldest
# line's, so that after twice its size one line in eight is still there.
_COLD_L2 = 4
_LOGGED_TURNS = 7
_LONG_S, _FEW_TURNS = 0.1, 3
# Of calls that do nothing, beside each row: at most a tenth of a second.
_FEW_CALLS = {"samples": 11, "inner": 30}


class Measuring:
    """What a session needs for a row: kernels made ready, constants of sampling, limits.

    Args:
        options: see there.
        facts: of the CPU.
        cpus: logical CPUs that kernels are pinned to.
        devices: of the session.
        worker: returns a worker, as ``Session.worker``.
    """

    def __init__(
        self,
        options: Options,
        facts: CpuFacts,
        cpus: tuple[int, ...],
        devices: Devices,
        worker: Callable[..., Worker],
    ) -> None:
        from pydlbench.timing.policy import Policy, estimate_policy

        self._options = options
        self._facts = facts
        self._cpus = cpus
        self._devices = devices
        self._worker = worker
        self._policy = Policy(confidence=options.confidence, budget_s=options.budget_s)
        self._summand = estimate_policy(self._policy)
        # Of hot cases, the name of the fastest kernel.
        self._fastest: dict[KernelSpec, str] = {}
        self._without_empty_call: set[tuple[str, str, str | None]] = set()

    @property
    def seed(self) -> int:
        """Of the inputs and of the order of rounds."""
        return self._options.seed

    def threads(self, case: KernelSpec) -> int | None:
        """Return the threads of a row; None on a GPU."""
        return None if case.on_gpu else len(self._cpus)

    def allocates(self, case: KernelSpec) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""
        return not case.on_gpu and capabilities.of(case.backend).fresh_results

    def processes(self, group: Sequence[KernelSpec]) -> list[KernelSpec]:
        """Return the case of each process that holds operands of a group's problem.

        Args:
            group: cases that differ in backend and mode only.
        """
        if len(group) == 1:
            return list(group)
        # With cold caches frameworks are not timed: they refuse before they hold anything.
        holding = [one for one in group if one.backend == "native" or one.cache == "hot"]
        warm = [one for one in holding if self.allocates(one)]
        # One log is read at a time.
        log = [one for one in warm if capabilities.of(one.backend).log_environment][:1]
        return [*holding, *warm, *log]

    def empty_call_s(self, case: KernelSpec) -> float | None:
        """Return the seconds of a call that does nothing, made as this case's backend calls.

        Measured now: in the course of a run it changes by more than a third.
        """
        key = (case.backend, case.device, case.mode)
        if key in self._without_empty_call:
            return None
        try:
            worker = self._worker(case.backend, case.device)
            found = worker.probe("empty_call", mode=case.mode, **_FEW_CALLS)["seconds"]
        except PydlbenchError:
            self._without_empty_call.add(key)
            return None
        return float(found)

    def logged(
        self, case: KernelSpec, variant: str | None, beside: RemoteKernel | None = None
    ) -> dict[str, Any]:
        """Return what the library itself logs of a call, see ``KernelFacts.evidence``.

        Asked in a process of its own, whose pages are kept: of frameworks that cannot switch the
        log on and off. Empty where there is no such log.

        Args:
            case: what is computed.
            variant: the variant that was timed.
            beside: the same where pages are kept as well, without a log: its calls take turns with
                the logged ones, to tell what writing a log costs.
        """
        from pydlbench.backends.frameworks.verbose import evidence, middle_turn

        if case.on_gpu or not capabilities.of(case.backend).log_environment:
            return {}
        worker = self._worker(case.backend, case.device, warm=True, logging=True)
        try:
            kernel = worker.prepare(case, self._preparation(case, variant))
            try:
                turns = [_turn(worker, kernel, beside)]
                wanted = _LOGGED_TURNS if turns[0].logged_s < _LONG_S else _FEW_TURNS
                turns += [_turn(worker, kernel, beside) for _ in range(wanted - 1)]
                return evidence(*middle_turn(turns))
            finally:
                kernel.release()
        except PydlbenchError:
            return {}  # without a log there is one cause less to find

    def sampling_policy(self, case: KernelSpec, facts: dict[str, Any]) -> Policy:
        """Return the constants of sampling for a kernel."""
        from pydlbench.timing.policy import gpu_policy

        return gpu_policy(self._policy, facts, case.cache) if case.on_gpu else self._policy

    def prepare(
        self, case: KernelSpec, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready in its worker; raises what the backend raises.

        Args:
            case: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
        """
        worker = self._worker(case.backend, case.device, warm=warm)
        return worker.prepare(case, self._preparation(case, variant))

    def _summand_of(self, case: KernelSpec) -> bool:
        """Whether a case's row is one of an estimate's native ones on a CPU."""
        return self._options.estimate and case.backend == "native" and not case.on_gpu

    def _prepare_summand(self, case: KernelSpec) -> RemoteKernel:
        """Have a case made ready after a short search, or with the kernel of its hot row."""
        hot = msgspec.structs.replace(case, cache="hot")
        variant = None if case == hot else self._fastest.get(hot)
        worker = self._worker(case.backend, case.device)
        kernel = worker.prepare(case, self._preparation(case, variant, brief=True))
        if case == hot:
            self.remember(case, kernel.facts["algorithm"], kernel.facts["layout"])
        return kernel

    def remember(self, case: KernelSpec, algorithm: str, layout: str) -> None:
        """Keep the kernel of a hot row for the cold one of an estimate."""
        self._fastest[case] = f"{algorithm} {layout}"

    def _preparation(
        self, case: KernelSpec, variant: str | None, *, brief: bool = False
    ) -> Preparation:
        from pydlbench.backends.base import Preparation

        return Preparation(
            seed=self._options.seed,
            cold_bytes=self._cold_bytes(case),
            memory_bytes=self._facts.memory_available_bytes or (1 << 62),
            all_candidates=self._options.algorithms,
            brief=brief,
            workspace_bytes=self._options.workspace_bytes,
            energy=self._options.energy,
            variant=variant,
        )

    def _cold_bytes(self, case: KernelSpec) -> int:
        if case.on_gpu:
            facts = self._devices.gpu(case.device, levels=()).facts
            return _COLD_L2 * facts.l2_bytes
        return self.cold_bytes()

    def cold_bytes(self) -> int:
        """Return the bytes that the rotating copies of a cold cache state span on the CPU."""
        from pydlbench.devices.cpu.working_set import last_level_bytes

        return _COLD_FACTOR * last_level_bytes(self._facts, self._cpus)

    def alone(self, case: KernelSpec) -> Measurement:
        """Measure a case that competes with nobody; a failure is a row that says why."""
        from pydlbench.runner.interleaved import releasing, sample_alone

        threads = self.threads(case)
        try:
            summand = self._summand_of(case)
            kernel = self._prepare_summand(case) if summand else self.prepare(case)
            with releasing([kernel]):
                policy = self._summand if summand else self.sampling_policy(case, kernel.facts)
                return self.row(case, kernel.facts, sample_alone(kernel.sample, policy))
        except UnsupportedError as error:
            return empty_row(case, threads, "skipped", str(error))
        except PydlbenchError as error:
            return empty_row(case, threads, "failed", str(error))

    def row(self, case: KernelSpec, facts: dict[str, Any], samples: Samples) -> Measurement:
        """Return the row of a timed case, held against the limits of its device.

        Args:
            case: what was timed.
            facts: what its backend says of the kernel.
            samples: its times.
        """
        row = measured_row(
            case,
            self.threads(case),
            facts,
            samples,
            keep_samples=self._options.keep_samples,
            keep_candidates=self._options.algorithms,
        )
        return self._devices.limited(row, case)


def _turn(worker: Worker, kernel: RemoteKernel, beside: RemoteKernel | None) -> Turn:
    """Have a call logged, and the same made without a log right before it."""
    from pydlbench.backends.frameworks.verbose import Turn, last_call, parse
    from pydlbench.runner.interleaved import rest
    from pydlbench.timing.chunk import Request

    # The first call wakes the threads; of two equal calls, the log of the second counts.
    request = Request(samples=1, untimed=1)
    rest()
    plain = None if beside is None else beside.sample(request)
    rest()
    logged = kernel.sample(request)
    return Turn(
        executions=last_call(parse(worker.said()), 2),
        logged_s=logged.seconds[0],
        plain_s=None if plain is None else plain.seconds[0],
    )


# -----------------------------------------------------------------------------
# From a case, its kernel's facts and its samples to the row that every output shows.

#: Bytes of one stored element, by precision.
ITEM_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "fp16-tc": 2, "bf16-tc": 2, "bf16": 2, "fp8-tc": 1}

# Fewer rounds have no interval at 95 %.
_ROUNDS = 6


# Of a quiet machine, the first rounds agree with the last within 1 to 2 %.
_DRIFT = 0.05
_DRIFT_TEXT = (
    "although nothing on this system was in the way: the clock changed, or a neighbour of the "
    "virtual machine was busy"
)
_GPU_DRIFT_TEXT = (
    "although nothing else was seen on the GPU: its clock follows power and heat; compare cycles "
    "rather than times"
)


def empty_row(case: KernelSpec, threads: int | None, status: str, reason: str) -> Measurement:
    """Return the row of a case that was not timed."""
    return Measurement(
        **_base(case, threads), status=status, reason=reason, timing=_intended_timing(case)
    )


def measured_row(
    case: KernelSpec,
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
    time = summary_of(samples)
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
        warnings=(
            *_warnings(samples, time, case.on_gpu),
            *_wrong_ones(facts["candidates"], time.median),
        ),
    )


def _intended_timing(case: KernelSpec) -> str:
    """How a row without samples would have been sampled."""
    if not case.on_gpu:
        return "steady"
    if case.timing != "auto":
        return case.timing
    return "cuda-graph" if case.cache == "hot" else "events"


def _base(case: KernelSpec, threads: int | None) -> dict[str, Any]:
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


def summary_of(samples: Samples) -> TimeSummary:
    """Return the samples' summary with the wider interval, see :func:`measured_row`."""
    summary = time_summary(samples.seconds, samples.confidence)
    rounds = samples.by_round().values()
    if len(rounds) < _ROUNDS:
        return summary
    between = median_interval(rounds, samples.confidence)
    if between is None or summary.ci_low is None or summary.ci_high is None:
        return summary
    if between.high - between.low <= summary.ci_high - summary.ci_low:
        return summary
    return msgspec.structs.replace(
        summary,
        ci_low=min(between.low, summary.median),
        ci_high=max(between.high, summary.median),
    )


def _drift(samples: Samples) -> tuple[float, float]:
    """The medians of the first third of the rounds and of the last."""
    seconds = [one.seconds for one in samples.rounds]
    third = max(1, len(seconds) // 3)
    return _median(seconds[:third]), _median(seconds[-third:])


def _warnings(samples: Samples, time: TimeSummary, on_gpu: bool) -> tuple[str, ...]:
    """What no counter of this system saw, but the samples show."""
    found = []
    if not samples.warmup.steady:
        found.append(f"the warm-up ended before times were steady: {samples.warmup.detail}")
    first, last = _drift(samples)
    moved = last / first - 1 if first > 0 else 0.0
    # What the row's own interval shows need not be said once more.
    width = 0.0 if time.ci_low is None or time.ci_high is None else time.ci_high - time.ci_low
    if not samples.contended and abs(moved) > _DRIFT and abs(last - first) > width:
        text = _GPU_DRIFT_TEXT if on_gpu else _DRIFT_TEXT
        how = "rose" if moved > 0 else "fell"
        found.append(
            f"the median {how} by {100 * abs(moved):.0f} % from the first rounds to the last {text}"
        )
    return tuple(found)


def _wrong_ones(candidates: Sequence[dict[str, Any]], median_s: float) -> tuple[str, ...]:
    """Faster candidates whose results are not right: others may be using them."""
    return tuple(
        f"{entry['algorithm']} is faster but was left out: {entry['reason']}"
        for entry in candidates
        if entry["status"] == "failed" and entry["seconds"] and _median(entry["seconds"]) < median_s
    )


def _candidates(listed: Sequence[dict[str, Any]], confidence: float) -> tuple[dict[str, Any], ...]:
    rows = []
    for entry in listed:
        row = dict(entry)
        seconds = row.pop("seconds")
        row["time_s"] = time_summary(seconds, confidence).to_dict() if seconds else None
        rows.append(row)
    return tuple(rows)


# -----------------------------------------------------------------------------
# A row held against the limits of its device.


def cached_bytes(case: KernelSpec) -> int:
    """Return how many bytes of a case's operands its cache state may leave in the caches."""
    moved = case.layer.bytes(case.pass_, ITEM_BYTES[case.precision])
    weights = case.layer.weight_elements * ITEM_BYTES[case.precision]
    return {"hot": moved, "weights-cold": max(0, moved - weights), "all-cold": 0}[case.cache]


def with_limits(
    row: Measurement,
    case: KernelSpec,
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
    from pydlbench.devices.gpu.record import GpuRecord
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
    counted = device.levels(levels)
    move = memory_time(row.bytes - warm, warm, counted)
    over = roof(row.flops_executed, limits.measured, *move)
    over = with_launch(over, launch, row.time.median)
    theoretical = limits.theoretical
    return msgspec.structs.replace(
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
            bandwidth_gbps=next(
                one.bytes_per_s / 1e9 for one in counted if one.name == over.bandwidth
            ),
        ),
    )
