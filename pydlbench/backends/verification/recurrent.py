"""Recurrent layers against float64, forward and backward, with what roundings add up to.

The error of a sum of products is known (see
:mod:`~pydlbench.backends.verification.verify`); here each step computes with the errors of all
steps before. So they are carried along: every number comes with the square of its error, in units
of the tolerance of one sum, added up as errors of random signs are. Sequences may be as long as
they like: what a gate forgets is forgotten of the errors, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.verification.checksums import TRANSCENDENTAL, Comparison, Piece
from pydlbench.backends.verification.pointwise import compare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer

    F64 = NDArray[np.float64]

#: How many roots of a sum of squared roundings its largest errors reach. One rounding is off by at
#: most a unit and by 0.43 in the root mean square, so that this is 4.7 standard deviations.
_TAIL: Final = 2.0


@dataclass(frozen=True, slots=True)
class Rounded:
    """Numbers of a computation that rounds each result.

    Attributes:
        value: what they should be.
        square: of their error, in units of a rounding.
    """

    value: F64
    square: F64

    @classmethod
    def given(cls, value: NDArray[Any]) -> Rounded:
        """Return numbers that are as they should be."""
        exact = np.asarray(value, dtype=np.float64)
        return cls(exact, np.zeros_like(exact))

    def __getitem__(self, at: Any) -> Rounded:
        """Return some of them."""
        return Rounded(self.value[at], self.square[at])

    def __add__(self, other: Rounded) -> Rounded:
        """Return sums."""
        return self._with(self.value + other.value, self.square + other.square)

    def __sub__(self, other: Rounded) -> Rounded:
        """Return differences."""
        return self._with(self.value - other.value, self.square + other.square)

    def __mul__(self, other: Rounded) -> Rounded:
        """Return products, number by number."""
        square = self.value**2 * other.square + other.value**2 * self.square
        return self._with(self.value * other.value, square)

    def times(self, matrix: F64, squares: F64) -> Rounded:
        """Return products with a matrix that is as it should be, whose squares are given too."""
        return Rounded(self.value @ matrix, (self.square + self.value**2) @ squares)

    def rest(self) -> Rounded:
        """Return what is missing to one."""
        return self._with(1 - self.value, self.square)

    def sigmoid(self) -> Rounded:
        """Return ``1 / (1 + exp(-x))``."""
        value = 0.5 * (1 + np.tanh(0.5 * self.value))
        return self._with(value, (value * (1 - value)) ** 2 * self.square)

    def tanh(self) -> Rounded:
        """Return the hyperbolic tangents."""
        value = np.tanh(self.value)
        return self._with(value, (1 - value**2) ** 2 * self.square)

    @staticmethod
    def _with(value: F64, square: F64) -> Rounded:
        return Rounded(value, square + value**2)


def joined(parts: list[Rounded], axis: int) -> Rounded:
    """Return numbers behind one another along an axis."""
    return Rounded(
        np.concatenate([one.value for one in parts], axis),
        np.concatenate([one.square for one in parts], axis),
    )


@dataclass(slots=True)
class _Way:
    """One layer in one direction: its matrices, and what its steps keep for the way back.

    Args:
        layer: all layers.
        inputs: the matrices of all.
        number: of this one.
        direction: 0, or 1 for that from the end.
    """

    layer: Layer
    inputs: Mapping[str, NDArray[Any]]
    number: int
    direction: int
    source: Rounded = field(init=False)
    kept: dict[int, tuple[Rounded, ...]] = field(init=False, default_factory=dict)

    def _matrix(self, role: str) -> F64:
        """Return one matrix as (in, gates times out)."""
        own = self.inputs[role][self.number, self.direction].astype(np.float64)
        found: F64 = own.reshape(len(own), -1)
        return found

    def _initial(self, role: str) -> Rounded:
        return Rounded.given(self.inputs[role][self.number, self.direction])

    def _steps(self) -> list[int]:
        steps = list(range(self.layer.steps))
        return steps[::-1] if self.direction else steps

    def run(self, source: Rounded, keep: bool) -> Rounded:
        """Return the states of all steps.

        Args:
            source: (steps, batch, size).
            keep: whether there will be a way back.
        """
        layer = self.layer
        self.source = source
        weights, recurrent = self._matrix("weights"), self._matrix("weights_iter")
        bias = Rounded.given(self.inputs["bias"][self.number, self.direction])
        given = source.times(weights, weights**2)
        state = self._initial("src_iter")
        memory = self._initial("src_iter_c") if layer.cell == "lstm" else state
        squares = recurrent**2
        found: dict[int, Rounded] = {}
        for step in self._steps():
            before = self._split(given[step])
            own = self._split(state.times(recurrent, squares))
            if layer.cell == "lstm":
                all_ = [
                    x + h + bias[gate] for gate, (x, h) in enumerate(zip(before, own, strict=True))
                ]
                i, f, o = (all_[gate].sigmoid() for gate in (0, 1, 3))
                g = all_[2].tanh()
                now = f * memory + i * g
                bent = now.tanh()
                kept: tuple[Rounded, ...] = (state, memory, i, f, g, o, bent)
                state, memory = o * bent, now
            else:
                u, r = ((before[gate] + own[gate] + bias[gate]).sigmoid() for gate in (0, 1))
                inner = own[2] + bias[3]
                o = (before[2] + r * inner + bias[2]).tanh()
                kept = (state, u, r, o, inner)
                state = u * state + u.rest() * o
            found[step] = state
            if keep:
                self.kept[step] = kept
        return _stacked(found)

    def back(self, incoming: Rounded) -> dict[str, Rounded]:
        """Return the gradients of source, matrices and bias by role.

        Args:
            incoming: the gradient of all states.
        """
        layer = self.layer
        weights, recurrent = self._matrix("weights").T, self._matrix("weights_iter").T
        squares = recurrent**2
        nothing = Rounded.given(np.zeros((layer.batch, layer.hidden)))
        state_gradient = memory_gradient = nothing
        outer: dict[int, Rounded] = {}  # of what was added up of source and state
        inner: dict[int, Rounded] = {}  # the same of the state's products
        for step in reversed(self._steps()):
            kept = self.kept[step]
            gradient = incoming[step] + state_gradient
            if layer.cell == "lstm":
                _, memory, i, f, g, o, bent = kept
                of_memory = memory_gradient + gradient * o * (bent * bent).rest()
                outer[step] = inner[step] = joined(
                    [
                        of_memory * g * i * i.rest(),
                        of_memory * memory * f * f.rest(),
                        of_memory * i * (g * g).rest(),
                        gradient * bent * o * o.rest(),
                    ],
                    axis=1,
                )
                memory_gradient = of_memory * f
                state_gradient = inner[step].times(recurrent, squares)
            else:
                state, u, r, o, product = kept
                of_update = gradient * (state - o) * u * u.rest()
                of_new = gradient * u.rest() * (o * o).rest()
                of_reset = of_new * product * r * r.rest()
                outer[step] = joined([of_update, of_reset, of_new], axis=1)
                inner[step] = joined([of_update, of_reset, of_new * r], axis=1)
                state_gradient = inner[step].times(recurrent, squares) + gradient * u
        own, products = _stacked(outer), _stacked(inner)
        states = _stacked({step: kept[0] for step, kept in self.kept.items()})
        bias = _summed(own)
        initial = {"src_iter": state_gradient}
        if layer.cell == "gru":
            bias = joined([bias, _summed(products)[2 * layer.hidden :]], axis=0)
        else:
            initial["src_iter_c"] = memory_gradient
        return {
            "src": own.times(weights, weights**2),
            **initial,
            "weights": _outer(self.source, own),
            "weights_iter": _outer(states, products),
            "bias": bias,
        }

    def _split(self, all_: Rounded) -> list[Rounded]:
        """Return what belongs to each gate."""
        size = self.layer.hidden
        return [all_[:, gate * size : (gate + 1) * size] for gate in range(self.layer.gates)]


def _stacked(by_step: Mapping[int, Rounded]) -> Rounded:
    found = [by_step[step][None] for step in sorted(by_step)]
    return joined(found, axis=0)


def _summed(all_: Rounded) -> Rounded:
    """Return the sums over steps and batch."""
    return Rounded(all_.value.sum((0, 1)), (all_.square + all_.value**2).sum((0, 1)))


def _outer(left: Rounded, right: Rounded) -> Rounded:
    """Return the products of columns, added up over steps and batch."""
    a, da, b, db = (
        one.reshape(-1, one.shape[-1])
        for one in (left.value, left.square, right.value, right.square)
    )
    return Rounded(a.T @ b, (a**2).T @ (db + b**2) + da.T @ b**2)


def forward(
    layer: Layer, inputs: Mapping[str, NDArray[Any]], *, keep: bool = False
) -> tuple[Rounded, list[list[_Way]]]:
    """Return the result, and by layer and direction what was kept for the way back.

    Args:
        layer: what is computed.
        inputs: what its forward pass reads, by role.
        keep: whether there will be a way back.
    """
    found = Rounded.given(inputs["src"])
    ways = []
    for number in range(layer.layers):
        own = [_Way(layer, inputs, number, direction) for direction in range(layer.directions)]
        found = joined([way.run(found, keep) for way in own], axis=2)
        ways.append(own)
    return found, ways


def backward(layer: Layer, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Rounded]:
    """Return the gradients by role, in the shapes of their tensors.

    Args:
        layer: what is computed.
        inputs: those of the forward pass, and ``dst``, the gradient of its result.
    """
    _, ways = forward(layer, inputs, keep=True)
    gradient = Rounded.given(inputs["dst"])
    shapes = layer.shapes()
    found: dict[str, list[Rounded]] = {
        role: [] for role in layer.writes("backward-data") if role != "src"
    }
    for own in reversed(ways):
        size = layer.hidden
        parts = [
            way.back(gradient[:, :, size * way.direction : size * (way.direction + 1)])
            for way in own
        ]
        gradient = parts[0]["src"] if len(parts) == 1 else parts[0]["src"] + parts[1]["src"]
        for role, listed in found.items():
            listed[:0] = [part[role][None] for part in parts]
    all_ = {role: joined(listed, axis=0) for role, listed in found.items()}
    return {"src": gradient} | {
        role: Rounded(one.value.reshape(shapes[role]), one.square.reshape(shapes[role]))
        for role, one in all_.items()
    }


def check_recurrent(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements; the tolerance is that of the longest sum, in each of the steps."""
    terms = layer.in_size + layer.hidden + 2
    if computed.pass_ == "forward":
        found = {"dst": forward(layer, computed.inputs)[0]}
    else:
        found = backward(layer, computed.inputs)
        terms = max(terms, layer.gates * layer.hidden, layer.steps * layer.batch)
    expected = (
        Piece(
            role=role,
            cut=tuple(slice(None) for _ in one.value.shape),
            value=one.value,
            size=_TAIL * np.sqrt(one.square),
            terms=terms + TRANSCENDENTAL,
        )
        for role, one in found.items()
    )
    return compare(layer, computed, expected)
