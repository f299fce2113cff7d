"""Collectives in, rows out: each of several ranks timed in visits, the slowest rank call by call.

A visit begins with new processes (under ``torchrun`` they stay), makes all operations and sizes
ready, and samples one after another in random order. Then pairs of ranks exchange messages in
rounds, all pairs of a round at once, and matrices are multiplied beside an all-reduce.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.errors import PydlbenchError
from pydlbench.records.collectives import (
    CollectivePlace,
    CollectiveRow,
    CollectivesResult,
    OverlapRow,
    PairRow,
    bus_factor,
    partner_of,
)
from pydlbench.runner.interleaved import random_order, sample_interleaved
from pydlbench.runner.rows import summary_of
from pydlbench.steps.ranks import LIMIT_S, Ranks, merged
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median
from pydlbench.timing.visits import VISITS, joined, visit_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.records.collectives import CollectiveSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.timing.procedure import Samples


#: Buffers of the size of a message that a rank holds: what is sent, a copy of it, what comes.
BUFFERS: Final = 3
# What a pair exchanges: long enough that the bandwidth counts, short for hundreds of pairs.
_PAIR_BYTES: Final = 4 << 20
# Of the all-reduce that is computed beside: a bucket of DistributedDataParallel.
_OVERLAP_BYTES: Final = 25 << 20
# A pair is slow beyond 3.5 robust standard deviations (Iglewicz and Hoaglin, 1993), and by a tenth:
# among pairs that are as good as equal, chance alone would name one.
_DEVIATIONS: Final = 3.5
_SLOWER: Final = 1.1
_TO_SIGMA: Final = 1.4826


@dataclass(slots=True)
class _Taken:
    """What was measured of one collective."""

    samples: dict[int, Samples] = field(default_factory=dict)
    by_rank: list[list[float]] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)


def measure_collectives(
    specs: Sequence[CollectiveSpec],
    session: Session,
    count: int | None,
    device: str,
    *,
    limit_s: float = LIMIT_S,
    progress: Callable[[float, int, str], None] = lambda *_: None,
) -> Iterator[CollectivesResult]:
    """Time collectives, and yield after each visit what is known until then.

    Args:
        specs: what to time.
        session: whose workers the ranks are.
        count: of ranks; None where ``torchrun`` has started this one.
        device: ``cpu`` or ``cuda``.
        limit_s: seconds to wait for a rank.
        progress: called with what is done, all, and what comes next.

    Raises:
        WorkerError: a rank is gone or hangs; it is named.
        UsageError: there are fewer CPUs.
    """
    run = _Run(specs, session, device, progress)
    visits = session.options.visits or VISITS
    if count is None:
        with Ranks(session, count, device, limit_s) as ranks:
            for lap in range(visits):
                run.visit(ranks, lap, visits)
                yield run.found(lap + 1, visits, 1)
        return
    for lap in range(visits):
        with Ranks(session, count, device, limit_s) as ranks:
            run.visit(ranks, lap, visits)
        yield run.found(lap + 1, visits, lap + 1)


class _Run:
    """What the visits share; see :func:`measure_collectives`."""

    def __init__(
        self,
        specs: Sequence[CollectiveSpec],
        session: Session,
        device: str,
        progress: Callable[[float, int, str], None],
    ) -> None:
        self._specs, self._session, self._device = specs, session, device
        self._progress = progress
        self._order = random_order(session.options.seed)
        self._taken = [_Taken() for _ in specs]
        self._pairs: dict[tuple[int, int], list[float]] = {}
        self._overlaps: list[list[dict[str, Any]]] = []
        # CPU time that others had of the ranks' cores, and all there was.
        self._others_s = self._whole_s = 0.0
        self._hosts: list[str] = []
        self._library = ""
        self._threads = 0

    def visit(self, ranks: Ranks, lap: int, visits: int) -> None:
        """Time everything once more."""
        self._hosts, self._library = ranks.hosts, ranks.library
        self._threads = ranks.threads
        options = self._session.options
        policy = Policy(confidence=options.confidence, budget_s=options.budget_s)
        # As where kernels take turns: it is the visit that is repeated.
        policy = visit_policy(policy, max(visits, 2), alone=False)
        # The largest first: later ones find room in its buffers.
        by_size = sorted(range(len(self._specs)), key=lambda place: -self._specs[place].bytes)
        numbers = {place: self._ready(ranks, place, lap == 0) for place in by_size}
        places = list(numbers)
        self._order.shuffle(places)
        for done, place in enumerate(places):
            label = f"visit {lap + 1} of {visits}, {self._specs[place].label}"
            self._progress(lap + done / len(places), visits, label)
            if numbers[place] is not None:
                self._sample(ranks, place, numbers[place] or 0, policy, lap)
        if len(self._hosts) > 2:
            self._progress(lap + 1, visits, f"visit {lap + 1} of {visits}, pairs of ranks")
            self._exchange(ranks, policy)
        self._overlaps.append(ranks.ask(what="overlap", bytes=_OVERLAP_BYTES))

    def _ready(self, ranks: Ranks, place: int, checks: bool) -> int | None:
        """Have a collective made ready; return its number, None of one whose result is wrong."""
        spec, taken = self._specs[place], self._taken[place]
        asked = {"what": "collective", "operation": spec.operation, "bytes": spec.bytes}
        told = ranks.ask(**asked, checks=checks)
        if checks:
            taken.wrong = [one["wrong"] for one in told]
            taken.by_rank = [[] for _ in told]
        return None if any(taken.wrong) else int(told[0]["number"])

    def _sample(self, ranks: Ranks, place: int, number: int, policy: Policy, lap: int) -> None:
        taken = self._taken[place]
        canary = self._session.canary if self._device == "cpu" else None
        taken.samples[lap], by_rank = self._visited(ranks, number, policy, canary)
        for own, seconds in zip(taken.by_rank, by_rank, strict=True):
            own.append(median(seconds))

    def _visited(
        self,
        ranks: Ranks,
        number: int,
        policy: Policy,
        canary: Callable[[], float | None] | None = None,
    ) -> tuple[Samples, list[list[float]]]:
        """Sample a subject in one visit; return that, and each rank's own seconds of these calls.

        The warm-up's calls come first and are left out.
        """
        by_rank: list[list[float]] = [[] for _ in self._hosts]

        def sample(request: Request) -> Chunk:
            chunks = ranks.sample(number, request)
            for own, one in zip(by_rank, chunks, strict=True):
                own.extend(one.seconds)
                if one.others_s is not None:
                    self._others_s += one.others_s
                    self._whole_s += one.wall_s * one.threads
            return merged(chunks)

        (found,) = sample_interleaved([sample], [policy], self._order, canary=canary)
        if isinstance(found, PydlbenchError):
            raise found
        count = len(found.all_seconds)
        return found, [own[-count:] for own in by_rank]

    def _exchange(self, ranks: Ranks, policy: Policy) -> None:
        """Let all pairs exchange messages, in rounds in which each rank has one partner."""
        count = len(self._hosts)
        for round_ in range(count - 1 + count % 2):
            asked = {"what": "collective", "operation": "pairs", "bytes": _PAIR_BYTES}
            number = ranks.ask(**asked, round=round_, checks=False)[0]["number"]
            _, seconds = self._visited(ranks, number, policy)
            for rank in range(count):
                other = partner_of(rank, count, round_)
                if rank < other:
                    slower = map(max, zip(seconds[rank], seconds[other], strict=True))
                    self._pairs.setdefault((rank, other), []).append(median(slower))

    # --- records ----------------------------------------------------------------------------

    def found(self, visits: int, wanted: int, processes: int) -> CollectivesResult:
        """Return what is known after so many visits of those that are wanted."""
        place = self._place()
        rows = tuple(
            _row(spec, place, taken, visits, processes)
            for spec, taken in zip(self._specs, self._taken, strict=True)
        )
        wrong = [one.reason for one in rows if one.reason is not None]
        return CollectivesResult(
            rows=rows,
            pairs=tuple(judged(self._pair_rows())),
            overlap=self._overlap(place),
            others=self._share(),
            status="failed" if len(wrong) == len(rows) else "ok",
            reason=wrong[0] if wrong else None,
            stop_rule="interrupted" if visits < wanted else None,
        )

    def _share(self) -> float | None:
        """Return the others' share of the cores: ticks say it of a run, not of a row."""
        if self._device != "cpu" or not self._whole_s:
            return None
        return max(0.0, self._others_s / self._whole_s)

    def _place(self) -> CollectivePlace:
        on_gpu = self._device != "cpu"
        return CollectivePlace(
            ranks=len(self._hosts),
            device="cuda" if on_gpu else "cpu",
            library=self._library,
            threads=0 if on_gpu else self._threads,
            processor=self._session.processor("cuda:0" if on_gpu else "cpu"),
            hosts=len(set(self._hosts)),
        )

    def _pair_rows(self) -> list[PairRow]:
        if not self._pairs:
            return []
        middles = [median(one) for one in zip(*self._pairs.values(), strict=True)]
        return [
            PairRow(
                first=first,
                second=second,
                hosts=(self._hosts[first], self._hosts[second]),
                bytes=_PAIR_BYTES,
                visits_s=tuple(seconds),
                ratio=median(own / middle for own, middle in zip(seconds, middles, strict=True)),
            )
            for (first, second), seconds in sorted(self._pairs.items())
        ]

    def _overlap(self, place: CollectivePlace) -> OverlapRow | None:
        whole = [told for told in self._overlaps if all(one["compute"] is not None for one in told)]
        if not whole:
            return None
        return OverlapRow(
            bytes=_OVERLAP_BYTES,
            place=place,
            # A step waits for its slowest rank in each of them.
            compute=tuple(min(one["compute"] for one in told) for told in whole),
            transfer=tuple(min(one["transfer"] for one in told) for told in whole),
            copy_s_per_byte=tuple(
                max(one["copy_s"] for one in told) / _OVERLAP_BYTES for told in whole
            ),
        )


def _row(
    spec: CollectiveSpec, place: CollectivePlace, taken: _Taken, visits: int, processes: int
) -> CollectiveRow:
    if any(taken.wrong):
        ranks = [f"{count} on rank {rank}" for rank, count in enumerate(taken.wrong) if count]
        reason = f"elements of the result are wrong: {', '.join(ranks)}"
        return CollectiveRow(case=spec, place=place, status="failed", reason=reason)
    samples = joined(taken.samples, visits, processes)
    time = summary_of(samples)
    rate = spec.bytes / time.median / 1e9
    return CollectiveRow(
        case=spec,
        place=place,
        time=time,
        rank_s=tuple(map(median, taken.by_rank)),
        algorithm_gbps=rate,
        bus_gbps=rate * bus_factor(spec.operation, place.ranks),
        verified=True,
        contended=samples.contended,
    )


def judged(pairs: Sequence[PairRow]) -> list[PairRow]:
    """Return pairs with those named whose link is slower than the others', the slowest first."""
    if not pairs:
        return []
    logs = [math.log(one.ratio) for one in pairs]
    middle = median(logs)
    sigma = _TO_SIGMA * median(abs(one - middle) for one in logs)
    found = []
    for one, log in zip(pairs, logs, strict=True):
        beyond = log - middle > max(_DEVIATIONS * sigma, math.log(_SLOWER))
        found.append(msgspec.structs.replace(one, slow=beyond))
    return sorted(found, key=lambda one: -one.ratio)
