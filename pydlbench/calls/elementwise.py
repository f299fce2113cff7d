"""Arithmetic and activations, element by element, and other memory-bound layers."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydlbench.calls.meaning import (
    LayerPass,
    Meaning,
    Value,
    broadcast_shapes,
    combine,
    meaning_rule,
    no_layer,
    require_floating,
    require_loss_operands,
)
from pydlbench.ops.op import Layer
from pydlbench.ops.table import OPS, build_layer, image_layer
from pydlbench.ops.tensors import merged_elementwise

#: Arguments with which an activation is the layer of the table; by default only none.
_LAYER_ARGUMENTS: Final[dict[str, tuple[list[float], ...]]] = {
    "relu": ([], [0]),
    "relu6": ([], [0, 6]),
    "softplus": ([], [1, 20]),
}
#: FLOPs per element of the result; one for all other operators.
_FLOPS: Final = {
    **dict.fromkeys(("rsqrt", "clamp", "leaky_relu", "prelu", "sqrt_backward"), 2),
    **dict.fromkeys(("leaky_relu_backward", "xlogy", "hardshrink"), 2),
    **dict.fromkeys(("hardshrink_backward", "softshrink_backward"), 2),
    **dict.fromkeys(("prelu_backward", "softshrink", "nan_to_num"), 3),
    **dict.fromkeys(("addcdiv", "addcmul", "lerp", "reciprocal_backward"), 3),
    "rsqrt_backward": 4,
}
#: FLOPs per element of losses without a layer, including their sum.
_LOSS_FLOPS: Final = {
    # Two logarithms and their factors; backward (x - t) / (x (1 - x)).
    "binary_cross_entropy": 9,
    "binary_cross_entropy_backward": 5,
}
_ACTIVATION_PREFIXES: Final = ("threshold", "leaky_relu", "prelu", "hardshrink", "softshrink")
#: Elementwise ops of the table by the operators with the same operands.
_OPS: Final = {
    **{name: name for name in ("abs", "neg", "square", "sqrt", "rsqrt", "exp", "log", "mul")},
    **{name: name for name in ("div", "lerp", "erf", "log1p", "expm1", "sin", "cos")},
    **{name: name for name in ("sign", "floor", "ceil", "rint", "log2", "log10")},
    "sgn": "sign",
    "round": "rint",
    "maximum": "max",
    "minimum": "min",
    "clamp_min": "max",
    "clamp_max": "min",
    **{name: name for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "leaky_relu": "leaky-relu",
    "prelu": "leaky-relu",
    "leaky_relu_backward": "leaky-relu-gradient",
    "prelu_backward": "prelu-gradient",
    **{name: name for name in ("xlogy", "hardshrink", "softshrink", "threshold")},
}
#: Powers that are ops of their own.
_POWERS: Final = {2: "square", 0.5: "sqrt", -0.5: "rsqrt"}
#: Ops of a tensor as both operands.
_OF_ITSELF: Final = {"mul": "square", "xlogy": "xlogx"}
#: Placeholder for a factor other than 1 and -1; its value does not affect timing.
_PLACEHOLDER_FACTOR: Final = 0.5


@meaning_rule
def memory_bound(
    op: str,
    shape: Sequence[int],
    *numbers: Any,
    kind: str = "elementwise",
    pass_: str = "forward",
    training: bool = False,
    floating: bool = True,
    **parameters: Any,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a memory-bound layer of the table.

    Args:
        op: name of the layer's op; an op that the table lacks has neither a layer nor a formula.
        shape: shape of the tensor, channels second.
        numbers: numbers among the framework's arguments.
        kind: kind of the call, as in :class:`~pydlbench.calls.meaning.Meaning`.
        pass_: pass of the layer.
        training: whether a forward pass keeps data for the gradient.
        floating: whether the elements are floating-point numbers.
        parameters: parameters of the op.
    """
    per_element = OPS[op].passes[pass_].per_element if op in OPS else 0
    yield Meaning(kind=kind, flops=math.prod(shape) * per_element * floating)
    require_floating(floating=floating)
    if op not in OPS or list(numbers) not in _LAYER_ARGUMENTS.get(op, ([],)):
        raise no_layer(f"{op} with {', '.join(map(str, numbers))}" if numbers else op)
    yield LayerPass(image_layer(op, shape, **parameters), pass_, training)


def activation(op: str, shape: Sequence[int], *numbers: Any, **options: Any) -> Meaning:
    """Return the meaning of an activation, or of its gradient; see :func:`memory_bound`."""
    return memory_bound(op, shape, *numbers, kind="activation", **options)


def exponential_linear(
    images: Value, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0, **options: Any
) -> Meaning:
    """Return the meaning of ``scale x`` above zero, else ``scale alpha (exp(inner x) - 1)``."""
    factors = {"alpha": float(alpha), "factor": float(scale)} if inner == 1 else {}
    numbers = [] if factors else [alpha, scale, inner]
    shape, floating = images.shape, images.floating
    return activation("elu", shape, *numbers, floating=floating, **factors, **options)


def hard_tanh(images: Value, low: float, high: float, **options: Any) -> Meaning:
    """Return the meaning of limiting values to an interval, or of its gradient."""
    if (low, high) == (0, 6):
        return activation("relu6", images.shape, floating=images.floating, **options)
    limits = {"low": float(low), "high": float(high)}
    return activation("hardtanh", images.shape, floating=images.floating, **limits, **options)


@meaning_rule
def gated(source: Value, axis: int, *, backward: bool = False) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of half of a tensor times the sigmoid of the other, or of its gradient.

    Args:
        source: both halves.
        axis: dimension along which they are.
        backward: whether the call computes the gradient.
    """
    axis %= len(source.shape)
    outer, inner = math.prod(source.shape[:axis]), math.prod(source.shape[axis:])
    pass_ = "backward-data" if backward else "forward"
    per_pair = build_layer("glu", channels=1, width=1).flops(pass_)
    flops = source.elements // 2 * per_pair * source.floating
    yield Meaning(kind="activation", flops=flops)
    require_floating(floating=source.floating)
    yield LayerPass(build_layer("glu", channels=outer, width=inner // 2), pass_)


@meaning_rule
def loss(
    op: str,
    prediction: Value,
    target: Value,
    *,
    missing: str = "",
    backward: bool = False,
    **parameters: Any,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a loss of the table, or of its gradient.

    Args:
        op: name of the loss.
        prediction: tensor whose gradient is computed.
        target: what it should be.
        missing: what about the call has no layer; empty if nothing.
        backward: whether the call computes the gradient.
        parameters: parameters of the op.
    """
    pass_ = "backward-data" if backward else "forward"
    per_element = OPS[op].passes[pass_].per_element
    yield Meaning(kind="loss", flops=prediction.elements * per_element * prediction.floating)
    require_floating(floating=prediction.floating)
    if missing:
        raise no_layer(f"{op} {missing}")
    if (prediction.shape, prediction.dtype) != (target.shape, target.dtype):
        raise no_layer(f"{op} of several types or shapes")
    require_loss_operands(op, prediction, target)
    yield LayerPass(build_layer(op, channels=prediction.elements, **parameters), pass_)


def channel_sums(images: Sequence[int], kind: str = "reduction") -> Meaning:
    """Return the meaning of the gradient of a bias: sums over all but the channels."""
    return memory_bound("bias", images, kind=kind, pass_="backward-weights")


@meaning_rule
def arithmetic(
    name: str,
    *operands: Any,
    factor: float = 1,
    rounds: bool = False,
    in_place: bool = False,
    channels: int = 1,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of an elementwise operator; numbers are operands of one element.

    Args:
        name: name of the operator, PyTorch's if it has one: ``add``, ``leaky_relu_backward``.
        operands: values and numbers; None stands for a limit that is left out.
        factor: factor of the second operand of a sum or difference, or of an added product.
        rounds: whether the result is rounded.
        in_place: whether the operator overwrites its first operand.
        channels: index of the dimension of images that holds the channels.
    """
    values = [operand for operand in operands if isinstance(operand, Value)]
    floating = any(value.floating for value in values)
    per_element = _LOSS_FLOPS.get(name, _FLOPS.get(name, 1)) - (
        name == "clamp" and None in operands
    )
    per_element += name in ("add", "sub", "rsub") and factor != 1
    kind = "activation" if name.startswith(_ACTIVATION_PREFIXES) else "elementwise"
    elements = math.prod(broadcast_shapes([value.shape for value in values]))
    yield Meaning(
        kind="loss" if name in _LOSS_FLOPS else kind, flops=per_element * elements * floating
    )
    require_floating(floating=floating)
    layer = None
    if len(values) == 2 == len(operands):
        layer = _catalogue_layer(name, *values, factor=factor, in_place=in_place, channels=channels)
    if layer is None:
        layer = _elementwise_layer(name, operands, factor, rounds=rounds)
    yield LayerPass(layer)


def _catalogue_layer(
    name: str, left: Value, right: Value, *, factor: float, in_place: bool, channels: int
) -> Layer | None:
    """Return the layer that catalogue models have for an operator; None if they have none."""
    if any(value.stored_shape != value.shape for value in (left, right)):
        return None
    large, small = (left, right) if left.elements >= right.elements else (right, left)
    factor = -factor if name == "sub" else factor
    if name == "mul":
        return _channel_scale(large, small, channels % 4)
    if name not in ("add", "sub"):
        return None
    if left.shape == right.shape and factor < 0 and in_place:
        return build_layer("sgd", channels=left.elements, rate=-factor)
    if factor != 1:
        return None
    if left.shape == right.shape:
        return image_layer("add", left.shape)
    width = (1, *large.shape)[-1]
    if small.elements == width and small.shape[-1:] == (width,):
        return build_layer("bias", batch=large.elements // width, channels=width)
    per_channel = (1, *large.shape[1:2], *(1 for _ in large.shape[2:]))
    return image_layer("bias", large.shape) if small.shape == per_channel else None


def _channel_scale(images: Value, factors: Value, channels: int) -> Layer | None:
    """Return the layer of one factor for each channel of each image; None for other factors."""
    scaled = (0, channels)
    if len(images.shape) != 4 or factors.shape != tuple(
        size if axis in scaled else 1 for axis, size in enumerate(images.shape)
    ):
        return None
    sides = [axis for axis in range(4) if axis not in scaled]
    return image_layer("scale", images.permute([*scaled, *sides]).shape)


def _elementwise_layer(name: str, operands: Sequence[Any], factor: float, *, rounds: bool) -> Layer:
    """Return the elementwise layer of an operator.

    Raises:
        UnsupportedError: the operator has no such layer.
    """
    if rounds:
        raise no_layer(f"{name} that rounds")
    op, operands, number = _translate(name, operands, factor)
    operands = operands[: OPS[f"elementwise:{op}"].operand_count]
    values = [operand for operand in operands if isinstance(operand, Value)]
    compared = values[:-1] if op == "select" else values
    if len({value.dtype for value in compared if value.shape}) > 1:
        raise no_layer(f"{name} of several types")
    shapes = [operand.stored_shape if isinstance(operand, Value) else () for operand in operands]
    if broadcast_shapes(shapes) != broadcast_shapes([value.shape for value in values]):
        raise no_layer(f"{name} of elements that are repeated")
    exact = op == "power" or number in (1, -1, None)
    return merged_elementwise(op, *shapes, number=number if exact else _PLACEHOLDER_FACTOR)


def _translate(
    name: str, operands: Sequence[Any], factor: float
) -> tuple[str, Sequence[Any], float | None]:
    """Return the op of the table, its operands and its number, if the call has it.

    Raises:
        UnsupportedError: the table has no op for the operator.
    """
    if name in ("sub", "rsub"):
        operands = operands if name == "sub" else operands[1::-1]
        name, factor = "add", -factor
    if name in ("add", "addcmul", "addcdiv"):
        if name == "addcmul" and _same_operand(*operands[1:3]):
            return "add-square", operands, float(factor)
        return name, operands, float(factor)
    if name == "reciprocal":
        return "div", [1.0, *operands], 1.0
    if name == "clamp":
        low, high = operands[1:3]
        op = "clamp" if None not in (low, high) else "max" if high is None else "min"
        return op, [operand for operand in operands if operand is not None], 1.0
    if name == "pow" and not isinstance(operands[1], Value):
        op = _POWERS.get(operands[1], "power")
        return op, operands, float(operands[1]) if op == "power" else 1.0
    if name in _OF_ITSELF and _same_operand(*operands[:2]):
        return _OF_ITSELF[name], operands, 1.0
    if name in ("where", "masked_fill", "mul") and (masked := _masked(name, operands)):
        return "select", masked, 1.0
    if name not in _OPS:
        raise no_layer(name)
    return _OPS[name], operands, None


def _masked(name: str, operands: Sequence[Any]) -> list[Any]:
    """Return two operands and the mask that chooses between them; none if there is no mask."""
    truths = [item for item in operands if isinstance(item, Value) and item.dtype == "bool"]
    others = [item for item in operands if not any(item is mask for mask in truths)]
    numbers = [0.0] if name == "mul" else []
    return [*others, *numbers, *truths] if len(truths) == 1 else []


def _same_operand(left: Any, right: Any) -> bool:
    return isinstance(left, Value) and left.same_as(right)


def sum_of_tensors(values: Sequence[Value]) -> Meaning:
    """Return the meaning of the sum of several tensors, added one after the other."""
    result = values[0].with_shape(*broadcast_shapes([value.shape for value in values]))
    pairs = zip([values[0], *[result] * len(values)], values[1:], strict=False)
    return combine(arithmetic("add", *pair) for pair in pairs)
