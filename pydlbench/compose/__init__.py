"""From the layers of a model to an estimate of its step."""

from __future__ import annotations

from pydlbench.compose.estimate import Estimate, estimate
from pydlbench.compose.plan import Plan, Term, plan
from pydlbench.compose.shares import LayerShare, Range

__all__ = ["Estimate", "LayerShare", "Plan", "Range", "Term", "estimate", "plan"]
