"""From the evidence to the causes: each part of the gap, the largest first."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydlbench.causes.beside import allocation, dispatch, reorders
from pydlbench.causes.evidence import Account, Cause
from pydlbench.causes.kernel import kernel

if TYPE_CHECKING:
    from pydlbench.causes.evidence import Evidence

__all__ = ["causes", "unexplained_s"]

# A cause that accounts for less of the gap than this is not worth a reader's time.
_WORTH = 0.05


def causes(evidence: Evidence) -> list[Cause]:
    """Return what explains the gap, the largest first; empty without a gap or evidence."""
    gap = evidence.gap_s
    if not gap > 0:
        return []
    within = dataclasses.replace(evidence, own=_within(evidence.own), best=_within(evidence.best))
    parts = (allocation, reorders, dispatch, kernel)
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
    room = max(0.0, account.kept_s - account.beside_s)
    if logged <= room:
        return account
    pace = room / logged
    return dataclasses.replace(
        account,
        kernel_s=None if account.kernel_s is None else pace * account.kernel_s,
        reorder_s=None if account.reorder_s is None else pace * account.reorder_s,
    )
