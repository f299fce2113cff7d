"""Operators that add elements up: normalisations, softmax, reductions; and updates of optimizers.

Factors and statistics of a normalisation may stay in float32 where images are narrower, in PyTorch
as in oneDNN: they do not decide in which type it is computed.

FLOPs are counted as in :mod:`pydlbench.steps.aten.elementwise`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import OPS, build_layer
from pydlbench.ops.tensors import merged_reduction
from pydlbench.steps.aten.call import Found, on_images
from pydlbench.steps.aten.text import TensorText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.models.work import Work
    from pydlbench.ops.op import Layer
    from pydlbench.steps.aten.call import Call


# -----------------------------------------------------------------------------
# Normalisations: sums of elements and of squares, and what follows from them.


def _batch_normalised(call: Call) -> Found:
    """Source, weights, bias, running mean and variance, whether to train, momentum, epsilon.

    Training moves the running statistics, which are no results.
    """
    source, weights, bias = call.arguments[:3]
    running = [one for one in call.arguments[3:5] if isinstance(one, TensorText)]
    numbers = [one for one in call.arguments[3:] if isinstance(one, (bool, float, int))]
    training = numbers[0] is True
    momentum, epsilon = numbers[-2:]

    def layers() -> list[Work]:
        _affine(weights, bias)
        layer = on_images("batchnorm", source.shape, epsilon=epsilon, momentum=momentum)
        return [call.work(layer, training=training)]

    moved = sum(one.bytes for one in running) * training
    results = call.results
    return Found.of(
        "normalisation",
        layers,
        flops=source.elements * (5 if training else 2),
        written=None if results is None else results + moved,
        typed=[source],
    )


def _batch_normalised_backward(call: Call) -> Found:
    """Outer gradient, source, weights, running and saved statistics, whether trained, epsilon."""
    outer, source, weights = call.arguments[:3]
    trained, epsilon = call.arguments[7:9]

    def layers() -> list[Work]:
        _affine(weights, weights)
        if not trained:
            raise UnsupportedError("a gradient with fixed statistics has no layer")
        layer = on_images("batchnorm", source.shape, epsilon=epsilon)
        return [call.work(layer, "backward-data")]

    # With fixed statistics: the two sums, and one product for the source.
    flops = source.elements * (8 if trained else 5)
    return Found.of("normalisation", layers, flops=flops, typed=[outer, source])


def _affine(weights: TensorText | None, bias: TensorText | None) -> None:
    if weights is None or bias is None:
        raise UnsupportedError("a normalisation without factors has no layer")


def _layer_normalised(call: Call) -> Found:
    """Source, shape of what is normalised together, weights, bias, epsilon."""
    source, shape, weights, bias, epsilon = call.arguments[:5]

    def layers() -> list[Work]:
        _affine(weights, bias)
        return [call.work(_on_rows("layernorm", source.shape, len(shape), epsilon=epsilon))]

    return _by_rows(call, "normalisation", layers, source, "layernorm", "forward", [source])


def _layer_normalised_backward(call: Call) -> Found:
    """Outer gradient, source, shape, mean, scale, weights, bias, which gradients are wanted."""
    outer, source, shape = call.arguments[:3]

    def layers() -> list[Work]:
        _affine(*call.arguments[5:7])
        return [call.work(_on_rows("layernorm", source.shape, len(shape)), "backward-data")]

    typed = [outer, source]
    return _by_rows(call, "normalisation", layers, source, "layernorm", "backward-data", typed)


def _group_normalised(backward: bool) -> Callable[[Call], Found]:
    """As many operations as for layers, of other elements."""
    pass_ = "backward-data" if backward else "forward"
    each = OPS["layernorm"].passes[pass_].per_element
    lacks = "oneDNN 3.2 has no normalisation of groups"
    return lambda call: Found(
        kind="normalisation", lacks=lacks, flops=call.tensors[int(backward)].elements * each
    )


# -----------------------------------------------------------------------------
# Softmax, and sums.


def _softmax(op: str) -> Callable[[Call], Found]:
    """Source, and the dimension that sums to one."""

    def rule(call: Call) -> Found:
        source = call.arguments[0]

        def layers() -> list[Work]:
            return [call.work(_along(op, source.shape, call.get(1, "dim")))]

        return _by_rows(call, "softmax", layers, source, op, "forward")

    return rule


def _softmax_backward(op: str) -> Callable[[Call], Found]:
    """Outer gradient, result, and the dimension."""

    def rule(call: Call) -> Found:
        outer = call.arguments[0]

        def layers() -> list[Work]:
            return [call.work(_along(op, outer.shape, call.get(2, "dim")), "backward-data")]

        return _by_rows(call, "softmax", layers, outer, op, "backward-data")

    return rule


def _along(op: str, shape: tuple[int, ...], dim: int) -> Layer:
    """Return a layer along one dimension, behind which there is none.

    Raises:
        UnsupportedError: there is one.
    """
    dim %= max(1, len(shape))
    if math.prod(shape[dim + 1 :]) != 1:
        raise UnsupportedError(f"{op} along other than the last dimension has no layer")
    return _on_rows(op, shape[: dim + 1], 1)


def _on_rows(op: str, shape: Sequence[int], last: int, **parameters: Any) -> Layer:
    """Return a layer that works along rows: the last dimensions together.

    Args:
        op: of the layer.
        shape: of the tensor.
        last: how many dimensions are a row.
        parameters: of the operation.
    """
    begin = len(shape) - last
    batch, channels, *rest = (*shape[:begin], 1, 1)
    return build_layer(
        op,
        batch=batch,
        channels=channels,
        height=math.prod(rest),
        width=math.prod(shape[begin:]),
        **parameters,
    )


def _by_rows(
    call: Call,
    kind: str,
    layers: Callable[[], Sequence[Work]],
    source: TensorText,
    op: str,
    pass_: str,
    typed: Sequence[TensorText] | None = None,
) -> Found:
    flops = source.elements * OPS[op].passes[pass_].per_element
    return Found.of(kind, layers, flops=flops if call.floating else 0, typed=typed)


def _reduced(each: int) -> Callable[[Call], Found]:
    """Source; of ours also dimensions, all without any, behind the order of a norm."""

    def rule(call: Call) -> Found:
        source = call.tensors[0]

        def layers() -> list[Work]:
            if call.operator not in _REDUCTIONS:
                raise UnsupportedError(f"{call.operator} has no layer")
            norm = call.operator == "linalg_vector_norm"
            if not call.floating or (norm and call.get(1, "ord", 2) != 2):
                raise UnsupportedError("whole numbers and other norms have no layer")
            dims = call.get(1 + norm, "dim")
            dims = [dims] if isinstance(dims, int) else dims or range(len(source.shape))
            over = {one % max(1, len(source.shape)) for one in dims}
            op = _REDUCTIONS[call.operator]
            return [call.work(merged_reduction(op, source.shape, over))]

        return Found.of("reduction", layers, flops=source.elements * each * call.floating)

    return rule


#: Ours for PyTorch's.
_REDUCTIONS: Final = {"amax": "max", "amin": "min", "linalg_vector_norm": "norm"}


def _summed(call: Call) -> Found:
    """``sum``, ``mean``: source, dimensions, whether they are kept as 1.

    A sum over all but the channels is the gradient of a bias, a mean over both sides of images a
    pooling.
    """
    source = call.tensors[0]
    dims = call.get(1, "dim")

    def layers() -> list[Work]:
        if not call.floating:
            raise UnsupportedError("whole numbers have no layer")
        shape = source.shape
        axes = range(len(shape))
        over = set(axes) if not dims else {one % len(shape) for one in dims}
        if call.operator == "mean":
            if len(shape) == 4 and over == {2, 3}:
                batch, channels, *sizes = shape
                size = sizes[0], sizes[1]
                pool = build_layer(
                    "pool", batch=batch, channels=channels, in_size=size, kernel=size, mode="avg"
                )
                return [call.work(pool)]
            return [call.work(merged_reduction("mean", shape, over))]
        kept = [axis for axis in axes if axis not in over and shape[axis] != 1]
        if not kept or any(axis in over and shape[axis] != 1 for axis in range(kept[0], kept[-1])):
            return [call.work(merged_reduction("sum", shape, over))]
        layer = build_layer(
            "bias",
            batch=math.prod(shape[: kept[0]]),
            channels=math.prod(shape[kept[0] : kept[-1] + 1]),
            width=math.prod(shape[kept[-1] + 1 :]),
        )
        return [call.work(layer, "backward-weights")]

    flops = source.elements if call.floating else 0
    return Found.of("reduction", layers, flops=flops)


# -----------------------------------------------------------------------------
# Whole steps of an optimizer in one call.


def _adam(call: Call) -> Found:
    """Weights, gradients, both averages, perhaps maxima, numbers of steps; decay among the rest.

    Three for the first average and four for the second, a root, a quotient and a sum, three for the
    weights; decay is one more of the weights (AdamW), or two in the gradient.
    """
    decay = call.keywords.get("weight_decay", 0)
    each = 13 + (decay != 0) * (1 if "adamw" in call.operator else 2)
    return _updated(call, each + bool(call.keywords.get("amsgrad")), [0, 2, 3, 4])


def _descent(call: Call) -> Found:
    """Weights, gradients, velocities."""
    decay = call.keywords.get("weight_decay", 0)
    moves = bool(call.arguments[2])
    return _updated(call, 2 + 2 * (decay != 0) + 2 * moves, [0, 2])


def _updated(call: Call, each: int, written: Sequence[int]) -> Found:
    """Return an update of lists; gradients are rescaled in no call that we know of."""
    weights = call.arguments[0]
    moved = [one for index in written for one in call.arguments[index]]
    return Found(
        kind="update",
        lacks=f"{call.operator} has no layer",
        flops=each * sum(one.elements for one in weights),
        written=sum(one.bytes for one in moved),
    )


#: By operator.
RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        _batch_normalised,
    ),
    "native_batch_norm_backward": _batch_normalised_backward,
    "native_layer_norm": _layer_normalised,
    "native_layer_norm_backward": _layer_normalised_backward,
    "native_group_norm": _group_normalised(backward=False),
    "native_group_norm_backward": _group_normalised(backward=True),
    **dict.fromkeys(("_softmax", "_safe_softmax"), _softmax("softmax")),
    "_log_softmax": _softmax("log-softmax"),
    "_softmax_backward_data": _softmax_backward("softmax"),
    "_log_softmax_backward_data": _softmax_backward("log-softmax"),
    **dict.fromkeys(("sum", "mean"), _summed),
    **dict.fromkeys(
        ("amax", "amin", "argmax", "argmin", "max", "min", "prod", "cumsum", "cumprod"),
        _reduced(1),
    ),
    "linalg_vector_norm": _reduced(2),
    "logsumexp": _reduced(4),
    **dict.fromkeys(("var", "var_mean", "std"), _reduced(4)),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), _adam),
    "_fused_sgd": _descent,
}
