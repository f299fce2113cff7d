"""Operators on each element: arithmetic and activations.

An addition, multiplication, division, comparison, root, power, exponential, logarithm or error
function is one FLOP, as in :mod:`pydlbench.ops.pointwise`; what is done only once per
channel, row or tensor is left out. Operations on whole numbers are no FLOPs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import OPS, build_layer
from pydlbench.ops.tensors import merged_elementwise
from pydlbench.steps.aten.call import Found, broadcast, on_images
from pydlbench.steps.aten.text import TensorText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.models.work import Work
    from pydlbench.steps.aten.call import Call


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
        per = OPS[activation[0]].passes[activation[1]].per_element
    alpha = call.get(2, "alpha", 1) if name in ("add", "sub", "rsub") else 1
    per += alpha != 1
    if name == "clamp":
        per -= None in (call.get(1, "min"), call.get(2, "max"))
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
    arguments = call.arguments
    for index in range(len(arguments[0]) if isinstance(arguments[0], list) else 1):
        operands = [one[index] if isinstance(one, list) else one for one in arguments]
        yield _of_graph(call, name, alpha, operands) or _arithmetic(call, name, alpha, operands)


def _activation(call: Call, name: str, op: str, pass_: str) -> Work:
    shape = call.tensors[0].shape
    if op == "dropout":
        return call.work(on_images(op, shape, keep=1 - call.arguments[1]), training=True)
    numbers = [one for one in call.arguments if not isinstance(one, TensorText)]
    if numbers not in _NUMBERS.get(name, ([],)):
        raise UnsupportedError(f"{name} with {', '.join(map(str, numbers))} has no layer")
    return call.work(on_images(op, shape), pass_)


def _of_graph(call: Call, name: str, alpha: float, operands: Sequence[Any]) -> Work | None:
    """Return the layer that models of the catalogue have for the same; None if they have none."""
    if len(operands) < 2 or not all(isinstance(one, TensorText) for one in operands[:2]):
        return None
    left, right = operands[:2]
    if any(_stored(one) != one.shape for one in (left, right)):
        return None
    if name == "mul":
        images, factors = (left, right) if left.elements >= right.elements else (right, left)
        if len(images.shape) == 4 and factors.shape == (*images.shape[:2], 1, 1):
            return call.work(on_images("scale", images.shape))
    if name not in ("add", "sub"):
        return None
    alpha = -alpha if name == "sub" else alpha
    if left.shape == right.shape:
        if alpha == 1:
            return call.work(on_images("add", left.shape))
        if alpha < 0 and call.in_place:
            return call.work(build_layer("sgd", channels=left.elements, rate=-alpha))
    return _bias(call, left, right) if alpha == 1 else None


def _bias(call: Call, left: TensorText, right: TensorText) -> Work | None:
    """Return the addition of a vector to all rows, or to all channels; None if it is neither."""
    if not left.shape or left.elements < right.elements:
        return None
    channels = left.shape[-1]
    if right.elements == channels and right.shape[-1:] == (channels,):
        rows = left.elements // channels
        return call.work(build_layer("bias", batch=rows, channels=channels))
    if right.shape == (1, *left.shape[1:2], *(1 for _ in left.shape[2:])):
        return call.work(on_images("bias", left.shape))
    return None


#: Ours for PyTorch's, with the same operands.
_SAME: Final[Mapping[str, str]] = {
    **{one: one for one in ("abs", "neg", "square", "sqrt", "rsqrt", "exp", "log", "mul", "div")},
    **{one: one for one in ("lerp", "addcmul", "addcdiv")},
    "maximum": "max",
    "minimum": "min",
    "clamp_min": "max",
    "clamp_max": "min",
    "leaky_relu": "leaky-relu",
    "_prelu_kernel": "leaky-relu",
    "leaky_relu_backward": "leaky-relu-gradient",
}
#: Powers that are operators of their own.
_POWERS: Final[Mapping[float, str]] = {2: "square", 0.5: "sqrt", -0.5: "rsqrt"}
#: What any factor stands for that is neither 1 nor -1: it makes no difference to a kernel's time.
_SOME: Final = 0.5


def _arithmetic(call: Call, name: str, alpha: float, operands: Sequence[Any]) -> Work:
    """Return the layer of arithmetic; numbers are operands of one element.

    Raises:
        UnsupportedError: there is none.
    """
    if call.keywords.get("rounding_mode"):
        raise UnsupportedError(f"{name} that rounds has no layer")
    op, operands, number = _operator(call, name, alpha, operands)
    operands = operands[: OPS[f"elementwise:{op}"].operand_count]
    tensors = [one for one in operands if isinstance(one, TensorText)]
    if len({one.dtype for one in tensors if one.shape}) > 1:
        raise UnsupportedError(f"{name} of several types has no layer")
    shapes = [_stored(one) for one in operands]
    if broadcast(shapes) != broadcast([one.shape for one in tensors]):
        raise UnsupportedError(f"{name} of elements that are repeated has no layer")
    return call.work(merged_elementwise(op, *shapes, number=number))


def _stored(operand: Any) -> tuple[int, ...]:
    """Return the shape of what memory has of an operand: elements that are repeated are one."""
    if not isinstance(operand, TensorText):
        return ()
    sides = zip(operand.shape, operand.strides, strict=True)
    return tuple(size if stride else min(size, 1) for size, stride in sides)


def _operator(
    call: Call, name: str, alpha: float, operands: Sequence[Any]
) -> tuple[str, Sequence[Any], float]:
    """Return our operator, its operands and its number.

    Raises:
        UnsupportedError: there is none.
    """
    if name in ("add", "sub"):
        return "add", operands[:2], _factor(alpha if name == "add" else -alpha)
    if name == "rsub":
        return "add", operands[1::-1], _factor(-alpha)
    if name == "reciprocal":
        return "div", [1.0, *operands], 1.0
    if name == "clamp":
        low, high = call.get(1, "min"), call.get(2, "max")
        op = "clamp" if None not in (low, high) else "max" if high is None else "min"
        return op, [one for one in (operands[0], low, high) if one is not None], 1.0
    if name == "pow" and not isinstance(operands[1], TensorText):
        op = _POWERS.get(operands[1], "power")
        return op, operands[:1], float(operands[1]) if op == "power" else 1.0
    if name == "mul" and _alike(*operands[:2]):
        return "square", operands[:1], 1.0
    if name in ("addcmul", "addcdiv"):
        number = _factor(call.get(3, "value", 1))
        if name == "addcmul" and _alike(*operands[1:3]):
            return "add-square", operands[:2], number
        return name, operands[:3], number
    return *_same(call, name, operands), 1.0


def _same(call: Call, name: str, operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return our operator for one with the same operands, and these.

    Raises:
        UnsupportedError: there is none.
    """
    if name not in _SAME:
        raise UnsupportedError(f"{name} has no layer")
    if name == "leaky_relu":
        operands = [operands[0], call.get(1, "negative_slope", 0.01)]
    return _SAME[name], operands


def _factor(number: Any) -> float:
    return float(number) if number in (1, -1) else _SOME


def _alike(left: Any, right: Any) -> bool:
    """Whether two operands are the same elements of the same memory."""
    if not isinstance(left, TensorText) or not isinstance(right, TensorText):
        return False
    return (left.of, left.at, left.shape, left.strides) == (
        (right.of, right.at, right.shape, right.strides)
    )


#: By operator.
RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    **{name: _each for one in (*_EACH, *_ACTIVATIONS) for name in (one, f"_foreach_{one}")},
}
