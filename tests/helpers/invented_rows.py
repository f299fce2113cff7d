"""Invented rows of measurements, and times, which the tests of all folders share."""

from typing import Any

from pydlbench.records.measurement import Correctness, Measurement, Peaks, Roofline, TimeSummary


def time_of(median: float, n: int = 24) -> TimeSummary:
    """A time with a spread of 1 %."""
    return TimeSummary(
        median=median,
        ci_low=0.99 * median,
        ci_high=1.01 * median,
        q1=0.98 * median,
        q3=1.02 * median,
        min=0.97 * median,
        n=n,
    )


def measurement(*, median: float = 0.05, roof: float | None = 0.045, **changes: Any) -> Measurement:
    """An ``ok`` row of AlexNet's conv3: 28.7 GFLOP, a spread of 1 %, 90 % of its roof."""
    values: dict[str, Any] = {
        "layer": "alexnet/conv3",
        "kind": "conv2d",
        "problem": "mb128ic192ih13oc384oh13kh3ph1",
        "batch": 128,
        "pass_": "forward",
        "precision": "fp32",
        "accumulate": "float32",
        "library": "oneDNN 3.2.0",
        "algorithm": "brgconv:avx512_core",
        "layout": "nhwc",
        "status": "ok",
        "time": time_of(median),
        "flops": 28_708_700_160,
        "flops_executed": 25_760_956_416,
        "bytes": 52_600_000,
        "tflops": 28_708_700_160 / median / 1e12,
        "gbps": 52_600_000 / median / 1e9,
        "arithmetic_intensity": 489.8,
        "clock_hz": 4.31e9,
        "peak": Peaks(theoretical=0.59, measured=0.58),
        "roofline": None
        if roof is None
        else Roofline(bound="compute", time_s=roof, efficiency=roof / median),
        "correct": Correctness(status="ok", rel_error=2.1e-7, tolerance=1e-5),
        "stop_reason": "median known to 0.5 %",
        "threads": 2,
    }
    return Measurement(**{**values, **changes})


def row_of(case: Any, **changes: Any) -> Measurement:
    """The row of a case; its numbers are those of :func:`measurement`."""
    own = {
        "layer": case.layer.name or case.layer.problem,
        "kind": case.layer.kind,
        "problem": case.layer.problem,
        "batch": case.layer.batch,
        "pass_": case.pass_,
        "precision": case.precision,
        "backend": case.backend,
        "mode": case.mode,
        "cache": case.cache,
        "layout_request": case.layout,
        "propagation": case.propagation,
    }
    return measurement(**{**own, **changes})
