"""Whole models, each written once as a graph of layers.

One file per family, in ``families``; :func:`build_model` imports the one it needs. Those of other
packages are named by entry points in the group ``pydlbench.models``. Estimates,
steps of PyTorch and TensorFlow, and counts are all derived from the same graph.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydlbench import plugins
from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.models.graph import Model

    Build = TypeVar("Build", bound=Callable[..., Model])

__all__ = ["build_model", "family", "is_model", "model_names"]

_FOLDER: Final = Path(__file__).parent / "families"
# Where a list of all models starts: with AlexNet, the default. Families that are not named here
# follow, sorted by name.
_FIRST: Final = (
    *("alexnet", "vgg", "mnist", "cifar10", "overfeat", "googlenet"),
    *("inception", "resnet", "densenet", "nasnet"),
)
_OWN: Final = "pydlbench.models.families."
# Registered functions by module and model.
_REGISTERED: Final[dict[str, dict[str, Callable[..., Model]]]] = {}


def family(*models: str) -> Callable[[Build], Build]:
    """Register the models that the decorated ``build(name, batch, ...)`` builds.

    Its keywords are the options of these models, with the defaults of the publication.

    Args:
        models: Names as typed on the command line: ``resnet50``.

    Raises:
        UsageError: Another module has a model of that name.
    """

    def register(build: Build) -> Build:
        own = _REGISTERED.setdefault(build.__module__, {})
        for name in models:
            others = (known for known in _REGISTERED.values() if known is not own)
            if any(name in known for known in others):
                raise UsageError(f"{name}: there is a model of that name already")
        own.update(dict.fromkeys(models, build))
        return build

    return register


def model_names() -> tuple[str, ...]:
    """Return the names of all models; AlexNet, the default, comes first."""
    own = [name for family in _families() for name in _models(family)]
    return (*own, *_of_others())


def is_model(name: str) -> bool:
    """Whether there is such a model; no family is imported whose models are called otherwise."""
    return _builder(name) is not None


def build_model(name: str, batch: int | None = None, **options: Any) -> Model:
    """Build a model's graph.

    Args:
        name: One of :func:`model_names`.
        batch: Images per step; None is that of the publication.
        options: Variations of this model: ``classes``, ``lrn`` and so on, see the family's file;
            and of any model: ``loss`` (cross-entropy, l2, sum), ``optimizer`` (sgd, momentum,
            none), ``decay`` (the factor of an L2 term for each weight and bias; 0 for none) and
            ``input_gradient``. Values may be text, as typed: ``lrn="off"``.

    Raises:
        UsageError: There is no such model or option (names the nearest), or a value is invalid.
    """
    build = _builder(name)
    if build is None:
        choices = nearest(name, model_names()) or list(model_names())
        raise UsageError(f"{name}: no such model; nearest: {', '.join(choices)}")
    from pydlbench.models.options import build_with

    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: too small; at least 1")
    return build_with(build, name, batch, options)


def _families() -> list[str]:
    """Return the names of all families' files."""
    families = {path.stem for path in _FOLDER.glob("*.py")} - {"__init__"}
    return [
        *(family for family in _FIRST if family in families),
        *sorted(families.difference(_FIRST)),
    ]


def _models(family: str) -> dict[str, Callable[..., Model]]:
    """Return the registered functions of a family's file by model."""
    importlib.import_module(f"{_OWN}{family}")
    return _REGISTERED.get(f"{_OWN}{family}", {})


def _of_others() -> dict[str, Callable[..., Model]]:
    """Return what other packages register, by model; all families are imported before."""
    plugins.modules(plugins.MODELS)
    others = (models for module, models in _REGISTERED.items() if not module.startswith(_OWN))
    return {name: build for models in others for name, build in models.items()}


def _builder(name: str) -> Callable[..., Model] | None:
    """Return the function that builds a model; None if there is no such model.

    A family whose name is in the model's (``resnet.py`` has ``resnet50``) most likely has it: that
    one is asked first, and the others are imported only where it does not.
    """
    for family in sorted(_families(), key=lambda family: family not in name):
        if name in _models(family):
            return _models(family)[name]
    return _of_others().get(name)
