"""PyTorch's rows beside other clocks: Triton's do_bench, CuPy's benchmark, PyTorch's profiler.

Each item has the seconds of one execution by the native sampler and by the other clock, in the same
process and minute. do_bench flushes the L2 cache before each execution, the others do not.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.items import main
from kit.profiler import kernel_seconds
from pydlbench.backends.base import Preparation
from pydlbench.ops.table import build_layer
from pydlbench.records.specs import KernelSpec
from pydlbench.timing.chunk import Request

_SIDE = 4096
_ELEMENTS = {"batch": 64, "channels": 256, "height": 56, "width": 56}
_SHAPE = tuple(_ELEMENTS.values())
_SAMPLES = 100
_LAYERS = {
    "product": build_layer("gemm", m=_SIDE, k=_SIDE, n=_SIDE),
    "relu": build_layer("relu", **_ELEMENTS),
}
_Clock = Callable[[Callable[[], Any]], float]


@functools.cache
def _call(layer: str) -> Callable[[], Any]:
    import torch

    if layer == "relu":
        values = torch.rand(_SHAPE, device="cuda", dtype=torch.bfloat16) - 0.5
        return functools.partial(torch.relu, values)
    left, right = (
        torch.rand(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) - 0.5 for _ in range(2)
    )
    return functools.partial(torch.mm, left, right)


def _ours(layer: str, cache: str) -> float:
    from pydlbench.backends.torch.backend import create

    spec = KernelSpec(
        layer=_LAYERS[layer], backend="torch", device="cuda:0", precision="bf16-tc", cache=cache
    )
    kernel = create("cuda:0").prepare(spec, Preparation())
    return statistics.median(kernel.sample(Request(samples=_SAMPLES)).seconds)


def _do_bench(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(call, return_mode="median")) / 1e3


def _cupy(call: Callable[[], Any]) -> float:
    import torch
    from cupy.cuda import ExternalStream
    from cupyx.profiler import benchmark

    def named() -> None:  # by whose name CuPy calls it
        call()

    with ExternalStream(torch.cuda.current_stream().cuda_stream):
        found = benchmark(named, n_repeat=_SAMPLES, n_warmup=10)
    return float(statistics.median(found.gpu_times[0]))


def _compare(layer: str, cache: str, clock: _Clock) -> dict[str, float]:
    ours, theirs = _ours(layer, cache), clock(_call(layer))
    return {"ours_s": ours, "theirs_s": theirs, "ratio": ours / theirs}


_CLOCKS: dict[str, tuple[str, _Clock]] = {
    "do_bench": ("all-cold", _do_bench),
    "CuPy": ("hot", _cupy),
    "profiler": ("hot", kernel_seconds),
}
ITEMS = {
    f"{layer} by {name}": functools.partial(_compare, layer, cache, clock)
    for name, (cache, clock) in _CLOCKS.items()
    for layer in _LAYERS
}

if __name__ == "__main__":
    raise SystemExit(main(ITEMS))
