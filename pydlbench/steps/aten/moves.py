"""Operators that compute nothing: views, copies, gathers, new tensors, random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.layers.pointwise import Pointwise
from pydlbench.steps.aten.call import Found, least_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.models.work import Work
    from pydlbench.steps.aten.call import Call

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
    return Found(kind="view", flops=0, product_flops=0, read=0, written=0)


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
        outer, inner = shape[:along], shape[along + 1 :]
        height = inner[0] if len(inner) > 1 else 1
        batch = width = 1
        for one in outer:
            batch *= one
        for one in inner[1:] or inner:
            width *= one
        return [
            call.work(
                Pointwise(
                    op="concat",
                    batch=batch,
                    channels=sum(sources),
                    height=height,
                    width=width,
                    sources=sources,
                )
            )
        ]

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
    """Table, indices, values: at the indices, values are written, or added."""
    table, *others = call.tensors
    values = others[-1] if others else table
    adds = "add" in call.operator or (call.operator in _PUTS and call.get(3, "accumulate", False))
    read = least_bytes(others) + values.bytes * adds
    flops = values.elements if adds else 0
    # What does not work in place writes the rest of the table too.
    written = values.bytes if call.in_place else None
    if not call.in_place:
        read += least_bytes([table])
    return Found(kind="gather", lacks=_NO_GATHER, flops=flops, read=read, written=written)


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
_NO_LOSS: Final = "a loss without its softmax has no layer"
_PUTS: Final = ("index_put", "_index_put_impl")

#: By operator.
RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(
        (
            "clone",
            "contiguous",
            "_to_copy",
            "repeat",
            "roll",
            "flip",
            "constant_pad_nd",
            "reflection_pad1d",
            "reflection_pad2d",
            "replication_pad2d",
            "tril",
            "triu",
            "repeat_interleave",
            "pixel_shuffle",
            "pixel_unshuffle",
            "im2col",
        ),
        _copy,
    ),
    "copy": _copy_into,
    "_foreach_copy": _copy_into,
    **dict.fromkeys(
        (
            "zeros",
            "ones",
            "full",
            "arange",
            "linspace",
            "eye",
            "scalar_tensor",
            "zeros_like",
            "ones_like",
            "full_like",
            "new_zeros",
            "new_ones",
            "new_full",
            "zero",
            "fill",
            "_foreach_zero",
        ),
        _made,
    ),
    **dict.fromkeys(("stack", "slice_backward", "select_backward"), _joined),
    "cat": _cat,
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), _gathered),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy", *_PUTS), _scattered),
    "embedding_dense_backward": _embedded_backward,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _loss_backward),
    **dict.fromkeys(
        (
            "bernoulli",
            "normal",
            "uniform",
            "random",
            "exponential",
            "rand",
            "randn",
            "randint",
            "rand_like",
            "randn_like",
            "randperm",
            "multinomial",
        ),
        _random,
    ),
}
