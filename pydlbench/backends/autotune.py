"""The choice among candidates: try all briefly, race the best, take the fastest one that is right.

A library's own first choice is often not its best, so the native row is found by trying. Trials are
short and noisy; they only decide who may enter the race. In the race the finalists are sampled in
turn, so that a drift of the machine hits all of them alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.errors import DeviceLostError, PydlbenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "CPU_BRIEF_EFFORT",
    "CPU_EFFORT",
    "GPU_EFFORT",
    "HOPELESS",
    "Effort",
    "Entrant",
    "may_win",
    "race",
    "ranking",
    "trial",
]

# A candidate whose first execution takes longer than the best so far by this factor and by the
# effort's allowance more is not run again.
HOPELESS = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long candidates are tried and raced. Times in seconds.

    Attributes:
        hopeless_s: what a first execution may take longer than the best without being given up:
            cold caches, cold code and waking threads explain so much.
        trial_s: of one candidate's trial.
        trial_samples: at most.
        final_margin: finalists are at most this factor slower than the fastest trial: trials on a
            busy virtual machine differ by several per cent from what the race then finds.
        finalists: how many enter the race at most.
        race_s: of the whole race.
        race_rounds: least and most rounds.
        turn_s: of one turn in a round; it holds several executions of a short kernel, because each
            turn starts with caches full of other data.
        turn_samples: at most.
    """

    hopeless_s: float
    trial_s: float
    trial_samples: int
    final_margin: float
    finalists: int
    race_s: float
    race_rounds: tuple[int, int]
    turn_s: float
    turn_samples: int


#: On a CPU: 2 ms bring 32 MB into the cache, and a pool's threads take as long to wake.
CPU_EFFORT = Effort(
    hopeless_s=0.005,
    trial_s=0.03,
    trial_samples=20,
    final_margin=1.08,
    finalists=4,
    race_s=0.40,
    race_rounds=(3, 12),
    turn_s=0.005,
    turn_samples=50,
)
#: On a CPU, for one of hundreds of summands. Trials are a third as long, which still tells kernels
#: apart that differ by a tenth; the race is between fewer, for a fifth of the time, and of kernels
#: longer than its turn it has a round or two. A second best that wins is slower by what that
#: leaves undecided, a few per cent.
CPU_BRIEF_EFFORT = replace(
    CPU_EFFORT,
    trial_s=0.01,
    trial_samples=10,
    final_margin=1.04,
    finalists=3,
    race_s=0.08,
    race_rounds=(1, 4),
    turn_s=0.003,
    turn_samples=30,
)
#: On a GPU: candidates are many (a cuDNN convolution has up to a hundred plans) and quiet.
GPU_EFFORT = Effort(
    hopeless_s=20e-6,
    trial_s=0.003,
    trial_samples=5,
    final_margin=1.08,
    finalists=3,
    race_s=0.06,
    race_rounds=(5, 15),
    turn_s=0.001,
    turn_samples=10,
)


class Contender(Protocol):
    """A candidate made runnable."""

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Run ``samples`` times, after ``untimed`` times, and return the times in seconds."""


@dataclass(slots=True)
class Entrant:
    """One candidate's record through trial and race.

    Attributes:
        candidate: the candidate itself, opaque here.
        times: all of its times in seconds, trials first; the first execution is left out.
        status: ``ok``, ``failed`` (it could not be run or was wrong) or ``skipped``.
        reason: why it is not ``ok``.
    """

    candidate: Any
    times: list[float] = field(default_factory=list)
    status: str = "ok"
    reason: str | None = None

    @property
    def time(self) -> float:
        """Smallest of its times in seconds, since interference only adds; infinite without any."""
        return min(self.times, default=float("inf"))

    def disqualify(self, error: PydlbenchError | str) -> None:
        """Take it out of the running, with the reason."""
        self.status = "failed"
        self.reason = str(error)


def trial(
    entrant: Entrant,
    contender: Contender,
    best: float,
    thorough: bool,
    effort: Effort,
) -> None:
    """Run a candidate a few times; ``best`` is the fastest trial so far, in seconds.

    The first execution pays for page faults and only shows whether the candidate is hopeless;
    ``thorough`` times it nevertheless.
    """
    first = contender.seconds(1)[0]
    if first > HOPELESS * best + effort.hopeless_s and not thorough:
        entrant.times = [first]
        return
    least = 5 if thorough else 1
    samples = _count(effort.trial_s / first, least, effort.trial_samples)
    entrant.times = list(contender.seconds(samples))


def may_win(entrant: Entrant, best: float, effort: Effort) -> bool:
    """Whether an entrant is among those that will race, if nobody is faster than ``best``."""
    return entrant.status == "ok" and entrant.time <= effort.final_margin * best


def race(
    entrants: Sequence[Entrant],
    enter: Callable[[Entrant], Contender],
    verify: Callable[[Entrant], str | None],
    finalists_at_most: int | None,
    effort: Effort,
) -> Entrant | None:
    """Race the best entrants in turn and return the fastest that ``verify`` finds right.

    Args:
        entrants: all that had a trial.
        enter: makes an entrant runnable again.
        verify: returns ``None`` for a right result, else what is wrong.
        finalists_at_most: how many may hold their memory at the same time; None is as many as the
            effort has.
        effort: how long to race.

    Returns:
        The winner, or ``None`` if no candidate gives a right result.
    """
    remaining = [entrant for entrant in entrants if entrant.status == "ok" and entrant.times]
    while remaining:
        best = min(entrant.time for entrant in remaining)
        finalists = sorted(
            (entrant for entrant in remaining if may_win(entrant, best, effort)),
            key=lambda entrant: entrant.time,
        )[: finalists_at_most or effort.finalists]
        if len(finalists) > 1:
            _run(finalists, enter, best, effort)
        for entrant in sorted(finalists, key=lambda entrant: entrant.time):
            try:
                wrong = verify(entrant) if entrant.status == "ok" else entrant.reason
            except DeviceLostError:
                raise  # nothing after it can be believed
            except PydlbenchError as error:
                wrong = str(error)
            if wrong is None:
                return entrant
            entrant.disqualify(wrong)
        remaining = [entrant for entrant in remaining if entrant.status == "ok"]
    return None


def _run(
    finalists: Sequence[Entrant],
    enter: Callable[[Entrant], Contender],
    best: float,
    effort: Effort,
) -> None:
    runners: list[tuple[Entrant, Contender, list[float]]] = []
    for entrant in finalists:
        try:
            runners.append((entrant, enter(entrant), []))
        except DeviceLostError:
            raise
        except PydlbenchError as error:  # all at once they may not fit into memory
            entrant.disqualify(error)
    per_turn = _count(effort.turn_s / best, 1, effort.turn_samples)
    rounds = _count(effort.race_s / (best * per_turn * len(finalists)), *effort.race_rounds)
    for turn in range(rounds):
        # Who follows whom must not decide.
        for entrant, contender, lap in reversed(runners) if turn % 2 else runners:
            if entrant.status != "ok":
                continue
            try:
                # The last one's data is in the caches: an untimed execution brings back its own.
                lap.extend(contender.seconds(per_turn, untimed=1))
            except DeviceLostError:
                raise
            except PydlbenchError as error:
                entrant.disqualify(error)
    for entrant, _, lap in runners:
        entrant.times = lap or entrant.times


def _count(wanted: float, least: int, most: int) -> int:
    return max(least, min(most, round(wanted)))


def ranking(entrants: Sequence[Entrant]) -> list[Entrant]:
    """Sort for display: those that count by their time, then the others."""
    return sorted(entrants, key=lambda entrant: (entrant.status != "ok", entrant.time))
