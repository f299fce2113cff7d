"""An invented card: its facts, the times of its kernels, its queue, and what is planted in it.

A kernel takes the longer of its arithmetic and its memory accesses, each at a share of the card's
peak, and a constant time more. ``INVENTED_GPU`` names planted failures, separated by commas:

- ``memory=BYTES``: the card has so little memory.
- ``capture=WORD``: kernels whose name contains the word cannot be captured into a graph.
- ``waits=WORD``: calls with such kernels wait for the device.
- ``wrong=WORD``: plans whose name contains the word compute wrong results.
- ``kill=WORD``: a process ends at the first such kernel, by SIGKILL.
- ``lost=WORD``: the device is lost at the first such kernel.
- ``module``: there is no ``pydlbench._cuda``.
- ``profiler``: the profiler has no kernels of the device.
"""

import functools
import os
import signal
import time
from dataclasses import dataclass

from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import theoretical_peak
from pydlbench.errors import DeviceLostError

CLOCK_HZ = 1.755e9
LAUNCH_S = 2e-6  # of the device for each kernel
HOST_S = 4e-6  # of the host for each launch
FACTS = {
    "index": 0,
    "name": "NVIDIA H200",
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "pci": "0000:01:00.0",
    "capability": "9.0",
    "multiprocessors": 132,
    "memory_bytes": 150_000_000_000,
    "l2_bytes": 60 << 20,
    "shared_bytes_per_block": 232_448,
    "threads_per_multiprocessor": 2048,
    "clock_hz": 1.98e9,
    "memory_clock_hz": 3.201e9,
    "memory_bus_bits": 6144,
    "ecc": True,
    "integrated": False,
    "driver_version": 13000,
    "runtime_version": 13000,
}
#: Shares of the theoretical peaks that kernels reach.
SHARE_OF_ARITHMETIC = 0.8
SHARE_OF_MEMORY = 0.9
L2_FACTOR = 2.5  # bandwidth of L2, as a multiple of the memory's


def _planted():
    words = filter(None, os.environ.get("INVENTED_GPU", "").split(","))
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


PLANTED = _planted()
if "memory" in PLANTED:
    FACTS["memory_bytes"] = int(PLANTED["memory"])


def is_planted(failure, name):
    """Whether a failure is planted in what has this name."""
    return failure in PLANTED and PLANTED[failure] in name


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel with its work: FLOPs in a precision, and bytes."""

    name: str
    flops: float = 0.0
    bytes: float = 0.0
    precision: str = "fp32"
    share: float = 1.0  # of the usual speed

    @property
    def seconds(self):
        arithmetic = self.flops / (SHARE_OF_ARITHMETIC * peak(self.precision))
        memory = self.bytes / bytes_per_second(self.bytes)
        return LAUNCH_S + max(arithmetic, memory) / self.share


@functools.cache
def peak(precision):
    """Return the theoretical FLOP/s at the clock of the samples."""
    facts = GpuFacts.from_driver(FACTS)
    found = theoretical_peak(facts, precision, CLOCK_HZ)
    return (found or theoretical_peak(facts, "fp32", CLOCK_HZ)).flops_per_s


@functools.cache
def bytes_per_second(size):
    """Return the bytes per second of accesses to a working set."""
    memory = SHARE_OF_MEMORY * GpuFacts.from_driver(FACTS).memory_bytes_per_s
    return memory * L2_FACTOR if size < FACTS["l2_bytes"] / 2 else memory


class Queue:
    """The device's queue, on the time axis of the host."""

    def __init__(self):
        self.idle_at = 0.0
        self.lost = False
        self.allocated = 0

    def check(self):
        if self.lost:
            raise DeviceLostError("CUDA error: an illegal memory access was encountered")

    def launch(self, kernel):
        """Put a kernel into the queue; returns when it begins and ends."""
        if is_planted("kill", kernel.name):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_planted("lost", kernel.name):
            self.lost = True
        self.check()
        begin = max(self.idle_at, time.perf_counter())
        self.idle_at = begin + kernel.seconds
        return begin, self.idle_at

    def wait(self):
        """Return when the device has done everything, in the host's time."""
        self.check()
        while (left := self.idle_at - time.perf_counter()) > 0:
            time.sleep(left)


QUEUE = Queue()
#: Graphs by address: the kernels of all executions.
GRAPHS = {}
#: Functions that return the kernels of a call, whether it waits for the device, and the host's
#: seconds; a framework appends one.
OBSERVERS = []
