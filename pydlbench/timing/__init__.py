"""How kernels are timed: requests, chunks, warm-up, stopping, contention, statistics.

Pure: everything here is fed with numbers; nothing reads a clock or a counter.
"""

from __future__ import annotations

from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.guards import ChunkVerdict, Verdict, judge, judge_chunk
from pydlbench.timing.interleave import interleave
from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Round, Samples, Sampling
from pydlbench.timing.statistics import (
    Interval,
    Ratio,
    Summary,
    median,
    median_interval,
    paired_ratio,
    paired_ratios,
    quantile,
    summarize,
    widest_interval,
)
from pydlbench.timing.warmup import Warmup, WarmupOutcome

__all__ = [
    "Chunk",
    "ChunkVerdict",
    "Interval",
    "Policy",
    "Ratio",
    "Request",
    "Round",
    "Samples",
    "Sampling",
    "Summary",
    "Verdict",
    "Warmup",
    "WarmupOutcome",
    "interleave",
    "judge",
    "judge_chunk",
    "median",
    "median_interval",
    "paired_ratio",
    "paired_ratios",
    "quantile",
    "summarize",
    "widest_interval",
]
