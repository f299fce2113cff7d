"""The autotuner: probe all candidates, compare the best in finals, choose the fastest correct one.

A library's first choice is often not its fastest kernel, so the kernel of a row is found by timing
candidates, on CPUs, on GPUs and in frameworks. Probes are short and noisy, and only select the
finalists. Between the stages of a probe, clearly slower candidates are dropped (successive halving;
Jamieson and Talwalkar, AISTATS 2016). In the finals, candidates are sampled in turn, so that a
drift of the machine affects all of them.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from pydlbench.errors import DeviceLostError, PrimitiveError, PydlbenchError, UnsupportedError
from pydlbench.timing.policy import MIN_READING_S
from pydlbench.verification.verify import Verdict

# Except in a thorough search, a candidate is not run again if its first execution exceeds this
# factor times the best time, plus the effort's ``hopeless_s``.
HOPELESS_FACTOR = 1.15
# Maximum time of a kernel that gets an untimed execution. Loading its data into the caches costs
# some 2 ms, less than a tenth of the time of longer kernels.
_MAX_WARM_UP_S = 0.02
# Minimum number of samples of a thorough probe.
_THOROUGH_SAMPLES = 5


class Stage(NamedTuple):
    """A stage of the probes.

    Attributes:
        share: cumulative share of a candidate's samples at the end of the stage.
        margin: after the stage, candidates slower than the fastest by more than this factor are
            dropped.
    """

    share: float
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Duration of probes and finals. Times in seconds.

    Attributes:
        hopeless_s: excess of a first execution that cold caches, cold code and waking threads can
            explain; a candidate is dropped only if it takes longer.
        probe_s: time of one candidate's probe.
        probe_samples: maximum number of samples in a probe.
        stages: stages of the probes; all candidates take part in the first.
        final_margin: finalists are slower than the fastest probe by at most this factor: on a busy
            virtual machine, probes differ from the finals by several per cent.
        finalists: maximum number of finalists.
        finals_s: time of all finals.
        finals_rounds: minimum and maximum number of rounds of the finals.
        turn_s: time of one candidate's turn in a round: several executions of a short kernel,
            because each turn starts with other data in the caches.
        turn_samples: maximum number of samples in a turn.
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


#: On a CPU, loading 32 MB into the cache takes 2 ms, and waking a pool's threads takes as long.
#: Single samples of a kernel differ by a tenth, or by a third under interference.
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
#: Effort on a CPU for a layer that is one of hundreds in an estimate. Probes take a third of the
#: time, enough to distinguish kernels that differ by a tenth. Finals have fewer candidates and a
#: fifth of the time; long kernels get one or two rounds. A kernel that is chosen in place of the
#: fastest is only a few per cent slower.
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
#: On a GPU: many candidates (up to a hundred plans of a cuDNN convolution) with little noise.
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
#: On a GPU, for a layer whose time is one of hundreds in a sum: finals take a third as long.
GPU_BRIEF_EFFORT = replace(GPU_EFFORT, finals_s=0.02, finals_rounds=(2, 5))


class Runnable(Protocol):
    """A candidate that can be timed."""

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Run ``samples`` times, after ``untimed`` times, and return the times in seconds."""


@dataclass(slots=True, eq=False)
class KernelCandidate:
    """One way to compute a layer, with its times in probe and finals.

    Attributes:
        source: the description from which the backend makes the kernel.
        algorithm: the library's name of the implementation.
        layout: the layout of each tensor.
        details: further fields of the candidate's entry in ``--algorithms``.
        times: execution times in seconds, at first from the probe; the first execution is left out
            if there are others.
        first: time of the first execution in seconds.
        status: ``ok``, or ``failed`` (it could not be run or was wrong).
        reason: why the candidate is not ``ok``.
        verdict: verdict on the candidate's result after verification.
        kernel: the backend's kernel, while it holds memory.
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
        """Smallest time in seconds, since interference only adds; infinite if there is none."""
        return min(self.times, default=float("inf"))

    def disqualify(self, error: PydlbenchError | str) -> None:
        """Exclude the candidate, with the reason."""
        self.status = "failed"
        self.reason = str(error)

    def entry(self, chosen: bool) -> dict[str, Any]:
        """Return the candidate's entry in ``--algorithms``, in JSON form.

        Args:
            chosen: whether the row times this candidate.
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
    """The choice among the candidates of one layer.

    A backend implements how a candidate becomes runnable, how its result is verified, and when
    memory is freed.

    Args:
        candidates: all candidates, in the order of the probes.
        effort: duration of probes and finals.
        thorough: probe and verify every candidate fully, not only those that may win.
        finalists: number of candidates that may hold memory at the same time; None takes the
            number of the effort.
        finals: sample the finalists in turn; otherwise the fastest correct probe wins.
    """

    def __init__(
        self,
        candidates: Sequence[KernelCandidate],
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
    def runnable(self, candidate: KernelCandidate) -> Runnable:
        """Make a candidate runnable, anew if it was released; an exception excludes only it."""

    def finalist(self, candidate: KernelCandidate) -> Runnable:
        """Make a candidate runnable in the finals; by default as in the probe."""
        return self.runnable(candidate)

    @abc.abstractmethod
    def verify(self, candidate: KernelCandidate) -> Verdict:
        """Run a candidate on outputs filled with NaN, and compare with the reference."""

    def release_probed(self, candidate: KernelCandidate, best: float) -> None:
        """Free memory that is not needed until the finals; does nothing by default.

        Args:
            candidate: the candidate whose probe has ended.
            best: the fastest probe so far, in seconds.
        """
        del candidate, best

    def tune(self) -> KernelCandidate:
        """Return the fastest candidate with a correct result.

        Raises:
            UnsupportedError: the library or the hardware supports none of the candidates.
            PrimitiveError: no candidate gives a correct result.
            DeviceLostError: the device cannot be used any more.
        """
        refused = self._probe_all()
        remaining = self._remaining()
        while remaining:
            best = min(candidate.time for candidate in remaining)
            finalists = self.finalists(best)
            if len(finalists) > 1 and self.finals:
                self._finals(finalists, best)
            for candidate in sorted(finalists, key=lambda finalist: finalist.time):
                if candidate.status == "ok" and self._is_correct(candidate):
                    return candidate
            remaining = self._remaining()
        reasons = "; ".join(dict.fromkeys(c.reason or "" for c in self.candidates))
        if refused == len(self.candidates):  # all unsupported, none wrong
            raise UnsupportedError(reasons)
        what = "no candidate gives a right result: "
        if len(self.candidates) == 1:  # without a verdict it has failed before
            what = "" if self.candidates[0].verdict is None else "wrong result: "
        raise PrimitiveError(what + reasons)

    def take(self) -> KernelCandidate:
        """Return the first candidate after one execution: it was chosen and verified before.

        Raises:
            PydlbenchError: it cannot be run.
        """
        candidate = self.candidates[0]
        candidate.times = list(self.runnable(candidate).seconds(1))
        return candidate

    def finalists(self, best: float) -> list[KernelCandidate]:
        """Return the candidates for the finals, fastest first, given the fastest time."""
        near = self._within(self.effort.final_margin, best)
        return sorted(near, key=lambda candidate: candidate.time)[: self._finalists]

    def listing(self, chosen: KernelCandidate) -> list[dict[str, Any]]:
        """Return all candidates in JSON form: valid ones by time, then the others."""
        ranked = sorted(self.candidates, key=lambda c: (c.status != "ok", c.time))
        return [candidate.entry(chosen=candidate is chosen) for candidate in ranked]

    def _remaining(self) -> list[KernelCandidate]:
        return [c for c in self.candidates if c.status == "ok" and c.times]

    def _within(self, margin: float, best: float) -> list[KernelCandidate]:
        return [c for c in self._remaining() if c.time <= margin * best]

    def near(self, best: float) -> list[KernelCandidate]:
        """Return the candidates for the next stage, given the fastest time in seconds."""
        return self._within(self._margin, best)

    def _probe_all(self) -> int:
        """Probe all candidates; return the number of unsupported ones."""
        refused = 0
        probed = list(self.candidates)
        stages = self.effort.stages[-1:] if self.thorough else self.effort.stages
        before = 0.0
        for stage in stages:
            # After the last stage, only finalists keep their memory.
            last = stage is stages[-1]
            self._margin = self.effort.final_margin if last else stage.margin
            best = min((candidate.time for candidate in probed), default=float("inf"))
            for candidate in list(probed):
                try:
                    if before == 0.0 and not self._run_first(candidate, best):
                        probed.remove(candidate)
                    else:
                        self._probe(candidate, stage.share)
                    if self.thorough:
                        self._is_correct(candidate)
                except DeviceLostError:
                    raise
                except PydlbenchError as error:
                    candidate.disqualify(error)
                    refused += isinstance(error, UnsupportedError)
                if candidate.status == "ok":
                    best = min(best, candidate.time)
                self.release_probed(candidate, best)
            probed = [c for c in probed if c.status == "ok" and c.time <= stage.margin * best]
            if len(probed) < 2:
                break
            before = stage.share
        return refused

    def _run_first(self, candidate: KernelCandidate, best: float) -> bool:
        """Run a candidate for the first time; return whether to run it again.

        The first execution includes page faults, and only shows whether the candidate is hopeless.
        A thorough search times hopeless candidates, too. A single candidate needs no further times.
        """
        candidate.first = self.runnable(candidate).seconds(1)[0]
        hopeless = candidate.first > HOPELESS_FACTOR * best + self.effort.hopeless_s
        if self.thorough or not (hopeless or len(self.candidates) == 1):
            return True
        candidate.times = [candidate.first]
        return False

    def _probe(self, candidate: KernelCandidate, share: float) -> None:
        """Take samples until a share of a candidate's probe is complete, at least one."""
        execution_s = min(candidate.time, candidate.first)
        wanted = share * self.effort.probe_s / max(execution_s, MIN_READING_S)
        least = _THOROUGH_SAMPLES if self.thorough else 1
        most = max(1, round(share * self.effort.probe_samples))
        more = _count(wanted, least, most) - len(candidate.times)
        if more > 0:
            candidate.times += self.runnable(candidate).seconds(more)

    def _finals(self, finalists: Sequence[KernelCandidate], best: float) -> None:
        """Sample the finalists in turn; these times replace the times of their probes."""
        runners: list[tuple[KernelCandidate, Runnable, list[float]]] = []
        for candidate in finalists:
            try:
                runners.append((candidate, self.finalist(candidate), []))
            except DeviceLostError:
                raise
            except PydlbenchError as error:  # they may not fit into memory together
                candidate.disqualify(error)
        effort = self.effort
        best = max(best, MIN_READING_S)
        per_turn = _count(effort.turn_s / best, 1, effort.turn_samples)
        rounds = _count(effort.finals_s / (best * per_turn * len(finalists)), *effort.finals_rounds)
        # The caches hold the data of the previous candidate.
        untimed = 1 if best < _MAX_WARM_UP_S else 0
        for number in range(rounds):
            # Alternate the order, so that each candidate follows different ones.
            for candidate, runnable, times in reversed(runners) if number % 2 else runners:
                if candidate.status != "ok":
                    continue
                try:
                    times.extend(runnable.seconds(per_turn, untimed=untimed))
                except DeviceLostError:
                    raise
                except PydlbenchError as error:
                    candidate.disqualify(error)
        for candidate, _, times in runners:
            candidate.times = times or candidate.times

    def _is_correct(self, candidate: KernelCandidate) -> bool:
        """Verify a candidate, and exclude it if it is wrong or cannot be verified."""
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
