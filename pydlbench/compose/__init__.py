"""From the layers of a model to an estimate of its step."""

from __future__ import annotations

from pydlbench.compose.estimate import Estimate, LayerShare, Range, estimate
from pydlbench.compose.plan import Plan, Term, plan

__all__ = ["Estimate", "LayerShare", "Plan", "Range", "Term", "estimate", "plan"]
