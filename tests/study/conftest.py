"""Invented subjects on an invented machine: no clock is read, and every number is known."""

import random
from dataclasses import dataclass, field

import pytest

from pydlbench.errors import WorkerError
from pydlbench.study.loop import Study, Subject
from pydlbench.study.table import Interference, Series, Visit
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import Policy


@dataclass
class Machine:
    """Its own time passes while it is sampled; ``state`` says how much slower it is at a moment."""

    state: object = lambda _now: 1.0
    noise: float = 0.0
    seed: int = 0
    now: float = 0.0
    requests: list = field(default_factory=list)

    def __post_init__(self):
        self.rng = random.Random(self.seed)

    def subject(self, key, seconds, *, policy=None, dies_at=None, **words):
        asked = []

        def sample(request):
            asked.append(request)
            self.requests.append((key, request))
            if len(asked) == dies_at:
                raise WorkerError("killed by SIGKILL")
            times = []
            for number in range(request.untimed + request.samples):
                noise = 1 + self.noise * self.rng.gauss(0, 1)
                one = seconds * self.state(self.now) * noise
                self.now += one * request.inner
                if number >= request.untimed:
                    times.append(one)
            return Chunk(seconds=tuple(times), wall_s=sum(times) * request.inner)

        return Subject(key=key, sample=sample, policy=policy or Policy(), **words)


@pytest.fixture
def machine():
    return Machine


@pytest.fixture
def study():
    return Study(random.Random(0))


@pytest.fixture
def series():
    """Build visits from the time of each round; ``fma``: bursts beside each, and so on."""

    def build(times, *, fma=None, memory=None, disturbed=(), faults=None, clocks=None, **words):
        times = times if isinstance(times, dict) else dict(enumerate(times))
        return Series(
            [
                Visit(
                    subject="it",
                    preparation=number,
                    process=number + 1,
                    round=number,
                    seconds=(seconds,),
                    wall_s=0.015,
                    faults=faults,
                    clock_hz=None if clocks is None else clocks[number],
                    interference=Interference(
                        fma=None if fma is None else fma[number],
                        memory=None if memory is None else memory[number],
                    ),
                    disturbance="somebody else" if number in disturbed else None,
                    **words,
                )
                for number, seconds in times.items()
            ]
        )

    return build
