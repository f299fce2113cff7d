"""The HTML page of runs: one self-contained file, its figures, tables and conclusions."""

from __future__ import annotations

from pydlbench.report.page.page import Page, build_page
from pydlbench.report.page.runs import PageRun, read_run

__all__ = ["Page", "PageRun", "build_page", "read_run"]
