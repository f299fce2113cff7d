"""The section of sample distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.page.figures.samples import NEEDS, distributions
from pydlbench.report.page.markup import join
from pydlbench.report.page.section import Section, absent, capped, chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.runs import PageRun

__all__ = ["samples"]


def samples(runs: Sequence[PageRun]) -> Section:
    """Return the section."""
    charts, trouble = capped(lambda: distributions(runs), "The samples")
    body = join([*map(chart, charts), trouble])
    missing = absent("No distributions: no run here holds its samples.", NEEDS)
    return Section("samples", "Sample distributions", body or missing, charts)
