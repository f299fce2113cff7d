"""Two runs held against each other: which rows belong together, and what can be said of them.

Pure functions of rows and dictionaries; nothing here measures, reads a file or prints.
"""

from __future__ import annotations

from pydlbench.compare.comparison import ComparedRow, Comparison, Settings
from pydlbench.compare.environment import Difference, differences
from pydlbench.compare.history import Scatter, from_history, prior
from pydlbench.compare.match import Matching, Pair, match
from pydlbench.compare.repeats import compare
from pydlbench.compare.rows import Row, Side, side_of_run
from pydlbench.compare.turns import Turns, compare_turns

__all__ = [
    "ComparedRow",
    "Comparison",
    "Difference",
    "Matching",
    "Pair",
    "Row",
    "Scatter",
    "Settings",
    "Side",
    "Turns",
    "compare",
    "compare_turns",
    "differences",
    "from_history",
    "match",
    "prior",
    "side_of_run",
]
