"""PyTorch's rows beside other clocks: Triton's do_bench, CuPy's benchmark, PyTorch's profiler.

Each item has the seconds of one execution by the other clock, and by the native sampler before and
after it, in the same process; and the SM clock beside each, by which seconds become cycles.

do_bench empties the L2 cache before each execution by writing zeros, which leaves lines that the
timed call has to write back first; the native sampler empties it by reading. So do_bench is asked
twice: as it is, and with a cache that is emptied by reading.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.items import main
from kit.profiler import kernel_seconds
from pydlbench.backends.base import Preparation
from pydlbench.ops.table import build_layer
from pydlbench.records.specs import KernelSpec
from pydlbench.timing.chunk import Request

_SAMPLES = 100
# Of do_bench, in milliseconds: NVML reads a clock every 20 to 100 ms.
_REPEATED_MS = 400
_LAYERS = {
    "product of 1024": build_layer("gemm", m=1024, k=1024, n=1024),
    "product of 4096": build_layer("gemm", m=4096, k=4096, n=4096),
    "product of 8192": build_layer("gemm", m=8192, k=8192, n=8192),
    "relu of 13 MB": build_layer("relu", batch=8, channels=256, height=56, width=56),
    "relu of 103 MB": build_layer("relu", batch=64, channels=256, height=56, width=56),
    "relu of 822 MB": build_layer("relu", batch=512, channels=256, height=56, width=56),
}
_Clock = Callable[[Callable[[], Any]], float]


@functools.cache
def _call(name: str) -> Callable[[], Any]:
    import torch

    def values(*shape: int) -> Any:
        return torch.rand(shape, device="cuda", dtype=torch.bfloat16) - 0.5

    fields = _LAYERS[name].fields
    if name.startswith("relu"):
        shape = (fields[field] for field in ("batch", "channels", "height", "width"))
        return functools.partial(torch.relu, values(*shape))
    side = fields["m"]
    return functools.partial(torch.mm, values(side, side), values(side, side))


@functools.cache
def _kernel(name: str, cache: str) -> Any:
    from pydlbench.backends.torch.backend import create

    spec = KernelSpec(
        layer=_LAYERS[name], backend="torch", device="cuda:0", precision="bf16-tc", cache=cache
    )
    return create("cuda:0").prepare(spec, Preparation())


def _ours(name: str, cache: str) -> tuple[float, float]:
    """Return seconds and SM clock by the native sampler."""
    chunk = _kernel(name, cache).sample(Request(samples=_SAMPLES))
    return statistics.median(chunk.seconds), statistics.median(chunk.clock_hz)


@functools.cache
def _monitor() -> Any:
    import torch

    from pydlbench.backends.native.nvml import Monitor

    return Monitor(f"GPU-{torch.cuda.get_device_properties(0).uuid}")


def _do_bench(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(call, rep=_REPEATED_MS, return_mode="median")) / 1e3


def _do_bench_reading(call: Callable[[], Any]) -> float:
    from triton import runtime

    # A sum reads all of it, and writes next to nothing.
    with mock.patch.object(
        type(runtime.driver.active), "clear_cache", lambda _, cache: cache.sum()
    ):
        return _do_bench(call)


def _cupy(call: Callable[[], Any]) -> float:
    import torch
    from cupy.cuda import Stream
    from cupyx.profiler import benchmark

    def named() -> None:  # by whose name CuPy calls it
        call()

    with Stream.from_external(torch.cuda.current_stream()):
        result = benchmark(named, n_repeat=_SAMPLES, n_warmup=10)
    return float(statistics.median(result.gpu_times[0]))


def _compare(name: str, cache: str, clock: _Clock) -> dict[str, float | None]:
    call = _call(name)
    call()
    before = _ours(name, cache)
    mark = _monitor().mark()
    theirs_s = clock(call)
    readings = _monitor().since(mark)
    after = _ours(name, cache)
    ours_s, ours_hz = (statistics.mean(pair) for pair in zip(before, after, strict=True))
    theirs_hz = readings and readings.sm_clock_hz
    return {
        "ours_s": ours_s,
        "theirs_s": theirs_s,
        "ratio": ours_s / theirs_s,
        "ours_hz": ours_hz,
        "theirs_hz": theirs_hz,
        "ratio_in_cycles": ours_s * ours_hz / (theirs_s * theirs_hz) if theirs_hz else None,
    }


_CLOCKS: dict[str, tuple[str, _Clock]] = {
    "do_bench": ("all-cold", _do_bench),
    "do_bench that reads": ("all-cold", _do_bench_reading),
    "CuPy": ("hot", _cupy),
    "profiler": ("hot", kernel_seconds),
}
ITEMS = {
    f"{name} by {clock_name}": functools.partial(_compare, name, cache, clock)
    for clock_name, (cache, clock) in _CLOCKS.items()
    for name in _LAYERS
}

if __name__ == "__main__":
    raise SystemExit(main(ITEMS))
