"""What the kernel itself takes longer: threads without work, unpacked weights, and the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydlbench.causes.beside import allocation, dispatch, reorders
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.causes.evidence import Account, Evidence

__all__ = ["kernel"]

# Unoptimised kernels that a library falls back to.
_GENERIC = re.compile(r"(^|[\s:_(])(ref|simple|naive|generic|fallback)(?![a-z])")
# A convolution lowered to a matrix product; for a product, these are the usual kernels.
_LOWERED = re.compile(r"im2col|(^|[\s:_])gemm[:_]|\b[A-Z0-9]*GEMM\w*\(")
# So many threads have worked where only one did, the others' beginnings and ends included.
_ONE = 1.2


def kernel(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """Yield what the kernel itself takes longer, by idle threads, unpacked weights or otherwise."""
    own, best = evidence.own, evidence.best
    others = (part(evidence) for part in (allocation, reorders, dispatch))
    room = evidence.gap_s - sum(max(0.0, one[1]) for found in others for one in found)
    taken, fastest = _kernel_s(own), _kernel_s(best)
    reference = best.time_s if fastest is None else fastest
    longer = None if taken is None else taken - reference
    left = room if longer is None else longer
    for part in (_idle, _packing):
        for name, seconds, how in part(evidence, max(0.0, left)):
            left -= seconds
            yield name, seconds, how
    if taken is None or own.kernel is None:
        return
    how = f"{own.kernel} takes {format_seconds(taken)} {_by(own)}"
    how += f"; in the fastest {best.kernel or 'the whole call'} {format_seconds(reference)}"
    for words in (_reached(own, best, taken, reference), own.detail, _busy(own)):
        how += f"; {words}" if words else ""
    name = "generic kernel" if _generic(own.kernel, evidence.kind) else "slower kernel"
    yield name, left, how


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
    beside = _idle_s(best) or 0.0
    # What the kernel loses is all that spreading its work can win.
    seconds = max(0.0, min((_idle_s(own) or 0.0) - beside, most))
    name = "one thread" if own.busy * own.threads <= _ONE else "idle threads"
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


def _packing(evidence: Evidence, most: float) -> Iterator[tuple[str, float, str]]:
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
    return kind == "conv2d" and _LOWERED.search(kernel) is not None
