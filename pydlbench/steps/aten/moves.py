"""Operators that compute nothing: views, copies, gathers, new tensors, random numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.ops.tensors import merged_move
from pydlbench.steps.aten.call import Found, broadcast, least_bytes, on_images
from pydlbench.steps.aten.text import TensorText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.models.work import Work
    from pydlbench.ops.op import Layer
    from pydlbench.steps.aten.call import Call

#: What makes no kernel run: other sights of the same memory, memory without values, questions.
_VIEWS: Final = (
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "expand"),
    *("lift_fresh", "permute", "reshape", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "t", "transpose", "unbind", "unfold", "unsafe_chunk", "unsafe_split"),
    *("unsafe_split_with_sizes", "unsqueeze", "view", "view_as_complex", "view_as_real"),
    *("_local_scalar_dense", "is_same_size", "resize", "set", "sym_numel", "sym_size"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
)


def _view(call: Call) -> Found:
    del call
    return Found(kind="view", flops=0, read=0, written=0)


# -----------------------------------------------------------------------------
# Copies: whatever is written is read once, or comes from nowhere.


def _copy(call: Call) -> Found:
    """A new tensor of the first one's elements, of all or of some of them, or repeated."""
    read, results = least_bytes(call.tensors[:1]), call.results
    if results is not None and call.operator != "_to_copy":  # which gives them another size
        read = min(read, results)

    def layers() -> Iterator[Work]:
        if call.operator not in ("clone", "_to_copy"):
            raise UnsupportedError(_NO_COPY)
        source, wanted = call.tensors[0], call.keywords.get("dtype")
        if wanted is not None and wanted.text != source.dtype:
            raise UnsupportedError("a conversion has no layer")
        asked = call.keywords.get("memory_format")
        axes = list(range(len(source.shape)))
        if asked is None or asked.text == "preserve_format":
            axes = _in_memory(source)
        elif asked.text != "contiguous_format":
            axes = [axes[0], *axes[2:], axes[1]]
        yield call.work(_turned(source, axes))

    return _moved(call, read, layers)


def _copy_into(call: Call) -> Found:
    """Target, and what is copied into it; also of lists."""
    half = len(call.tensors) // 2

    def layers() -> Iterator[Work]:
        for target, source in zip(call.tensors[:half], call.tensors[half:], strict=True):
            if (target.dtype, target.shape) != (source.dtype, source.shape):
                raise UnsupportedError("a copy to another type or shape has no layer")
            yield call.work(_turned(source, _in_memory(target)))

    return _moved(call, least_bytes(call.tensors[half:]), layers)


def _in_memory(tensor: TensorText) -> list[int]:
    """Return the axes from the largest stride to the smallest."""
    return sorted(range(len(tensor.shape)), key=lambda axis: -tensor.strides[axis])


def _turned(source: TensorText, axes: Sequence[int]) -> Layer:
    """Return what copies a tensor to where its axes lie in another order.

    Raises:
        UnsupportedError: of its elements no two lie behind one another, or some several times.
    """
    _floating(source.dtype)
    sizes = [(source.shape[axis], source.strides[axis]) for axis in axes]
    moving = [stride for size, stride in sizes if size != 1]
    if moving and min(moving) != 1:
        raise UnsupportedError("a copy of repeated or of single elements has no layer")
    return merged_move([size for size, _ in sizes], [stride for _, stride in sizes])


def _floating(dtype: str) -> None:
    if not dtype.startswith(("float", "bfloat")):
        raise UnsupportedError(_WHOLE)


def _made(call: Call) -> Found:
    """A tensor of given values; one that is an operand says the shape only."""
    tensors = call.tensors if call.operator.startswith("_foreach") else call.tensors[:1]
    shapes: list[Sequence[int]] = []
    if call.operator in _FILLED:
        shapes = [one.shape for one in tensors] or [call.arguments[0]]
        if call.operator.startswith("new"):
            shapes = [call.arguments[1]]
        if not any(map(math.prod, shapes)):
            return _view(call)

    def layers() -> Iterator[Work]:
        if call.operator not in _FILLED:
            raise UnsupportedError(_NO_COPY)
        wanted = call.keywords.get("dtype")
        typed = call.operator != "full" or wanted is not None
        if not typed and isinstance(call.arguments[1], int):
            raise UnsupportedError(_WHOLE)
        _floating(wanted.text if wanted else tensors[0].dtype if tensors else "float32")
        for shape in shapes:
            yield call.work(build_layer("move:fill", src=(math.prod(shape),)))

    return _moved(call, 0, layers, None if call.tensors else [_OF_DEFAULT_TYPE])


def _joined(call: Call) -> Found:
    """``stack``: tensors, and the dimension that is new."""
    tensors = call.arguments[0]

    def layers() -> Iterator[Work]:
        _floating(tensors[0].dtype)
        shape = tensors[0].shape
        if len(tensors) == 1:
            yield call.work(_turned(tensors[0], range(len(shape))))
            return
        along = call.get(1, "dim", 0) % (len(shape) + 1)
        joined = math.prod(shape[:along]), len(tensors), *shape[along:]
        yield call.work(on_images("concat", joined, sources=(1,) * len(tensors)))

    return _moved(call, least_bytes(call.tensors), layers)


def _among_zeros(call: Call) -> Found:
    """``slice_backward``, ``select_backward``: outer gradient, and the sizes of all of it."""
    outer, sizes = call.arguments[:2]

    def layers() -> Iterator[Work]:
        yield call.work(build_layer("move:fill", src=(math.prod(sizes),)))
        yield call.work(_turned(outer, range(len(outer.shape))))

    return _moved(call, least_bytes(call.tensors), layers)


def _padded(call: Call) -> Found:
    """``constant_pad_nd``: source, and what is added at both ends, of the last dimension first."""
    source, pads = call.arguments[:2]

    def layers() -> Iterator[Work]:
        if min(pads) < 0:
            raise UnsupportedError("a copy of a part has no layer")
        around = [*zip(pads[::2], pads[1::2], strict=True)][::-1]
        around = [(0, 0)] * (len(source.shape) - len(around)) + around
        sizes = [size + sum(both) for size, both in zip(source.shape, around, strict=True)]
        # The value is written everywhere, and then the source over it.
        yield call.work(build_layer("move:fill", src=(math.prod(sizes),)))
        yield call.work(_turned(source, _in_memory(source)))

    read = least_bytes(call.tensors)
    return _moved(call, read if call.results is None else min(read, call.results), layers)


def _shuffled(call: Call) -> Found:
    """``pixel_shuffle`` and back: images, and how many pixels of a side come from channels."""
    source, factor = call.arguments[:2]

    def layers() -> Iterator[Work]:
        _floating(source.dtype)
        if len(source.shape) != 4 or 1 not in source.strides:
            raise UnsupportedError("shuffled pixels of these have no layer")
        sizes, steps = list(source.shape), list(source.strides)
        last = source.strides[1] == 1 and source.shape[1] > 1  # the result lies likewise

        def split(axis: int, inner: int) -> list[tuple[int, int]]:
            """Return sizes and strides of the outer and the inner part of an axis."""
            return [(sizes[axis] // inner, steps[axis] * inner), (inner, steps[axis])]

        images = (sizes[0], steps[0])
        if call.operator == "pixel_shuffle":
            channels, both = split(1, factor * factor)
            rows, columns = (both[0] // factor, both[1] * factor), (factor, both[1])
            height = [(sizes[2], steps[2]), rows]
            width = [(sizes[3], steps[3]), columns]
            deep = [channels]
        else:
            (height_out, rows), (width_out, columns) = split(2, factor), split(3, factor)
            height, width = [height_out], [width_out]
            deep = [(sizes[1], steps[1]), rows, columns]
        order = [images, *height, *width, *deep] if last else [images, *deep, *height, *width]
        yield call.work(merged_move([size for size, _ in order], [step for _, step in order]))

    return _moved(call, least_bytes(call.tensors), layers)


#: What a call makes that has neither an operand nor a type.
_OF_DEFAULT_TYPE: Final = TensorText(number=0, dtype="float32", shape=(1,), strides=(1,))


def _moved(
    call: Call,
    read: int,
    layers: Callable[[], Iterable[Work]],
    typed: Sequence[TensorText] | None = None,
) -> Found:
    lists = call.operator.startswith("_foreach")  # which return nothing
    written = sum(one.bytes for one in call.arguments[0]) if lists else None
    return Found.of("copy", layers, flops=0, read=read, written=written, typed=typed)


def _cat(call: Call) -> Found:
    """``cat``: tensors, and the dimension along which they are put behind one another."""
    tensors = [one for one in call.arguments[0] if one.shape != (0,)]

    def layers() -> list[Work]:
        if len(tensors) == 1:
            return [call.work(_turned(tensors[0], range(len(tensors[0].shape))))]
        shape = tensors[0].shape
        along = call.get(1, "dim", 0) % len(shape)
        sources = tuple(one.shape[along] for one in tensors)
        joined = math.prod(shape[:along]), sum(sources), *shape[along + 1 :]
        return [call.work(on_images("concat", joined, sources=sources))]

    return Found.of("copy", layers, flops=0)


# -----------------------------------------------------------------------------
# Gathers and scatters: what indices say is read or written, and nothing else of a table.


def _gathered(call: Call) -> Found:
    """Table and indices: as much is read as is written, at most the whole table."""
    table, *indices = call.tensors
    results = call.results
    rows = least_bytes([table])
    read = None if results is None else min(rows, results) + least_bytes(indices)

    def layers() -> Iterator[Work]:
        (index,) = indices if len(indices) == 1 else (None,)
        whole = call.operator == "embedding" or (
            call.operator == "index" and isinstance(call.arguments[1][0], TensorText)
        )
        whole = whole or (call.operator == "index_select" and call.arguments[1] == 0)
        if index is None or not whole or not index.dtype.startswith("int"):
            raise UnsupportedError(_NO_GATHER)
        _floating(table.dtype)
        width = math.prod(table.shape[1:])
        yield call.work(
            build_layer("gather:rows", rows=table.shape[0], width=width, count=index.elements)
        )

    return Found.of("gather", layers, flops=0, read=read)


def _scattered(call: Call) -> Found:
    """Table, dimension, indices, values: at the indices, values are written, or added."""
    table, indices, *values = call.tensors
    number = values[0].elements if call.operator.startswith("index") else indices.elements
    return _written_at(call, table, number, adds=call.operator.endswith("add"))


def _put(call: Call) -> Found:
    """``index_put``: table, indices for each of its first dimensions, values, whether to add."""
    table, indices, values, adds = *call.arguments[:3], call.get(3, "accumulate", False)
    given = [one for one in indices if one is not None]
    if any(one.dtype in ("bool", "uint8") for one in given):
        if values.elements == 1:
            raise UnsupportedError(_NO_MASK)
        number = values.elements
    else:
        rest = [n for n, one in zip(table.shape, indices, strict=False) if one is None]
        rest += table.shape[len(indices) :]
        number = math.prod(broadcast([one.shape for one in given])) * math.prod(rest)
    return _written_at(call, table, number, adds=adds)


def _written_at(call: Call, table: TensorText, number: int, *, adds: bool) -> Found:
    """Return what writes so many elements; what does not work in place writes all others too."""
    others = [one for one in call.tensors if one.number != table.number]
    own = number * table.itemsize
    return Found(
        kind="gather",
        lacks=_NO_GATHER,
        flops=number if adds else 0,
        read=least_bytes(others) + (own * adds if call.in_place else least_bytes([table])),
        written=own if call.in_place else None,
    )


def _embedded_backward(call: Call) -> Found:
    """Outer gradient and indices; each of its elements is added to the table's gradient."""
    outer, indices, rows = call.arguments[:3]

    def layers() -> Iterator[Work]:
        width = outer.shape[-1]
        yield call.work(
            build_layer("gather:add-rows", rows=rows, width=width, count=indices.elements)
        )

    return Found.of("gather", layers, flops=outer.elements)


def _loss(call: Call) -> Found:
    """``nll_loss_forward``: scores, of each row of which one element is read, and labels."""
    scores, *others = call.tensors
    read = others[0].elements * scores.itemsize + least_bytes(others)
    return Found(kind="loss", lacks=_NO_LOSS, flops=others[0].elements, read=read)


def _loss_backward(call: Call) -> Found:
    """Outer gradient, scores, labels, ...: zeros everywhere but at the labels; no score is read."""
    scores, labels = call.tensors[1:3]
    read = least_bytes([one for one in call.tensors if one.number != scores.number])
    return Found(kind="loss", lacks=_NO_LOSS, flops=labels.elements, read=read)


def _random(call: Call) -> Found:
    # The first one is overwritten, or says the shape.
    own = call.in_place or call.operator.endswith("_like")
    read = least_bytes(call.tensors[int(own) :])
    return Found(kind="random", lacks=_NO_RANDOM, unknown=_NO_RANDOM, read=read)


_WHOLE: Final = "whole numbers have no layer"
_NO_COPY: Final = "a copy has no layer"
_NO_RANDOM: Final = "random numbers: generators differ in what they compute"
_NO_GATHER: Final = "gathering has no layer"
_NO_MASK: Final = "how many elements a mask picks is not recorded"
_NO_LOSS: Final = "a loss without its softmax has no layer"

_COPIES: Final = (
    *("_to_copy", "clone", "flip", "im2col", "reflection_pad1d", "reflection_pad2d", "repeat"),
    *("replication_pad2d", "roll", "tril", "triu"),
)
_MADE: Final = (
    *("arange", "eye", "fill", "full", "full_like", "linspace", "new_full", "new_ones"),
    *("new_zeros", "ones", "ones_like", "scalar_tensor", "zero", "zeros", "zeros_like"),
    "_foreach_zero",
)
#: Of these, with the same value everywhere.
_FILLED: Final = (
    *("fill", "full", "full_like", "new_full", "new_ones", "new_zeros", "ones", "ones_like"),
    *("zero", "zeros", "zeros_like", "_foreach_zero"),
)
_DRAWN: Final = (
    *("bernoulli", "exponential", "multinomial", "normal", "rand", "rand_like", "randint"),
    *("randn", "randn_like", "random", "randperm", "uniform"),
)

#: By operator.
RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_COPIES, _copy),
    **dict.fromkeys(("copy", "_foreach_copy"), _copy_into),
    **dict.fromkeys(_MADE, _made),
    **dict.fromkeys(_DRAWN, _random),
    "constant_pad_nd": _padded,
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _shuffled),
    "stack": _joined,
    **dict.fromkeys(("slice_backward", "select_backward"), _among_zeros),
    "cat": _cat,
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), _gathered),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy"), _scattered),
    **dict.fromkeys(("index_put", "_index_put_impl"), _put),
    "embedding_dense_backward": _embedded_backward,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _loss_backward),
}
