"""The autotuner: probe all candidates, let the best into the finals, take the fastest right one.

A library's own first choice is often not its best, so the kernel of a row is found by trying, on
CPUs, on GPUs and in frameworks alike. Probes are short and noisy; they only decide who enters the
finals. Where a probe has several stages, whoever is clearly slower after one of them has no part in
the next (successive halving; Jamieson and Talwalkar, AISTATS 2016). In the finals candidates are
sampled in turn, so that a drift of the machine hits all of them alike.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydlbench.errors import DeviceLostError, PrimitiveError, PydlbenchError, UnsupportedError
from pydlbench.timing.policy import MIN_READING_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.verification.verify import Verdict

# A candidate whose first execution takes longer than the best so far by this factor and by the
# effort's allowance more is not run again.
HOPELESS = 1.15
# Bringing its data back into the caches costs a kernel some 2 ms: of one that takes longer than
# this, less than a tenth, and all finalists pay alike.
_LONG_S = 0.02
# A thorough probe has so many samples at least.
_THOROUGH_SAMPLES = 5


class Stage(NamedTuple):
    """A part of the probes.

    Attributes:
        share: of a candidate's probe that is over after it.
        margin: whoever is slower than the fastest by more than this factor then is not probed
            further.
    """

    share: float
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long candidates are probed, and how long the finals are. Times in seconds.

    Attributes:
        hopeless_s: what a first execution may take longer than the best without being given up:
            cold caches, cold code and waking threads explain so much.
        probe_s: of one candidate's probe.
        probe_samples: at most.
        stages: of the probes; all candidates are in the first.
        final_margin: finalists are at most this factor slower than the fastest probe: probes on a
            busy virtual machine differ by several per cent from what the finals then find.
        finalists: how many enter the finals at most.
        finals_s: of the finals as a whole.
        finals_rounds: least and most rounds.
        turn_s: of one candidate's turn in a round; it holds several executions of a short kernel,
            because each turn starts with caches full of other data.
        turn_samples: at most.
    """

    hopeless_s: float
    probe_s: float
    probe_samples: int
    final_margin: float
    finalists: int
    finals_s: float
    finals_rounds: tuple[int, int]
    turn_s: float
    turn_samples: int
    stages: tuple[Stage, ...] = (Stage(1.0, float("inf")),)


#: On a CPU: 2 ms bring 32 MB into the cache, and a pool's threads take as long to wake. Single
#: samples of one kernel differ by a tenth, and by a third beside somebody else.
CPU_EFFORT = Effort(
    hopeless_s=0.005,
    probe_s=0.03,
    probe_samples=20,
    final_margin=1.08,
    finalists=4,
    finals_s=0.40,
    finals_rounds=(3, 12),
    turn_s=0.005,
    turn_samples=50,
    stages=(Stage(1 / 6, 1.5), Stage(1 / 2, 1.15), Stage(1.0, float("inf"))),
)
#: On a CPU, for one of hundreds of summands. Probes are a third as long, which still tells kernels
#: apart that differ by a tenth; the finals are between fewer, for a fifth of the time, and of
#: kernels longer than that they have a round or two. A second best that wins is slower by what that
#: leaves undecided, a few per cent.
CPU_BRIEF_EFFORT = replace(
    CPU_EFFORT,
    probe_s=0.01,
    probe_samples=10,
    final_margin=1.04,
    finalists=3,
    finals_s=0.08,
    finals_rounds=(1, 4),
    turn_s=0.003,
    turn_samples=30,
)
#: On a GPU: candidates are many (a cuDNN convolution has up to a hundred plans) and quiet.
GPU_EFFORT = Effort(
    hopeless_s=20e-6,
    probe_s=0.003,
    probe_samples=5,
    final_margin=1.08,
    finalists=3,
    finals_s=0.06,
    finals_rounds=(5, 15),
    turn_s=0.001,
    turn_samples=10,
)
#: On a GPU, for one of hundreds of summands: finals take a third as long.
GPU_BRIEF_EFFORT = replace(GPU_EFFORT, finals_s=0.02, finals_rounds=(2, 5))


class Runnable(Protocol):
    """A candidate that can be timed."""

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Run ``samples`` times, after ``untimed`` times, and return the times in seconds."""


@dataclass(slots=True, eq=False)
class Candidate:
    """One way to compute a case, on its way through probe and finals.

    Attributes:
        source: what the backend makes a kernel from; opaque here.
        algorithm: the implementation, by its library's name.
        layout: the layouts it works in, per tensor.
        details: what else ``--algorithms`` lists of it.
        times: all of its times in seconds, those of the probe first; the first execution is left
            out, where there is another.
        first: the first execution, in seconds.
        status: ``ok``, or ``failed`` (it could not be run or was wrong).
        reason: why it is not ``ok``.
        verdict: on its result, once that was verified.
        kernel: what runs it, once it was made and until it is given back; the backend's own.
    """

    source: Any
    algorithm: str = ""
    layout: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    first: float = float("inf")
    status: str = "ok"
    reason: str | None = None
    verdict: Verdict | None = None
    kernel: Any = None

    @property
    def time(self) -> float:
        """Smallest of its times in seconds, since interference only adds; infinite without any."""
        return min(self.times, default=float("inf"))

    def disqualify(self, error: PydlbenchError | str) -> None:
        """Take it out of the running, with the reason."""
        self.status = "failed"
        self.reason = str(error)

    def entry(self, chosen: bool) -> dict[str, Any]:
        """Describe it for ``--algorithms``, in JSON form.

        Args:
            chosen: whether it is the one that the row times.
        """
        return {
            "algorithm": self.algorithm,
            "layout": self.layout,
            "status": self.status,
            "reason": self.reason,
            "seconds": list(self.times),
            "chosen": chosen,
            "workspace_bytes": None,
            "correct": self.verdict.to_dict() if self.verdict else None,
            "reorder_s": None,
            **self.details,
        }


class Autotuner(abc.ABC):
    """The choice among the candidates of one case.

    A backend says how a candidate is made runnable, how its result is verified, and what memory is
    given back meanwhile.

    Args:
        candidates: all that there are; their order is that of the probes.
        effort: how long to try.
        thorough: probe and verify every candidate fully, not only those that may win.
        finalists: how many may hold their memory at the same time; None is as many as the effort
            has.
        finals: sample the finalists in turn; else the fastest probe that is right wins.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        effort: Effort,
        *,
        thorough: bool = False,
        finalists: int | None = None,
        finals: bool = True,
    ) -> None:
        self.candidates = list(candidates)
        self.thorough = thorough
        self.effort = effort
        self._margin = effort.final_margin
        self._finalists = finalists or effort.finalists
        self.finals = finals or thorough

    @abc.abstractmethod
    def runnable(self, candidate: Candidate) -> Runnable:
        """Make a candidate runnable, again if it was given back; what it raises costs it alone."""

    def finalist(self, candidate: Candidate) -> Runnable:
        """Make a candidate runnable in the finals; as in its probe by default."""
        return self.runnable(candidate)

    @abc.abstractmethod
    def verify(self, candidate: Candidate) -> Verdict:
        """Run a candidate on poisoned outputs and compare with the reference."""

    def probed(self, candidate: Candidate, best: float) -> None:
        """Give back what need not be kept until the finals; nothing by default.

        Args:
            candidate: whose probe is over.
            best: the fastest probe so far, in seconds.
        """
        del candidate, best

    def tune(self) -> Candidate:
        """Return the fastest candidate whose result is right.

        Raises:
            UnsupportedError: the library or the hardware has none of the candidates.
            PrimitiveError: none gives a right result.
            DeviceLostError: nothing that follows could be believed.
        """
        refused = self._probe_all()
        remaining = self._remaining()
        while remaining:
            best = min(each.time for each in remaining)
            finalists = self.finalists(best)
            if len(finalists) > 1 and self.finals:
                self._finals(finalists, best)
            for each in sorted(finalists, key=lambda each: each.time):
                if each.status == "ok" and self._is_right(each):
                    return each
            remaining = self._remaining()
        reasons = "; ".join(dict.fromkeys(each.reason or "" for each in self.candidates))
        if refused == len(self.candidates):  # nothing is wrong with any of them
            raise UnsupportedError(reasons)
        raise PrimitiveError(f"no candidate gives a right result: {reasons}")

    def take(self) -> Candidate:
        """Return the first candidate, run once: it was searched for and verified elsewhere.

        Raises:
            PydlbenchError: it cannot be run.
        """
        candidate = self.candidates[0]
        candidate.times = list(self.runnable(candidate).seconds(1))
        return candidate

    def finalists(self, best: float) -> list[Candidate]:
        """Return those that would be in the finals, fastest first, if nobody were faster.

        Args:
            best: the fastest time so far, in seconds.
        """
        near = [each for each in self._remaining() if each.time <= self.effort.final_margin * best]
        return sorted(near, key=lambda each: each.time)[: self._finalists]

    def listing(self, chosen: Candidate) -> list[dict[str, Any]]:
        """Return all candidates in JSON form: those that count by their time, then the others."""
        ranked = sorted(self.candidates, key=lambda each: (each.status != "ok", each.time))
        return [each.entry(chosen=each is chosen) for each in ranked]

    def _remaining(self) -> list[Candidate]:
        return [each for each in self.candidates if each.status == "ok" and each.times]

    def near(self, best: float) -> list[Candidate]:
        """Return those that will be probed further if nobody is faster.

        Args:
            best: the fastest time so far, in seconds.
        """
        return [each for each in self._remaining() if each.time <= self._margin * best]

    def _probe_all(self) -> int:
        """Probe all candidates; return how many the library or the hardware does not have."""
        refused = 0
        going = list(self.candidates)
        stages = self.effort.stages[-1:] if self.thorough else self.effort.stages
        before = 0.0
        for stage in stages:
            # At the end who is not in the finals is given back.
            last = stage is stages[-1]
            self._margin = self.effort.final_margin if last else stage.margin
            best = min((each.time for each in going), default=float("inf"))
            for each in list(going):
                try:
                    if before == 0.0 and not self._first(each, best):
                        going.remove(each)
                    else:
                        self._probe(each, stage.share)
                    if self.thorough:
                        self._is_right(each)
                except DeviceLostError:
                    raise
                except PydlbenchError as error:
                    each.disqualify(error)
                    refused += isinstance(error, UnsupportedError)
                if each.status == "ok":
                    best = min(best, each.time)
                self.probed(each, best)
            going = [
                each for each in going if each.status == "ok" and each.time <= stage.margin * best
            ]
            if len(going) < 2:
                break
            before = stage.share
        return refused

    def _first(self, candidate: Candidate, best: float) -> bool:
        """Run a candidate for the first time; return whether it is worth a second time.

        The first execution pays for page faults and only shows whether the candidate is hopeless;
        a thorough search times it nevertheless. Of one that has no rival that it runs is enough.
        """
        candidate.first = self.runnable(candidate).seconds(1)[0]
        hopeless = candidate.first > HOPELESS * best + self.effort.hopeless_s
        if self.thorough or not (hopeless or len(self.candidates) == 1):
            return True
        candidate.times = [candidate.first]
        return False

    def _probe(self, candidate: Candidate, share: float) -> None:
        """Take samples until there is a share of those of a candidate's probe, one at least."""
        execution_s = min(candidate.time, candidate.first)
        wanted = share * self.effort.probe_s / max(execution_s, MIN_READING_S)
        least = _THOROUGH_SAMPLES if self.thorough else 1
        most = max(1, round(share * self.effort.probe_samples))
        more = _count(wanted, least, most) - len(candidate.times)
        if more > 0:
            candidate.times += self.runnable(candidate).seconds(more)

    def _finals(self, finalists: Sequence[Candidate], best: float) -> None:
        """Sample the finalists in turn; these times replace those of their probes."""
        runners: list[tuple[Candidate, Runnable, list[float]]] = []
        for each in finalists:
            try:
                runners.append((each, self.finalist(each), []))
            except DeviceLostError:
                raise
            except PydlbenchError as error:  # all at once they may not fit into memory
                each.disqualify(error)
        effort = self.effort
        best = max(best, MIN_READING_S)
        per_turn = _count(effort.turn_s / best, 1, effort.turn_samples)
        rounds = _count(effort.finals_s / (best * per_turn * len(finalists)), *effort.finals_rounds)
        # The last one's data is in the caches: an untimed execution brings its own.
        untimed = 1 if best < _LONG_S else 0
        for number in range(rounds):
            # Who follows whom must not decide.
            for each, runnable, times in reversed(runners) if number % 2 else runners:
                if each.status != "ok":
                    continue
                try:
                    times.extend(runnable.seconds(per_turn, untimed=untimed))
                except DeviceLostError:
                    raise
                except PydlbenchError as error:
                    each.disqualify(error)
        for each, _, times in runners:
            each.times = times or each.times

    def _is_right(self, candidate: Candidate) -> bool:
        """Verify a candidate; one that is wrong, or cannot be verified, is out of the running."""
        try:
            candidate.verdict = self.verify(candidate)
        except DeviceLostError:
            raise
        except PydlbenchError as error:
            candidate.disqualify(error)
            return False
        if candidate.verdict.status == "ok":
            return True
        candidate.disqualify(candidate.verdict.detail or "wrong result")
        return False


def _count(wanted: float, least: int, most: int) -> int:
    return max(least, min(most, round(wanted)))
