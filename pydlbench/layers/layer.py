"""The one name for all kinds of layers, and what they all have in common."""

from __future__ import annotations

from typing import Final, TypeAlias

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d

__all__ = ["Layer", "result_role"]

Layer: TypeAlias = Conv2d | Gemm | Pool2d | Pointwise

_RESULTS: Final = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}


def result_role(layer: Layer, pass_: str) -> str:
    """Return the role of the main tensor that a pass writes; a gradient has its tensor's name."""
    return layer.writes(pass_)[0] if isinstance(layer, Pointwise) else _RESULTS[pass_]
