"""Several kernels sampled interleaved, round by round, so that all of them saw the same drift.

Whatever is compared is sampled here: backends of one problem, two runs measured again, a step with
one thing changed beside the same step as it is. Whoever dies costs its own samples only.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.errors import PydlbenchError
from pydlbench.timing.procedure import Sampling, interleave
from pydlbench.timing.statistics import median, median_interval, paired_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel

__all__ = [
    "REST_S",
    "InterleavedKernel",
    "Outcome",
    "RatioToBest",
    "clock_beside",
    "random_order",
    "ratios",
    "releasing",
    "rest",
    "sample_alone",
    "sample_interleaved",
    "saved_s",
]

#: GNU OpenMP's threads spin for some milliseconds after their work: on the cores of the next one.
REST_S = 0.012


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedKernel:
    """One kernel among several.

    Attributes:
        sample: times a request.
        policy: the constants of its sampling.
    """

    sample: Callable[[Request], Chunk]
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a kernel: its samples, or why there are none."""

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
    kernels: Sequence[InterleavedKernel],
    rng: random.Random,
    rest: Callable[[], None] = rest,
) -> list[Outcome]:
    """Sample all kernels round by round, in a new random order each time.

    Args:
        kernels: at least one.
        rng: seeded source of the order.
        rest: called between two of them, so that the last one's threads fall asleep.
    """
    samplings = [Sampling(one.policy) for one in kernels]
    errors: dict[int, PydlbenchError] = {}

    def sample(index: int, request: Request) -> Chunk | None:
        if len(kernels) > 1:
            rest()
        try:
            return kernels[index].sample(request)
        except PydlbenchError as error:
            errors[index] = error
            return None

    interleave(samplings, sample, rng)
    return [
        Outcome(error=errors[i]) if i in errors else Outcome(samples=sampling.result())
        for i, sampling in enumerate(samplings)
    ]


def sample_alone(sample: Callable[[Request], Chunk], policy: Policy) -> Samples:
    """Sample one kernel with nobody beside it.

    Raises:
        PydlbenchError: whatever its worker raises.
    """
    sampling = Sampling(policy, alone=True)
    while request := sampling.next_request():
        sampling.feed(sample(request))
    return sampling.result()


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
    medians = {best: samples[best].median for best in able}
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
    return default.median * (1 - ratio) if highest < 1 else 0.0


def _ratios_to(best: int, samples: Mapping[int, Samples]) -> dict[int, RatioToBest]:
    return {index: _ratio_to_best(own, samples[best], best) for index, own in samples.items()}


def _ratio_to_best(own: Samples, other: Samples, best: int) -> RatioToBest:
    shared = _shared(own, other)
    if not shared:  # all of one's samples were disturbed in the rounds that the other has kept
        medians = own.median, other.median
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
