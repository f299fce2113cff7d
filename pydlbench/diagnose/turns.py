"""Two kernels in turn, round by round, and what the one saves beside the other.

The interval is that of the ratios of single rounds. What a machine does to both cancels there.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.finding import Saving
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.side_by_side import Contestant, sample_in_turn
from pydlbench.timing.statistics import median, paired_ratio
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.timing.statistics import Ratio
    from pydlbench.workers.host import RemoteKernel

__all__ = ["LEAST", "in_turn", "saving_of", "step_how", "with_rounds"]

#: Rounds without which there is no interval at 95 %.
LEAST: Final = 6
# How often they are taken at the most, and what keeps their numbers apart.
_TURNS, _APART = 3, 1_000_000


def in_turn(
    kernels: Sequence[RemoteKernel], policies: Sequence[Policy], seed: int, images: int
) -> tuple[Ratio, float, str]:
    """Return the ratio of the second to the first, per image, the first one's median, a warning.

    Rounds that other work has disturbed are left out; where too few are left, more are taken.
    """
    order = random.Random(seed)  # noqa: S311 - an order, not a secret
    firsts: dict[int, float] = {}
    seconds: dict[int, float] = {}
    disturbed = False
    for turn in range(_TURNS):
        own, changed = _sampled(kernels, policies, order)
        disturbed = disturbed or own.contended or changed.contended
        begin = turn * _APART
        firsts.update({begin + index: time for index, time in own.by_round().items()})
        seconds.update({begin + index: time / images for index, time in changed.by_round().items()})
        if len(firsts.keys() & seconds.keys()) >= LEAST:
            break
    if not firsts.keys() & seconds.keys():
        raise PrimitiveError("other work disturbed one of the two in every round")
    ratio = paired_ratio(seconds, firsts, own.confidence)
    return ratio, median(firsts.values()), "; other work disturbed them" if disturbed else ""


def _sampled(
    kernels: Sequence[RemoteKernel], policies: Sequence[Policy], order: random.Random
) -> list[Samples]:
    contestants = [
        Contestant(sample=kernel.sample, policy=policy)
        for kernel, policy in zip(kernels, policies, strict=True)
    ]
    found = []
    for outcome in sample_in_turn(contestants, order):
        if outcome.samples is None:
            raise outcome.error or UnsupportedError("no samples")
        found.append(outcome.samples)
    return found


def saving_of(
    ratio: Ratio,
    base_s: float,
    step_s: float,
    of: str,
    how: str,
    *,
    count: int = 1,
    kept_s: float = 0.0,
) -> Saving:
    """Return what a ratio of changed to unchanged times says of a step.

    Args:
        ratio: of paired rounds.
        base_s: what was not changed, in seconds.
        step_s: the step, in seconds.
        of: ``step`` or ``layer``.
        how: what ran beside what.
        count: how often the step has it.
        kept_s: what of the difference has to be done all the same, in seconds.
    """

    def saved(one: float) -> float:
        return count * base_s * (1 - one) - kept_s

    interval = ratio.interval
    return Saving(
        seconds=saved(ratio.median),
        low=None if interval is None else saved(interval.high),
        high=None if interval is None else saved(interval.low),
        # The share is of the step as it was in these rounds.
        step_s=base_s if of == "step" else step_s,
        of=of,
        how=how,
        rounds=ratio.n,
    )


def step_how(what: str, base_s: float, changed_s: float, rounds: int) -> str:
    """Say what a change of the whole step ran beside."""
    times = f"{format_seconds(base_s)} as it is, {format_seconds(changed_s)} with {what}"
    return f"the whole step, in turn, {rounds} rounds: {times}"


def with_rounds(policy: Policy, rounds: int) -> Policy:
    """So many rounds at the least, however long a sample: without them there is no interval."""
    return dataclasses.replace(
        policy,
        min_rounds=rounds,
        floor_samples=max(rounds, policy.floor_samples),
        slow_samples=rounds,
    )
