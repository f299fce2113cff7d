"""An invented ``pydlbench._cuda``: plans of known times and known faults, no GPU."""

import math
from typing import ClassVar

import numpy as np

from pydlbench.errors import (
    DeviceLostError,
    InsufficientMemoryError,
    PrimitiveError,
    UnsupportedError,
)


class Plan:
    """A plan whose fate is in its words."""

    primitive = "convolution forward"
    library = "cuDNN 9.0"
    variant = "nhwc"
    layout = "src nhwc, weights krsc, dst nhwc"
    notes = ()
    runtime_compiled = False
    workspace_bytes = 64
    tensors = ()

    def __init__(self, algorithm, time=1e-3, **words):
        self.algorithm = algorithm
        self.time = time
        self.graph_time = time
        self.error = 1e-7
        self.accumulate = "float32"
        self.device = None
        self.tensor_cores = False
        self.fails = None
        self.kernel = None  # its name
        self.unwritten = 0
        self.__dict__.update(words)


class Kernel:
    made: ClassVar[list] = []
    timeouts = 0  # of the gate, in each chunk

    def __init__(self, plan, arena, cache="hot", timing="events", cold_bytes=0):
        if plan.fails == "build":
            raise UnsupportedError(f"{plan.algorithm}: no such engine")
        if plan.fails == "memory":
            raise InsufficientMemoryError("2 GB wanted, 1 GB free")
        if plan.fails == "lost":
            raise DeviceLostError("an illegal memory access")
        assert not arena.cleared
        self.plan = plan
        self.build_seconds = 0.25
        self.rotating_sets = 1
        self.settings = (cache, timing, cold_bytes)
        self.requests = []
        Kernel.made.append(self)

    def sample(self, samples, inner=1, untimed=0):
        self.requests.append((samples, inner, untimed))
        in_graph = self.settings[1] == "cuda-graph"
        if in_graph and self.plan.fails == "capture":
            raise PrimitiveError("not while a stream is captured")
        return {
            "seconds": np.full(samples, self.plan.graph_time if in_graph else self.plan.time),
            "clock_hz": np.full(samples, 1.98e9),
            "enqueue_s": np.full(samples, 5e-6),
            "wall_s": samples * inner * self.plan.time,
            "gate_timeouts": self.timeouts,
        }

    def run_poisoned(self):
        self.poisoned = True
        if self.plan.fails == "run":
            self.plan.device.lost = True
            raise DeviceLostError("an illegal memory access")

    def output(self):
        raise AssertionError("the device compares, or outputs() has it: nothing is downloaded")

    def outputs(self):
        return self.plan.results

    def verify(self, reference, arena):
        assert self.poisoned
        assert reference == "reference"
        assert not arena.cleared
        return {
            "max_error": self.plan.error,
            "where": [0, 1, 2, 3],
            "got": 1.0,
            "expected": 2.0,
            "unwritten": self.plan.unwritten,
            "infinite": 0,
            "elements": 100,
            "terms": 27,
        }

    def launch_times(self, repetitions=20):  # noqa: ARG002 - the real one repeats
        return {
            "single_s": self.plan.time,
            "event_s": self.plan.time,
            "graph_s": math.nan if self.plan.fails == "capture" else self.plan.time,
            "host_s": 5e-6,
            "wall_s": self.plan.time,
        }

    def run_marked(self, name):
        self.marked = name

    def kernels(self):
        if self.plan.fails == "capture":
            raise PrimitiveError("not while a stream is captured")
        shape = {"grid": [132, 1, 1], "block": [128, 1, 1], "shared_bytes": 4096, "registers": 168}
        return [{"name": self.plan.kernel or f"sm90_{self.plan.algorithm}", **shape}]

    def run_for(self, seconds):
        return {"executions": 1000, "seconds": seconds}


class Arena:
    bytes = 0

    def __init__(self, device, inputs, drawn=None):
        self.device = device
        self.inputs = {**inputs, **(drawn or {})}
        self.cleared = False

    def clear(self):
        self.cleared = True


class Device:
    def __init__(self, index):
        self.index = index
        self.facts = {"uuid": "GPU-0", "index": index}
        self.lost = False

    def synchronize(self):
        if self.lost:
            raise DeviceLostError("the context is lost")


class Module:
    """What stands in for the native module."""

    Arena, Device, Kernel = Arena, Device, Kernel

    def __init__(self):
        self.offer = []
        self.asked = []
        self.ranges = []

    def plans(self, device, kind, pass_, mode, fields, **words):  # noqa: ARG002 - as the real one
        self.asked.append((pass_, mode, words))
        return list(self.offer)

    def reference(self, kind, *_, **__):
        return None if kind == "pointwise" else "reference"

    def push_range(self, name):
        self.ranges.append(name)

    def pop_range(self):
        self.ranges.append("end")

    def built_with(self):
        return {"cuda": "13.0", "architectures": "90", "compiler": "nvcc"}

    def libraries(self):
        return {"cudnn": {"version": "9.0", "path": "/lib/libcudnn.so.9"}}

    def load_libraries(self, **_):
        pass
