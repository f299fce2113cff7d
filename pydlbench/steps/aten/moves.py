"""Operators that compute nothing: views, copies, gathers, new tensors, random numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UnsupportedError
from pydlbench.steps.aten.call import Found, broadcast, least_bytes, on_images

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.models.work import Work
    from pydlbench.steps.aten.call import Call
    from pydlbench.steps.aten.text import TensorText

__all__ = ["RULES"]

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
    return _moved(call, read)


def _copy_into(call: Call) -> Found:
    """Target, and what is copied into it; also of lists."""
    return _moved(call, least_bytes(call.tensors[len(call.tensors) // 2 :]))


def _made(call: Call) -> Found:
    """A tensor of given values; one that is an operand says the shape only."""
    return _moved(call, 0)


def _joined(call: Call) -> Found:
    """``stack``: whatever is put together, and gradients among zeros."""
    return _moved(call, least_bytes(call.tensors))


def _moved(call: Call, read: int) -> Found:
    lists = call.operator.startswith("_foreach")  # which return nothing
    written = sum(one.bytes for one in call.arguments[0]) if lists else None
    return Found(kind="copy", lacks=_NO_COPY, flops=0, read=read, written=written)


def _cat(call: Call) -> Found:
    """``cat``: tensors, and the dimension along which they are put behind one another."""
    tensors = [one for one in call.arguments[0] if one.shape != (0,)]

    def layers() -> list[Work]:
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
    return Found(kind="gather", lacks=_NO_GATHER, flops=0, read=read)


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
    return Found(kind="gather", lacks=_NO_GATHER, flops=call.tensors[0].elements)


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


_NO_COPY: Final = "a copy has no layer"
_NO_RANDOM: Final = "random numbers: generators differ in what they compute"
_NO_GATHER: Final = "gathering has no layer"
_NO_MASK: Final = "how many elements a mask picks is not recorded"
_NO_LOSS: Final = "a loss without its softmax has no layer"

_COPIES: Final = (
    *("_to_copy", "clone", "constant_pad_nd", "flip", "im2col", "pixel_shuffle"),
    *("pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "repeat", "replication_pad2d"),
    *("roll", "tril", "triu"),
)
_MADE: Final = (
    *("arange", "eye", "fill", "full", "full_like", "linspace", "new_full", "new_ones"),
    *("new_zeros", "ones", "ones_like", "scalar_tensor", "zero", "zeros", "zeros_like"),
    "_foreach_zero",
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
    **dict.fromkeys(("stack", "slice_backward", "select_backward"), _joined),
    "cat": _cat,
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), _gathered),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy"), _scattered),
    **dict.fromkeys(("index_put", "_index_put_impl"), _put),
    "embedding_dense_backward": _embedded_backward,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _loss_backward),
}
