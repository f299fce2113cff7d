"""The named layers of published networks, as data: one TOML file per model beside this module.

A file has a ``title``, the ``batch`` that the publication used, its ``source``, and ``layers`` in
order. A layer has a ``name`` and one of ``conv``, ``max_pool``, ``avg_pool`` (a descriptor without
``mb``) or ``inner_product`` (inputs x outputs). Those of whole models are written from the models'
graphs, in which layers that are computed on each element are found too.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.descriptor import parse_problem
from pydlbench.layers.gemm import Gemm

if TYPE_CHECKING:
    from pydlbench.layers.layer import Layer

__all__ = ["CatalogModel", "load_model", "model_names"]

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One model of the catalog.

    Attributes:
        name: As typed on the command line: ``alexnet-owt``.
        title: In words.
        batch: Images per step in the publication; the layers have it.
        source: Where the shapes were read.
        layers: In execution order, named ``alexnet-owt/conv1``.
    """

    name: str
    title: str
    batch: int
    source: str
    layers: tuple[Layer, ...]


# AlexNet's forms first: a bare layer name means the first model that has it, unless they differ.
_ORDER: Final = (
    *("alexnet", "alexnet-owt", "alexnet-tfcnn"),
    *("vgg11", "vgg13", "vgg16", "vgg19"),
    *("convnet", "mnist", "cifar10", "alexnet-tfcnn-cifar10"),
    *("overfeat-fast", "googlenet", "inception-v3"),
    *("resnet18", "resnet50", "resnet101", "resnet152"),
    *("resnet18-v1", "resnet50-v1", "resnet101-v1", "resnet152-v1"),
    *("densenet121", "densenet161", "densenet169", "densenet201"),
    *("nasnet-mobile", "nasnet-large"),
)


def model_names() -> tuple[str, ...]:
    """Return the names of the catalog's models; AlexNet, the default, comes first."""
    return _ORDER


@functools.cache
def load_model(name: str) -> CatalogModel:
    """Read one model's file.

    Raises:
        UsageError: No such model.
    """
    if name not in _ORDER:
        choices = nearest(name, _ORDER) or list(_ORDER)
        raise UsageError(f"{name}: no such model; nearest: {', '.join(choices)}")
    import tomllib

    with (_FOLDER / f"{name}.toml").open("rb") as file:
        data = tomllib.load(file)
    return CatalogModel(
        name=name,
        title=data["title"],
        batch=data["batch"],
        source=data["source"],
        layers=tuple(_read_layer(name, entry, data["batch"]) for entry in data["layers"]),
    )


def _read_layer(model: str, entry: dict[str, str], batch: int) -> Layer:
    """Turn one entry of a file into a layer. A mistake in a file is a ValueError or KeyError."""
    name = f"{model}/{entry['name']}"
    (kind,) = entry.keys() - {"name"}
    if kind == "inner_product":
        inputs, outputs = entry[kind].split("x")
        return Gemm(m=batch, k=int(inputs), n=int(outputs), name=name)
    pool = {"conv": None, "max_pool": "max", "avg_pool": "avg"}[kind]
    return replace(parse_problem(entry[kind], batch=batch, pool=pool), name=name)
