"""Clocks beside the profiler's time of the very kernels that they timed.

Seconds of one execution of a PyTorch call: by the native sampler, hot and cold, by Triton's
do_bench and by CuPy's benchmark, each while PyTorch's profiler watches. At its power limit a card
has another clock in each run, so that times of two runs differ whoever takes them; those of one run
do not. What a clock has beyond the kernels is what lies between its events.

do_bench empties the L2 cache before each execution by writing zeros, which leaves lines that the
timed call has to write back first; the native sampler empties it by reading. So do_bench is asked
twice: as it is, and with a cache that is emptied by reading.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.items import main
from pydlbench.backends.base import Preparation
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest

_SAMPLES = 100
_LAYERS = {
    "product of 1024": build_layer("gemm", m=1024, k=1024, n=1024),
    "product of 4096": build_layer("gemm", m=4096, k=4096, n=4096),
    "relu of 13 MB": build_layer("relu", batch=8, channels=256, height=56, width=56),
    "relu of 103 MB": build_layer("relu", batch=64, channels=256, height=56, width=56),
    "relu of 822 MB": build_layer("relu", batch=512, channels=256, height=56, width=56),
}


@functools.cache
def _call(name: str) -> Callable[[], Any]:
    import torch

    def values(*shape: int) -> Any:
        return torch.rand(shape, device="cuda", dtype=torch.bfloat16) - 0.5

    fields = _LAYERS[name].fields
    if name.startswith("relu"):
        shape = (fields[field] for field in ("batch", "channels", "height", "width"))
        call = functools.partial(torch.relu, values(*shape))
    else:
        side = fields["m"]
        call = functools.partial(torch.mm, values(side, side), values(side, side))
    call()  # loads its kernels
    torch.cuda.synchronize()
    return call


def _sampler(cache: str, name: str) -> Callable[[], float]:
    from pydlbench.backends.torch.backend import create

    spec = KernelSpec(
        layer=_LAYERS[name], backend="torch", device="cuda:0", precision="bf16-tc", cache=cache
    )
    kernel = create("cuda:0").prepare(spec, Preparation())
    kernel.sample(ChunkRequest(samples=1))
    return lambda: statistics.median(kernel.sample(ChunkRequest(samples=_SAMPLES)).seconds)


def _do_bench(name: str) -> Callable[[], float]:
    from triton.testing import do_bench

    return lambda: float(do_bench(_call(name), return_mode="median")) / 1e3


def _do_bench_reading(name: str) -> Callable[[], float]:
    from triton import runtime

    bench = _do_bench(name)

    def read() -> float:
        # A sum reads all of it, and writes next to nothing.
        driver = type(runtime.driver.active)
        with mock.patch.object(driver, "clear_cache", lambda _, cache: cache.sum()):
            return bench()

    return read


def _cupy(name: str) -> Callable[[], float]:
    import torch
    from cupy.cuda import Stream
    from cupyx.profiler import benchmark

    call = _call(name)

    def named() -> None:  # by whose name CuPy calls it
        call()

    def bench() -> float:
        with Stream.from_external(torch.cuda.current_stream()):
            result = benchmark(named, n_repeat=_SAMPLES, n_warmup=10)
        return float(statistics.median(result.gpu_times[0]))

    return bench


def _kernels(run: Callable[[], Any]) -> tuple[Any, dict[str, list[float]]]:
    """Return the result of a function, and the seconds of its kernels by their names."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        result = run()
        torch.cuda.synchronize()
    seconds = defaultdict(list)
    for event in profile.events() or ():
        if "CUDA" in str(event.device_type):
            seconds[event.name].append(event.device_time_total * 1e-6)
    return result, seconds


def _settled(seconds: list[float]) -> float:
    """Return the median of the later half, because the first ones warm up."""
    return statistics.median(seconds[len(seconds) // 2 :])


def _compare(name: str, make: Callable[[str], Callable[[], float]]) -> dict[str, float]:
    _, own = _kernels(_call(name))
    times = Counter({kernel: len(each) for kernel, each in own.items()})
    clock = make(name)
    alone_s = clock()
    clock_s, seconds = _kernels(clock)
    kernels_s = sum(count * _settled(seconds[kernel]) for kernel, count in times.items())
    return {
        "clock_s": clock_s,
        "kernels_s": kernels_s,
        "ratio": clock_s / kernels_s,
        "beyond_s": clock_s - kernels_s,
        "unwatched_s": alone_s,
    }


_CLOCKS: dict[str, Callable[[str], Callable[[], float]]] = {
    "sampler, hot": functools.partial(_sampler, "hot"),
    "sampler, cold": functools.partial(_sampler, "all-cold"),
    "do_bench": _do_bench,
    "do_bench that reads": _do_bench_reading,
    "CuPy": _cupy,
}
ITEMS = {
    f"{name} by {clock_name}": functools.partial(_compare, name, make)
    for clock_name, make in _CLOCKS.items()
    for name in _LAYERS
}

if __name__ == "__main__":
    os.environ["TEARDOWN_CUPTI"] = "0"  # torn down behind one profile, it may lose the next
    raise SystemExit(main(ITEMS))
