"""Why one backend is slower than another on the same layer: causes, each with its own measurement.

A cause is an experiment or a counter, and what none of them accounts for stays unexplained. They
are parts of the call that do not overlap, so that they add up::

    time = allocation + reorders + dispatch + kernel + rest

The gap is the difference of two such sums: what the fastest backend spends on the same part is no
cause. Of the kernel's part, threads without work take what they could have done, and unpacked
weights what packing is known to bring.

Where nobody has measured the kernel by itself, its part is the call with kept pages less a call
that does nothing. That is a difference of two measurements and no kernel's time, so it is called
the rest of the call; it is listed beside what it reaches of the machine's measured limit.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.ops.table import without_sides
from pydlbench.study.ranking import saved_s
from pydlbench.timing.statistics import median
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydlbench.records.measurement import Measurement
    from pydlbench.runner.backend_run import BackendRun


#: How a kernel's time is known where nothing else is said.
LOG = "by the library's own log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where one backend's time goes, as far as it was measured. Seconds per execution.

    Attributes:
        time_s: all of it, as users run it.
        allocation_s: what it takes longer than with an allocator that keeps its pages.
        faults: page faults per call that this allocator saves.
        empty_s: a call that does nothing, the same way.
        queued: calls are put into a queue: their cost shows only where it is all there is.
        reorder_s: what the library itself spent on bringing operands into other layouts.
        reorder_by: how that was measured.
        kernel: the library's name of the kernel behind the call.
        kernel_s: that kernel alone, where it was measured.
        kernel_by: how it was measured, in words that follow the time.
        detail: what else is known of the kernel: of its machine code, for example.
        limit_s: what the problem takes at the measured peak or bandwidth of the device, whichever
            is more.
        bound: which of them that is: ``compute`` or ``memory``.
        busy: share of the threads' time in which they had a CPU or waited for one.
        threads: that were given to it.
    """

    time_s: float
    allocation_s: float | None = None
    faults: float | None = None
    empty_s: float | None = None
    queued: bool = False
    reorder_s: float | None = None
    reorder_by: str = LOG
    kernel: str | None = None
    kernel_s: float | None = None
    kernel_by: str = LOG
    detail: str = ""
    limit_s: float | None = None
    bound: str = "compute"
    busy: float | None = None
    threads: int = 1

    @property
    def kept_s(self) -> float:
        """The call with an allocator that keeps its pages, as far as that is known."""
        return self.time_s - max(0.0, self.allocation_s or 0.0)

    @property
    def beside_s(self) -> float:
        """What the call takes besides its kernels: nothing where the device works meanwhile."""
        return 0.0 if self.queued else self.empty_s or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured of a slow backend and of the fastest one on the same problem.

    Attributes:
        own: of the slow one.
        best: of the fastest one, in the same rounds.
        kind: of the layer: ``conv2d``, ``gemm``...
        plain_over_packed: the fastest backend's time with weights as they are over that with
            packed ones, where it packs them and the slow one does not.
    """

    own: Account
    best: Account
    kind: str = ""
    plain_over_packed: float | None = None

    @property
    def gap_s(self) -> float:
        """What there is to explain."""
        return self.own.time_s - self.best.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for a gap.

    Attributes:
        name: ``allocation``, ``reorders``, ``dispatch``, ``one thread``, ``idle threads``,
            ``weights not packed``, ``generic kernel``, ``slower kernel``, ``rest of the call``
            (where no kernel was timed by itself) or ``unexplained``.
        seconds: how much more time it takes than in the fastest backend.
        share: of the gap; more than 1 if without it this backend would be the fastest.
        how: the measurement, in words.
    """

    name: str
    seconds: float
    share: float
    how: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "cause": self.name,
            "seconds": self.seconds,
            "share": self.share,
            "how": self.how,
        }


# -----------------------------------------------------------------------------
# What a call takes besides its kernel: fresh pages, conversions of layouts, the call itself.
#
# Each part yields a cause's name, its seconds and the measurement in words.


def allocation(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what pages that are touched for the first time take longer."""
    own, best = evidence.own, evidence.best
    if own.allocation_s is None:
        return
    kept = format_seconds(own.time_s - own.allocation_s)
    how = f"{kept} with an allocator that keeps its pages"
    if own.faults:
        how += f", which saves {own.faults:.0f} page faults per call"
    seconds = own.allocation_s - (best.allocation_s or 0.0)
    yield "allocation", seconds, how + _in_fastest(best.allocation_s)


def reorders(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what bringing operands into other layouts takes longer."""
    own, best = evidence.own, evidence.best
    if own.reorder_s:
        how = f"operands brought into other layouts, {own.reorder_by}{_in_fastest(best.reorder_s)}"
        yield "reorders", own.reorder_s - (best.reorder_s or 0.0), how


def dispatch(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what a call that does nothing takes longer."""
    own, best = evidence.own, evidence.best
    if own.empty_s is None:
        return
    how = f"{format_seconds(own.empty_s)} for a call that does nothing"
    if own.queued:
        # The device works while the next call is made: what the calls take longer is waited for.
        yield "dispatch", own.empty_s - best.time_s, f"{how}, more than the fastest takes in all"
        return
    fastest_s = None if best.queued else best.empty_s
    yield "dispatch", own.empty_s - (fastest_s or 0.0), how + _in_fastest(fastest_s)


def _in_fastest(seconds: float | None) -> str:
    return f"; {format_seconds(seconds)} in the fastest" if seconds else ""


# -----------------------------------------------------------------------------
# What the kernel itself takes longer: threads without work, unpacked weights, and the rest.

# Unoptimised kernels that a library falls back to.
_GENERIC = re.compile(r"(^|[\s:_(])(ref|simple|naive|generic|fallback)(?![a-z])")
# A convolution lowered to a matrix product; for a product, these are the usual kernels.
_LOWERED = re.compile(r"im2col|(^|[\s:_])gemm[:_]|\b[A-Z0-9]*GEMM\w*\(")
# So many threads have worked where only one did, the others' beginnings and ends included.
_ONE_THREAD = 1.2


def kernel(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what the kernel itself takes longer, by idle threads, unpacked weights or otherwise."""
    own, best = evidence.own, evidence.best
    others = (part(evidence) for part in (allocation, reorders, dispatch))
    room = evidence.gap_s - sum(max(0.0, cause[1]) for causes in others for cause in causes)
    taken, fastest = _kernel_s(own), _kernel_s(best)
    reference = best.time_s if fastest is None else fastest
    longer = None if taken is None else taken - reference
    rest = room if longer is None else longer
    for part in (_idle, _packing_cause):
        for name, seconds, how in part(evidence, max(0.0, rest)):
            rest -= seconds
            yield name, seconds, how
    if taken is None or own.kernel is None:
        return
    how = f"{own.kernel} takes {format_seconds(taken)} {_by(own)}"
    how += f"; in the fastest {best.kernel or 'the whole call'} {format_seconds(reference)}"
    for words in (_reached(own, best, taken, reference), own.detail, _busy(own)):
        how += f"; {words}" if words else ""
    name = "generic kernel" if _generic(own.kernel, evidence.kind) else "slower kernel"
    if own.kernel_s is None:
        name = "rest of the call"
    yield name, rest, how


def _kernel_s(account: Account) -> float | None:
    """The kernel's part of a call: measured, or what is left where the limit is known as well."""
    if account.kernel_s is not None:
        return account.kernel_s
    if account.limit_s is None:
        return None
    return max(0.0, account.kept_s - account.beside_s - (account.reorder_s or 0.0))


def _by(account: Account) -> str:
    if account.kernel_s is not None:
        return account.kernel_by
    kept = "" if account.allocation_s is None else " with kept pages"
    less = " less one that does nothing" if account.beside_s else ""
    return f"(not measured alone: it is a call{kept}{less})"


def _reached(own: Account, best: Account, taken: float, reference: float) -> str:
    """What the two kernels reach of the limit of their problem on this device."""
    if not own.limit_s or not taken:
        return ""
    what = {"memory": "bandwidth", "compute": "peak"}.get(own.bound, "limit")
    words = f"that is {100 * own.limit_s / taken:.0f} % of the measured {what}"
    if best.limit_s and reference:
        words += f", in the fastest {100 * best.limit_s / reference:.0f} %"
    return words


def _busy(account: Account) -> str:
    if account.busy is None:
        return ""
    who = f"{account.threads} threads were" if account.threads > 1 else "thread was"
    return f"its {who} busy for {100 * account.busy:.0f} % of the time"


def _idle(evidence: Evidence, most: float) -> Iterator[tuple[str, float, str]]:
    """What threads without work would have saved, had the work been spread over all of them."""
    own, best = evidence.own, evidence.best
    if own.busy is None or own.queued or own.threads < 2:
        return
    fastest_s = _idle_s(best) or 0.0
    # What the kernel loses is all that spreading its work can win.
    seconds = max(0.0, min((_idle_s(own) or 0.0) - fastest_s, most))
    name = "one thread" if own.busy * own.threads <= _ONE_THREAD else "idle threads"
    how = (
        f"{own.threads} threads had a CPU or waited for one for {100 * own.busy:.0f} % of the time"
    )
    if best.busy is not None:
        how += f", those of the fastest for {100 * best.busy:.0f} %"
    yield name, seconds, f"{how} (one that spins until others are done counts as busy)"


def _idle_s(account: Account) -> float | None:
    """What a call would take less if its threads had shared its work; dispatch is one thread's."""
    if account.busy is None:
        return None
    idle = (1 - account.busy) * account.threads * account.kept_s
    return max(0.0, idle - (account.threads - 1) * account.beside_s) / account.threads


def _packing_cause(evidence: Evidence, most: float) -> Iterator[tuple[str, float, str]]:
    best = evidence.best
    if evidence.plain_over_packed is None:
        return
    brings = best.time_s * (evidence.plain_over_packed - 1)
    how = (
        f"the fastest takes {format_seconds(best.time_s + brings)} with the weights as they "
        f"are, {format_seconds(best.time_s)} with packed ones"
    )
    # It cannot bring more than there is to win.
    yield "weights not packed", max(0.0, min(brings, most)), how


def _generic(kernel: str, kind: str) -> bool:
    if _GENERIC.search(kernel):
        return True
    return without_sides(kind) == "conv" and _LOWERED.search(kernel) is not None


# -----------------------------------------------------------------------------
# From the evidence to the causes: each part of the gap, the largest first.

# A cause that accounts for less of the gap than this is not worth a reader's time.
_WORTH = 0.05


def causes(evidence: Evidence) -> list[Cause]:
    """Return what explains the gap, the largest first; empty without a gap or evidence."""
    gap = evidence.gap_s
    if not gap > 0:
        return []
    within = dataclasses.replace(evidence, own=_within(evidence.own), best=_within(evidence.best))
    parts = (allocation, reorders, dispatch, kernel)
    worth = [
        Cause(name=name, seconds=seconds, share=seconds / gap, how=how)
        for part in parts
        for name, seconds, how in part(within)
        if seconds >= _WORTH * gap
    ]
    return sorted(worth, key=lambda cause: -cause.seconds)


def unexplained_s(evidence: Evidence) -> float:
    """Return what of the gap no cause accounts for; negative where they account for more."""
    return evidence.gap_s - sum(cause.seconds for cause in causes(evidence))


def _within(account: Account) -> Account:
    """Return the account with a log that fits into the call: the logged call may have been slow."""
    logged = (account.kernel_s or 0.0) + (account.reorder_s or 0.0)
    room = max(0.0, account.kept_s - account.beside_s)
    if logged <= room:
        return account
    pace = room / logged
    return dataclasses.replace(
        account,
        kernel_s=None if account.kernel_s is None else pace * account.kernel_s,
        reorder_s=None if account.reorder_s is None else pace * account.reorder_s,
    )


# -----------------------------------------------------------------------------
# From what was measured of two backends' runs to the evidence, and to the row with its causes.

# Weights of products as they are, plain or transposed, in a kernel's layout.
_UNPACKED = re.compile(r"\bweights g?(kn|nk)\b")


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
        kind=run.spec.layer.kind,
        plain_over_packed=_packing_gain(run, best),
    )
    known = causes(evidence)
    rest = unexplained_s(evidence)
    unexplained = Cause(
        name="unexplained",
        seconds=rest,
        share=rest / evidence.gap_s if evidence.gap_s else 0.0,
        how="the gap less the causes above",
    )
    listed = tuple(cause.to_dict() for cause in (*known, unexplained))
    return msgspec.structs.replace(row, causes=listed)


def _account(run: BackendRun, row: Measurement, time_s: float) -> Account:
    """What is known of where a run's time goes; ``time_s`` may be that of fewer rounds."""
    facts, samples, warm = run.usual.facts, run.usual.samples, run.warm.samples
    if facts is None or samples is None or row.time is None:
        return Account(time_s=time_s)
    # With a log of the process whose pages are there, no fault is counted in the kernel as well.
    kept = run.warm.facts if warm is not None else None
    seen = {**(kept or facts).evidence, **run.log}
    saved, faults = None, row.faults or {}
    busy, kept_s = samples.busy, time_s
    if warm is not None:
        saved = saved_s(samples, warm) * time_s / row.time.median
        busy, kept_s = warm.busy, time_s - saved
    on_gpu, roof = run.spec.on_gpu, row.roofline
    # Samples behind a gate and in a graph leave out what the calls cost.
    called = not on_gpu or row.timing not in ("events", "cuda-graph")
    return Account(
        time_s=time_s,
        allocation_s=saved,
        faults=faults["default"] - faults["warm"] if len(faults) == 2 else None,
        empty_s=row.empty_call_s if called else None,
        queued=on_gpu and samples.inner > 1,
        kernel=seen.get("kernel") or facts.algorithm,
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
    fields: dict[str, Any] = {}
    for part, seconds in parts.items():
        share = seconds / whole
        fields[f"{part}_s"] = share * call_s
        fields[f"{part}_by"] = f"{by}, where it was {100 * share:.0f} % of a call"
    return fields


def _packing_gain(run: BackendRun, best: BackendRun) -> float | None:
    """What packed weights bring the fastest backend, where this one has none.

    From the candidates of the native row, if that is the fastest and packs its weights. A library
    that brings its operands into other layouts in each call packs them, whatever it is given; and
    a pass whose result they are has none to pack.
    """
    facts, fastest = run.usual.facts, best.usual.facts
    if facts is None or fastest is None or run.spec.layer.kind != "gemm":
        return None
    if run.spec.layer.result(run.spec.pass_) == "weights":
        return None
    if not _UNPACKED.search(facts.layout) or _reorders(facts.evidence):
        return None
    times: dict[bool, float] = {}
    for candidate in fastest.candidates:
        if candidate["status"] == "ok" and candidate["seconds"] and candidate.get("variant"):
            plain, time = candidate["variant"] == "plain", median(candidate["seconds"])
            times[plain] = min(time, times.get(plain, time))
    if best.spec.backend != "native" or len(times) < 2:
        return None
    return times[True] / times[False] if times[True] > times[False] > 0 else None


def _reorders(seen: Mapping[str, Any]) -> bool:
    return bool(seen.get("reorder_s") or seen.get("alone_reorder_s"))
