"""One problem on several backends: prepared, sampled interleaved, and the slow ones explained."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.layers.layer import result_role
from pydlbench.records.measurement import SLOW, less_exact
from pydlbench.runner.attribution import LOG, Account, Evidence, causes, unexplained_s
from pydlbench.runner.interleaved import (
    InterleavedKernel,
    clock_beside,
    random_order,
    ratios,
    releasing,
    sample_interleaved,
    saved_s,
)
from pydlbench.runner.measuring import empty_row
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.interleaved import RatioToBest
    from pydlbench.runner.measuring import Measuring
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel

__all__ = ["BackendRun", "by_problem", "explained", "measure_problem"]


# Weights of products as they are, plain or transposed, in a kernel's layout.
_UNPACKED = re.compile(r"\bweights g?(kn|nk)\b")

# The fewest rounds whose interval of the ratio at 95 % leaves out the two extremes.
_ROUNDS = 9
# Six rounds have such an interval; one or two may be disturbed.
_LEAST_ROUNDS = 8


@dataclass(slots=True)
class BackendRun:
    """One backend's way through a problem that several backends solve.

    Attributes:
        case: what it computes.
        kernel: as users run it.
        warm: the same in a process whose allocator keeps the pages that were freed.
        row: what came of it.
        samples: of ``kernel``.
        warm_samples: of ``warm``, in the same rounds.
        log: what the library itself reports of a call, from a process that does nothing else.
    """

    case: KernelSpec
    kernel: RemoteKernel | None = None
    warm: RemoteKernel | None = None
    row: Measurement | None = None
    samples: Samples | None = None
    warm_samples: Samples | None = None
    log: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.case.backend, self.case.mode)))


def by_problem(cases: Sequence[KernelSpec]) -> Iterator[list[KernelSpec]]:
    """Yield cases that differ in backend and mode only, together; in the order of their first.

    A case that is asked for twice competes with others, not with itself: it opens another group.
    """
    found: list[list[KernelSpec]] = []
    open_: dict[KernelSpec, list[KernelSpec]] = {}
    for case in cases:
        problem = msgspec.structs.replace(case, backend="native", mode=None)
        group = open_.get(problem)
        if group is None or case in group:
            group = open_[problem] = []
            found.append(group)
        group.append(case)
    yield from found


def measure_problem(measuring: Measuring, cases: Sequence[KernelSpec]) -> list[Measurement]:
    """Measure one problem's cases in turn and return their rows, in the order given.

    Whoever cannot be prepared, dies or hangs gets a row that says so; the others go on.

    Args:
        measuring: prepares kernels and makes rows.
        cases: of one group.
    """
    runs = [BackendRun(case) for case in cases]
    with releasing(kernel for one in runs for kernel in (one.kernel, one.warm)):
        for number, one in enumerate(runs):
            prepare(measuring, one, runs[:number])
        _sample(measuring, runs)
        compare(measuring, [one for one in runs if one.samples is not None])
    return [one.row for one in runs if one.row is not None]


def _sample(measuring: Measuring, runs: Sequence[BackendRun]) -> None:
    running: list[tuple[BackendRun, RemoteKernel, bool]] = []
    for run in runs:
        if run.kernel is not None:
            running.append((run, run.kernel, False))
        if run.warm is not None:
            running.append((run, run.warm, True))
    if not running:
        return
    kernels = [
        InterleavedKernel(
            sample=kernel.sample,
            policy=_in_rounds(measuring.sampling_policy(run.case, kernel.facts)),
        )
        for run, kernel, _ in running
    ]
    outcomes = sample_interleaved(kernels, random_order(measuring.seed))
    for (run, _, warm), outcome in zip(running, outcomes, strict=True):
        if warm:
            run.warm_samples = outcome.samples
        elif outcome.samples is None:
            error = outcome.error or UnsupportedError("no samples")
            run.row = without_time(measuring, run.case, error)
        else:
            run.samples = outcome.samples


def _in_rounds(policy: Policy) -> Policy:
    """Return the policy with rounds enough for a ratio, and within a small budget all the same.

    A dozen processes take turns: each chunk and each warm-up is waited for by all others.
    """
    return dataclasses.replace(
        policy,
        min_rounds=_ROUNDS,
        least_rounds=_LEAST_ROUNDS,
        chunk_s=min(policy.chunk_s, policy.budget_s / _ROUNDS),
        warmup_limit_s=min(policy.warmup_limit_s, policy.budget_s),
    )


def prepare(measuring: Measuring, run: BackendRun, before: Sequence[BackendRun]) -> None:
    """Have a run made ready; those that its crash takes along are made ready once more.

    Args:
        measuring: prepares kernels.
        run: gets its kernels, or a row that says why not.
        before: those that were made ready before.
    """
    same = [
        one
        for one in before
        if (one.case.backend, one.case.device) == (run.case.backend, run.case.device)
    ]
    if _prepare_default(measuring, run):
        for one in same:
            if one.kernel is not None:
                _prepare_default(measuring, one)
    if run.kernel is not None and measuring.allocates(run.case) and _prepare_warm(measuring, run):
        for one in same:
            if one.warm is not None:
                _prepare_warm(measuring, one)


def _prepare_default(measuring: Measuring, run: BackendRun) -> bool:
    """Prepare as users run it; return whether the worker died of it."""
    run.kernel = None
    try:
        run.kernel = measuring.prepare(run.case)
    except PydlbenchError as error:
        run.row = without_time(measuring, run.case, error)
        return isinstance(error, WorkerError)
    return False


def _prepare_warm(measuring: Measuring, run: BackendRun) -> bool:
    """Prepare the same where pages are kept; return whether the worker died of it."""
    run.warm = None
    if run.kernel is None:
        return False
    variant = run.kernel.facts["evidence"].get("variant")
    try:
        run.warm = measuring.prepare(run.case, warm=True, variant=variant)
    except PydlbenchError as error:
        # The column stays empty; the row itself is what was asked for.
        return isinstance(error, WorkerError)
    return False


def without_time(measuring: Measuring, case: KernelSpec, error: PydlbenchError) -> Measurement:
    """Return the row of a case that could not be prepared or sampled."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return empty_row(case, measuring.threads(case), status, str(error))


def compare(measuring: Measuring, runs: Sequence[BackendRun]) -> None:
    """Make the runs' rows.

    Args:
        measuring: makes rows, and knows what logs and empty calls tell.
        runs: those with samples.
    """
    timed = {i: run.samples for i, run in enumerate(runs) if run.samples is not None}
    found = ratios(timed, _references({index: runs[index] for index in timed}))
    for index, samples in timed.items():
        run, ratio = runs[index], found[index]
        if run.kernel is None:
            continue
        facts, warm = run.kernel.facts, run.warm_samples
        clocked, clock_from = _clocked(run.case, samples, runs)
        row = measuring.row(run.case, facts, clocked)
        row = msgspec.structs.replace(
            row,
            clock_from=clock_from,
            ratio=_ratio_fields(ratio, runs[ratio.best].name),
            warm_s=None if warm is None else warm.summary().median,
            faults=_faults(samples, warm),
            empty_call_s=None if run.case.backend == "native" else measuring.empty_call_s(run.case),
        )
        run.row = row
    for index, run in enumerate(runs):
        ratio = found[index]
        if run.row is not None and ratio.median > SLOW and (ratio.low is None or ratio.low > 1):
            if run.kernel is not None and "kernel_s" not in run.kernel.facts["evidence"]:
                variant = run.kernel.facts["evidence"].get("variant")
                beside = run.warm if run.warm_samples is not None else None
                run.log = measuring.logged(run.case, variant, beside)
            run.row = explained(run.row, run, runs[ratio.best])


def _references(runs: Mapping[int, BackendRun]) -> set[int]:
    """Return whom others may be compared with: who sums as exactly as the native kernel.

    Without a native one it is who sums as exactly as any of them: rounding partial sums to fewer
    bits saves time, and its results are not the same.
    """
    sums = {
        index: run.kernel.facts["accumulate"]
        for index, run in runs.items()
        if run.kernel is not None
    }
    native = {sums[index] for index in sums if runs[index].case.backend == "native"}
    wanted = native or set(sums.values())
    return {index for index, own in sums.items() if not any(less_exact(own, one) for one in wanted)}


def _clocked(
    case: KernelSpec, samples: Samples, runs: Sequence[BackendRun]
) -> tuple[Samples, str | None]:
    """Give samples without a clock that of the native ones on the same cores, and say whose it is.

    A framework's process reads none, and its peak would be that of the clock of the probe, minutes
    ago. With code of other widths the clock may differ; between rounds it differs more.
    """
    if samples.clock_hz is not None or case.on_gpu:
        return samples, None
    for other in runs:
        if other.case.backend == "native" and other.samples is not None:
            clock = clock_beside(samples, other.samples)
            if clock is not None:
                return dataclasses.replace(samples, clock_hz=clock), other.name
    return samples, None


def _ratio_fields(ratio: RatioToBest, best: str) -> dict[str, Any]:
    return {
        "to": best,
        "median": ratio.median,
        "ci_low": ratio.low,
        "ci_high": ratio.high,
        "rounds": ratio.rounds,
    }


def _faults(samples: Samples, warm: Samples | None) -> dict[str, float] | None:
    found = {"default": samples.faults, "warm": None if warm is None else warm.faults}
    known = {name: value for name, value in found.items() if value is not None}
    return known or None


def explained(row: Measurement, run: BackendRun, best: BackendRun) -> Measurement:
    """Return the row with its causes.

    Args:
        row: of a slow run, with its ratio to the fastest.
        run: the slow one.
        best: the fastest one, its row made.
    """
    if row.time is None or row.ratio is None or best.row is None or best.row.time is None:
        return row
    # Of the same rounds: the machine may have been another one in others.
    best_s = row.time.median / row.ratio["median"]
    evidence = Evidence(
        own=_account(run, row, row.time.median),
        best=_account(best, best.row, best_s),
        kind=run.case.layer.kind,
        plain_over_packed=_packing_gain(run, best),
    )
    found = causes(evidence)
    rest = unexplained_s(evidence)
    listed = [cause.to_dict() for cause in found]
    listed.append(
        {
            "cause": "unexplained",
            "seconds": rest,
            "share": rest / evidence.gap_s if evidence.gap_s else 0.0,
            "how": "the gap less the causes above",
        }
    )
    return msgspec.structs.replace(row, causes=tuple(listed))


def _account(run: BackendRun, row: Measurement, time_s: float) -> Account:
    """What is known of where a run's time goes; ``time_s`` may be that of fewer rounds."""
    if run.kernel is None or run.samples is None or row.time is None:
        return Account(time_s=time_s)
    # With a log of the process whose pages are there, no fault is counted in the kernel as well.
    kept = run.warm if run.warm_samples is not None else None
    seen = {**(kept or run.kernel).facts["evidence"], **run.log}
    saved, faults = None, row.faults or {}
    busy, kept_s = run.samples.busy, time_s
    if run.warm_samples is not None:
        saved = saved_s(run.samples, run.warm_samples) * time_s / row.time.median
        busy, kept_s = run.warm_samples.busy, time_s - saved
    on_gpu, roof = run.case.on_gpu, row.roofline
    # Samples behind a gate and in a graph leave out what the calls cost.
    called = not on_gpu or row.timing not in ("events", "cuda-graph")
    return Account(
        time_s=time_s,
        allocation_s=saved,
        faults=faults["default"] - faults["warm"] if len(faults) == 2 else None,
        empty_s=row.empty_call_s if called else None,
        queued=on_gpu and run.samples.inner > 1,
        kernel=seen.get("kernel") or run.kernel.facts["algorithm"],
        **_inside(seen, kept_s),
        detail=seen.get("detail", ""),
        limit_s=None if roof is None else roof.time_s * time_s / row.time.median,
        bound="compute" if roof is None else roof.bound,
        busy=None if on_gpu else busy,
        threads=row.threads or 1,
    )


def _inside(seen: Mapping[str, Any], call_s: float) -> dict[str, Any]:
    """What of a call that takes so long its kernels and reorders are, and how that is known.

    The library's log counts before the backend's own measurement of the kernel alone. Either was
    made beside a call as a whole, when the machine may have been faster or slower than it is now:
    what counts is a part's share of that call.
    """
    logged = seen.get("kernel_s") is not None
    names = ("kernel_s", "reorder_s") if logged else ("alone_s", "alone_reorder_s")
    parts = {
        part: seen[name]
        for part, name in zip(("kernel", "reorder"), names, strict=True)
        if seen.get(name) is not None
    }
    if not parts or not seen.get("call_s"):
        return {}
    # The logged call may have been slower than the one beside it; parts are no more than the whole.
    whole = max(seen["call_s"], sum(parts.values()))
    by = LOG if logged else seen["alone_by"]
    found: dict[str, Any] = {}
    for part, seconds in parts.items():
        share = seconds / whole
        found[f"{part}_s"] = share * call_s
        found[f"{part}_by"] = f"{by}, where it was {100 * share:.0f} % of a call"
    return found


def _packing_gain(run: BackendRun, best: BackendRun) -> float | None:
    """What packed weights bring the fastest backend, where this one has none.

    From the candidates of the native row, if that is the fastest and packs its weights. A library
    that brings its operands into other layouts in each call packs them, whatever it is given; and
    a pass whose result they are has none to pack.
    """
    if run.kernel is None or best.kernel is None or run.case.layer.kind != "gemm":
        return None
    if result_role(run.case.layer, run.case.pass_) == "weights":
        return None
    facts = run.kernel.facts
    if not _UNPACKED.search(facts["layout"]) or _reorders(facts["evidence"]):
        return None
    times: dict[bool, float] = {}
    for candidate in best.kernel.facts["candidates"]:
        if candidate["status"] == "ok" and candidate["seconds"] and candidate.get("variant"):
            plain, time = candidate["variant"] == "plain", median(candidate["seconds"])
            times[plain] = min(time, times.get(plain, time))
    if best.case.backend != "native" or len(times) < 2:
        return None
    return times[True] / times[False] if times[True] > times[False] > 0 else None


def _reorders(seen: Mapping[str, Any]) -> bool:
    return bool(seen.get("reorder_s") or seen.get("alone_reorder_s"))
