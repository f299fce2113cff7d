"""Published figures, each with its source, its hardware and what its number includes."""

from __future__ import annotations

from pydlbench.published.beside import Beside, beside
from pydlbench.published.figures import Figure, Source, find_figures, read_figures, read_sources
from pydlbench.published.own import Own, own_figures

__all__ = [
    "Beside",
    "Figure",
    "Own",
    "Source",
    "beside",
    "find_figures",
    "own_figures",
    "read_figures",
    "read_sources",
]
