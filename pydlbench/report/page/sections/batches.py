"""The section of batch sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.page.figures.batches import NEEDS, batch_sweeps
from pydlbench.report.page.markup import join
from pydlbench.report.page.section import Section, absent, chart, collected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.runs import PageRun

__all__ = ["batches"]


def batches(runs: Sequence[PageRun]) -> Section:
    """Return the section."""
    charts, trouble = collected(lambda: batch_sweeps(runs), "The batch sweep")
    body = join([*map(chart, charts), trouble])
    missing = absent("No batch sweep: nothing here was timed in two batches.", NEEDS)
    return Section("batches", "Batch sweep", body or missing, charts)
