"""Several kernels sampled interleaved, round by round, so that all of them saw the same drift.

Whatever is compared is sampled here: backends of one problem, two runs measured again, a step with
one thing changed beside the same step as it is. Whoever dies costs its own samples only.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.errors import PydlbenchError
from pydlbench.timing.procedure import Sampling, interleave
from pydlbench.timing.statistics import (
    Ratio,
    half_width_of_few,
    median,
    median_interval,
    paired_ratio,
    paired_ratios,
)
from pydlbench.timing.visits import visit_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel


#: GNU OpenMP's threads spin for some milliseconds after their work: on the cores of the next one.
REST_S = 0.012


def rest() -> None:
    """Wait until the threads of whoever had the cores last have fallen asleep."""
    time.sleep(REST_S)


def random_order(seed: int) -> random.Random:
    """Return the source of the orders in which kernels take their turns in each round."""
    return random.Random(seed)  # noqa: S311 - an order, not a secret


@contextlib.contextmanager
def releasing(kernels: Iterable[RemoteKernel[Any] | None]) -> Iterator[None]:
    """Release all kernels at the end, also those that join the collection meanwhile."""
    try:
        yield
    finally:
        for kernel in list(kernels):
            if kernel is not None:
                with contextlib.suppress(PydlbenchError):  # its worker has died meanwhile
                    kernel.release()


def sample_interleaved(
    samplers: Sequence[Callable[[Request], Chunk]],
    policies: Sequence[Policy],
    rng: random.Random,
    rest: Callable[[], None] = rest,
    canary: Callable[[], float | None] | None = None,
    guarded: Collection[int] | None = None,
    known: Mapping[int, Samples] | None = None,
) -> list[Samples | PydlbenchError]:
    """Sample kernels round by round, in a new random order each time.

    Args:
        samplers: the ``sample`` of each; a single one has the cores for itself.
        policies: the constants of sampling each of them.
        rng: seeded source of the order.
        rest: called between two of them, so that the last one's threads fall asleep.
        canary: called around the chunks of kernels that have none of their own, while all threads
            are asleep, their warm-up left out; see :attr:`pydlbench.timing.chunk.Chunk.canary`.
        guarded: indexes of those around whose chunks it is called; None is all of them.
        known: by index, earlier samples of those that need no calibration and no warm-up any more.

    Returns:
        For each kernel its samples, or what was raised when they were asked for.
    """
    alone = len(samplers) == 1 and canary is None
    known = known or {}
    samplings = [
        Sampling(policy, alone=alone, known=known.get(index))
        for index, policy in enumerate(policies)
    ]
    errors: dict[int, PydlbenchError] = {}
    # The canary since which nobody has run, if there is one, and who ran last.
    last: float | None = None
    latest: int | None = None

    def sample(index: int, request: Request) -> Chunk | None:
        nonlocal last, latest
        in_rounds = samplings[index].phase == "rounds"
        if not alone and last is None and (in_rounds or index != latest):
            rest()
        before, last, latest = last, None, index
        watch = canary if in_rounds and (guarded is None or index in guarded) else None
        try:
            if watch is not None and before is None:
                before = watch()
            chunk = samplers[index](request)
        except PydlbenchError as error:
            errors[index] = error
            return None
        if watch is None or chunk.canary or before is None:
            return chunk
        rest()
        last = watch()
        return msgspec.structs.replace(chunk, canary=(before, last) if last else (before,))

    interleave(samplings, sample, rng)
    return [
        errors[index] if index in errors else sampling.result()
        for index, sampling in enumerate(samplings)
    ]


def ratios(
    samples: Mapping[int, Samples], eligible: Collection[int] | None = None
) -> tuple[int, dict[int, Ratio]]:
    """Return which kernel is the fastest, and each one's ratio to it.

    Ratios are from rounds that both were in; the fastest one's own is 1.

    Args:
        samples: of one problem's kernels, taken in turn, by index.
        eligible: who may be the one that others are compared with, at least one of them; None is
            all.
    """
    able = sorted(index for index in samples if eligible is None or index in eligible)
    found = {best: _ratios_to(samples[best], samples) for best in able}
    fastest = max(able, key=lambda best: (*_rank(found[best], able), -samples[best].median))
    return fastest, found[fastest]


def _rank(found: Mapping[int, Ratio], able: Sequence[int]) -> tuple[bool, float]:
    """How well somebody serves as the fastest: best is whom nobody else has a ratio below 1 to.

    Neither medians of all samples tell (whoever ran on while the machine was fast has the smaller
    one, and yet is not faster), nor always the rounds' ratios: of three kernels that are as good as
    equal, each may be faster than the next in the rounds that the two of them were in. Then it is
    whom nobody is faster than beyond an interval, and of these whose least ratio is nearest to 1.
    """
    others = [found[index] for index in able]
    beyond = any((one.interval.high if one.interval else one.median) < 1 for one in others)
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
    shared = paired_ratios(kept.by_round(), default.by_round())
    if not shared:
        return 0.0
    ratio = median(shared)
    interval = median_interval(shared, default.confidence)
    half = half_width_of_few(shared)
    few = math.inf if half is None else ratio + half
    highest = few if interval is None else interval.high
    return default.median * (1 - ratio) if highest < 1 else 0.0


def _ratios_to(best: Samples, samples: Mapping[int, Samples]) -> dict[int, Ratio]:
    return {index: _ratio(own, best) for index, own in samples.items()}


def _ratio(own: Samples, best: Samples) -> Ratio:
    first, second = own.by_round(), best.by_round()
    if first.keys() & second.keys():
        ratio = visit_ratio if own.visits else paired_ratio
        return ratio(first, second, own.confidence)
    # All of one's samples were disturbed in the rounds that the other has kept.
    return Ratio(median=own.median / best.median, interval=None, n=0)
