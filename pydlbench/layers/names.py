"""Finding layers of the catalog by name or glob, and the nearest names where there is none."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.catalog import load_model, model_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.layers.layer import Layer

__all__ = ["find_named", "with_batch"]

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
