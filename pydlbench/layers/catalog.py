"""The named layers of published networks, and finding the layers that a user means."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.descriptor import check_pool, looks_like_problem, parse_problem
from pydlbench.layers.gemm import Gemm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.layers.layer import Layer

__all__ = ["CatalogModel", "find_layers", "load_model", "model_names"]


# -----------------------------------------------------------------------------
# The named layers of published networks, as data: one TOML file per model in the folder ``shapes``.
#
# A file has a ``title``, the ``batch`` that the publication used, its ``source``, and ``layers``
# in
# order. A layer has a ``name`` and one of ``conv``, ``max_pool``, ``avg_pool`` (a descriptor
# without
# ``mb``) or ``inner_product`` (inputs x outputs). Those of whole models are written from the
# models'
# graphs, in which layers that are computed on each element are found too.

_FOLDER: Final = Path(__file__).parent / "shapes"


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


# -----------------------------------------------------------------------------
# Finding layers of the catalog by name or glob, and the nearest names where there is none.

_DEFAULT: Final = "alexnet"
_HINT: Final = "list them with: pydlbench shapes"


def find_named(pattern: str, batch: int | None = None) -> list[Layer]:
    """Return the layers of the catalog that ``pattern`` names, in the catalog's order.

    ``vgg16/conv3_2`` is one layer; ``conv3`` is AlexNet's, or, where AlexNet has none of that name,
    the first model's that has one, provided the others' are the same problem. ``vgg16`` alone
    stands for all its layers. A glob with ``/`` is matched against full names; without, against
    AlexNet's layers and, if none matches, against everything.

    Args:
        pattern: A name or glob.
        batch: The batch to give the layers; each model's own if None.

    Raises:
        UsageError: Nothing matches (with the nearest names), or a bare name is ambiguous.
    """
    if any(character in pattern for character in "*?["):
        return _rebatched(_glob(pattern), batch)
    if pattern in model_names():
        return _rebatched(load_model(pattern).layers, batch)
    if "/" in pattern:
        model, _, bare = pattern.partition("/")
        if model in model_names():
            found = [layer for layer in load_model(model).layers if _bare(layer) == bare]
            if found:
                return _rebatched(found, batch)
        raise _unknown(pattern)
    for layer in load_model(_DEFAULT).layers:
        if _bare(layer) == pattern:
            return _rebatched([layer], batch)
    found = _rebatched([layer for layer in _all_layers() if _bare(layer) == pattern], batch)
    if not found:
        raise _unknown(pattern)
    if len({(layer.kind, layer.problem) for layer in found}) > 1:
        names = ", ".join(f"{layer.name} ({layer.problem})" for layer in found)
        raise UsageError(f"{pattern}: several models have one, and they differ; one of: {names}")
    return found[:1]


def with_batch(layer: Layer, batch: int | None) -> Layer:
    """Return the layer with another batch (None leaves it); an error names the layer.

    Raises:
        UsageError: The layer cannot have this batch.
    """
    try:
        return layer if batch is None else layer.with_batch(batch)
    except UsageError as error:
        raise UsageError(f"{layer.name or layer.problem}: {error}") from None


def _all_layers() -> Iterator[Layer]:
    for model in model_names():
        yield from load_model(model).layers


def _bare(layer: Layer) -> str:
    """Return the part of a catalog layer's name behind the model."""
    return (layer.name or "").partition("/")[2]


def _rebatched(layers: Sequence[Layer], batch: int | None) -> list[Layer]:
    return [with_batch(layer, batch) for layer in layers]


def _glob(pattern: str) -> list[Layer]:
    found: list[Layer] = []
    if "/" not in pattern:
        layers = load_model(_DEFAULT).layers
        found = [layer for layer in layers if fnmatchcase(_bare(layer), pattern)]
    if not found:
        model = pattern.partition("/")[0]
        found = [
            layer
            for layer in (load_model(model).layers if model in model_names() else _all_layers())
            if fnmatchcase(layer.name or "", pattern) or fnmatchcase(_bare(layer), pattern)
        ]
    if not found:
        raise UsageError(f"{pattern}: matches no layer; {_HINT}")
    return found


def _unknown(name: str) -> UsageError:
    choices = _nearest_in_model(name) if "/" in name else _nearest_bare(name)
    help_ = f"nearest: {', '.join(choices)}" if choices else _HINT
    return UsageError(f"{name}: no such layer; {help_}")


def _nearest_in_model(name: str) -> list[str]:
    """Return near misses of ``model/layer``: first correct the model, then the layer."""
    model, _, bare = name.partition("/")
    models = [model] if model in model_names() else nearest(model, model_names())
    choices: list[str] = []
    for candidate in models:
        names = [_bare(layer) for layer in load_model(candidate).layers]
        close = nearest(bare, names, 3 if model == candidate else 1)
        choices += [f"{candidate}/{layer}" for layer in close]
    return choices[:3] or [f"{candidate}/*" for candidate in models]


def _nearest_bare(name: str) -> list[str]:
    """Return near misses of a bare name: AlexNet's layers bare, others with their first model."""
    shown = {model: f"{model}/*" for model in model_names()}
    for layer in _all_layers():
        full = layer.name or ""
        in_default = full.startswith(f"{_DEFAULT}/")
        shown.setdefault(_bare(layer), _bare(layer) if in_default else full)
    return [shown[match] for match in nearest(name, shown)]


# -----------------------------------------------------------------------------
# From what a user types (names, globs, descriptors, ``@file``) to layers.

# A line up to its comment: a "#" behind a blank, unless in a quoted name.
_CONTENT: Final = re.compile(r'(?:"[^"]*"|(?<!\s)#|[^#])*')
_LARGEST_FILE: Final = 1 << 20  # characters; more is not a list of layers but the wrong file


def find_layers(
    patterns: Sequence[str],
    batch: int | None = None,
    pool: str | None = None,
    *,
    option: str = "--shape",
) -> list[Layer]:
    """Return the layers that ``patterns`` stand for, in their order, each only once.

    Args:
        patterns: Names (``conv3``, ``vgg16/conv3_2``, ``vgg16``), globs (``vgg16/*``), descriptors,
            or ``@file`` with one of these per line (``#`` starts a comment).
        batch: The batch of all layers, whatever the catalog or a descriptor says; None leaves it.
        pool: What pooling does in descriptors without ``oc``; see :func:`parse_problem`.
        option: What an error message shows before the offending pattern; empty for nothing.

    Raises:
        UsageError: One line naming the pattern (and the line of the file), the reason and the
            nearest valid choice.
    """
    check_pool(pool)
    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: too small; at least 1")
    found: dict[Layer, None] = {}
    for pattern, where in _expand(patterns, option):
        try:
            found.update(dict.fromkeys(_resolve(pattern, batch, pool)))
        except UsageError as error:
            raise UsageError(f"{where}{error}") from None
    return list(found)


def _resolve(pattern: str, batch: int | None, pool: str | None) -> list[Layer]:
    if not looks_like_problem(pattern):
        return find_named(pattern, batch)
    return [with_batch(parse_problem(pattern, pool=pool), batch)]


def _expand(patterns: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """Yield each pattern, files expanded, with what an error says before it."""
    prefix = f"{option} " if option else ""
    for given in patterns:
        pattern = given.strip()
        if not pattern:
            raise UsageError(f"{prefix}{given!r}: no layer; expected a name, such as conv3")
        if not pattern.startswith("@"):
            yield pattern, prefix
            continue
        name = pattern[1:]
        lines = list(_read_lines(name, f"{prefix}{pattern}"))
        if not lines:
            raise UsageError(f"{prefix}{pattern}: no layers in it; expected one per line")
        for number, line in lines:
            if line.startswith("@"):
                raise UsageError(
                    f"{name}:{number}: {line}: a file inside a file; expected a name or descriptor"
                )
            yield line, f"{name}:{number}: "


def _read_lines(name: str, shown: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither empty nor comments, with their numbers."""
    try:
        with Path(name).open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{shown}: {reason}; expected a text file, one layer per line") from None
    if len(text) > _LARGEST_FILE:
        raise UsageError(f"{shown}: too long for a list of layers; at most {_LARGEST_FILE} bytes")
    for number, line in enumerate(text.splitlines(), start=1):
        content = _CONTENT.match(f" {line}")
        if content and (stripped := content.group().strip()):
            yield number, stripped
