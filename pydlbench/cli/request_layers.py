"""Which layers are timed: names, globs, descriptors and models, by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.cli.values import choices, split_patterns, wholes
from pydlbench.errors import UsageError, nearest
from pydlbench.layers import POOL_MODES, Layer, Pointwise, find_layers, model_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["left_out_of", "read_layers", "word_of"]

_DEFAULT_PATTERN = "alexnet/*"


def read_layers(args: argparse.Namespace) -> list[Layer]:
    """Return the layers that ``--shape``, ``--model``, ``--batch`` and ``--pool`` ask for.

    Raises:
        UsageError: there is none, or a value is bad.
    """
    pool = choices("--pool", [args.pool], POOL_MODES)[0] if args.pool is not None else None
    shapes = split_patterns(args.shape or ())
    if args.shape and not shapes:
        raise UsageError("--shape '': empty; nearest: conv3")
    models = [f"{name}/*" for name in _models(args.model)]
    if not shapes and not models:
        shapes = [_DEFAULT_PATTERN]
    batches: Sequence[int | None] = wholes("--batch", args.batch) if args.batch else [None]
    found: dict[Layer, None] = {}
    for batch in batches:
        for option, patterns in (("--shape", shapes), ("--model", models)):
            layers = find_layers(patterns, batch, pool, option=option) if patterns else ()
            found |= dict.fromkeys(layers)
    return list(found)


def _models(given: Sequence[str] | None) -> list[str]:
    names = split_patterns(given or ())
    if given and not names:
        raise UsageError("--model '': empty; nearest: alexnet")
    known = model_names()
    for name in names:
        if "/" in name or name.startswith("@"):
            raise UsageError(f"--model {name}: not a model's name; nearest: --shape {name}")
        if name not in known and not set(name) & set("*?["):
            near = ", ".join(nearest(name, known) or known)
            raise UsageError(f"--model {name}: no such model; nearest: {near}")
    return names


def left_out_of(layers: Sequence[Layer], passes: Sequence[str]) -> tuple[str, ...]:
    """Return a note for every pass that some of the layers have not."""
    notes = []
    for pass_ in passes:
        without = [layer for layer in layers if pass_ not in layer.passes]
        for word in dict.fromkeys(map(word_of, without)):
            names = [layer.name or layer.problem for layer in without if word_of(layer) == word]
            notes.append(f"{word} has no {pass_} pass, left out: {', '.join(names)}")
    return tuple(notes)


def word_of(layer: Layer) -> str:
    """Return what a layer without all three passes is called."""
    return layer.op if isinstance(layer, Pointwise) else "pooling"
