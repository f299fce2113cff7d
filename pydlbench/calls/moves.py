"""Data movement: views, copies, fills, concatenation, gathers and scatters; updates of weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydlbench.calls.meaning import (
    LayerPass,
    Meaning,
    Value,
    broadcast_shapes,
    bytes_of_type,
    least_bytes,
    meaning_rule,
    no_layer,
    require_floating,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import WHOLE_TYPES, Layer
from pydlbench.ops.table import build_layer, image_layer
from pydlbench.ops.tensors import merged_move

# -----------------------------------------------------------------------------
# Views and copies.


def view() -> Meaning:
    """Return the meaning of an op that launches no kernel."""
    return Meaning(kind="view", reads=0, writes=0)


def random(reads: Sequence[Value] = ()) -> Meaning:
    """Return the meaning of drawing random numbers."""
    why = "random numbers: generators differ in what they compute"
    return replace(Meaning.unknown(why, "random"), reads=least_bytes(reads))


def other_copy(reads: int | None = None, what: str = "a copy") -> Meaning:
    """Return the meaning of a copy without a layer: of a part, with repeats, to another type."""
    return Meaning(kind="copy", reads=reads, layers_missing=f"{what} has no layer")


def bytes_copied(value: Value, results: int | None) -> int:
    """Return the bytes that a copy of all, of some or of repeated elements reads."""
    return least_bytes([value]) if results is None else min(least_bytes([value]), results)


@meaning_rule
def copy(
    source: Value, axes: Sequence[int], reads: int | None = None, why: str = ""
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a copy to another order of dimensions.

    Args:
        source: tensor that is copied.
        axes: dimensions of the source in the result's memory, outermost first.
        reads: bytes read; None for all operands.
        why: why there is no layer; empty if there is a layer.
    """
    yield Meaning(kind="copy", reads=reads, dtypes=_type_of_words(source))
    if why:
        raise UnsupportedError(why)
    yield LayerPass(_copy_layer(*_in_words(source, axes)))


def _type_of_words(source: Value) -> tuple[str, ...]:
    """Return the type as which whole or complex numbers are copied; none for others."""
    words = not source.floating and bytes_of_type(source.dtype) in (4, 8)
    return ("float32",) if words else ()


def _in_words(source: Value, axes: Sequence[int]) -> tuple[Value, Sequence[int]]:
    """Return a tensor of whole or complex numbers as one of words of four bytes, to be copied.

    Raises:
        UnsupportedError: its elements are not of four or eight bytes.
    """
    if source.floating:
        return source, axes
    require_floating(floating=bool(_type_of_words(source)))
    if source.itemsize == 4:
        return replace(source, dtype="float32"), axes
    doubled = [2 * stride for stride in source.strides]
    shape = (*source.shape, 2)
    pairs = replace(source, dtype="float32", shape=shape, strides=(*doubled, 1))
    return pairs, [*axes, len(source.shape)]


@meaning_rule
def cast(source: Value, dtype: str, reads: int) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a copy to another type in the order in which the source lies."""
    wide, narrow = sorted((source.dtype, dtype), key=bytes_of_type, reverse=True)
    dense = min(source.long_strides, default=1) == 1
    narrow_floats = ("bfloat16", "float16")
    name, precision = "", narrow
    if wide == "float32" and narrow in narrow_floats:
        name = "cast-to-fp32" if dtype == wide else "cast-from-fp32"
    elif source.dtype in WHOLE_TYPES and dtype in ("float32", *narrow_floats):
        name, precision = f"cast-from-{source.dtype}", dtype
    elif dtype in WHOLE_TYPES and source.dtype in ("float32", *narrow_floats):
        name, precision = f"cast-to-{dtype}", source.dtype
    known = bool(name) and dense
    writes = source.elements * bytes_of_type(dtype)
    yield Meaning(kind="copy", reads=reads, writes=writes, dtypes=(precision,) if known else ())
    if not known:
        raise no_layer("a conversion")
    yield LayerPass(build_layer(f"elementwise:{name}", src=(source.elements,)))


def _copy_layer(source: Value, axes: Sequence[int]) -> Layer:
    """Return the layer of a copy to another order of dimensions.

    Raises:
        UnsupportedError: no two elements are contiguous, or some are repeated.
    """
    require_floating(floating=source.floating)
    sizes = [(source.shape[axis], source.strides[axis]) for axis in axes]
    stored = [size if stride else 1 for size, stride in sizes]
    dense = zip(sizes, Value.dense(source.dtype, stored).strides, strict=True)
    if 0 not in stored and all(stride in (0, at) or size == 1 for (size, stride), at in dense):
        shape = [size for size, _ in sizes]
        if shape != stored:
            return build_layer("move:tile", src=stored, dst=shape)
    if min(source.long_strides, default=1) != 1:
        raise UnsupportedError("a copy of repeated or of single elements has no layer")
    return merged_move([size for size, _ in sizes], [stride for _, stride in sizes])


@meaning_rule
def taken(
    op: str,
    source: Value,
    reads: int,
    order: Sequence[int] = (),
    result: Sequence[int] = (),
    why: str = "",
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a copy whose elements come from other places of the source.

    Args:
        op: ``flip``, ``roll``, ``tile``, ``reflect``, ``replicate``, ``tril`` or ``triu``.
        source: tensor that is copied.
        reads: bytes read.
        order: dimensions along which elements are flipped or rolled.
        result: shape to which elements are repeated or reflected.
        why: why there is no layer; empty if there is a layer.
    """
    yield Meaning(kind="copy", reads=reads)
    if why:
        raise UnsupportedError(why)
    require_floating(floating=source.floating)
    rank = max(1, len(source.shape), len(result))
    shape = (1,) * (rank - len(source.shape)) + source.shape
    axes = sorted({axis % rank for axis in order})
    yield LayerPass(build_layer(f"move:{op}", src=shape, order=axes, dst=result))


def fill(result: Value) -> Meaning:
    """Return the meaning of a fill with one number; an empty tensor needs no kernel."""
    return _fill(result) if result.elements else view()


@meaning_rule
def _fill(result: Value) -> Iterator[Meaning | LayerPass]:
    yield Meaning(kind="copy", reads=0, dtypes=_type_of_words(result) or (result.dtype,))
    flat, _ = _in_words(result.with_shape(result.elements), [0])
    yield LayerPass(build_layer("move:fill", src=(flat.elements,)))


@meaning_rule
def fill_and_copy(
    source: Value, sizes: Sequence[int], axes: Sequence[int], reads: int, why: str = ""
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a fill with one number and a copy over a part of it.

    Args:
        source: tensor that is copied.
        sizes: shape of the result.
        axes: dimensions of the source in the result's memory, outermost first.
        reads: bytes read.
        why: why there is no layer; empty if there is a layer.
    """
    yield Meaning(kind="copy", reads=reads)
    if why:
        raise UnsupportedError(why)
    yield LayerPass(build_layer("move:fill", src=(math.prod(sizes),)))
    yield LayerPass(_copy_layer(source, axes))


@meaning_rule
def concat(
    values: Sequence[Value], along: int, *, stacked: bool = False
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a concat; a single tensor is copied.

    Args:
        values: at least one tensor.
        along: index of the dimension along which tensors are joined; a new one if ``stacked``.
        stacked: whether tensors are stacked along a new dimension.
    """
    writes = sum(value.bytes for value in values)
    yield Meaning(kind="copy", reads=least_bytes(values) if stacked else None, writes=writes)
    first, shape = values[0], values[0].shape
    if stacked:
        require_floating(floating=first.floating)
    along %= len(shape) + stacked
    if len(values) == 1:
        yield LayerPass(_copy_layer(first, range(len(shape))))
        return
    sources = tuple(1 if stacked else value.shape[along] for value in values)
    sizes = math.prod(shape[:along]), sum(sources), *shape[along + (not stacked) :]
    yield LayerPass(image_layer("concat", sizes, sources=sources))


# -----------------------------------------------------------------------------
# Gathers and scatters: of a table, only the indexed elements are read or written.


def table_sizes(
    table: Value,
    indices: Sequence[Value],
    axis: int | None,
    *,
    dimensions: int = 1,
    each: bool = False,
) -> dict[str, Any]:
    """Return the sizes of a layer that gathers rows of tables.

    Args:
        table: tensor whose elements are read or written.
        indices: tensors of indices into the table.
        axis: index of the first dimension that is indexed; None if others are, too.
        dimensions: number of dimensions that are indexed, by as many tensors.
        each: whether there is an index for each element, and not for whole rows.

    Raises:
        UnsupportedError: there is no such layer.
    """
    if axis is None or not all(index.dtype.startswith("int") for index in indices):
        raise no_layer("gathering by a mask, or other than along adjacent dimensions")
    require_floating(floating=table.floating)
    shape = table.shape or (1,)
    axis %= len(shape)
    behind = axis + dimensions
    sizes = {"tables": math.prod(shape[:axis]), "width": math.prod(shape[behind:])}
    sizes |= {"rows": math.prod(shape[axis:behind])}
    if not each:
        count = math.prod(broadcast_shapes([index.shape for index in indices]))
        return {**sizes, "count": count}
    (index,) = indices
    if (*index.shape[:axis], *index.shape[behind:]) != (*shape[:axis], *shape[behind:]):
        raise no_layer("gathering from a part of a table")
    stored = index.stored_shape
    own = {"index_tables": math.prod(stored[:axis]), "index_width": math.prod(stored[behind:])}
    if any(own[f"index_{name}"] not in (1, sizes[name]) for name in ("tables", "width")):
        raise no_layer("an index repeated along some dimensions")
    return {**sizes, **own, "count": index.shape[axis]}


@meaning_rule
def gather(
    table: Value, indices: Sequence[Value], picked: int | None, **places: Any
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a gather, which reads at most the table.

    Args:
        table: tensor whose elements are read.
        indices: tensors of indices into the table.
        picked: bytes that are picked, the size of the result; None if unknown: of the table none
            are counted then.
        places: which rows or elements the indices pick, see :func:`table_sizes`.
    """
    note = "how many elements a mask picks is not recorded" if picked is None else None
    reads = bytes_copied(table, picked or 0) + least_bytes(indices)
    yield Meaning(kind="gather", reads=reads, writes=picked, note=note)
    yield LayerPass(build_layer("gather:rows", **table_sizes(table, indices, **places)))


@meaning_rule
def bags(
    table: Value,
    indices: Value,
    offsets: Value,
    writes: int | None,
    why: str,
    *,
    end: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of sums of rows of a table, as if all bags were of one length.

    Args:
        table: tensor whose rows are added up.
        indices: indices of all bags, one after the other.
        offsets: place of the first index of each bag.
        writes: bytes of the results; None if unknown.
        why: what about the call has no layer; empty if nothing.
        end: whether the last offset is the end of the last bag.
    """
    number = offsets.elements - end
    rows, width, count = table.shape[0], math.prod(table.shape[1:]), indices.elements
    reads = bytes_copied(table, count * width * table.itemsize) + least_bytes([indices, offsets])
    sums = number * width * table.itemsize
    flops = count * width
    yield Meaning(
        kind="gather", flops=flops, reads=reads, writes=sums if writes is None else writes
    )
    if why or count % max(1, number):
        raise no_layer(why or "a sum over bags whose lengths differ")
    require_floating(floating=table.floating)
    sizes: dict[str, Any] = {"rows": rows, "width": width, "count": count}
    yield LayerPass(build_layer("gather:bags", **sizes, bags=number))


@meaning_rule
def scatter(
    table: Value | None,
    others: Sequence[Value],
    count: int,
    *,
    adds: bool,
    in_place: bool = False,
    **places: Any,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a scatter; unless it is in place, it copies the table too.

    Args:
        table: tensor that is written to; None for a new tensor of zeros.
        others: tensors of indices and values.
        count: number of elements written.
        adds: whether values are added, or combined otherwise with those that are there.
        in_place: whether the table is overwritten.
        places: to which rows or elements the indices refer, see :func:`table_sizes`.
    """
    scattered = bytes_copied(table, count * table.itemsize) if table else 0
    table_reads = scattered * adds if in_place else least_bytes([table] if table else [])
    yield Meaning(
        kind="gather",
        flops=count if adds else 0,
        reads=least_bytes(others) + table_reads,
        writes=scattered if in_place else None,
    )
    *indices, values = others
    if table is None or not places:
        raise no_layer("scattering of these")
    sizes = table_sizes(table, indices, **places)
    if values.elements != sizes["tables"] * sizes["count"] * sizes["width"]:
        raise no_layer("scattering of a number, or of a part")
    if not in_place:
        yield LayerPass(_copy_layer(table, range(len(table.shape))))
    yield LayerPass(build_layer(f"gather:{'add' if adds else 'put'}-rows-in-place", **sizes))


@meaning_rule
def embedding_gradient(outer: Value, indices: Value, rows: int) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of adding each row of an outer gradient to the gradient of a table."""
    yield Meaning(kind="gather", flops=outer.elements)
    count = indices.elements
    yield LayerPass(build_layer("gather:add-rows", rows=rows, width=outer.shape[-1], count=count))


# -----------------------------------------------------------------------------
# Updates of weights.


def optimizer_update(
    per_weight: int, weights: Sequence[Value], written: Sequence[Value], why: str
) -> Meaning:
    """Return the meaning of an optimizer's step on lists of tensors.

    Args:
        per_weight: FLOPs per weight, without rescaling of gradients.
        weights: tensors of weights that are updated.
        written: all tensors that are overwritten.
        why: why there is no layer.
    """
    return Meaning(
        kind="update",
        flops=per_weight * sum(value.elements for value in weights),
        writes=sum(value.bytes for value in written),
        layers_missing=why,
    )


@meaning_rule
def variable_update(
    variable: Value, delta: Value, *, subtracts: bool
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of adding to a variable in place, or subtracting from it."""
    flops = delta.elements * delta.floating
    yield Meaning(kind="update", flops=flops, writes=2 * variable.bytes)
    require_floating(floating=delta.floating)
    if subtracts:
        yield LayerPass(build_layer("sgd", channels=delta.elements, rate=1.0))
    else:
        yield LayerPass(image_layer("add", delta.shape or (1,)))
