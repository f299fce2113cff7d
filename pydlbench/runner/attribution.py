"""Why one backend is slower than another on the same layer: causes, each with its measurement.

Each cause is backed by an experiment or a counter; the rest is unexplained. The parts of a call do
not overlap, so they add up::

    time = allocation + reorders + dispatch + kernel + rest

The gap is the difference of two such sums; time that the fastest backend spends on the same part is
no cause. The measured costs of idle threads and unpacked weights are subtracted from the kernel's
part.

If the kernel was not timed alone, its part is the call with kept pages minus an empty call. As a
difference of two measurements it is called the rest of the call; its share of the measured limit of
the machine is given with it.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pydlbench.ops.table import without_sides
from pydlbench.records.measurement import Measurement, kernel_name
from pydlbench.runner.kernels import BackendRun
from pydlbench.study.estimate import saved_s
from pydlbench.timing.statistics import median
from pydlbench.units import format_seconds

#: The default source of a kernel's time.
LOG = "by the library's own log"
# A graph, or samples behind a launch gate, consist of kernels only.
_ON_GPU = "on the device"


@dataclass(frozen=True, slots=True, kw_only=True)
class GapAccount:
    """The measured parts of one backend's time. Seconds per execution.

    Attributes:
        time_s: time of the call, as users run it.
        allocation_s: additional time compared with an allocator that keeps its pages.
        faults: page faults per call that this allocator avoids.
        empty_s: time of a call that does nothing, made the same way.
        queued: whether calls are queued, so that their cost is hidden unless it is larger than the
            rest.
        reorder_s: time in which the library converts the layouts of operands.
        reorder_by: how that was measured.
        kernel: the library's name of the kernel.
        kernel_s: time of the kernel alone, if it was measured.
        kernel_by: how it was measured, in words that follow the time.
        detail: other facts about the kernel, such as its machine code.
        limit_s: time at the measured peak or bandwidth of the device, whichever is longer.
        bound: which of the two times is longer: ``compute`` or ``memory``.
        busy: share of the threads' time in which they had a CPU or waited for one.
        threads: number of threads.
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
        """Time of the call with an allocator that keeps its pages, if known."""
        return self.time_s - max(0.0, self.allocation_s or 0.0)

    @property
    def outside_s(self) -> float:
        """The part of the call outside its kernels; 0 if the device works meanwhile."""
        return 0.0 if self.queued else self.empty_s or 0.0


# -----------------------------------------------------------------------------
# The parts of a call besides its kernel: fresh pages, conversions of layouts, the call itself.
#
# Each part takes the accounts of a slow backend and of the fastest one, in the same rounds, and
# yields a cause's name, its seconds and the measurement in words.


def allocation(slow: GapAccount, best: GapAccount) -> Iterator[tuple[str, float, str]]:
    """Yield the additional time for pages that are touched for the first time."""
    if slow.allocation_s is None:
        return
    kept = format_seconds(slow.time_s - slow.allocation_s)
    how = f"{kept} with an allocator that keeps its pages"
    if slow.faults:
        how += f", which saves {slow.faults:.0f} page faults per call"
    seconds = slow.allocation_s - (best.allocation_s or 0.0)
    yield "allocation", seconds, how + _in_fastest(best.allocation_s)


def reorders(slow: GapAccount, best: GapAccount) -> Iterator[tuple[str, float, str]]:
    """Yield the additional time for layout conversions."""
    if slow.reorder_s:
        how = f"operands brought into other layouts, {slow.reorder_by}{_in_fastest(best.reorder_s)}"
        yield "reorders", slow.reorder_s - (best.reorder_s or 0.0), how


def dispatch(slow: GapAccount, best: GapAccount) -> Iterator[tuple[str, float, str]]:
    """Yield the additional time of a call that does nothing."""
    if slow.empty_s is None:
        return
    how = f"{format_seconds(slow.empty_s)} for a call that does nothing"
    if slow.queued:
        # The device works while the next call is made; it waits only if calls take longer.
        yield "dispatch", slow.empty_s - best.time_s, f"{how}, more than the fastest takes in all"
        return
    fastest_s = None if best.queued else best.empty_s
    yield "dispatch", slow.empty_s - (fastest_s or 0.0), how + _in_fastest(fastest_s)


def _in_fastest(seconds: float | None) -> str:
    return f"; {format_seconds(seconds)} in the fastest" if seconds else ""


# -----------------------------------------------------------------------------
# The additional time of the kernel itself: idle threads, unpacked weights, and the rest.

# Names of unoptimised kernels that a library falls back to.
_GENERIC = re.compile(r"(^|[\s:_(])(ref|simple|naive|generic|fallback)(?![a-z])")
# A convolution lowered to a matrix product; for a product, these are the usual kernels.
_LOWERED = re.compile(r"im2col|(^|[\s:_])gemm[:_]|\b[A-Z0-9]*GEMM\w*\(")
# The largest number of busy threads that counts as one; the others start and end in that time.
_ONE_THREAD = 1.2


def slower_kernel(
    slow: GapAccount, best: GapAccount, room: float, kind: str, packing: float | None
) -> Iterator[tuple[str, float, str]]:
    """Yield the additional time of the kernel: idle threads, unpacked weights, or other reasons.

    Args:
        slow: account of the slow backend.
        best: account of the fastest one.
        room: seconds of the gap that the other parts do not account for.
        kind: see :func:`causes`.
        packing: see :func:`causes`.
    """
    taken, fastest = _kernel_s(slow), _kernel_s(best)
    reference = best.time_s if fastest is None else fastest
    rest = room if taken is None else taken - reference
    for name, seconds, how in _idle(slow, best, max(0.0, rest)):
        rest -= seconds
        yield name, seconds, how
    for name, seconds, how in _not_packed(best, packing, max(0.0, rest)):
        rest -= seconds
        yield name, seconds, how
    if taken is None or slow.kernel is None:
        return
    how = f"{slow.kernel} takes {format_seconds(taken)} {_by(slow)}"
    how += f"; in the fastest {best.kernel or 'the whole call'} {format_seconds(reference)}"
    for words in (_reached(slow, best, taken, reference), slow.detail, _busy(slow)):
        how += f"; {words}" if words else ""
    name = (
        "generic kernel"
        if _GENERIC.search(slow.kernel)
        or (without_sides(kind) == "conv" and _LOWERED.search(slow.kernel))
        else "slower kernel"
    )
    if slow.kernel_s is None:
        name = "rest of the call"
    yield name, rest, how


def _kernel_s(account: GapAccount) -> float | None:
    """Return the kernel's part of a call: measured, or the rest of it if its limit is known."""
    if account.kernel_s is not None:
        return account.kernel_s
    if account.limit_s is None:
        return None
    return max(0.0, account.kept_s - account.outside_s - (account.reorder_s or 0.0))


def _by(account: GapAccount) -> str:
    if account.kernel_s is not None:
        return account.kernel_by
    kept = "" if account.allocation_s is None else " with kept pages"
    less = " less one that does nothing" if account.outside_s else ""
    return f"(not measured alone: it is a call{kept}{less})"


def _reached(slow: GapAccount, best: GapAccount, taken: float, reference: float) -> str:
    """Return the shares of the device's limit that the two kernels reach."""
    if not slow.limit_s or not taken:
        return ""
    what = {"memory": "bandwidth", "compute": "peak"}.get(slow.bound, "limit")
    words = f"that is {100 * slow.limit_s / taken:.0f} % of the measured {what}"
    if best.limit_s and reference:
        words += f", in the fastest {100 * best.limit_s / reference:.0f} %"
    return words


def _busy(account: GapAccount) -> str:
    if account.busy is None:
        return ""
    who = f"{account.threads} threads were" if account.threads > 1 else "thread was"
    return f"its {who} busy for {100 * account.busy:.0f} % of the time"


def _idle(slow: GapAccount, best: GapAccount, most: float) -> Iterator[tuple[str, float, str]]:
    """Yield the time that idle threads would have saved if they had shared the work."""
    if slow.busy is None or slow.queued or slow.threads < 2:
        return
    fastest_s = _idle_s(best) or 0.0
    # Sharing the work saves no more than the kernel loses.
    seconds = max(0.0, min((_idle_s(slow) or 0.0) - fastest_s, most))
    name = "one thread" if slow.busy * slow.threads <= _ONE_THREAD else "idle threads"
    how = f"{slow.threads} threads had a CPU or waited for one "
    how += f"for {100 * slow.busy:.0f} % of the time"
    if best.busy is not None:
        how += f", those of the fastest for {100 * best.busy:.0f} %"
    yield name, seconds, f"{how} (one that spins until others are done counts as busy)"


def _idle_s(account: GapAccount) -> float | None:
    """Return the time that a call would save if its threads shared all work but dispatch."""
    if account.busy is None:
        return None
    idle = (1 - account.busy) * account.threads * account.kept_s
    return max(0.0, idle - (account.threads - 1) * account.outside_s) / account.threads


def _not_packed(
    best: GapAccount, packing: float | None, most: float
) -> Iterator[tuple[str, float, str]]:
    if packing is None:
        return
    brings = best.time_s * (packing - 1)
    how = (
        f"the fastest takes {format_seconds(best.time_s + brings)} with the weights as they "
        f"are, {format_seconds(best.time_s)} with packed ones"
    )
    # It saves no more than the kernel loses.
    yield "weights not packed", max(0.0, min(brings, most)), how


# -----------------------------------------------------------------------------
# From the accounts to the causes: the parts of the gap, the largest first.

# Minimum share of the gap; smaller causes are left out.
_MIN_CAUSE_SHARE = 0.05


def causes(
    slow: GapAccount, best: GapAccount, kind: str = "", packing: float | None = None
) -> list[dict[str, Any]]:
    """Return the causes of the gap, the largest first; empty without a gap or evidence.

    Args:
        slow: account of a slow backend.
        best: account of the fastest one on the same problem, in the same rounds.
        kind: kind of the layer: ``conv2d``, ``gemm``...
        packing: the fastest backend's time with plain weights over that with packed ones, if it
            packs them and the slow one does not.

    Returns:
        A JSON object for each: ``cause`` (``allocation``, ``reorders``, ``dispatch``,
        ``one thread``, ``idle threads``, ``weights not packed``, ``generic kernel``,
        ``slower kernel``, or ``rest of the call`` if no kernel was timed alone); ``seconds``, the
        additional time compared with the fastest backend; ``share`` of the gap, more than 1 if this
        backend would be the fastest without it; and ``how``, the measurement in words.
    """
    gap = slow.time_s - best.time_s
    if not gap > 0:
        return []
    slow, best = _within(slow), _within(best)
    parts = [*allocation(slow, best), *reorders(slow, best), *dispatch(slow, best)]
    room = gap - sum(max(0.0, seconds) for _, seconds, _ in parts)
    parts += slower_kernel(slow, best, room, kind, packing)
    listed = [
        {"cause": name, "seconds": seconds, "share": seconds / gap, "how": how}
        for name, seconds, how in parts
        if seconds >= _MIN_CAUSE_SHARE * gap
    ]
    return sorted(listed, key=lambda cause: -cause["seconds"])


def _within(account: GapAccount) -> GapAccount:
    """Return the account with the log scaled to the call: the logged call may have been slower."""
    logged = (account.kernel_s or 0.0) + (account.reorder_s or 0.0)
    room = max(0.0, account.kept_s - account.outside_s)
    if logged <= room:
        return account
    pace = room / logged
    return dataclasses.replace(
        account,
        kernel_s=None if account.kernel_s is None else pace * account.kernel_s,
        reorder_s=None if account.reorder_s is None else pace * account.reorder_s,
    )


# -----------------------------------------------------------------------------
# From the samples of two backends to their accounts, and to the row with its causes.

# Unpacked weights of a product, plain or transposed, in a kernel's layout.
_UNPACKED = re.compile(r"\bweights g?(kn|nk)\b")


def with_causes(row: Measurement, run: BackendRun, best: BackendRun) -> Measurement:
    """Return the row with its causes.

    Args:
        row: row of a slow run, with its ratio to the fastest.
        run: the slow run.
        best: the fastest run, with its row.
    """
    if row.time is None or row.ratio is None or best.row is None or best.row.time is None:
        return row
    # The best time over the same rounds: in others the machine may have been faster or slower.
    best_s = row.time.median / row.ratio["median"]
    slow, fastest = _account(run, row, row.time.median), _account(best, best.row, best_s)
    if run.spec.on_gpu and not _run_other_kernels(row, best.row):
        slow = dataclasses.replace(slow, kernel=None)
    known = causes(slow, fastest, run.spec.layer.kind, _packing_gain(run, best))
    gap = slow.time_s - fastest.time_s
    # Negative if the causes add up to more than the gap.
    rest = gap - sum(cause["seconds"] for cause in known)
    unexplained = {
        "cause": "unexplained",
        "seconds": rest,
        "share": rest / gap if gap else 0.0,
        "how": "the gap less the causes above",
    }
    return msgspec.structs.replace(row, causes=(*known, unexplained))


def _run_other_kernels(row: Measurement, best: Measurement) -> bool:
    """Whether two rows of a GPU are known to run other kernels: by name and grid."""
    ran, fastest = (
        [(each["name"], each.get("grid")) for each in kernels]
        for kernels in (row.kernels, best.kernels)
    )
    return bool(ran and fastest) and ran != fastest


def _account(run: BackendRun, row: Measurement, time_s: float) -> GapAccount:
    """Return where a run's time goes; ``time_s`` may be that of fewer rounds."""
    facts, samples, warm = run.usual.facts, run.usual.samples, run.warm.samples
    if facts is None or samples is None or row.time is None:
        return GapAccount(time_s=time_s)
    # The log of the process that keeps its pages has no page faults in its kernels.
    kept = run.warm.facts if warm is not None else None
    seen = {**(kept or facts).evidence, **run.log}
    saved, faults = None, row.faults or {}
    busy, kept_s = samples.busy, time_s
    if warm is not None:
        saved = saved_s(samples, warm) * time_s / row.time.median
        busy, kept_s = warm.busy, time_s - saved
    on_gpu, roof = run.spec.on_gpu, row.roofline
    # Samples behind a gate and in a graph do not contain the cost of the calls.
    called = not on_gpu or row.timing not in ("events", "cuda-graph")
    return GapAccount(
        time_s=time_s,
        allocation_s=saved,
        faults=faults["default"] - faults["warm"] if len(faults) == 2 else None,
        empty_s=row.empty_call_s if called else None,
        queued=on_gpu and samples.inner > 1,
        kernel=seen.get("kernel") or " + ".join(map(kernel_name, row.kernels)) or facts.algorithm,
        **(_inside(seen, kept_s) if called else {"kernel_s": time_s, "kernel_by": _ON_GPU}),
        detail=seen.get("detail", ""),
        limit_s=None if roof is None else roof.time_s * time_s / row.time.median,
        bound="compute" if roof is None else roof.bound,
        busy=None if on_gpu else busy,
        threads=row.threads or 1,
    )


def _inside(seen: Mapping[str, Any], call_s: float) -> dict[str, Any]:
    """Return the kernel's and the reorders' parts of a call, and how they were measured.

    The library's log takes precedence over the backend's own measurement. Each was made in a whole
    call, when the machine may have been faster or slower than now, so the share of that call is
    used.
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
    # The logged call may have been slower than the one beside it; parts do not exceed the whole.
    whole = max(seen["call_s"], sum(parts.values()))
    by = LOG if logged else seen["alone_by"]
    fields: dict[str, Any] = {}
    for part, seconds in parts.items():
        share = seconds / whole
        fields[f"{part}_s"] = share * call_s
        fields[f"{part}_by"] = f"{by}, where it was {100 * share:.0f} % of a call"
    return fields


def _packing_gain(run: BackendRun, best: BackendRun) -> float | None:
    """Return the gain of packed weights in the fastest backend, if this one does not pack.

    It is computed from the candidates of the native row, if that is the fastest and packs its
    weights. A library that converts its operands in each call packs them anyway, and weights that
    are the result cannot be packed.
    """
    facts, fastest = run.usual.facts, best.usual.facts
    if facts is None or fastest is None or run.spec.layer.kind != "gemm":
        return None
    seen = facts.evidence
    reordered = seen.get("reorder_s") or seen.get("alone_reorder_s")
    written = run.spec.layer.result(run.spec.pass_) == "weights"
    if written or reordered or not _UNPACKED.search(facts.layout):
        return None
    times: dict[bool, float] = {}
    for candidate in fastest.candidates:
        if candidate["status"] == "ok" and candidate["seconds"] and candidate.get("variant"):
            plain, time = candidate["variant"] == "plain", median(candidate["seconds"])
            times[plain] = min(time, times.get(plain, time))
    if best.spec.backend != "native" or len(times) < 2:
        return None
    return times[True] / times[False] if times[True] > times[False] > 0 else None
