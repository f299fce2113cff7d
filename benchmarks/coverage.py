"""Coverage of the printed interval: how often it contains the median of a known distribution.

A row is repeated as in a run of ``--run`` seconds: in each round at a random moment, with the
constants, the loop and the estimator of the project itself (``pydlbench/study``). The times are
simulated: independent noise, correlated noise, slow variation, episodes of slowness, drift.
Nothing is measured, so the page holds for every machine.

    python benchmarks/coverage.py --series 500 -o benchmarks/results/coverage.md
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from pydlbench.runner.rows import summary_of
from pydlbench.study.loop import Study, Subject, random_order
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import LEAST_ROUNDS, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pydlbench.records.measurement import TimeSummary
    from pydlbench.timing.chunk import ChunkRequest

# Step of the time grid of the machine's state.
_STEP_S: Final = 0.01
# Relative noise from one execution to the next.
_NOISE: Final = 0.005
_SECONDS: Final = (1e-3, 10e-3, 60e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The distribution of times.

    Attributes:
        name: name in the table.
        noise: relative standard deviation from one execution to the next.
        ar: correlation of that noise between consecutive executions.
        wander: relative standard deviation of the machine's state.
        tau_s: correlation time of that state.
        factor: slowdown in an episode.
        episode_s: mean length of an episode.
        share: share of the time in episodes.
        drift: relative change per second.
    """

    name: str
    noise: float = _NOISE
    ar: float = 0.0
    wander: float = 0.0
    tau_s: float = 1.0
    factor: float = 1.0
    episode_s: float = 1.0
    share: float = 0.0
    drift: float = 0.0

    def state(self, length_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the factor of all times on the grid."""
        n = int(length_s / _STEP_S) + 2
        state = np.ones(n)
        if self.wander:
            keep = math.exp(-_STEP_S / self.tau_s)
            kicks = rng.normal(size=n) * self.wander * math.sqrt(1 - keep * keep)
            kicks[0] = rng.normal() * self.wander
            level = 0.0
            for i, kick in enumerate(kicks):
                level = keep * level + kick
                state[i] += level
        if self.share:
            gap_s = self.episode_s * (1 - self.share) / self.share
            slow, i = bool(rng.random() < self.share), 0
            while i < n:
                steps = max(1, round(rng.exponential(self.episode_s if slow else gap_s) / _STEP_S))
                if slow:
                    state[i : i + steps] = self.factor
                i, slow = i + steps, not slow
        return state * (1 + self.drift * _STEP_S * np.arange(n))


LAWS: Final = (
    Law(name="iid"),
    Law(name="AR(1) 0.5", ar=0.5),
    Law(name="AR(1) 0.9", ar=0.9),
    Law(name="slow 3 %, tau 1 s", wander=0.03, tau_s=1.0),
    Law(name="slow 3 %, tau 30 s", wander=0.03, tau_s=30.0),
    Law(name="x1.3 episodes of 0.2 s, 20 % of the time", factor=1.3, episode_s=0.2, share=0.2),
    Law(name="x1.3 episodes of 0.2 s, 40 % of the time", factor=1.3, episode_s=0.2, share=0.4),
    Law(name="x1.9 episodes of 3 s, 5 %", factor=1.9, episode_s=3.0, share=0.05),
    Law(name="drift 2 %/s, against the start", drift=0.02),
)


class Invented:
    """A kernel on a simulated machine with its own clock."""

    def __init__(
        self, seconds: float, law: Law, state: NDArray[np.float64], rng: np.random.Generator
    ) -> None:
        self._seconds, self._law, self._state, self._rng = seconds, law, state, rng
        self._last = rng.normal()
        self.now_s = 0.0

    def wait_until(self, now_s: float) -> None:
        """Advance the clock by hundreds of executions, so that the noise is independent again."""
        self.now_s = max(self.now_s, now_s)
        self._last = self._rng.normal()

    def sample(self, request: ChunkRequest) -> Chunk:
        """Return the times of the requested executions from this moment on."""
        begin = self.now_s
        self.now_s += request.untimed * self._seconds * self._factor()
        seconds = []
        for _ in range(request.samples):
            seconds.append(self._seconds * self._factor() * (1 + self._law.noise * self._noise()))
            self.now_s += seconds[-1] * request.inner
        return Chunk(seconds=tuple(seconds), wall_s=self.now_s - begin)

    def _factor(self) -> float:
        return float(self._state[min(int(self.now_s / _STEP_S), len(self._state) - 1)])

    def _noise(self) -> float:
        ar = self._law.ar
        self._last = ar * self._last + math.sqrt(1 - ar * ar) * self._rng.normal()
        return self._last


def row(law: Law, seconds: float, run_s: float, seed: Sequence[int]) -> TimeSummary:
    """Return the summary of a row that is repeated in the rounds of a run."""
    rng = np.random.default_rng(seed)
    round_s = run_s / LEAST_ROUNDS
    kernel = Invented(seconds, law, law.state(run_s + 5.0, rng), rng)
    study = Study(random_order(0))
    for number in range(LEAST_ROUNDS):
        kernel.wait_until((number + rng.random()) * round_s)
        subject = Subject(
            key=0,
            sample=kernel.sample,
            policy=Policy(budget_s=1.0, visits=LEAST_ROUNDS),
            process=number,
            preparation=number,
        )
        study.take([subject], first=number)
    return summary_of(study.table.series(0))


def cell(law: Law, seconds: float, run_s: float, series: int) -> str:
    """Return the coverage in percent, and the median of the half widths."""
    held, widths, repetitions = 0, [], []
    for number in range(series):
        summary = row(law, seconds, run_s, [number, round(seconds * 1e6), round(run_s)])
        assert summary.ci_low is not None
        assert summary.ci_high is not None
        held += summary.ci_low <= seconds <= summary.ci_high
        widths.append(100 * (summary.half_width or 0.0))
        repetitions.append(summary.repetitions)
    return f"{100 * held / series:.0f} (+-{np.median(widths):.2g} %, {np.median(repetitions):.0f})"


def page(runs_s: Sequence[float], series: int) -> str:
    """Return the page: a table for each length of a run."""
    text = (
        "Percentage of 95 % intervals that contain the undisturbed median (with a drift: the one "
        f"at the start), over {series} simulated series each; in parentheses the median of the "
        "half widths, and of the number of repetitions. A row is repeated once per round of "
        "a run of the given length, at a random moment. The loop and the intervals are the "
        "project's own. `python benchmarks/coverage.py` makes this page.\n\n"
        f"Within 60 s, {LEAST_ROUNDS} repetitions sample a variation over 30 s at most twice: such "
        "a run cannot predict the next one; a run of some minutes can. No interval within a run "
        "covers a drift that continues after it; if the interval contains the start, it is as wide "
        "as the drift.\n\n"
        "Times with episodes of slowness are not normally distributed, but the interval of two to "
        "five rounds assumes that they are. It misses if nearly all rounds (three of four) were in "
        "an episode. That is rare if episodes take a fifth of the time, and more frequent with two "
        "fifths. More rounds do not help: their median is that of all times, in and out of "
        "episodes. The width from few rounds is uncertain, too: it is large if one of them was in "
        "an episode, and small if none was."
    )
    lines = ["# Coverage of the printed interval", "", text]
    for run_s in runs_s:
        head = " | ".join(f"{1e3 * seconds:g} ms" for seconds in _SECONDS)
        lines += ["", f"## A run of {run_s:g} s", "", f"| series | {head} |"]
        lines.append("|---|" + "---:|" * len(_SECONDS))
        for law in LAWS:
            begin = time.monotonic()
            cells = [cell(law, seconds, run_s, series) for seconds in _SECONDS]
            lines.append(f"| {law.name} | {' | '.join(cells)} |")
            print(f"{run_s:g} s  {lines[-1]}  {time.monotonic() - begin:.0f} s", flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the command line and write the page."""
    parser = argparse.ArgumentParser(description="Coverage of the printed interval.")
    parser.add_argument("--series", type=int, default=500, help="per cell (500)")
    parser.add_argument("--run", type=float, nargs="+", default=[60.0, 300.0], help="seconds")
    parser.add_argument("-o", "--output", type=Path, help="the page; default: none is written")
    args = parser.parse_args()
    text = page(args.run, args.series)
    if args.output is not None:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
