"""What a row is matched by, and what it is called."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pydlbench.compare.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["AXES", "FIELDS", "LAYER_KINDS", "axis_value", "describe", "grouped", "key", "setting"]

# What tells two problems apart, the layer's name aside: the same problem may have several names.
FIELDS: Final = (
    *("kind", "problem", "batch", "pass_", "precision", "device", "backend", "mode", "cache"),
    *("timing", "threads", "fuse", "layout_request", "propagation"),
)
#: Axis in words -> the fields that differ along it; the first that fits is taken, so that what
#: comes with another field stands before it.
AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": ("mode",),
    "backend": ("backend", "mode"),
    "threads": ("threads",),
    "layout": ("layout_request",),
    "cache": ("cache", "timing"),
    "timing": ("timing",),
    "precision": ("precision",),
    "fuse": ("fuse",),
    "propagation": ("propagation",),
    "device": ("device", "threads", "timing"),
}
# A row starts with its name and these fields.
_KEY: Final = 1 + len(FIELDS)
assert Row._fields[:_KEY] == ("layer", *FIELDS)
_DEVICE: Final = Row._fields.index("device")
#: Kinds of rows that are layers, not whole steps.
LAYER_KINDS: Final = frozenset(("conv2d", "gemm", "pool2d", "pointwise"))
# Those whose problem says all of what they compute.
_SAID: Final = LAYER_KINDS - {"pool2d"}


def key(row: Row) -> tuple[Any, ...]:
    """Return what a row is matched by: its name, its problem and its setting."""
    found: tuple[Any, ...] = row[:_KEY]
    if row.device == "cpu" and row.pass_ == "forward":  # as most of 100,000 rows may be
        return found
    device = row.device.partition(":")[0]  # cuda:0 and cuda:1 are the same kind
    # Backward passes know one propagation only.
    propagation = row.propagation if row.pass_ == "forward" else None
    return (*found[:_DEVICE], device, *found[_DEVICE + 1 : -1], propagation)


def setting(without: Iterable[str]) -> Callable[[Row], tuple[Any, ...]]:
    """Return what reads a row's key, leaving out an axis's fields."""
    left_out = frozenset(without)
    read = attrgetter(*(name for name in FIELDS if name not in left_out))
    kinds = "device" not in left_out

    place = [name for name in FIELDS if name not in left_out].index("device") if kinds else 0
    forward = "propagation" not in left_out

    def one(row: Row) -> tuple[Any, ...]:
        found = read(row)
        if kinds and row.device != "cpu":  # cuda:0 and cuda:1 are the same kind
            found = (*found[:place], row.device.partition(":")[0], *found[place + 1 :])
        if forward and row.pass_ != "forward":  # backward passes know one propagation only
            found = (*found[:-1], None)
        # A pooling's descriptor does not say whether it is the maximum or the mean, and a step's
        # options not of which model they are.
        return found if row.kind in _SAID else (row.layer, *found)

    return one


def grouped(
    rows: Iterable[Row], fields: Callable[[Row], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Row]]:
    """Return rows by what a function of :func:`setting` reads of them."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(fields(row), []).append(row)
    return found


def describe(row: Row) -> str:
    """Name a row in a line: ``alexnet/conv3 backward-data bf16 torch compiled``."""
    words = [row.layer, "" if row.kind in LAYER_KINDS else row.kind, row.pass_, row.precision]
    if row.backend != "native":
        words += [row.backend, row.mode or ""]
    for value, usual in ((row.cache, "hot"), (row.layout_request, "best"), (row.fuse, "none")):
        words.append("" if value in (usual, None) else str(value))
    return " ".join(filter(None, words))


def axis_value(axis: str, row: Row) -> str:
    """Return a row's value on an axis: ``torch compiled``, ``2 threads``."""
    values = [getattr(row, name) for name in AXES[axis]]
    if axis == "device":
        return str(row.device)
    if axis == "threads":
        return "1 thread" if values[0] == 1 else f"{values[0]} threads"
    return " ".join(str(value) for value in values[: 2 if axis == "backend" else 1] if value)
