"""The section of roofline plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.page.figures.roofline import NEEDS, rooflines
from pydlbench.report.page.markup import join
from pydlbench.report.page.section import Section, absent, capped, chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.runs import PageRun

__all__ = ["roofline"]


def roofline(runs: Sequence[PageRun]) -> Section:
    """Return the section: one plot for each run and device."""
    charts, trouble = capped(lambda: rooflines(runs), "The roofline")
    body = join([*map(chart, charts), trouble])
    return Section(
        "roofline",
        "Roofline",
        body or absent("No roofline: no run here has a layer with a time and FLOPs.", NEEDS),
        charts,
    )
