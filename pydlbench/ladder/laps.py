"""Laps: each visits all rungs of a check once, in random order, so that a drift meets all of them.

Beside each visit the native worker reads what the cores' FMA units do (the canary) and their clock,
while everybody else is stopped: independently of what is timed. A visit with a slow canary is made
once more, and then kept with what was read: :mod:`~pydlbench.ladder.ledger` says what may be
compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pydlbench.ladder.pipeline import STEPS
from pydlbench.records.check import Lap
from pydlbench.timing.chunk import Request
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from pydlbench.timing.chunk import Chunk, GpuReadings

__all__ = ["Core", "RungLaps", "Sampled", "Sampler", "fitting"]

_POLICY = Policy()
# Samples of a kernel in a visit together take so long, in seconds; one at least, so many at most.
_CHUNK_S = 0.1
_MOST = 20
# What is faster is run untimed after another process has had the cores, once and for so long: in a
# loop a step finds its threads awake, each on a core of its own (a scheduler may take 50 ms to see
# to that), and its code in the caches. What is slower has no first tenth to speak of.
_SETTLE_S = 1.0
_SPREAD_S = 0.1


class Core(NamedTuple):
    """What was read of the cores at one moment.

    Attributes:
        share: FMA throughput over what the cores do when nobody else uses them; None if unknown.
        clock_hz: of the cores; None if unknown.
    """

    share: float | None = None
    clock_hz: float | None = None


class Sampler(Protocol):
    """A prepared kernel."""

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""


class Sampled:
    """A prepared kernel as what a lap visits: a tenth of a second of samples, or one.

    Args:
        name: under which the median stands in the lap.
        kernel: what is timed.
        timing: of a step on a GPU, see ``backends.steps.device.WAYS``.

    Attributes:
        faults: page faults per execution, visit by visit.
        allocations: likewise blocks that a GPU's driver was asked for.
        clock_hz: that a GPU had in the last visit; None where nobody read it.
        gpu: what was read of it in each visit; those that nobody read are left out.
    """

    def __init__(self, name: str, kernel: Sampler, timing: str = "") -> None:
        self.name = name
        self.faults: list[float] = []
        self.allocations: list[float] = []
        self.clock_hz: float | None = None
        self.gpu: list[GpuReadings] = []
        self._kernel, self._timing = kernel, timing
        self._request: Request | None = None

    def __call__(self) -> Mapping[str, float]:
        """Take the samples of a visit; the first visit finds out how many they are."""
        if self._request is None:
            self._request = fitting(self._kernel, self._timing)
        chunk = self._kernel.sample(self._request)
        if chunk.faults is not None:
            self.faults.append(chunk.faults)
        if chunk.allocations is not None:
            self.allocations.append(chunk.allocations)
        self.clock_hz = median(chunk.clock_hz) if chunk.clock_hz else None
        if chunk.gpu is not None:
            self.gpu.append(chunk.gpu)
        found = {self.name: median(chunk.seconds)}
        return found | ({"step_enqueue": median(chunk.enqueue_s)} if chunk.enqueue_s else {})


def fitting(kernel: Sampler, timing: str = "", parts: int = 1) -> Request:
    """Return how often a kernel is to be sampled in a visit, by running it.

    Args:
        kernel: any.
        timing: of a step on a GPU: where the host waits for the device, it does so behind several
            steps, as in a loop.
        parts: values of each operator in a sample, the first of which is its time.
    """
    chunk = kernel.sample(Request(samples=1, untimed=1, timing=timing))
    # Of calls on a GPU the device's seconds are the least of what timing them takes.
    once = chunk.wall_s / 2 if chunk.enqueue_s else sum(chunk.seconds[::parts])
    inner = 1
    if timing not in ("", "events"):
        inner = min(STEPS, max(1, int(_CHUNK_S / max(once, 1e-6))))
    samples = min(_MOST, max(1, int(_CHUNK_S / max(once * inner, 1e-6))))
    settling = min(_MOST, math.ceil(_SPREAD_S / max(once, 1e-6)))
    untimed = settling if once < _SETTLE_S else 0
    return Request(samples=samples, inner=inner, untimed=untimed, timing=timing)


class RungLaps:
    """Takes laps one after another.

    Args:
        visits: what is visited, by name; each returns seconds by what it measured.
        order: of the visits in each lap.
        core: reads canary and clock while all others are stopped; None where nobody can.
        watched: returns the clock that a GPU had in the last visit of a name; None without.
        inside: returns the canary that the last visit of a name has read between its own samples;
            None where it read none, and the one right before and after tells.
    """

    def __init__(
        self,
        visits: Mapping[str, Callable[[], Mapping[str, float]]],
        order: random.Random,
        core: Callable[[], Core] | None = None,
        watched: Callable[[str], float | None] = lambda _: None,
        inside: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        self._visits = dict(visits)
        self._order = order
        self._core = core
        self._watched = watched
        self._inside = inside
        self.taken: list[Lap] = []

    def take(self, tell: Callable[[str], None] = lambda _: None) -> Lap:
        """Visit everything once, and return the lap.

        Args:
            tell: called with the name of what is visited next.
        """
        names = list(self._visits)
        self._order.shuffle(names)
        seconds: dict[str, float] = {}
        canary: dict[str, float] = {}
        clock: dict[str, float] = {}
        sm_clock: dict[str, float] = {}
        retaken = []
        before = self._read()
        for name in names:
            tell(name)
            for attempt in range(2):
                if attempt:
                    retaken.append(name)
                found = self._visits[name]()
                after = self._read()
                own = self._inside(name)
                beside = (before.share, after.share) if own is None else (own,)
                shares = [one for one in beside if one is not None]
                clocks = [one.clock_hz for one in (before, after) if one.clock_hz is not None]
                before = after
                if not shares or min(shares) >= _POLICY.canary_share:
                    break
            seconds.update(found)
            if shares:
                canary[name] = min(shares)
            if clocks:
                clock[name] = median(clocks)
            if (hz := self._watched(name)) is not None:
                sm_clock[name] = hz
        lap = Lap(
            seconds=seconds,
            canary=canary,
            clock_hz=clock,
            sm_clock_hz=sm_clock,
            retaken=tuple(retaken),
        )
        self.taken.append(lap)
        return lap

    def _read(self) -> Core:
        if self._core is None:
            return Core()
        return self._core()
