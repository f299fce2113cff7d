"""Attention and recurrent layers: the chains of products that one call stands for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import OPS, build_layer
from pydlbench.steps.aten.call import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydlbench.models.work import Work
    from pydlbench.ops.op import Layer
    from pydlbench.steps.aten.call import Call
    from pydlbench.steps.aten.text import TensorText

_SOFTMAX: Final = OPS["softmax"].passes
# Of each pair of a query and a key: an exponential of a difference is its probability again.
_AGAIN: Final = 2


class _Heads:
    """The products of an attention: so many heads of all sequences, each alike.

    Args:
        query: ``(..., queries, size)``.
        keys: how many.
        depth: of the values.
        causal: whether a query sees the keys up to its own number only.
    """

    def __init__(self, query: tuple[int, ...], keys: int, depth: int, *, causal: bool) -> None:
        *self._heads, self._queries, self._size = query
        self._keys, self._depth, self._count = keys, depth, math.prod(self._heads)
        pairs = self._queries * keys
        self.note = None
        if causal:
            diagonal = min(self._queries, keys)
            seen = diagonal * (diagonal + 1) // 2 + (self._queries - diagonal) * keys
            self.note = f"causal: {seen} of {pairs} pairs of a query and a key are counted"
            pairs = seen
        self.pairs = self._count * pairs
        self.forward = 2 * self.pairs * (self._size + depth)
        # Scores again, then the gradients of values, probabilities, queries and keys.
        self.backward = 2 * self.pairs * (3 * self._size + 2 * depth)

    @property
    def scores(self) -> Layer:
        """Queries times keys."""
        return self._product(k=self._size, n=self._keys, order="nk")

    @property
    def softmax(self) -> Layer:
        """From scores to probabilities."""
        return build_layer(
            "softmax",
            batch=self._heads[0],
            channels=math.prod(self._heads[1:]),
            height=self._queries,
            width=self._keys,
        )

    @property
    def context(self) -> Layer:
        """Probabilities times values."""
        return self._product(k=self._keys, n=self._depth, order="kn")

    def _product(self, k: int, n: int, order: str) -> Layer:
        return build_layer(
            "gemm", m=self._queries, k=k, n=n, batch_count=self._count, weights_tag=order
        )


def _attention(causal: int) -> Callable[[Call], Found]:
    """Query, key, value: ``(batch, heads, length, size)``.

    Args:
        causal: the place among the arguments that says whether it is.
    """

    def rule(call: Call) -> Found:
        query, key, value = call.arguments[:3]
        heads = _heads(query, key, value, causal=call.get(causal, "is_causal", False))

        def layers() -> Iterator[Work]:
            for layer in (heads.scores, heads.softmax, heads.context):
                yield call.work(layer)

        return Found.of(
            "attention",
            layers,
            flops=heads.forward + heads.pairs * _SOFTMAX["forward"].per_element,
            product_flops=heads.forward,
            note=heads.note,
            typed=[query, key, value],
        )

    return rule


def _attention_backward(causal: int) -> Callable[[Call], Found]:
    """Outer gradient, query, key, value, and what its forward pass has kept.

    Args:
        causal: the place among the arguments that says whether it is.
    """

    def rule(call: Call) -> Found:
        query, key, value = call.arguments[1:4]
        heads = _heads(query, key, value, causal=call.get(causal, "is_causal", False))

        def layers() -> Iterator[Work]:
            yield call.work(heads.scores)
            yield call.work(heads.softmax)
            yield call.work(heads.context, "backward-weights")
            yield call.work(heads.context, "backward-data")
            yield call.work(heads.softmax, "backward-data")
            yield call.work(heads.scores, "backward-weights")
            yield call.work(heads.scores, "backward-data")

        return Found.of(
            "attention",
            layers,
            flops=heads.backward + heads.pairs * (_AGAIN + _SOFTMAX["backward-data"].per_element),
            product_flops=heads.backward,
            note=heads.note,
            # Sums of exponentials are kept in float32.
            typed=[query, key, value],
        )

    return rule


def _heads(query: TensorText, key: TensorText, value: TensorText, *, causal: bool) -> _Heads:
    return _Heads(query.shape, key.shape[-2], value.shape[-1], causal=causal)


# -----------------------------------------------------------------------------
# Blocks of a transformer that PyTorch runs as one call where no gradient is wanted.


def _block(call: Call) -> Found:
    """``_native_multi_head_attention``: query, key, value, width, heads, four projections.

    Each of the three is projected, whether they are the same tensor or not.
    """
    query, key = call.arguments[:2]
    return _projected(call, query, key.shape[-2], call.arguments[4], hidden=0)


def _encoder_layer(call: Call) -> Found:
    """``_transformer_encoder_layer_fwd``: source, width, heads, and all weights in their order."""
    source = call.arguments[0]
    hidden = call.arguments[14].shape[0]
    return _projected(call, source, source.shape[-2], call.arguments[2], hidden=hidden)


def _projected(call: Call, query: TensorText, keys: int, heads: int, hidden: int) -> Found:
    """Return an attention with its projections, and the two products behind it if there are some.

    Args:
        call: the call.
        query: ``(batch, length, width)``.
        keys: how many for each batch.
        heads: how many.
        hidden: width between the two products; 0 for none.
    """
    batch, length, width = query.shape
    inner = _Heads((batch, heads, length, width // heads), keys, width // heads, causal=False)
    rows, others = batch * length, batch * keys
    one, other = (
        build_layer("gemm", m=rows, k=width, n=width),
        build_layer("gemm", m=others, k=width, n=width),
    )
    layers: list[Layer] = [one, other, other, inner.scores, inner.softmax, inner.context, one]
    if hidden:
        layers += [
            build_layer("gemm", m=rows, k=width, n=hidden),
            build_layer("gemm", m=rows, k=hidden, n=width),
        ]
    flops = sum(each.flops("forward") for each in layers if each.multiply_adds)
    return Found.of(
        "attention",
        lambda: [call.work(each) for each in layers],
        flops=flops + inner.pairs * _SOFTMAX["forward"].per_element,
        product_flops=flops,
        note="biases, normalisations and activations within are not counted",
    )


# -----------------------------------------------------------------------------
# Recurrent layers: each matrix of weights meets each element of each sequence once.


def _recurrent(pass_: str, mode: int) -> Callable[[Call], Found]:
    """Source ``(length, batch, size)``, then weights, initial states, settings.

    Args:
        pass_: backward gives all gradients at once: two products for each one forward.
        mode: place of the number of the cell among the arguments.
    """

    def rule(call: Call) -> Found:
        source, weights, recurrent = call.arguments[:3]
        length, batch, size = source.shape
        passes = 1 if pass_ == "forward" else 2
        products = 2 * passes * length * batch * (weights.elements + recurrent.elements)

        def layers() -> list[Work]:
            cell = _CELLS.get(call.arguments[mode])
            if cell is None:
                raise UnsupportedError("a recurrent layer without gates has no layer")
            hidden = recurrent.shape[1]
            layer = build_layer(cell, steps=length, batch=batch, in_size=size, hidden=hidden)
            training = pass_ == "forward" and bool(call.arguments[_TRAINING])
            return [call.work(layer, pass_, training=training)]

        return Found.of(
            "recurrent",
            layers,
            flops=products,
            product_flops=products,
            note="what its gates compute beside products is not counted",
        )

    return rule


#: PyTorch's numbers of cells: 0 and 1 have no gates.
_CELLS: Final = {2: "lstm", 3: "gru"}
#: Place of the argument that says whether a forward pass keeps what its gradient needs.
_TRAINING: Final = 15


#: By operator. Where the number of an argument is given, it says whether attention is causal.
RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(7),
    "_scaled_dot_product_flash_attention_backward": _attention_backward(11),
    "_scaled_dot_product_efficient_attention_backward": _attention_backward(11),
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward(14),
    "_native_multi_head_attention": _block,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "mkldnn_rnn_layer": _recurrent("forward", 9),
    "mkldnn_rnn_layer_backward": _recurrent("backward-data", 14),
}
