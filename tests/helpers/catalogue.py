"""Models of the catalogue that stand for the others: of each family, what has code of its own.

Sizes of a family differ in numbers, which the published totals hold for every name.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pydlbench.models import build_model
from pydlbench.models.passes import StepPass, step_passes

if TYPE_CHECKING:
    from pydlbench.models.graph import Model

__all__ = ["REPRESENTATIVES", "built", "listed"]

REPRESENTATIVES = (
    *("alexnet", "alexnet-owt", "alexnet-tfcnn", "vgg11", "mnist", "cifar10"),
    *("alexnet-tfcnn-cifar10", "overfeat-fast", "googlenet", "inception-v3", "resnet18"),
    *("resnet50", "resnet50-v1", "densenet121", "nasnet-mobile", "mobilenet-v2"),
    *("mobilenet-v3-large", "unet"),
)


@functools.cache
def built(name: str, batch: int = 2) -> Model:
    """Build a model once: it cannot be changed."""
    return build_model(name, batch)


@functools.cache
def listed(name: str, phase: str) -> tuple[StepPass, ...]:
    """List the passes of a model's step once."""
    return step_passes(built(name), phase)
