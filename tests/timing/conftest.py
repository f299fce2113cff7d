"""An invented machine: kernels with a known distribution, foreign processes, kernel counters."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pydlbench.timing.chunk import Chunk, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.timing.procedure import Samples, Sampling


@dataclass
class Machine:
    """Answers requests.

    ``execution(rng, now)`` is the undisturbed time of one execution at machine time ``now``.
    ``slice_s`` > 0 puts a busy process on one of the cores: after each ``slice_s`` of running, a
    thread waits for ``slice_s``. ``idle_switch_hz`` and ``daemon_*`` are what idle machines show.
    """

    execution: Callable[[random.Random, float], float]
    seed: int = 0
    slice_s: float = 0.0
    busy_from: float = 0.0
    busy_until: float = float("inf")
    idle_switch_hz: float = 40.0
    daemon_probability: float = 0.25
    daemon_s: float = 0.0008
    burst_probability: float = 0.03
    burst_s: float = 0.006
    steal_ticks: Callable[[random.Random], int] = field(default=lambda _rng: 0)
    counters: bool = True
    clock_hz: Callable[[float], float] = field(default=lambda _now: 4.3e9)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.until_switch = self.slice_s * self.rng.random()

    def _run(self, seconds: float) -> tuple[float, float, int]:
        """Wall time, wait and switches of ``seconds`` of work."""
        wait, switches, left = 0.0, 0, seconds
        busy = self.slice_s > 0 and self.busy_from <= self.now < self.busy_until
        while busy and left >= self.until_switch:
            left -= self.until_switch
            self.until_switch = self.slice_s
            wait += self.slice_s
            switches += 1
        if busy:
            self.until_switch -= left
        if self.rng.random() < self.idle_switch_hz * seconds:
            switches += 1
            wait += 20e-6
        self.now += seconds + wait
        return seconds + wait, wait, switches

    def answer(self, request: Request) -> Chunk:
        start = self.now
        for _ in range(request.untimed):
            self.now += self.execution(self.rng, self.now)
        seconds, involuntary, waited = [], [], 0.0
        spoiled = {}
        for chance, length in (
            (self.daemon_probability, self.daemon_s),
            (self.burst_probability, self.burst_s),
        ):
            if self.rng.random() < chance:
                spoiled[self.rng.randrange(request.samples)] = length
        for i in range(request.samples):
            work = sum(self.execution(self.rng, self.now) for _ in range(request.inner))
            wall, wait, switches = self._run(work)
            extra = spoiled.get(i, 0.0)
            self.now += extra
            seconds.append((wall + extra) / request.inner)
            involuntary.append(switches + (extra > 0))
            waited += wait + extra
        return Chunk(
            seconds=tuple(seconds),
            involuntary=tuple(involuntary),
            clock_hz=(self.clock_hz(self.now),),
            run_delay_s=waited if self.counters else 0.0,
            steal_s=0.01 * self.steal_ticks(self.rng),
            wall_s=self.now - start,
            threads=2,
        )

    def drive(self, sampling: Sampling) -> Samples:
        """Run a sampling to its end; a procedure that never ends fails here."""
        for _ in range(2000):
            request = sampling.next_request()
            if request is None:
                return sampling.result()
            sampling.feed(self.answer(request))
        pytest.fail("the sampling does not end")


def noisy(mean: float, sigma: float = 0.003) -> Callable[[random.Random, float], float]:
    """A quiet kernel: normal noise of relative width ``sigma``."""
    return lambda rng, _now: mean * max(0.5, rng.gauss(1.0, sigma))


@pytest.fixture
def machine():
    return Machine


@pytest.fixture
def quiet_kernel():
    return noisy
