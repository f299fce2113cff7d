"""Operators on each element: arithmetic, activations, normalisations, softmax, sums, updates.

An addition, multiplication, division, comparison, root, power, exponential, logarithm or error
function is one FLOP, as in :mod:`pydlbench.layers.pointwise_ops`; what is done only once per
channel, row or tensor is left out. Operations on whole numbers are no FLOPs.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pointwise_ops import OPERATIONS
from pydlbench.layers.pool import Pool2d
from pydlbench.steps.aten.call import Found, broadcast, on_images
from pydlbench.steps.aten.text import TensorText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.models.work import Work
    from pydlbench.steps.aten.call import Call

__all__ = ["RULES"]


# -----------------------------------------------------------------------------
# FLOPs for each element of the result, whether it is a new one, overwrites, or is one of a list.

_ONE: Final = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "log2", "neg"),
    *("reciprocal", "round", "sgn", "sign", "sin", "sqrt", "square", "trunc", "floor_divide"),
    *("add", "atan2", "div", "fmod", "maximum", "minimum", "mul", "pow", "remainder", "sub"),
    *("rsub", "eq", "ge", "gt", "le", "lt", "ne", "isfinite", "isinf", "isnan", "logical_and"),
    *("logical_not", "logical_or", "logical_xor", "bitwise_and", "bitwise_not", "bitwise_or"),
    *("bitwise_xor", "clamp_max", "clamp_min", "masked_fill", "where"),
    "threshold",
)
_SMOOTH: Final = (
    *("elu", "gelu", "hardsigmoid", "hardswish", "mish", "sigmoid", "silu", "softplus", "tanh"),
)
#: Activations that are layers, with the pass.
_ACTIVATIONS: Final[Mapping[str, tuple[str, str]]] = {
    **{one: (one, "forward") for one in _SMOOTH},
    **{f"{one}_backward": (one, "backward-data") for one in _SMOOTH},
    "relu": ("relu", "forward"),
    "threshold_backward": ("relu", "backward-data"),
    "hardtanh": ("relu6", "forward"),
    "hardtanh_backward": ("relu6", "backward-data"),
    "native_dropout": ("dropout", "forward"),
}
#: With which numbers, where there are some; defaults are left out of calls or are not.
_NUMBERS: Final[Mapping[str, Sequence[list[float]]]] = {
    "hardtanh": ([0, 6],),
    "hardtanh_backward": ([0, 6],),
    "threshold_backward": ([0],),
    "elu": ([], [1]),
    "elu_backward": ([1, 1, 1, False],),
    "softplus": ([], [1, 20]),
    "softplus_backward": ([1, 20],),
}
#: Losses of each element, with their sum.
_LOSSES: Final[Mapping[str, int]] = {
    # A difference, its square or amount; backward a factor of the outer gradient too.
    "mse_loss": 3,
    "mse_loss_backward": 3,
    "l1_loss": 3,
    # Where the difference is small, its square and a factor.
    "smooth_l1_loss": 6,
    "smooth_l1_loss_backward": 5,
    # Two logarithms and what they are multiplied with; backward (x - t) / (x (1 - x)).
    "binary_cross_entropy": 9,
    "binary_cross_entropy_backward": 5,
    # (1 - t) x, less the logarithm of a sigmoid.
    "binary_cross_entropy_with_logits": 8,
}
_EACH: Final[Mapping[str, int]] = {
    **dict.fromkeys(_ONE, 1),
    "rsqrt": 2,
    **dict.fromkeys(("clamp", "leaky_relu", "_prelu_kernel"), 2),
    **dict.fromkeys(("leaky_relu_backward", "_prelu_kernel_backward"), 2),
    **dict.fromkeys(("addcdiv", "addcmul", "lerp"), 3),
    "native_dropout_backward": 1,
    **_LOSSES,
}
_ALSO_ACTIVATIONS: Final = {
    f"{name}{pass_}"
    for name in ("threshold", "leaky_relu", "_prelu_kernel")
    for pass_ in ("", "_backward")
}


def _each(call: Call) -> Found:
    name = call.operator.removeprefix("_foreach_")
    lists = name != call.operator
    first = call.arguments[0]
    if lists:
        shapes = [one.shape for one in first]
    else:
        shapes = [broadcast([one.shape for one in call.tensors])]
    activation = _activation_of(call, name)
    if activation is None:
        per = _EACH[name]
    else:
        per = OPERATIONS[activation[0]].steps[activation[1]].flops
    alpha = call.get(2, "alpha", 1) if name in ("add", "sub", "rsub") else 1
    per += alpha != 1
    flops = per * sum(map(math.prod, shapes)) if call.floating else 0
    # What works in place on lists returns nothing.
    written = sum(one.bytes for one in first) if lists and call.in_place else None
    kind = "loss" if name in _LOSSES else "elementwise"
    if activation is not None or name in _ALSO_ACTIVATIONS:
        kind = "activation"
    return Found.of(
        kind,
        lambda: _layers(call, name, alpha),
        flops=flops,
        written=written,
    )


def _activation_of(call: Call, name: str) -> tuple[str, str] | None:
    """Return the layer of an activation and its pass; None if it is none."""
    if name.startswith("gelu") and call.keywords.get("approximate") == "tanh":
        return "gelu-tanh", _ACTIVATIONS[name][1]
    return _ACTIVATIONS.get(name)


# -----------------------------------------------------------------------------
# The layers of those that are some.


def _layers(call: Call, name: str, alpha: float) -> Iterator[Work]:
    """Give the layers of an operator, one for each operand where there are lists of them.

    Raises:
        UnsupportedError: there are none.
    """
    if not call.floating:
        raise UnsupportedError("whole numbers have no layer")
    activation = _activation_of(call, name)
    if activation is not None:
        yield _activation(call, name, *activation)
        return
    if name not in ("add", "sub", "mul") or len(call.arguments) < 2:
        raise UnsupportedError(f"{name} has no layer")
    left, right = call.arguments[:2]
    lists = [one if isinstance(one, list) else [one] for one in (left, right)]
    for one, other in itertools.zip_longest(*lists, fillvalue=right):
        if not isinstance(one, TensorText) or not isinstance(other, TensorText):
            raise UnsupportedError(f"{name} of a number has no layer")
        yield _binary(call, name, -alpha if name == "sub" else alpha, one, other)


def _activation(call: Call, name: str, op: str, pass_: str) -> Work:
    shape = call.tensors[0].shape
    if op == "dropout":
        return call.work(on_images(op, shape, keep=1 - call.arguments[1]), training=True)
    numbers = [one for one in call.arguments if not isinstance(one, TensorText)]
    if numbers not in _NUMBERS.get(name, ([],)):
        raise UnsupportedError(f"{name} with {', '.join(map(str, numbers))} has no layer")
    return call.work(on_images(op, shape), pass_)


def _binary(call: Call, name: str, alpha: float, left: TensorText, right: TensorText) -> Work:
    """Return the layer of ``left + alpha * right``, or of a product."""
    if name == "mul":
        images, factors = (left, right) if left.elements >= right.elements else (right, left)
        if len(images.shape) == 4 and factors.shape == (*images.shape[:2], 1, 1):
            return call.work(on_images("scale", images.shape))
        raise UnsupportedError("a product of elements has no layer")
    if left.shape == right.shape:
        if alpha == 1:
            return call.work(on_images("add", left.shape))
        if alpha < 0 and call.in_place:
            return call.work(Pointwise(op="sgd", channels=left.elements, rate=-alpha))
        if alpha > 0:
            layer = Pointwise(op="l2", channels=left.elements, decay=alpha)
            return call.work(layer, "backward-weights")
    if alpha == 1 and left.elements >= right.elements and left.shape:
        channels = left.shape[-1]
        if right.elements == channels and right.shape[-1:] == (channels,):
            rows = left.elements // channels
            return call.work(Pointwise(op="bias", batch=rows, channels=channels))
        if right.shape == (1, *left.shape[1:2], *(1 for _ in left.shape[2:])):
            return call.work(on_images("bias", left.shape))
    raise UnsupportedError(
        f"{list(right.shape)} times {alpha:g} added to {list(left.shape)} has no layer"
    )


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
    )


def _batch_normalised_backward(call: Call) -> Found:
    """Outer gradient, source, weights, running and saved statistics, whether trained, epsilon."""
    source, weights = call.arguments[1:3]
    trained, epsilon = call.arguments[7:9]

    def layers() -> list[Work]:
        _affine(weights, weights)
        if not trained:
            raise UnsupportedError("a gradient with fixed statistics has no layer")
        layer = on_images("batchnorm", source.shape, epsilon=epsilon)
        return [call.work(layer, "backward-data")]

    # With fixed statistics: the two sums, and one product for the source.
    return Found.of("normalisation", layers, flops=source.elements * (8 if trained else 5))


def _affine(weights: TensorText | None, bias: TensorText | None) -> None:
    if weights is None or bias is None:
        raise UnsupportedError("a normalisation without factors has no layer")


def _layer_normalised(call: Call) -> Found:
    """Source, shape of what is normalised together, weights, bias, epsilon."""
    source, shape, weights, bias, epsilon = call.arguments[:5]

    def layers() -> list[Work]:
        _affine(weights, bias)
        return [call.work(_on_rows("layernorm", source.shape, len(shape), epsilon=epsilon))]

    return _by_rows(call, "normalisation", layers, source, "layernorm", "forward")


def _layer_normalised_backward(call: Call) -> Found:
    """Outer gradient, source, shape, mean, scale, weights, bias, which gradients are wanted."""
    source, shape = call.arguments[1:3]

    def layers() -> list[Work]:
        _affine(*call.arguments[5:7])
        return [call.work(_on_rows("layernorm", source.shape, len(shape)), "backward-data")]

    return _by_rows(call, "normalisation", layers, source, "layernorm", "backward-data")


def _group_normalised(backward: bool) -> Callable[[Call], Found]:
    """As many operations as for layers, of other elements."""
    pass_ = "backward-data" if backward else "forward"
    each = OPERATIONS["layernorm"].steps[pass_].flops
    return lambda call: _without(call, "normalisation", call.tensors[int(backward)], each)


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


def _along(op: str, shape: tuple[int, ...], dim: int) -> Pointwise:
    """Return a layer along one dimension, behind which there is none.

    Raises:
        UnsupportedError: there is one.
    """
    dim %= max(1, len(shape))
    if math.prod(shape[dim + 1 :]) != 1:
        raise UnsupportedError(f"{op} along other than the last dimension has no layer")
    return _on_rows(op, shape[: dim + 1], 1)


def _on_rows(op: str, shape: Sequence[int], last: int, **parameters: Any) -> Pointwise:
    """Return a layer that works along rows: the last dimensions together.

    Args:
        op: of the layer.
        shape: of the tensor.
        last: how many dimensions are a row.
        parameters: of the operation.
    """
    begin = len(shape) - last
    batch, channels, *rest = (*shape[:begin], 1, 1)
    return Pointwise(
        op=op,
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
) -> Found:
    flops = source.elements * OPERATIONS[op].steps[pass_].flops
    return Found.of(kind, layers, flops=flops if call.floating else 0)


def _reduced(each: int) -> Callable[[Call], Found]:
    return lambda call: _without(call, "reduction", call.tensors[0], each)


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
                pool = Pool2d.of(
                    batch=batch, channels=channels, in_size=size, kernel=size, mode="avg"
                )
                return [call.work(pool)]
            raise UnsupportedError("a mean over other than both sides of images has no layer")
        kept = [axis for axis in axes if axis not in over and shape[axis] != 1]
        if not kept or any(axis in over and shape[axis] != 1 for axis in range(kept[0], kept[-1])):
            raise UnsupportedError("a sum over other than all but the channels has no layer")
        layer = Pointwise(
            op="bias",
            batch=math.prod(shape[: kept[0]]),
            channels=math.prod(shape[kept[0] : kept[-1] + 1]),
            width=math.prod(shape[kept[-1] + 1 :]),
        )
        return [call.work(layer, "backward-weights")]

    flops = source.elements if call.floating else 0
    return Found.of("reduction", layers, flops=flops)


def _without(call: Call, kind: str, source: TensorText, each: int) -> Found:
    flops = source.elements * each if call.floating else 0
    return Found(kind=kind, lacks=f"{call.operator} has no layer", flops=flops)


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
    **{name: _each for one in (*_EACH, *_ACTIVATIONS) for name in (one, f"_foreach_{one}")},
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
