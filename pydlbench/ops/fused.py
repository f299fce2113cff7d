"""Operations that a kernel fuses with a layer: scales, a bias, and oneDNN's post-ops.

They are written like benchdnn's ``--attr-post-ops``: ``bias+relu``, ``sum:0.5+add:per_oc``. The
forward pass of a convolution or a product then computes::

    y = src_scale * weights_scale * sum((src - src_zero_point) * weights) + bias
    y = each post-op in order: relu(y), y + 0.5 * dst, y + operand
    dst = y / dst_scale + dst_zero_point

A result of integers is rounded to nearest, and limited to the type's range.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from pydlbench.errors import UsageError, unknown_word
from pydlbench.ops.op import Layer, Shape
from pydlbench.ops.table import OPS

#: Ops of the table by oneDNN's names of activations, with the library's usual numbers.
ACTIVATIONS: Final[Mapping[str, tuple[str, float, float]]] = {
    "relu": ("relu", 0, 0),
    "tanh": ("tanh", 0, 0),
    "elu": ("elu", 1, 0),
    "logistic": ("sigmoid", 0, 0),
    "gelu_erf": ("gelu", 0, 0),
    "gelu_tanh": ("gelu-tanh", 0, 0),
    "swish": ("silu", 1, 0),
    "mish": ("mish", 0, 0),
    "hardswish": ("hardswish", 1 / 6, 0.5),
    "hardsigmoid": ("hardsigmoid", 1 / 6, 0.5),
}
# Functions of NumPy, a value and two numbers, with their FLOPs per element.
_WITH_NUMBERS: Final[Mapping[str, tuple[Callable[..., Any], int]]] = {
    "relu": (lambda np, x, a, _: np.where(x > 0, x, x * a), 2),
    "linear": (lambda _np, x, a, b: x * a + b, 2),
    "clip": (lambda np, x, a, b: np.clip(x, a, b), 2),
}
_BINARY: Final[Mapping[str, Callable[[Any, Any, Any], Any]]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "mul": lambda _, x, y: x * y,
    "div": lambda _, x, y: x / y,
    "max": lambda np, x, y: np.maximum(x, y),
    "min": lambda np, x, y: np.minimum(x, y),
}
#: How many numbers may be chosen; all others are the usual ones.
_CHOSEN_NUMBERS: Final = {"relu": 1, "linear": 2, "clip": 2, "sum": 1}
#: Scales and zero points, in the order in which they are written; the bias follows.
_ATTRIBUTES: Final = (
    "src_scale",
    "weights_scale",
    "dst_scale",
    "src_zero_point",
    "dst_zero_point",
    "bias",
)
#: Which elements share a value: none, those of an output channel, all.
_POLICIES: Final = ("per_tensor", "per_oc", "common")
_NAMES: Final = (*_ATTRIBUTES, *ACTIVATIONS, "linear", "clip", "sum", *_BINARY)
#: No operation is fused.
NOTHING_FUSED: Final = "none"


@dataclass(frozen=True, slots=True)
class FusedOp:
    """One operation.

    Attributes:
        name: name of the operation.
        numbers: its numbers.
        policy: which elements of the result share a value of its operand; empty without operand.
        role: role of its operand; empty without one.
    """

    name: str
    numbers: tuple[float, ...] = ()
    policy: str = ""
    role: str = ""

    @property
    def text(self) -> str:
        """The operation as it is written."""
        usual = _usual_numbers(self.name)
        shown = self.numbers
        while shown and shown[-1] == usual[len(shown) - 1]:
            shown = shown[:-1]
        words = [repr(number).removesuffix(".0") for number in shown]
        if self.policy and self.policy != _usual_policy(self.name):
            words.append(self.policy)
        return ":".join([self.name, *words])

    @property
    def native(self) -> str:
        """The operation with all its numbers, for the native module."""
        words = [repr(number) for number in self.numbers]
        return ":".join([self.name, *words, *filter(None, [self.policy])])

    @property
    def flops(self) -> int:
        """FLOPs per element of the result."""
        if self.name in _WITH_NUMBERS and self._has_numbers:
            return _WITH_NUMBERS[self.name][1]
        if self.name in ACTIVATIONS:
            return OPS[ACTIVATIONS[self.name][0]].passes["forward"].per_element
        if self.name == "sum":
            return 1 if self.numbers == (1,) else 2
        return 0 if self.name == "src_zero_point" else 1  # it is subtracted from sums of weights

    @property
    def activation(self) -> str | None:
        """Key in the table of the activation; None for other operations."""
        return ACTIVATIONS[self.name][0] if self.name in ACTIVATIONS else None

    @property
    def _has_numbers(self) -> bool:
        return self.name not in ACTIVATIONS or self.numbers != _usual_numbers(self.name)

    def apply(self, np: Any, y: Any, tensors: Mapping[str, Any]) -> Any:
        """Return the result of a post-op, or of a bias.

        Args:
            np: functions, as of a layer's reference.
            y: result before the operation.
            tensors: operands by role, of shapes that broadcast; ``dst`` is the old result.
        """
        if self.name == "sum":
            return y + tensors["dst"] * self.numbers[0]
        if self.name == "bias":
            return y + tensors["bias"]
        if self.name in _BINARY:
            return _BINARY[self.name](np, y, tensors[self.role])
        if self.name in _WITH_NUMBERS and self._has_numbers:
            return _WITH_NUMBERS[self.name][0](np, y, *self.numbers)
        # An activation's formula needs no fields of its layer.
        formula: Callable[..., Any] = OPS[ACTIVATIONS[self.name][0]].reference
        return formula(np, None, SimpleNamespace(src=y))


def _usual_numbers(name: str) -> tuple[float, ...]:
    if name in ACTIVATIONS:
        return ACTIVATIONS[name][1:]
    return {"linear": (1.0, 0.0), "clip": (0.0, 0.0), "sum": (1.0,)}.get(name, ())


def _usual_policy(name: str) -> str:
    return "per_oc" if name in ("weights_scale", "bias") else "common"


@functools.cache
def fused_ops(text: str) -> tuple[FusedOp, ...]:
    """Return the operations of a text, scales and bias first.

    Raises:
        UsageError: there is no such operation, or it has other numbers.
    """
    if text == NOTHING_FUSED:
        return ()
    ops: list[FusedOp] = []
    for word in re.split("[+-](?=[a-z])", text):
        name, *values = word.split(":")
        if name not in _NAMES:
            raise unknown_word(f"--fuse {word}: no such operation", name, _NAMES)
        ops.append(_read(word, name, [value for value in values if value != "f32"]))
    attributes = sorted((op for op in ops if op.name in _ATTRIBUTES), key=_place)
    if len({op.name for op in attributes}) < len(attributes):
        raise UsageError(f"--fuse {text}: names a scale or a bias twice")
    post_ops = [op for op in ops if op.name not in _ATTRIBUTES]
    return (
        *attributes,
        *(
            FusedOp(op.name, op.numbers, op.policy, f"operand{place}" if op.policy else "")
            for place, op in enumerate(post_ops)
        ),
    )


def _place(op: FusedOp) -> int:
    return _ATTRIBUTES.index(op.name)


def _read(word: str, name: str, values: list[str]) -> FusedOp:
    if name in _ATTRIBUTES or name in _BINARY:
        policy = values[0] if values else _usual_policy(name)
        allowed: Sequence[str] = _POLICIES if name in _BINARY else (_usual_policy(name),)
        if name == "weights_scale":
            allowed = ("per_oc", "common")
        if policy not in allowed or len(values) > 1:
            raise unknown_word(f"--fuse {word}: {name} has no such policy", policy, allowed)
        return FusedOp(name, (), policy, name if name in _ATTRIBUTES else "")
    usual = _usual_numbers(name)
    try:
        numbers = tuple(map(float, values))
    except ValueError:
        numbers = (math.nan,)
    numbers += usual[len(numbers) :]
    chosen = _CHOSEN_NUMBERS.get(name, 0)
    if not all(map(math.isfinite, numbers)) or numbers[chosen:] != usual[chosen:]:
        raise UsageError(f"--fuse {word}: {name} has no such numbers; nearest: {name}")
    if name == "clip" and numbers[0] > numbers[1]:
        low, high = sorted(numbers)
        raise UsageError(f"--fuse {word}: clip from above to below; nearest: clip:{low:g}:{high:g}")
    return FusedOp(name, numbers)


def canonical_fusion(text: str) -> str:
    """Return the text with which operations are stored: ``bias-relu``.

    Raises:
        UsageError: there is no such operation.
    """
    return "-".join(op.text for op in fused_ops(text)) or NOTHING_FUSED


def operand_roles(text: str) -> tuple[str, ...]:
    """Return the roles of the tensors that fused operations read; ``dst`` for a sum is the last."""
    ops = fused_ops(text)
    reads_result = any(op.name == "sum" for op in ops)
    return (*(op.role for op in ops if op.role), *(["dst"] if reads_result else []))


# -----------------------------------------------------------------------------
# Operands and counts.


def channel_axis(layer: Layer) -> int:
    """Return the axis of the output channels, or columns, in the result."""
    return len(layer.shapes()["dst"]) - 1 if layer.op == "gemm" else 1


def fused_shapes(layer: Layer, text: str) -> dict[str, Shape]:
    """Return the shapes of the operands of fused operations by role, without ``dst``.

    A bias, scales and zero points have one dimension, others those of the result.
    """
    shapes: dict[str, Shape] = {}
    for op in fused_ops(text):
        if not op.role:
            continue
        result, axis = layer.shapes()["dst"], channel_axis(layer)
        if op.name in _ATTRIBUTES:
            shapes[op.role] = (result[axis] if op.policy == "per_oc" else 1,)
        else:
            shapes[op.role] = tuple(
                size if op.policy == "per_tensor" or (op.policy == "per_oc" and at == axis) else 1
                for at, size in enumerate(result)
            )
    return shapes


def fused_flops(layer: Layer, text: str) -> int:
    """Return the FLOPs of fused operations."""
    each = sum(op.flops for op in fused_ops(text))
    return each * math.prod(layer.shapes()["dst"]) if each else 0


def fused_bytes(layer: Layer, text: str, result_bytes: float) -> int:
    """Return the bytes that fused operations read.

    Args:
        layer: the layer.
        text: the operations.
        result_bytes: bytes of an element of the result, which ``sum`` reads.
    """
    read = sum(4 * math.prod(shape) for shape in fused_shapes(layer, text).values())
    if "dst" in operand_roles(text):
        read += math.ceil(result_bytes * math.prod(layer.shapes()["dst"]))
    return read
