"""The scores and weights of an attention, some rows at a time, in float64 or float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Rounding = Callable[[NDArray[Any]], NDArray[Any]]
    Tensors = Mapping[str, NDArray[Any]]

#: Scores that there are at a time.
_SCORES: Final = 1 << 20


def attended(layer: Layer, inputs: Tensors) -> NDArray[np.float32]:
    """Return the result in float32: what the backward pass reads."""
    result = np.empty(layer.shapes()["result"], dtype=np.float32)
    for group in np.ndindex(layer.batch, layer.kv_heads):
        for head, rows, t in blocks(layer, inputs, group, np.float32):
            result[group[0], head, rows] = weigh(layer, t, rows, as_is) @ t["value"]
    return result


def as_is(values: NDArray[Any]) -> NDArray[Any]:
    """Return values that are not rounded."""
    return values


def blocks(
    layer: Layer, inputs: Tensors, group: tuple[int, int], dtype: Any
) -> Iterator[tuple[int, slice, dict[str, NDArray[Any]]]]:
    """Yield some rows of a head of queries, and the matrices that they meet."""
    image, shared = group
    heads = layer.heads // layer.kv_heads
    whole = {role: inputs[role][image, shared].astype(dtype) for role in ("key", "value")}
    step = max(1, _SCORES // layer.keys)
    for head in range(shared * heads, (shared + 1) * heads):
        for first in range(0, layer.queries, step):
            rows = slice(first, min(first + step, layer.queries))
            own = {
                role: inputs[role][image, head, rows].astype(dtype)
                for role in ("query", "dst")
                if role in inputs
            }
            yield head, rows, whole | own


def weigh(layer: Layer, t: Tensors, rows: slice, rounding: Rounding) -> NDArray[Any]:
    """Return the (queries, keys) weights of the values."""
    scores = rounding(t["query"] @ t["key"].T / math.sqrt(layer.size))
    if layer.causal:
        seen = np.arange(layer.keys) <= np.arange(rows.start, rows.stop)[:, None]
        scores[~seen] = -np.inf
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return rounding(powers / powers.sum(axis=-1, keepdims=True))
