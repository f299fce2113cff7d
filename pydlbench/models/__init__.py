"""Whole models, each written once as a graph of layers.

``families`` has one file per family; :func:`build_model` imports the file that it needs. Entry
points in the group ``pydlbench.models`` add the models of other packages. Estimates, steps of
PyTorch and TensorFlow, and counts are all derived from the same graph.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from pydlbench import plugins
from pydlbench.errors import UsageError, unknown_word
from pydlbench.models.graph import Model

Build = TypeVar("Build", bound=Callable[..., Model])


_FOLDER: Final = Path(__file__).parent / "families"
# Families at the top of lists; others follow in alphabetical order. AlexNet is the default model.
_FIRST_FAMILIES: Final = (
    *("alexnet", "vgg", "mnist", "cifar10", "overfeat", "googlenet"),
    *("inception", "resnet", "densenet", "nasnet"),
)
_PACKAGE: Final = "pydlbench.models.families."
# Build functions by module and model.
_REGISTERED: Final[dict[str, dict[str, Callable[..., Model]]]] = {}


def family(*models: str) -> Callable[[Build], Build]:
    """Register the decorated ``build(name, batch, ...)`` for models.

    Its keyword arguments are the options of these models, with the defaults of the publication.

    Args:
        models: Names as typed on the command line: ``resnet50``.

    Raises:
        UsageError: Another module has a model of that name.
    """

    def register(build: Build) -> Build:
        for module, known in _REGISTERED.items():
            for name in models:
                if module != build.__module__ and name in known:
                    raise UsageError(f"{name}: there is a model of that name already")
        _REGISTERED.setdefault(build.__module__, {}).update(dict.fromkeys(models, build))
        return build

    return register


def model_names() -> tuple[str, ...]:
    """Return the names of all models; AlexNet, the default, comes first."""
    names = [name for module in _families() for name in _models(module)]
    return (*names, *_plugin_models())


def is_model(name: str) -> bool:
    """Whether there is a model of that name; imports as few families as possible."""
    return _builder(name) is not None


def build_model(name: str, /, batch: int | None = None, **options: Any) -> Model:
    """Build a model's graph.

    Args:
        name: One of :func:`model_names`.
        batch: Images per step; None for the publication's batch.
        options: Options of this model (``classes``, ``lrn``..., see the family's file), and of any
            model: ``loss`` (cross-entropy, l2, sum), ``optimizer`` (sgd, momentum, none), ``decay``
            (the factor of an L2 term for each weight and bias; 0 for no terms) and
            ``input_gradient``. Values may be text: ``lrn="off"``.

    Raises:
        UsageError: There is no such model or option (names the nearest), or a value is invalid.
    """
    build = _builder(name)
    if build is None:
        raise unknown_word(f"{name}: no such model", name, model_names())
    from pydlbench.models.options import build_with

    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: too small; at least 1")
    return build_with(build, name, batch, options)


def _families() -> list[str]:
    """Return the names of all families' modules."""
    modules = {path.stem for path in _FOLDER.glob("*.py")} - {"__init__"}
    return [
        *(module for module in _FIRST_FAMILIES if module in modules),
        *sorted(modules.difference(_FIRST_FAMILIES)),
    ]


def _models(module: str) -> dict[str, Callable[..., Model]]:
    """Return the build functions of a family's module by model."""
    importlib.import_module(f"{_PACKAGE}{module}")
    return _REGISTERED.get(f"{_PACKAGE}{module}", {})


def _plugin_models() -> dict[str, Callable[..., Model]]:
    """Return the build functions of other packages by model; all families are imported before."""
    plugins.modules(plugins.MODELS)
    others = (models for module, models in _REGISTERED.items() if not module.startswith(_PACKAGE))
    return {name: build for models in others for name, build in models.items()}


def _builder(name: str) -> Callable[..., Model] | None:
    """Return the build function of a model; None if there is no such model.

    The family whose name is a part of the model's name (``resnet.py`` for ``resnet50``) is imported
    first, and others only if it does not have the model.
    """
    for module in sorted(_families(), key=lambda module: module not in name):
        if name in _models(module):
            return _models(module)[name]
    return _plugin_models().get(name)
