"""Records of a run, frozen and versioned, and their export to JSON, CSV and Markdown."""

from __future__ import annotations

from pydlbench.results.parts import Correctness, Peaks, Roofline, TimeSummary
from pydlbench.results.records import SCHEMA_VERSION, Measurement, RunRecord

__all__ = [
    "SCHEMA_VERSION",
    "Correctness",
    "Measurement",
    "Peaks",
    "Roofline",
    "RunRecord",
    "TimeSummary",
]
