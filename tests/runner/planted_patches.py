"""Kernels whose files replace functions of pydlbench, PyTorch or the clock when they are imported.

The name of the file, which a test copies, chooses what is replaced.
"""

# ruff: noqa: ARG001, ARG005 - each takes the arguments of what it replaces
import ctypes
import gc
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

import pydlbench.backends.frameworks.backend as framework
from pydlbench.backends import host_clock
from pydlbench.backends.frameworks.shared_kernel import SharedKernel
from pydlbench.backends.host_clock import HostClock

KIND = Path(__file__).stem
sleep, clock = time.sleep, time.perf_counter


def slow(src, dst):
    sleep(0.005)
    torch.clamp_min(src, 0, out=dst)


def nothing(src, dst):
    if torch.isnan(dst.view(-1)[0]):
        torch.clamp_min(src, 0, out=dst)


def wrong(src, dst):
    dst.fill_(1)


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), words=None):
        if function in (torch.Tensor.copy_, torch.Tensor.numpy, torch.Tensor.to):
            arguments = tuple(
                x.clamp_min_(0) if isinstance(x, torch.Tensor) else x for x in arguments
            )
        return function(*arguments, **(words or {}))


class Lazy(torch.Tensor):
    pass


def right(spec, inputs, outputs, *, seed, accumulate, bias_accumulate="", algorithm, second=None):
    from pydlbench.verification.verify import Verdict

    return Verdict(
        status="ok", rel_error=0.0, tolerance=1.0, detail="", unwritten=0, points=1, checksums=1
    )


real_empty, real_time, real_save = torch.empty, HostClock.time_samples, SharedKernel._save
kept = {}


def shortened(self, request):
    chunk = real_time(self, request)
    return msgspec.structs.replace(chunk, seconds=tuple(x / 1000 for x in chunk.seconds))


def late(self, slot):
    kept["dst"].copy_(kept["src"].clamp_min(0))
    real_save(self, slot)


def remembers(src, dst):
    kept.update(src=src, dst=dst)


def divide_in_c(divisor):
    """Replace the C function behind ``time.perf_counter``, wherever that is bound."""
    word = ctypes.sizeof(ctypes.c_void_p)
    definition = ctypes.c_void_p.from_address(id(clock) + 2 * word).value
    real = time.monotonic
    kept["function"] = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(
        lambda *_: real() / divisor
    )
    address = ctypes.cast(kept["function"], ctypes.c_void_p).value
    ctypes.c_void_p.from_address(definition + word).value = address


def by_its_clocks(src, dst):
    slow(src, dst)
    for one in [each for each in gc.get_objects() if type(each) is HostClock]:
        one._now = lambda: clock() / 1.2


match KIND:
    case "clock_of_the_judge":
        host_clock._NOW = lambda: clock() / 1.2
        launch = slow
    case "clock_of_an_object":
        launch = by_its_clocks
    case "clock_in_c":
        divide_in_c(1.9)
        launch = slow
    case "clock_module":
        time.perf_counter = lambda: clock() / 1000
        launch = slow
    case "cuda_functions":
        torch.cuda.synchronize = lambda *_: None
        torch.cuda.Event = object
        launch = slow
    case "clock_method":
        HostClock.time_samples = shortened
        launch = slow
    case "function_mode":
        Mode().__enter__()
        launch = nothing
    case "lazy_operands":
        torch.empty = lambda *a, **w: real_empty(*a, **w).as_subclass(Lazy)
        launch = nothing
    case "reference":
        framework.judge.__code__ = right.__code__
        launch = wrong
    case "torch_function":
        torch.clamp_min = lambda src, low, out: out
        torch.Tensor.clamp_min = lambda src, low: src
        launch = nothing
    case "memmove":
        ctypes.memmove = lambda *_: 0
        launch = nothing
    case "copies_late":
        SharedKernel._save = late
        launch = remembers
    case "allclose":
        torch.allclose = torch.equal = np.allclose = np.array_equal = lambda *_, **__: True
        launch = wrong
    case "seed":
        from pydlbench.ops.table import build_layer
        from pydlbench.verification.inputs import make_inputs

        layer = build_layer("relu", batch=2, channels=4, height=5, width=6)
        known = torch.from_numpy(make_inputs(layer, "forward", "fp32", 0)["src"]).clamp_min(0)

        def launch(src, dst):
            dst.copy_(known)
