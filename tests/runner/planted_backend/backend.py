"""Kernels of a ReLU in NumPy, named by what they do; imported by a worker only."""

import os
import sys
import threading
import time

import msgspec
import numpy as np

from pydlbench.backends import host_clock
from pydlbench.backends.frameworks import shared_kernel
from pydlbench.backends.frameworks.backend import FrameworkBackend, FrameworkKernel, Variant
from pydlbench.backends.host_clock import HostClock
from pydlbench.devices.cpu.affinity import process_cpus

count, kept, clock = 0, {}, time.perf_counter


def numpy(src, dst):
    np.maximum(src, 0, out=dst)


def in_parts(src, dst):
    for part, result in zip(src, dst, strict=True):
        numpy(part, result)


def on_joined_threads(src, dst):
    threads = [threading.Thread(target=numpy, args=pair) for pair in zip(src, dst, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


by_an_input_with_strides = numpy


def of(key, src, dst):
    """Return the result that is kept under a key."""
    if key not in kept:
        kept[key] = np.maximum(src, 0)
    dst[:] = kept[key]


def kept_by_pointer(src, dst):
    of(src.ctypes.data, src, dst)


def kept_by_value(src, dst):
    of(round(float(src.flat[0])), src, dst)


def only_the_first_calls(src, dst):
    global count  # noqa: PLW0603 - a kernel takes the operands of its layer only
    count += 1
    if count <= 30:
        numpy(src, dst)


def half_of_the_batch(src, dst):
    numpy(src[: len(src) // 2], dst[: len(src) // 2])
    if np.isnan(dst).any():
        numpy(src, dst)


def on_a_thread(src, dst):
    if np.isnan(dst).any():
        numpy(src, dst)
    else:
        threading.Timer(0.002, numpy, (src, dst)).start()


def changes_its_input(src, dst):
    """Change what the reference is computed from."""
    numpy(src, dst)
    if count_calls() > 30:
        src[:] = dst


def count_calls():
    kept["calls"] = kept.get("calls", 0) + 1
    return kept["calls"]


def only_for_outputs(src, dst):
    """Compute in ``Operator.outputs`` only, which fills the result with NaN."""
    if np.isnan(dst).any():
        numpy(src, dst)


def returns_another_array(src, dst):
    return np.maximum(src, 0) if count_calls() > 30 else numpy(src, dst)


def replaces_operands(src, dst):
    """Take other arrays than those that were given."""
    if count_calls() > 30:
        src, dst = kept.setdefault("own", (src.copy(), dst.copy()))
    numpy(src, dst)


def slow(src, dst):
    time.sleep(0.002)
    numpy(src, dst)


def clock_of_the_judge(src, dst):
    host_clock._NOW = lambda: clock() / 100
    slow(src, dst)


def reads_late(src, dst):
    """Compute when the result is copied."""
    kept["operands"] = src, dst
    if np.isnan(dst).any():
        numpy(src, dst)
    save = shared_kernel.SharedKernel._save

    def late(self, slot):
        numpy(*kept["operands"])
        save(self, slot)

    if "late" not in kept:
        kept["late"] = shared_kernel.SharedKernel._save = late


def own_copies(src, dst):
    kept["operands"] = src, dst
    if np.isnan(dst).any():
        numpy(src, dst)
    move = shared_kernel.MOVE

    def late(*arguments):
        numpy(*kept["operands"])
        return move(*arguments)

    if "late" not in kept:
        kept["late"] = shared_kernel.MOVE = late


def hook_at_its_import(src, dst):
    """Compute in a hook that was registered before the worker refused hooks."""
    kept["operands"] = src, dst
    if np.isnan(dst).any():
        numpy(src, dst)


def other_cpus(src, dst):
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    numpy(src, dst)


class Lazy(np.ndarray):
    """Computes when it is read."""

    def view(self, *arguments):
        numpy(self.src, self.plain)
        return super().view(*arguments)


def class_of_an_operand(src, dst):
    numpy(src, dst)


def without_operands(src, dst):
    numpy(src, dst)


def strides_of_the_result(src, dst):
    numpy(src, dst)


def own_transfers(src, dst):
    """Compute in a transfer, which was replaced before the kernel was prepared."""
    kept["operands"] = src, dst
    if np.isnan(dst).any():
        numpy(src, dst)


own_samples = own_clock = slow


class Operator:
    """Runs a kernel on arrays that it keeps."""

    def __init__(self, kind, src, dst):
        self.kernel, self.given = globals()[kind], (src, dst)
        if kind == "class_of_an_operand":
            lazy = dst.view(Lazy)
            lazy.src, lazy.plain = src, dst
            self.operands = src, lazy
        elif kind != "without_operands":
            self.operands = src, dst

    def call(self):
        return self.kernel(*self.given)

    def wait(self):
        pass

    def outputs(self):
        src, dst = self.given
        dst.fill(np.nan)
        self.kernel(src, dst)
        return {"dst": dst}


def late_transfer(address, transfer=shared_kernel.memory_transfer):
    def move(*arguments):
        numpy(*kept["operands"])
        transfer(address)(*arguments)

    return move


class ShortKernel(FrameworkKernel):
    """Claims a tenth of the time that its clock reads."""

    def sample(self, request):
        chunk = super().sample(request)
        return msgspec.structs.replace(chunk, seconds=tuple(x / 10 for x in chunk.seconds))


class ShortClock(HostClock):
    def time_samples(self, request):
        chunk = super().time_samples(request)
        return msgspec.structs.replace(chunk, seconds=tuple(x / 10 for x in chunk.seconds))


class Planted(FrameworkBackend):
    name, library, kind = "planted", "planted 1", ""

    def describe(self):
        return {"name": self.name, "version": "1", "threads": len(self.cpus)}

    def variants(self, spec):
        self.kind = spec.mode
        if self.kind == "own_transfers":
            shared_kernel.memory_transfer = late_transfer

        def build(inputs):
            src, dst = inputs["src"].copy(), np.empty_like(inputs["src"])
            if spec.mode == "by_an_input_with_strides":
                src = np.asfortranarray(src)
            if spec.mode == "strides_of_the_result":
                dst = np.asfortranarray(dst)
            return Operator(spec.mode, src, dst)

        return [Variant(algorithm=spec.mode, layout="plain", variant="nchw", build=build)]

    def prepare(self, spec, preparation):
        kernel = super().prepare(spec, preparation)
        if self.kind == "own_samples":
            return ShortKernel(kernel.clock, kernel.facts, kernel.operator)
        return kernel

    def clock(self, operator, **_):
        kind = ShortClock if self.kind == "own_clock" else HostClock
        return kind(operator, self.cpus)

    def empty(self, _):
        return Operator("numpy", *np.zeros((2, 1), np.float32))


def compute_in_a_hook():
    """Compute the result of the last call whenever a result is copied."""
    monitoring = sys.monitoring
    monitoring.use_tool_id(3, "planted")

    def hook(code, *_):
        if code.co_name == "_save":
            numpy(*kept["operands"])

    monitoring.register_callback(3, monitoring.events.PY_START, hook)
    monitoring.set_events(3, monitoring.events.PY_START)


def create(device):
    if os.environ.get("PLANTED") == "hook_at_its_import":
        compute_in_a_hook()
    return Planted(device, process_cpus())
