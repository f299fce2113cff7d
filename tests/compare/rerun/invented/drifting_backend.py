"""A backend for tests of interleaving: a machine that drifts by 10 %, and one kernel 3 % slower."""

import random
import time

from pydlbench.backends.base import KernelFacts
from pydlbench.records.measurement import Correctness
from pydlbench.timing.chunk import Chunk

SECONDS = {"native": 1e-3, "torch": 1.03e-3}
LIBRARY = "invented 1"


class Kernel:
    def __init__(self, seconds):
        # Every preparation is a little different, in every process.
        self._seconds = seconds * (1 + random.gauss(0, 0.001))
        self.facts = KernelFacts(
            algorithm="invented",
            layout="nhwc",
            library=LIBRARY,
            accumulate="float32",
            workspace_bytes=0,
            reorder_s={},
            setup_s=0.001,
            correct=Correctness(status="ok", rel_error=0.0, tolerance=1e-6),
            candidates=[],
        )

    def sample(self, request):
        drift = 1 + 0.1 * (time.monotonic() / 20 % 1)
        seconds = tuple(
            self._seconds * drift * (1 + random.gauss(0, 0.002)) for _ in range(request.samples)
        )
        return Chunk(seconds=seconds, clock_hz=(4e9,), wall_s=sum(seconds))


class Backend:
    def __init__(self, name):
        self.name = name

    def describe(self):
        return {"name": self.name, "version": "1"}

    def prepare(self, case, _preparation):
        return Kernel(SECONDS[case.backend])

    def probe(self, name, arguments):
        raise NotImplementedError(name, arguments)


def create(name, _device):
    return Backend(name)
