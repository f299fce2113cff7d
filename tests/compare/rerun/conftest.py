"""Machines that drift, kernels whose times are known, and processes that pretend to have them."""

import math
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from pydlbench.compare.interleaved import RerunPair, RerunSide, take_pass
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import Chunk

LAYER = build_layer("conv", batch=1, in_channels=4, in_size=5, out_channels=4, kernel=3, padding=1)


class Kernel:
    def __init__(self, machine, case):
        self.machine = machine
        self.facts = SimpleNamespace(
            algorithm=f"{case.backend} kernel", timing="steady", library="invented 1"
        )
        self.seconds = machine.seconds.get(case.backend, 1e-3)
        self.seconds *= math.exp(machine.rng.gauss(0, machine.preparation_sd))
        self.clock_hz = machine.clocks.get(case.backend)
        self.released = 0

    def sample(self, request):
        machine = self.machine
        machine.drift += machine.rng.gauss(0, machine.drift_sd)
        times = [
            self.seconds * math.exp(machine.drift + machine.rng.gauss(0, machine.noise_sd))
            for _ in range(request.samples)
        ]
        return Chunk(
            seconds=tuple(times),
            clock_hz=() if self.clock_hz is None else (self.clock_hz,),
            wall_s=sum(times) * request.inner,
        )

    def release(self):
        self.released += 1


class Host:
    def __init__(self, machine, threads):
        self.machine, self.threads, self.closed = machine, threads, False

    def prepare(self, case):
        if case.backend in self.machine.refuses:
            raise UnsupportedError(f"{case.backend} has no such kernel")
        kernel = Kernel(self.machine, case)
        self.machine.kernels.append(kernel)
        return kernel

    def close(self):
        self.closed = True


@dataclass
class Machine:
    """Seconds by backend; what drifts and what scatters, as standard deviations of logarithms."""

    seconds: dict = field(default_factory=dict)
    clocks: dict = field(default_factory=dict)
    preparation_sd: float = 0.005
    noise_sd: float = 0.01
    drift_sd: float = 0.01
    refuses: set = field(default_factory=set)
    seed: int = 0
    drift: float = 0.0
    kernels: list = field(default_factory=list)
    hosts: list = field(default_factory=list)

    def __post_init__(self):
        self.rng = random.Random(self.seed)

    def open(self, side, threads):
        assert side in (0, 1)
        self.hosts.append(Host(self, threads))
        return self.hosts[-1]

    def measure(self, backends, passes=8, threads=(None, None)):
        """Take passes over one pair for each two backends."""
        measured = [
            RerunPair(
                sides=tuple(
                    RerunSide(spec=KernelSpec(layer=LAYER, backend=name), threads=count)
                    for name, count in zip(pair, threads, strict=True)
                )
            )
            for pair in backends
        ]
        for number in range(passes):
            take_pass(measured, number, self.open, 0.05, self.rng)
        return measured


@pytest.fixture
def machine():
    """Build a machine."""
    return Machine
