"""Ops whose results depend on one element of each operand: values are the table's.

An error is relative to the value and to the size of the terms that it is a sum of, which is here.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.verification.checksums import EXACT, F64, TRANSCENDENTAL, Piece, pieces
from pydlbench.backends.verification.inputs import kept_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Size = Callable[[F64, Layer, Any], NDArray[Any]]
    Rule = tuple[int, Size]


# -----------------------------------------------------------------------------
# Forward passes: how many terms a value is rounded as a sum of, and the root of the sum of their
# squares, by value, layer and operands.


def _whole(value: F64, _: Layer, __: Any) -> F64:
    return np.abs(value)


def _part_and_rest(part: Callable[[Any], F64]) -> Size:
    """Return the size of a sum of two terms, one of which is given."""
    return lambda value, _, t: np.hypot(part(t), value - part(t))


_OF_SRC: Final = _part_and_rest(lambda t: t.src)


def _mish_size(_: F64, __: Layer, t: Any) -> F64:
    """The softplus within is off by what a logarithm of a sum with one is."""
    plus = np.logaddexp(0, t.src)
    bent = np.hypot(1, plus) / np.cosh(plus) ** 2
    return np.asarray(np.abs(t.src) * np.hypot(np.tanh(plus), bent))


#: How much more than a root a logarithm may be off: what oneDNN's own test allows its
#: (tests/benchdnn/eltwise/eltwise.cpp: 4e-5, and 4e-6).
_LOGARITHM: Final = 10

#: By op, or by op and role of updated tensors; other arithmetic is one term.
_RULES: Final[Mapping[str | tuple[str, str], Rule]] = {
    **dict.fromkeys(("relu", "relu6"), (EXACT, _whole)),
    **dict.fromkeys(("bias", "add"), (2, _OF_SRC)),
    "hardsigmoid": (
        2,
        lambda v, _, t: np.where(np.abs(t.src) < 3, np.hypot(t.src, 3) / 6, v),
    ),
    "hardswish": (
        2,
        lambda v, _, t: np.abs(np.where(np.abs(t.src) < 3, t.src * np.hypot(t.src, 3) / 6, v)),
    ),
    **dict.fromkeys(("sigmoid", "tanh", "silu"), (TRANSCENDENTAL, _whole)),
    # One is a term of the sum that the logarithm is taken of.
    "softplus": (TRANSCENDENTAL, lambda v, _, __: np.hypot(1, v)),
    # A difference of an exponential and one.
    "elu": (TRANSCENDENTAL, lambda v, _, t: np.where(t.src > 0, v, np.hypot(1, v + 1))),
    "mish": (TRANSCENDENTAL, _mish_size),
    **dict.fromkeys(("gelu", "gelu-tanh"), (TRANSCENDENTAL, _part_and_rest(lambda t: t.src / 2))),
    **dict.fromkeys(("scale", "dropout"), (1, _whole)),
    ("l2", "gradient"): (2, _part_and_rest(lambda t: t.gradient)),
    ("sgd", "weights"): (2, _part_and_rest(lambda t: t.weights)),
    ("momentum", "velocity"): (2, _part_and_rest(lambda t: t.gradient)),
    ("momentum", "weights"): (
        3,
        lambda _, s, t: np.hypot(t.weights, s.rate * np.hypot(s.mu * t.velocity, t.gradient)),
    ),
    **dict.fromkeys(
        (f"elementwise:{op}" for op in ("abs", "neg", "max", "min", "clamp")), (EXACT, _whole)
    ),
    **dict.fromkeys(
        (f"elementwise:{op}" for op in ("sqrt", "rsqrt", "exp")), (TRANSCENDENTAL, _whole)
    ),
    **dict.fromkeys(
        (f"elementwise:{op}" for op in ("add", "add-square", "addcmul", "addcdiv")), (2, _OF_SRC)
    ),
    # Near one a logarithm is a difference from that of one.
    "elementwise:log": (
        TRANSCENDENTAL,
        lambda v, _, __: np.hypot(v, _LOGARITHM * np.hypot(v, 1)),
    ),
    # The exponential of a product: the logarithm's error is multiplied by the exponent.
    "elementwise:power": (
        TRANSCENDENTAL,
        lambda v, s, _: v * math.hypot(1, max(1.0, abs(s.number))),
    ),
    "elementwise:lerp": (
        3,
        lambda _, __, t: np.sqrt(t.src**2 + (t.src3 * t.src2) ** 2 + (t.src3 * t.src) ** 2),
    ),
}


# -----------------------------------------------------------------------------
# Slopes of activations, each with the size of its terms, by the source.


def _sigmoid(x: F64) -> F64:
    return np.asarray(1 / (1 + np.exp(-x)))


def _of_sigmoid(x: F64) -> tuple[F64, F64]:
    y = _sigmoid(x)
    return y / (1 + np.exp(x)), np.hypot(y, y * y)


def _of_elu(x: F64) -> tuple[F64, F64]:
    """Kernels add one to the result again."""
    slope = np.exp(np.minimum(x, 0))
    return slope, np.where(x > 0, 1, np.hypot(1, slope - 1))


def _of_silu(x: F64) -> tuple[F64, F64]:
    y = _sigmoid(x)
    return y * (1 + x * (1 - y)), y * np.sqrt(1 + x**2 + (x * y) ** 2)


def _of_mish(x: F64) -> tuple[F64, F64]:
    plus = np.logaddexp(0, x)
    y, inner = np.tanh(plus), x * _sigmoid(x)
    return y + inner / np.cosh(plus) ** 2, np.sqrt(y**2 + inner**2 * (1 + y**4))


def _of_gelu(x: F64) -> tuple[F64, F64]:
    """The error function of NumPy's users is Python's, one number at a time."""
    y = np.asarray(_ERROR_FUNCTION(x / math.sqrt(2)), dtype=np.float64)
    density = x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return (1 + y) / 2 + density, np.sqrt(0.25 + y**2 / 4 + density**2)


def _of_gelu_tanh(x: F64) -> tuple[F64, F64]:
    factor = math.sqrt(2 / math.pi)
    y = np.tanh(factor * (x + 0.044715 * x**3))
    inner = x / 2 * factor * (1 + 3 * 0.044715 * x * x)
    return (1 + y) / 2 + inner * (1 - y * y), np.sqrt(0.25 + y**2 / 4 + inner**2 * (1 + y**4))


def _of_hardswish(x: F64) -> tuple[F64, F64]:
    between = np.abs(x) < 3
    return (
        np.where(between, x / 3 + 0.5, x > 0),
        np.where(between, np.hypot(x / 3, 0.5), x > 0),
    )


def _twice(slope: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a slope that is one term."""
    return slope, slope


_ERROR_FUNCTION: Final = np.frompyfunc(math.erf, 1, 1)
_SLOPES: Final[Mapping[str, tuple[int, Callable[[F64], tuple[NDArray[Any], NDArray[Any]]]]]] = {
    "relu": (EXACT, lambda x: _twice(x > 0)),
    "relu6": (EXACT, lambda x: _twice((x > 0) & (x < 6))),
    "hardsigmoid": (1, lambda x: _twice((np.abs(x) < 3) / 6)),
    "hardswish": (2, _of_hardswish),
    "sigmoid": (TRANSCENDENTAL, _of_sigmoid),
    "tanh": (TRANSCENDENTAL, lambda x: (np.cosh(x) ** -2, np.hypot(1, np.tanh(x) ** 2))),
    "softplus": (TRANSCENDENTAL, lambda x: _twice(_sigmoid(x))),
    "elu": (TRANSCENDENTAL, _of_elu),
    "silu": (TRANSCENDENTAL, _of_silu),
    "mish": (TRANSCENDENTAL, _of_mish),
    "gelu": (TRANSCENDENTAL, _of_gelu),
    "gelu-tanh": (TRANSCENDENTAL, _of_gelu_tanh),
}


# -----------------------------------------------------------------------------


def by_element(layer: Layer, pass_: str) -> bool:
    """Return whether the elements of all results of a pass depend on one of each operand."""
    key = layer.entry.key
    if pass_ == "forward" and (layer.kind == "elementwise" or key in _RULES):
        return True
    if pass_ == "backward-data" and (layer.op in _SLOPES or layer.op == "dropout"):
        return True
    return any((key, role) in _RULES for role in layer.writes(pass_))


def elements(layer: Layer, pass_: str, inputs: Mapping[str, NDArray[Any]]) -> Iterator[Piece]:
    """Yield the results of such a pass, piece by piece."""
    operands = layer.reads(pass_)
    for cut in pieces(max((inputs[role] for role in operands), key=np.size)):
        t = SimpleNamespace(**{role: _part(inputs[role], cut) for role in operands})
        for role, (value, terms, size) in _results(layer, pass_, t, cut).items():
            yield Piece(role=role, cut=cut, value=value, size=size, terms=terms)


def _part(array: NDArray[Any], cut: tuple[slice, ...]) -> F64:
    """Return what an operand has for a piece of the result."""
    if array.ndim < len(cut):  # one number for each channel
        return array[cut[1]].astype(np.float64)
    along = (slice(None) if n == 1 else at for n, at in zip(array.shape, cut, strict=True))
    return array[tuple(along)].astype(np.float64)


def _results(
    layer: Layer, pass_: str, t: Any, cut: tuple[slice, ...]
) -> dict[str, tuple[F64, int, NDArray[Any]]]:
    """Return values, terms and their sizes, by role."""
    values: dict[str, F64]
    if layer.op == "dropout":
        kept = kept_elements(layer.shapes()["src"], cut, layer.keep)
        given = t.src if pass_ == "forward" else t.dst
        values = {layer.result(pass_): np.where(kept, given / layer.keep, 0.0)}
    elif layer.op == "l2":
        values = {"gradient": t.gradient + layer.decay * t.weights}
    elif pass_ != "forward":
        terms, slope_of = _SLOPES[layer.op]
        slope, size = slope_of(t.src)
        return {"src": (t.dst * slope, terms, np.abs(t.dst) * size)}
    else:
        result = layer.entry.reference(np, layer, t)
        values = result if isinstance(result, dict) else {"dst": result}
    key = layer.entry.key
    rules = {role: _RULES.get((key, role)) or _RULES.get(key, (1, _whole)) for role in values}
    return {
        role: (value, rules[role][0], rules[role][1](value, layer, t))
        for role, value in values.items()
    }
