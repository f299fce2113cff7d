"""Everything once, tiny: its failures on this card decide how the rest is measured.

What the libraries or we have no kernel for is found, not failed. PyTorch is asked last, and its
profiler behind all else: it may end the process.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.items import main
from kit.profiler import kernel_seconds
from pydlbench.backends.base import Preparation
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer, ops_of_kind
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.words import GPU_PRECISIONS, PASSES

GATE, PROFILER = "gate", "profiler"
GRAPHS = tuple(f"graph of {count}" for count in (64, 256, 1024))
# PyTorch's functions of a row, by name.
_ATTENTION = build_layer("attention", batch=2, heads=4, queries=64, size=64, causal=True)
_DECODING = build_layer("attention", batch=2, heads=8, kv_heads=2, queries=1, keys=64, size=64)
_NORM = build_layer("rmsnorm", batch=2, channels=64, height=4, width=4)
_HALF: dict[str, Any] = {"precision": "bf16-tc"}
_TORCH: dict[str, dict[str, Any]] = {
    "torch row": {},
    "torch cold": {"cache": "all-cold"},
    "torch energy": {"energy": True},
    "torch fp8-tc-fast": {"precision": "fp8-tc-fast"},
    "attention": {"layer": _ATTENTION, **_HALF},
    "attention backward": {"layer": _ATTENTION, "pass_": "backward-data", **_HALF},
    "attention decode": {"layer": _DECODING, **_HALF},
    "rmsnorm": {"layer": _NORM, **_HALF},
    "grouped": {"layer": build_layer("gemm", m=64, k=64, n=64, batch_count=4), **_HALF},
}
_CONVOLVED = ("fp32", "tf32", "fp16-tc", "bf16-tc")
_DEVICE = "cuda:0"
_GEMM = build_layer("gemm", m=256, k=256, n=256)
_CONV = build_layer(
    "conv", batch=8, in_channels=16, in_size=14, out_channels=32, kernel=3, padding=1
)
_SIZES: dict[str, dict[str, int]] = {
    "images": {"batch": 2, "channels": 8, "height": 6, "width": 6},
    "rows": {"batch": 2, "channels": 8, "height": 6, "width": 6},
    "flat": {"batch": 3, "channels": 5},
    "weights": {"channels": 37},
}


@functools.cache
def _native() -> Any:
    from pydlbench.backends.native import cuda

    return cuda.create(_DEVICE)


def _gate() -> Any:
    import pydlbench._cuda as cuda

    return cuda.launch_seconds(cuda.Device(0))


def _graph(count: int) -> dict[str, Any]:
    """Time executions in a graph; a gated graph has fewer of them, if there are many."""
    kernel = _native().prepare(
        KernelSpec(layer=_GEMM, device=_DEVICE, timing="cuda-graph"), Preparation()
    )
    chunk = kernel.sample(ChunkRequest(samples=3, inner=count))
    if chunk.gate_timeouts:
        raise RuntimeError(f"{chunk.gate_timeouts} samples timed out behind the gate")
    return {"seconds": min(chunk.seconds)}


def _checked(**words: Any) -> dict[str, Any]:
    case = KernelSpec(device=_DEVICE, **words)
    try:
        kernel = _native().prepare(case, Preparation())
    except UnsupportedError as error:
        return {"unsupported": " ".join(str(error).split())[:160]}
    if kernel.facts.correct.status != "ok":
        raise RuntimeError(f"{kernel.facts.algorithm}: {kernel.facts.correct.status}")
    seconds = min(kernel.sample(ChunkRequest(samples=3)).seconds)
    return {"algorithm": kernel.facts.algorithm, "seconds": seconds}


@functools.cache
def _torch() -> Any:
    from pydlbench.backends.torch.backend import create

    return create(_DEVICE)


def _torch_row(energy: bool = False, **words: Any) -> dict[str, Any]:
    spec = KernelSpec(device=_DEVICE, backend="torch", **{"layer": _GEMM, **words})
    kernel = _torch().prepare(spec, Preparation(energy=energy))
    return {
        "algorithm": kernel.facts.algorithm,
        "seconds": min(kernel.sample(ChunkRequest(samples=3)).seconds),
    }


def _profiler() -> float:
    import torch

    matrix = torch.rand(256, 256, device="cuda")
    seconds = kernel_seconds(lambda: matrix @ matrix)
    if not seconds:
        raise RuntimeError("no kernel was seen: CUPTI is refused")
    return seconds


def _items() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {GATE: _gate}
    for name in GRAPHS:
        found[name] = functools.partial(_graph, int(name.split()[-1]))
    for mode in GPU_PRECISIONS:
        found[f"gemm {mode}"] = functools.partial(_checked, layer=_GEMM, precision=mode)
    for mode in _CONVOLVED:
        for pass_ in PASSES:
            words = {"layer": _CONV, "precision": mode, "pass_": pass_}
            found[f"conv {mode} {pass_}"] = functools.partial(_checked, **words)
    for mode in ("max", "avg"):
        layer = build_layer("pool", batch=2, channels=8, in_size=8, kernel=2, stride=2, mode=mode)
        for pass_ in layer.passes:
            found[f"pool {mode} {pass_}"] = functools.partial(_checked, layer=layer, pass_=pass_)
    for op, entry in ops_of_kind("pointwise").items():
        sources: dict[str, Any] = {"sources": (4, 1, 3)} if op == "concat" else {}
        layer = build_layer(op, **sources, **_SIZES[entry.form])
        for pass_ in layer.passes:
            found[f"{op} {pass_}"] = functools.partial(_checked, layer=layer, pass_=pass_)
    for name, words in _TORCH.items():
        found[name] = functools.partial(_torch_row, **words)
    return {**found, PROFILER: _profiler}


if __name__ == "__main__":
    raise SystemExit(main(_items(), {GATE: {"PYDLBENCH_GATE": "0"}}))
