"""A contest from its cases to its rows."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import TYPE_CHECKING

from pydlbench.contest.comparing import compare
from pydlbench.contest.preparing import prepare, without_time
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.explain import Entry
from pydlbench.side_by_side import Contestant, sample_in_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.case import Case
    from pydlbench.contest.host import Host
    from pydlbench.results import Measurement
    from pydlbench.timing.policy import Policy
    from pydlbench.workers.host import RemoteKernel

__all__ = ["contest"]

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
