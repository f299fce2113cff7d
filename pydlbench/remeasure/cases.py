"""From a stored row back to the case that it measured."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydlbench.backends.case import TIMINGS, Case
from pydlbench.compare.keys import LAYER_KINDS
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.layers import find_layers, parse_problem

if TYPE_CHECKING:
    from pydlbench.compare.rows import Row
    from pydlbench.layers import Layer

__all__ = ["case_of"]


def case_of(row: Row) -> Case:
    """Return the case of a row, so that it can be measured again.

    Raises:
        UnsupportedError: the row is no layer's, or does not say which one it was.
    """
    try:
        return Case(
            layer=_layer(row),
            pass_=row.pass_,
            precision=row.precision,
            propagation=row.propagation or "inference",
            cache=row.cache or "hot",
            layout=row.layout_request or "best",
            backend=row.backend,
            device=row.device,
            # What a CPU does has no choice; the host's clock of frameworks on a GPU neither.
            timing=row.timing if row.device != "cpu" and row.timing in TIMINGS else "auto",
            fuse=row.fuse or "none",
            mode=row.mode,
        )
    except UsageError as error:
        raise UnsupportedError(f"{row.layer}: cannot be measured again ({error})") from error


def _layer(row: Row) -> Layer:
    if row.kind not in LAYER_KINDS:
        raise UnsupportedError(f"{row.layer} {row.kind}: only layers are measured in turn")
    named = _named(row)
    if named is not None:
        return named
    if row.kind == "pool2d":
        raise UnsupportedError(
            f"{row.layer}: its descriptor does not say whether it is the maximum or the mean; "
            "measure a pooling of the catalog, such as alexnet/pool1"
        )
    layer = parse_problem(row.problem)
    return layer if row.layer == row.problem else dataclasses.replace(layer, name=row.layer)


def _named(row: Row) -> Layer | None:
    """Return the catalog's layer of that name, if it is the same problem."""
    if row.layer == row.problem:
        return None
    try:
        found = find_layers([row.layer], row.batch)
    except UsageError:  # a name of the user's own
        return None
    same = [one for one in found if (one.kind, one.problem) == (row.kind, row.problem)]
    return same[0] if len(same) == 1 else None
