"""Whole models, each written once as a graph of layers.

One file per family; :func:`build_model` imports the one it needs. What composition sums, what
PyTorch and TensorFlow run and what is counted are all read from the same graph.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from pydlbench.models.graph import Model

__all__ = ["build_model", "model_names"]

# By family: which file has which models.
_FAMILIES: Final = {
    "alexnet": ("alexnet", "alexnet-owt", "alexnet-tfcnn", "alexnet-tfcnn-cifar10"),
    "vgg": ("vgg11", "vgg13", "vgg16", "vgg19"),
    "googlenet": ("googlenet",),
    "overfeat": ("overfeat-fast",),
    "resnet": (
        *("resnet18", "resnet50", "resnet101", "resnet152"),
        *("resnet18-v1", "resnet50-v1", "resnet101-v1", "resnet152-v1"),
    ),
    "densenet": ("densenet121", "densenet161", "densenet169", "densenet201"),
    "inception": ("inception-v3",),
    "nasnet": ("nasnet-mobile", "nasnet-large"),
    "mnist": ("mnist",),
    "cifar10": ("cifar10",),
}
_HOMES: Final = {name: family for family, names in _FAMILIES.items() for name in names}


def model_names() -> tuple[str, ...]:
    """Return the names of all models; AlexNet, the default, comes first."""
    return tuple(_HOMES)


def build_model(name: str, batch: int | None = None, **options: Any) -> Model:
    """Build a model's graph.

    Args:
        name: One of :func:`model_names`.
        batch: Images per step; those of the publication if None.
        options: Variations of this model: ``classes``, ``lrn`` and so on, see the family's file;
            and of any model: ``loss`` (cross-entropy, l2, sum), ``optimizer`` (sgd, momentum,
            none), ``decay`` (the factor of an L2 term for each weight and bias; 0 for none) and
            ``input_gradient``. Values may be text, as typed: ``lrn="off"``.

    Raises:
        UsageError: No such model or option, with the nearest; a value that cannot be.
    """
    if name not in _HOMES:
        choices = nearest(name, _HOMES) or list(_HOMES)
        raise UsageError(f"{name}: no such model; nearest: {', '.join(choices)}")
    from pydlbench.models.options import build_with

    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: too small; at least 1")
    family = importlib.import_module(f"pydlbench.models.{_HOMES[name]}")
    return build_with(family.build, name, batch, options)
