"""The card without pydlbench: PyTorch's product and copy between its own events."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.items import main

_SIDE = 8192
_COPIED = 1 << 30  # bytes
_SAMPLES = 20


def _seconds(call: Callable[[], Any]) -> float:
    import torch

    for _ in range(3):
        call()
    times = []
    for _ in range(_SAMPLES):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        times.append(1e-3 * first.elapsed_time(last))
    return statistics.median(times)


def _product() -> dict[str, float]:
    import torch

    left, right = (
        torch.rand(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) - 0.5 for _ in range(2)
    )
    seconds = _seconds(lambda: left @ right)
    return {"seconds": seconds, "flops_per_s": 2 * _SIDE**3 / seconds}


def _copy() -> dict[str, float]:
    import torch

    source = torch.rand(_COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    seconds = _seconds(lambda: target.copy_(source))
    return {"seconds": seconds, "bytes_per_s": 2 * _COPIED / seconds}


ITEMS = {"product": _product, "copy": _copy}

if __name__ == "__main__":
    raise SystemExit(main(ITEMS))
