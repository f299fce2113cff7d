"""What is timed: convolutions, products, poolings and memory-bound layers, by shape alone.

A layer knows its FLOPs and the least bytes it must move, per pass; nothing here knows a device or
a library.
"""

from __future__ import annotations

from pydlbench.layers.catalog import CatalogModel, load_model, model_names
from pydlbench.layers.checks import PASSES
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.descriptor import POOL_MODES, parse_problem
from pydlbench.layers.find import find_layers
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.layer import Layer, result_role
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d

__all__ = [
    "PASSES",
    "POOL_MODES",
    "CatalogModel",
    "Conv2d",
    "Gemm",
    "Layer",
    "Pointwise",
    "Pool2d",
    "find_layers",
    "load_model",
    "model_names",
    "parse_problem",
    "result_role",
]
