"""Several kernels of one problem, sampled in turn: whoever dies costs its own row only."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.layers.layer import result_role
from pydlbench.records.measurement import SLOW, less_exact
from pydlbench.runner.attribution import LOG, Account, Evidence, causes, unexplained_s
from pydlbench.runner.measuring import empty_row
from pydlbench.timing.procedure import Sampling, interleave
from pydlbench.timing.statistics import median, median_interval, paired_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import Case
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel

__all__ = [
    "REST_S",
    "Contestant",
    "Entry",
    "Host",
    "Outcome",
    "clock_beside",
    "contest",
    "explained",
    "groups",
    "ratios",
    "rest",
    "sample_in_turn",
    "saved_s",
]

#: GNU OpenMP's threads spin for some milliseconds after their work: on the cores of the next one.
REST_S = 0.012


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One kernel among several.

    Attributes:
        sample: times a request.
        policy: the constants of its sampling.
    """

    sample: Callable[[Request], Chunk]
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a contestant: its samples, or why there are none."""

    samples: Samples | None = None
    error: PydlbenchError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioToBest:
    """A kernel's time over the fastest one's, from rounds that both were in.

    Attributes:
        best: index of the fastest.
        median: of the ratios of single rounds; 1 for the fastest itself.
        low: lower end of its interval, or None where there are too few rounds.
        high: upper end.
        rounds: how many.
    """

    best: int
    median: float
    low: float | None
    high: float | None
    rounds: int


def rest() -> None:
    """Wait until the threads of whoever had the cores last have fallen asleep."""
    time.sleep(REST_S)


def sample_in_turn(
    contestants: Sequence[Contestant],
    rng: random.Random,
    rest: Callable[[], None] = rest,
) -> list[Outcome]:
    """Sample all contestants round by round, in a new random order each time.

    Args:
        contestants: at least one.
        rng: seeded source of the order.
        rest: called between two of them, so that the last one's threads fall asleep.
    """
    samplings = [Sampling(one.policy) for one in contestants]
    errors: dict[int, PydlbenchError] = {}

    def sample(index: int, request: Request) -> Chunk | None:
        if len(contestants) > 1:
            rest()
        try:
            return contestants[index].sample(request)
        except PydlbenchError as error:
            errors[index] = error
            return None

    interleave(samplings, sample, rng)
    return [
        Outcome(error=errors[i]) if i in errors else Outcome(samples=sampling.result())
        for i, sampling in enumerate(samplings)
    ]


def ratios(
    samples: Mapping[int, Samples], eligible: Collection[int] | None = None
) -> dict[int, RatioToBest]:
    """Return each kernel's ratio to the fastest one, as the rounds that both were in tell.

    Args:
        samples: of one problem's kernels, taken in turn, by index.
        eligible: who may be the one that others are compared with; None is all.
    """
    able = sorted(index for index in samples if eligible is None or index in eligible)
    if not able:
        return {}
    found = {best: _ratios_to(best, samples) for best in able}
    medians = {best: samples[best].summary().median for best in able}
    return found[max(able, key=lambda best: (*_rank(found[best], able), -medians[best]))]


def _rank(found: Mapping[int, RatioToBest], able: Sequence[int]) -> tuple[bool, float]:
    """How well somebody serves as the fastest: best is whom nobody else has a ratio below 1 to.

    Neither medians of all samples tell (whoever ran on while the machine was fast has the smaller
    one, and yet is not faster), nor always the rounds' ratios: of three kernels that are as good as
    equal, each may be faster than the next in the rounds that the two of them were in. Then it is
    whom nobody is faster than beyond an interval, and of these whose least ratio is nearest to 1.
    """
    others = [found[index] for index in able]
    beyond = any((one.median if one.high is None else one.high) < 1 for one in others)
    return not beyond, min(1.0, *(one.median for one in others))


def clock_beside(own: Samples, other: Samples) -> float | None:
    """Return the core clock in Hz that was read beside another kernel in the same rounds.

    Args:
        own: of a kernel whose process reads no clock.
        other: of one on the same cores, whose process does.
    """
    mine = own.by_round()
    clocks = [
        one.clock_hz for one in other.rounds if one.clock_hz is not None and one.index in mine
    ]
    return median(clocks) if clocks else None


def saved_s(default: Samples, kept: Samples) -> float:
    """Return what an allocator that keeps its pages saves per execution, if that is beyond doubt.

    It is not where the rounds disagree on it, or where no fewer pages are touched for the first
    time: another process may be faster for reasons of its own.

    Args:
        default: with the usual allocator.
        kept: of the same kernel in the same rounds, with one that keeps its pages.
    """
    if default.faults is not None and kept.faults is not None and default.faults - kept.faults < 1:
        return 0.0
    shared = _shared(kept, default)
    if not shared:
        return 0.0
    ratio = median(shared)
    interval = median_interval(shared, default.confidence)
    highest = max(shared) if interval is None else interval.high
    return default.summary().median * (1 - ratio) if highest < 1 else 0.0


def _ratios_to(best: int, samples: Mapping[int, Samples]) -> dict[int, RatioToBest]:
    return {index: _ratio_to_best(own, samples[best], best) for index, own in samples.items()}


def _ratio_to_best(own: Samples, other: Samples, best: int) -> RatioToBest:
    shared = _shared(own, other)
    if not shared:  # all of one's samples were disturbed in the rounds that the other has kept
        medians = own.summary().median, other.summary().median
        return RatioToBest(best=best, median=medians[0] / medians[1], low=None, high=None, rounds=0)
    interval = median_interval(shared, own.confidence)
    return RatioToBest(
        best=best,
        median=median(shared),
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        rounds=len(shared),
    )


def _shared(own: Samples, other: Samples) -> list[float]:
    return paired_ratios(own.by_round(), other.by_round())


# -----------------------------------------------------------------------------
# The entries of a contest made ready: whoever cannot be gets a row that says so.


def prepare(host: Host, entry: Entry, before: Sequence[Entry]) -> None:
    """Have an entry made ready; those that its crash takes along are made ready once more.

    Args:
        host: prepares kernels.
        entry: gets its kernels, or a row that says why not.
        before: those that were made ready before.
    """
    same = [
        one
        for one in before
        if (one.case.backend, one.case.device) == (entry.case.backend, entry.case.device)
    ]
    if _prepare_default(host, entry):
        for one in same:
            if one.kernel is not None:
                _prepare_default(host, one)
    if entry.kernel is not None and host.allocates(entry.case) and _prepare_warm(host, entry):
        for one in same:
            if one.warm is not None:
                _prepare_warm(host, one)


def _prepare_default(host: Host, entry: Entry) -> bool:
    """Prepare as users run it; return whether the worker died of it."""
    entry.kernel = None
    try:
        entry.kernel = host.prepare(entry.case)
    except PydlbenchError as error:
        entry.row = without_time(host, entry.case, error)
        return isinstance(error, WorkerError)
    return False


def _prepare_warm(host: Host, entry: Entry) -> bool:
    """Prepare the same where pages are kept; return whether the worker died of it."""
    entry.warm = None
    if entry.kernel is None:
        return False
    variant = entry.kernel.facts["evidence"].get("variant")
    try:
        entry.warm = host.prepare(entry.case, warm=True, variant=variant)
    except PydlbenchError as error:
        # The column stays empty; the row itself is what was asked for.
        return isinstance(error, WorkerError)
    return False


def without_time(host: Host, case: Case, error: PydlbenchError) -> Measurement:
    """Return the row of a case that could not be prepared or sampled."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return empty_row(case, host.threads(case), status, str(error))


# -----------------------------------------------------------------------------
# Which cases compete with each other.


def groups(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yield cases that differ in backend and mode only, together; in the order of their first.

    A case that is asked for twice competes with others, not with itself: it opens another group.
    """
    found: list[list[Case]] = []
    open_: dict[Case, list[Case]] = {}
    for case in cases:
        problem = dataclasses.replace(case, backend="native", mode=None)
        group = open_.get(problem)
        if group is None or case in group:
            group = open_[problem] = []
            found.append(group)
        group.append(case)
    yield from found


# -----------------------------------------------------------------------------
# What a contest needs of a session.


class Host(Protocol):
    """What a contest needs of a session."""

    @property
    def seed(self) -> int:
        """Of the order of the rounds."""

    def threads(self, case: Case) -> int | None:
        """Return the threads of a row."""

    def prepare(
        self, case: Case, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready; ``warm`` in a process whose allocator keeps its pages."""

    def sampling_policy(self, case: Case, facts: dict[str, Any]) -> Policy:
        """Return the constants for a kernel."""

    def row(self, case: Case, facts: dict[str, Any], samples: Samples) -> Measurement:
        """Return the row of a timed case, its limits included."""

    def empty_call_s(self, case: Case) -> float | None:
        """Return the seconds of a call that does nothing, made as this case's backend calls."""

    def logged(
        self, case: Case, variant: str | None, beside: RemoteKernel | None
    ) -> dict[str, Any]:
        """Return what the library itself logs of a call, where its backend has not told.

        ``beside`` is the same kernel in a process without a log.
        """

    def allocates(self, case: Case) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""


# -----------------------------------------------------------------------------
# From what a contest has measured of two backends to the causes in the slow one's row.

# Weights of products as they are, plain or transposed, in a kernel's layout.
_UNPACKED = re.compile(r"\bweights g?(kn|nk)\b")


@dataclass(slots=True)
class Entry:
    """One backend's way through a contest.

    Attributes:
        case: what it computes.
        kernel: as users run it.
        warm: the same in a process whose allocator keeps the pages that were freed.
        row: what came of it.
        samples: of ``kernel``.
        warm_samples: of ``warm``, in the same rounds.
        log: what the library itself reports of a call, from a process that does nothing else.
    """

    case: Case
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


def explained(row: Measurement, entry: Entry, best: Entry) -> Measurement:
    """Return the row with its causes.

    Args:
        row: of a slow entry, with its ratio to the fastest.
        entry: the slow one.
        best: the fastest one, its row made.
    """
    if row.time is None or row.ratio is None or best.row is None or best.row.time is None:
        return row
    # Of the same rounds: the machine may have been another one in others.
    best_s = row.time.median / row.ratio["median"]
    evidence = Evidence(
        own=_account(entry, row, row.time.median),
        best=_account(best, best.row, best_s),
        kind=entry.case.layer.kind,
        plain_over_packed=_packing_gain(entry, best),
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
    return dataclasses.replace(row, causes=tuple(listed))


def _account(entry: Entry, row: Measurement, time_s: float) -> Account:
    """What is known of where an entry's time goes; ``time_s`` may be that of fewer rounds."""
    if entry.kernel is None or entry.samples is None or row.time is None:
        return Account(time_s=time_s)
    # With a log of the process whose pages are there, no fault is counted in the kernel as well.
    kept = entry.warm if entry.warm_samples is not None else None
    seen = {**(kept or entry.kernel).facts["evidence"], **entry.log}
    saved, faults = None, row.faults or {}
    busy, kept_s = entry.samples.busy, time_s
    if entry.warm_samples is not None:
        saved = saved_s(entry.samples, entry.warm_samples) * time_s / row.time.median
        busy, kept_s = entry.warm_samples.busy, time_s - saved
    on_gpu, roof = entry.case.on_gpu, row.roofline
    # Samples behind a gate and in a graph leave out what the calls cost.
    called = not on_gpu or row.timing not in ("events", "cuda-graph")
    return Account(
        time_s=time_s,
        allocation_s=saved,
        faults=faults["default"] - faults["warm"] if len(faults) == 2 else None,
        empty_s=row.empty_call_s if called else None,
        queued=on_gpu and entry.samples.inner > 1,
        kernel=seen.get("kernel") or entry.kernel.facts["algorithm"],
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


def _packing_gain(entry: Entry, best: Entry) -> float | None:
    """What packed weights bring the fastest backend, where this one has none.

    From the candidates of the native row, if that is the fastest and packs its weights. A library
    that brings its operands into other layouts in each call packs them, whatever it is given; and
    a pass whose result they are has none to pack.
    """
    if entry.kernel is None or best.kernel is None or entry.case.layer.kind != "gemm":
        return None
    if result_role(entry.case.layer, entry.case.pass_) == "weights":
        return None
    facts = entry.kernel.facts
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


# -----------------------------------------------------------------------------
# The rows of a contest: who is the fastest, who how much slower, and why.


def compare(host: Host, entries: Sequence[Entry]) -> None:
    """Make the entries' rows.

    Args:
        host: makes rows, and knows what logs and empty calls tell.
        entries: those with samples.
    """
    timed = {i: entry.samples for i, entry in enumerate(entries) if entry.samples is not None}
    found = ratios(timed, _references({index: entries[index] for index in timed}))
    for index, samples in timed.items():
        entry, ratio = entries[index], found[index]
        if entry.kernel is None:
            continue
        facts, warm = entry.kernel.facts, entry.warm_samples
        clocked, clock_from = _clocked(entry.case, samples, entries)
        row = host.row(entry.case, facts, clocked)
        row = dataclasses.replace(
            row,
            clock_from=clock_from,
            ratio=_ratio_fields(ratio, entries[ratio.best].name),
            warm_s=None if warm is None else warm.summary().median,
            faults=_faults(samples, warm),
            empty_call_s=None if entry.case.backend == "native" else host.empty_call_s(entry.case),
        )
        entry.row = row
    for index, entry in enumerate(entries):
        ratio = found[index]
        if entry.row is not None and ratio.median > SLOW and (ratio.low is None or ratio.low > 1):
            if entry.kernel is not None and "kernel_s" not in entry.kernel.facts["evidence"]:
                variant = entry.kernel.facts["evidence"].get("variant")
                beside = entry.warm if entry.warm_samples is not None else None
                entry.log = host.logged(entry.case, variant, beside)
            entry.row = explained(entry.row, entry, entries[ratio.best])


def _references(entries: Mapping[int, Entry]) -> set[int]:
    """Return whom others may be compared with: who sums as exactly as the native kernel.

    Without a native one it is who sums as exactly as any of them: rounding partial sums to fewer
    bits saves time, and its results are not the same.
    """
    sums = {
        index: entry.kernel.facts["accumulate"]
        for index, entry in entries.items()
        if entry.kernel is not None
    }
    native = {sums[index] for index in sums if entries[index].case.backend == "native"}
    wanted = native or set(sums.values())
    return {index for index, own in sums.items() if not any(less_exact(own, one) for one in wanted)}


def _clocked(case: Case, samples: Samples, entries: Sequence[Entry]) -> tuple[Samples, str | None]:
    """Give samples without a clock that of the native ones on the same cores, and say whose it is.

    A framework's process reads none, and its peak would be that of the clock of the probe, minutes
    ago. With code of other widths the clock may differ; between rounds it differs more.
    """
    if samples.clock_hz is not None or case.on_gpu:
        return samples, None
    for other in entries:
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


# -----------------------------------------------------------------------------
# A contest from its cases to its rows.

# The fewest rounds whose interval of the ratio at 95 % leaves out the two extremes.
_ROUNDS = 9
# Six rounds have such an interval; one or two may be disturbed.
_LEAST_ROUNDS = 8


def contest(host: Host, cases: Sequence[Case]) -> list[Measurement]:
    """Measure one problem's cases in turn and return their rows, in the order given.

    Whoever cannot be prepared, dies or hangs gets a row that says so; the others go on.

    Args:
        host: prepares kernels and makes rows.
        cases: of one group.
    """
    entries = [Entry(case) for case in cases]
    try:
        for number, entry in enumerate(entries):
            prepare(host, entry, entries[:number])
        _sample(host, entries)
        compare(host, [entry for entry in entries if entry.samples is not None])
    finally:
        for entry in entries:
            for kernel in (entry.kernel, entry.warm):
                if kernel is not None:
                    with contextlib.suppress(PydlbenchError):  # its worker has died meanwhile
                        kernel.release()
    return [entry.row for entry in entries if entry.row is not None]


def _sample(host: Host, entries: Sequence[Entry]) -> None:
    running: list[tuple[Entry, RemoteKernel, bool]] = []
    for entry in entries:
        if entry.kernel is not None:
            running.append((entry, entry.kernel, False))
        if entry.warm is not None:
            running.append((entry, entry.warm, True))
    if not running:
        return
    contestants = [
        Contestant(
            sample=kernel.sample,
            policy=_in_rounds(host.sampling_policy(entry.case, kernel.facts)),
        )
        for entry, kernel, _ in running
    ]
    order = random.Random(host.seed)  # noqa: S311 - an order, not a secret
    outcomes = sample_in_turn(contestants, order)
    for (entry, _, warm), outcome in zip(running, outcomes, strict=True):
        if warm:
            entry.warm_samples = outcome.samples
        elif outcome.samples is None:
            error = outcome.error or UnsupportedError("no samples")
            entry.row = without_time(host, entry.case, error)
        else:
            entry.samples = outcome.samples


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
