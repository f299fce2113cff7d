"""Why one backend is slower than another on the same layer: causes, each with its own measurement.

A cause is never "the rest": each one is an experiment or a counter, and what none of them accounts
for stays unexplained. They are parts of the call that do not overlap, so that they add up::

    time = allocation + reorders + dispatch + kernel + rest

The gap is the difference of two such sums: what the fastest backend spends on the same part is no
cause. Of the kernel's part, unpacked weights take what packing is known to bring.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Account", "Cause", "Evidence", "causes", "unexplained_s"]

# A cause that accounts for less of the gap than this is not worth a reader's time.
_WORTH = 0.05
# Unoptimised kernels that a library falls back to.
_GENERIC = re.compile(r"(^|[\s:_(])(ref|simple|naive|generic|fallback)(?![a-z])")
# A convolution lowered to a matrix product; for a product, these are the usual kernels.
_LOWERED = re.compile(r"im2col|(^|[\s:_])gemm[:_]|\b[A-Z0-9]*GEMM\w*\(")


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
        kernel: the library's name of the kernel behind the call.
        kernel_s: that kernel alone, by the library's own log.
    """

    time_s: float
    allocation_s: float | None = None
    faults: float | None = None
    empty_s: float | None = None
    queued: bool = False
    reorder_s: float | None = None
    kernel: str | None = None
    kernel_s: float | None = None


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
        name: ``allocation``, ``reorders``, ``dispatch``, ``weights not packed``, ``generic kernel``
            or ``slower kernel``.
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


def causes(evidence: Evidence) -> list[Cause]:
    """Return what explains the gap, the largest first; empty without a gap or evidence."""
    gap = evidence.gap_s
    if not gap > 0:
        return []
    within = dataclasses.replace(evidence, own=_within(evidence.own), best=_within(evidence.best))
    parts = (_allocation, _reorders, _dispatch, _kernel)
    found = [
        Cause(name=name, seconds=seconds, share=seconds / gap, how=how)
        for part in parts
        for name, seconds, how in part(within)
        if seconds >= _WORTH * gap
    ]
    return sorted(found, key=lambda cause: -cause.seconds)


def unexplained_s(evidence: Evidence) -> float:
    """Return what of the gap no cause accounts for; negative where they account for more."""
    return evidence.gap_s - sum(cause.seconds for cause in causes(evidence))


def _within(account: Account) -> Account:
    """Return the account with a log that fits into the call: the logged call may have been slow."""
    logged = (account.kernel_s or 0.0) + (account.reorder_s or 0.0)
    beside = 0.0 if account.queued else account.empty_s or 0.0
    room = account.time_s - max(0.0, account.allocation_s or 0.0) - beside
    if logged <= room:
        return account
    pace = max(0.0, room) / logged
    return dataclasses.replace(
        account,
        kernel_s=None if account.kernel_s is None else pace * account.kernel_s,
        reorder_s=None if account.reorder_s is None else pace * account.reorder_s,
    )


def _beside(seconds: float | None) -> str:
    return f"; {format_seconds(seconds)} in the fastest" if seconds else ""


def _allocation(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    own, best = evidence.own, evidence.best
    if own.allocation_s is None:
        return
    kept = format_seconds(own.time_s - own.allocation_s)
    how = f"{kept} with an allocator that keeps its pages"
    if own.faults:
        how += f", which saves {own.faults:.0f} page faults per call"
    seconds = own.allocation_s - (best.allocation_s or 0.0)
    yield "allocation", seconds, how + _beside(best.allocation_s)


def _reorders(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    own, best = evidence.own, evidence.best
    if own.reorder_s:
        how = f"the library's own log of its reorders{_beside(best.reorder_s)}"
        yield "reorders", own.reorder_s - (best.reorder_s or 0.0), how


def _dispatch(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    own, best = evidence.own, evidence.best
    if own.empty_s is None:
        return
    how = f"{format_seconds(own.empty_s)} for a call that does nothing"
    if own.queued:
        # The device works while the next call is made: what the calls take longer is waited for.
        yield "dispatch", own.empty_s - best.time_s, f"{how}, more than the fastest takes in all"
        return
    beside = None if best.queued else best.empty_s
    yield "dispatch", own.empty_s - (beside or 0.0), how + _beside(beside)


def _kernel(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """What the kernel itself takes longer: what packed weights bring, and the other part."""
    own, best = evidence.own, evidence.best
    reference = best.time_s if best.kernel_s is None else best.kernel_s
    longer = None
    if own.kernel_s is not None:
        longer = own.kernel_s - reference
    packing = 0.0
    if evidence.plain_over_packed is not None:
        others = (part(evidence) for part in (_allocation, _reorders, _dispatch))
        room = evidence.gap_s - sum(max(0.0, one[1]) for found in others for one in found)
        brings = best.time_s * (evidence.plain_over_packed - 1)
        # It cannot bring more than there is to win.
        packing = max(0.0, min(brings, room if longer is None else longer))
        how = (
            f"the fastest takes {format_seconds(best.time_s + brings)} with the weights as they "
            f"are, {format_seconds(best.time_s)} with packed ones"
        )
        yield "weights not packed", packing, how
    if longer is None or own.kernel is None:
        return
    how = f"{own.kernel} takes {format_seconds(own.kernel_s or 0.0)} by the library's own log"
    how += f", {best.kernel or 'the fastest'} {format_seconds(reference)}"
    name = "generic kernel" if _generic(own.kernel, evidence.kind) else "slower kernel"
    yield name, longer - packing, how


def _generic(kernel: str, kind: str) -> bool:
    if _GENERIC.search(kernel):
        return True
    return kind == "conv2d" and _LOWERED.search(kernel) is not None
