"""The GPU's probes by name: instruction peaks, the best matrix product, bandwidth, launch costs."""

from __future__ import annotations

import math
from typing import Any

import pydlbench._cuda as _cuda
from pydlbench.backends.native.cuda_plans import plans
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.errors import DeviceLostError, PydlbenchError, UnsupportedError
from pydlbench.layers.gemm import Gemm
from pydlbench.records.specs import KernelSpec
from pydlbench.timing.statistics import median

__all__ = ["run"]

# Large enough for every tile shape to fill the card, small enough to be made in half a second.
GEMM_SIZE = 8192
# The library's first candidates; the best of so many is found by one execution each.
_CANDIDATES = 16
_SAMPLES = 15
_WORKSPACE = 1 << 28


def run(device: _cuda.Device, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a probe and return its readings: rates in FLOP/s or B/s, clocks in Hz.

    Args:
        device: the GPU.
        name: ``fma_peak``, ``gemm_peak``, ``bandwidth`` or ``launch``.
        arguments: of the probe.

    Raises:
        UnsupportedError: no such probe, or the GPU lacks what it probes.
    """
    if name == "fma_peak":
        return dict(_cuda.fma_peak(device, **arguments))
    if name == "bandwidth":
        arguments = {"bytes" if key == "size" else key: value for key, value in arguments.items()}
        return dict(_cuda.bandwidth(device, **arguments))
    if name == "launch":
        return dict(_cuda.launch_seconds(device))
    if name == "gemm_peak":
        return _gemm_peak(device, **arguments)
    raise UnsupportedError(
        f"no such probe: {name}; there is: fma_peak, gemm_peak, bandwidth, launch"
    )


def _gemm_peak(device: _cuda.Device, precision: str, size: int = GEMM_SIZE) -> dict[str, Any]:
    """Time the fastest of the library's products of two square matrices with random entries."""
    case = KernelSpec(layer=Gemm(m=size, k=size, n=size), precision=precision, device="cuda:0")
    found = plans(device, case, _WORKSPACE)[:_CANDIDATES]
    arena = _cuda.Arena(device, make_inputs(case.layer, case.pass_, precision, seed=0))
    best, kernel, reasons = math.inf, None, []
    for plan in found:
        try:
            tried = _cuda.Kernel(plan, arena, "hot", "events")
            seconds = float(tried.sample(2, 1, 1)["seconds"].min())
        except DeviceLostError:
            raise
        except PydlbenchError as error:
            reasons.append(str(error))
            continue
        if seconds < best:
            best, kernel = seconds, tried
    if kernel is None:
        device.synchronize()  # says so where the device is lost: no fault of the plans
        raise UnsupportedError("; ".join(dict.fromkeys(reasons)) or f"no {precision} product")
    raw = kernel.sample(_SAMPLES, 1, 1)
    seconds_all = raw["seconds"].tolist()
    clocks = raw["clock_hz"].tolist()
    if not clocks:
        raise UnsupportedError(f"no SM clock was read beside the {precision} product")
    # The clock moves with the power that a product draws: the best rate belongs to its own.
    paired = len(clocks) == len(seconds_all)
    fastest = clocks[seconds_all.index(min(seconds_all))] if paired else median(clocks)
    flops = case.layer.flops("forward")
    return {
        "per_second": flops / min(seconds_all),
        "median_per_second": flops / median(seconds_all),
        "clock_hz": fastest,
        "median_clock_hz": median(clocks),
        "seconds": sum(seconds_all),
        "rounds": len(seconds_all),
        "kernel": f"{size}x{size}x{size} {kernel.plan.library} {kernel.plan.algorithm}",
    }
