"""Three checks of PyTorch's clock against its profiler.

Whether launches cost more once somebody has profiled; whether kernels of a graph overlap, so that
another one there costs less than it takes; whether graphs, and a second profile, survive the first,
after which CUPTI is torn down. That may end the process, which costs what comes after it only.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.items import main

_TIMES = 20
_COUNTS = (100, 200)


@functools.cache
def _setup() -> Any:
    import torch

    large = torch.rand(2048, 2048, device="cuda", dtype=torch.float16)
    graphs = {count: _graph(large, count) for count in _COUNTS}
    return torch.rand(1024, device="cuda"), large, graphs


def _graph(large: Any, count: int) -> Any:
    import torch

    large @ large  # what is loaded at the first call is not captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            large @ large
    return graph


def _median(call: Callable[[], float]) -> float:
    return statistics.median(call() for _ in range(_TIMES))


def _launch() -> float:
    import torch

    small, *_ = _setup()

    def once() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            torch.relu(small)
        seconds = time.perf_counter() - begin
        torch.cuda.synchronize()
        return seconds / 500

    once()
    return _median(once)


def _in_graph() -> float:
    import torch

    _, _, graphs = _setup()

    def replaying(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graphs[count].replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    fewer, more = (_median(functools.partial(replaying, count)) for count in _COUNTS)
    return (more - fewer) / (_COUNTS[1] - _COUNTS[0])


def kernel_seconds(call: Callable[[], Any]) -> float:
    """Return the total time of a call's kernels, by the profiler.

    Raises:
        RuntimeError: an earlier step has shown that it does not work.
    """
    import torch

    if os.environ.get("PYDLBENCH_PROFILER") == "0":
        raise RuntimeError("done without: PYDLBENCH_PROFILER=0")

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_TIMES):
            call()
        torch.cuda.synchronize()
    events = [one for one in profile.events() or () if "CUDA" in str(one.device_type)]
    return float(sum(one.device_time_total for one in events)) * 1e-6 / _TIMES


def _profiled(place: int) -> float:
    import torch

    small, large, _ = _setup()
    return kernel_seconds((lambda: torch.relu(small), lambda: large @ large)[place])


ITEMS = {
    "launch before a profile": _launch,
    "another product in a graph": _in_graph,
    "a profile": functools.partial(_profiled, 0),
    "launch after it": _launch,
    "another product in a graph after it": _in_graph,
    "a product by a second profile": functools.partial(_profiled, 1),
    "another product in a graph after that": _in_graph,
}

if __name__ == "__main__":
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    raise SystemExit(main(ITEMS))
