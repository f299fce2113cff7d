"""Both sides of a comparison measured again, in turn, pass by pass."""

from __future__ import annotations

from pydlbench.remeasure.cases import case_of
from pydlbench.remeasure.passes import Contest, Half, Passes, SidePrepared, take_pass
from pydlbench.remeasure.sides import measured_sides

__all__ = [
    "Contest",
    "Half",
    "Passes",
    "SidePrepared",
    "case_of",
    "measured_sides",
    "take_pass",
]
