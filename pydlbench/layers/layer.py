"""The one name for all kinds of layers."""

from __future__ import annotations

from typing import TypeAlias

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pool import Pool2d

__all__ = ["Layer"]

Layer: TypeAlias = Conv2d | Gemm | Pool2d
