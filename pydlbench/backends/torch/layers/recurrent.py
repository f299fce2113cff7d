"""Recurrent layers: the operators of PyTorch's modules, and the layout of their matrices."""

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.torch.layers import gradients
from pydlbench.backends.torch.layers.operator import (
    BoundFunction,
    CompilationSite,
    TorchOperands,
    as_array,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer

#: Positions of pydlbench's gates among PyTorch's gates, whose second gate of a GRU is the update
#: gate.
_GATES: Final = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2), "rnn-tanh": (0,), "rnn-relu": (0,)}


def variants_of(site: CompilationSite) -> list[Variant]:
    """List the one way to run a pass of a recurrent layer.

    Raises:
        UnsupportedError: there is no operator for the cell, or the mode compiles the layer.
    """
    spec, layer = site.spec, site.spec.layer
    same = layer.projects and layer.state == layer.hidden
    if layer.cell not in _GATES or layer.peephole or same:
        kind = "peepholes" if layer.peephole else f"a {layer.cell}"
        kind = "a projection to as many elements" if same else kind
        raise UnsupportedError(f"torch has no operator with {kind}; nearest: --backend native")
    if spec.mode != "eager":
        raise UnsupportedError(f"torch compiles no {layer.cell} as a whole; nearest: --mode eager")
    backward = spec.pass_ != "forward"
    name = f"aten::{layer.cell.replace('-', '_')}"
    return [
        site.variant(
            _recurrent_gradient
            if backward
            else functools.partial(_recurrent, training=spec.propagation == "training"),
            algorithm=f"autograd of {name}" if backward else name,
            layout="src tnc, weights ldgoi, dst tnc",
            word="plain",
        )
    ]


def _recurrent(operands: TorchOperands, *, training: bool) -> BoundFunction:
    layer = operands.layer
    matrices = _Matrices(operands)
    function = getattr(torch, layer.cell.replace("-", "_"))
    settings = (True, layer.layers, 0.0, training, layer.directions == 2, False)

    # PyTorch computes a projection itself instead of calling oneDNN, and warns of it.
    warnings.filterwarnings("ignore", "LSTM with projections")

    def forward(source: torch.Tensor, *given: torch.Tensor) -> Any:
        states, weights = given[: matrices.states], given[matrices.states :]
        initial = states if layer.cell == "lstm" else states[0]
        return function(source, initial, weights, *settings)

    return BoundFunction(forward, matrices.arguments, lambda results: {"dst": as_array(results[0])})


def _recurrent_gradient(operands: TorchOperands) -> BoundFunction:
    forward = _recurrent(operands, training=True)
    incoming = operands.tensor("dst")
    program = gradients.gradient(forward.function, forward.arguments, forward.arguments, incoming)
    matrices = _Matrices(operands)
    return BoundFunction(
        program.function,
        program.arguments,
        lambda results: matrices.by_role(program.finish(results)),
    )


class _Matrices:
    """The operands of a recurrent layer in PyTorch's layout, and their gradients by role.

    Each layer has, for each direction, matrices ``(gates times out, in)`` of source and state, a
    bias for each of the two, and perhaps the matrix of a projection. pydlbench's bias is the bias
    of the source, except that the part that a GRU's reset gate multiplies is the bias of the state.

    Attributes:
        arguments: source, initial states, matrices and biases.
        states: number of initial states.

    Args:
        operands: operands of the layer.
    """

    def __init__(self, operands: TorchOperands) -> None:
        layer: Layer = operands.layer
        self._layer, self._order = layer, _GATES[layer.cell]
        roles = [role for role in ("src_iter", "src_iter_c") if role in operands.inputs]
        self.states = len(roles)
        place, inputs = operands.place, operands.inputs
        arguments = [operands.tensor("src")]
        arguments += [
            place.tensor(inputs[role].reshape(-1, *inputs[role].shape[2:])) for role in roles
        ]
        projection = inputs.get("weights_projection")
        self._stride = 4 if projection is None else 5
        back = np.argsort(self._order)
        for at in np.ndindex(layer.layers, layer.directions):
            for role in ("weights", "weights_iter"):
                matrix = inputs[role][at][:, back].transpose(1, 2, 0)
                arguments.append(place.tensor(matrix.reshape(-1, matrix.shape[-1])))
            bias = inputs["bias"][at]
            second = np.zeros_like(bias[: layer.gates])
            second[layer.gates - 1] = bias[-1] if layer.cell == "gru" else 0
            arguments += [place.tensor(biases.reshape(-1)) for biases in (bias[back], second)]
            if projection is not None:
                arguments.append(place.tensor(projection[at].T))
        self.arguments = tuple(arguments)

    def by_role(self, gradients: Sequence[torch.Tensor]) -> Mapping[str, NDArray[Any]]:
        """Return the gradients of all arguments by role, in the shapes of the layer."""
        layer, order, stride = self._layer, list(self._order), self._stride
        shapes = layer.shapes()
        source, *rest = gradients
        named = zip(("src_iter", "src_iter_c"), rest[: self.states], strict=False)
        by_role = {"src": source} | {role: item.reshape(shapes[role]) for role, item in named}
        rest = rest[self.states :]
        for place, role in enumerate(("weights", "weights_iter")):
            gates = [
                item.reshape(layer.gates, layer.hidden, -1)[order] for item in rest[place::stride]
            ]
            stacked = torch.stack([item.permute(2, 0, 1) for item in gates])
            by_role[role] = stacked.reshape(shapes[role])
        biases = [item.reshape(layer.gates, layer.hidden)[order] for item in rest[2::stride]]
        if layer.cell == "gru":
            others = [item.reshape(layer.gates, layer.hidden)[-1:] for item in rest[3::stride]]
            biases = [torch.cat(both) for both in zip(biases, others, strict=True)]
        by_role["bias"] = torch.stack(biases).reshape(shapes["bias"])
        if stride > 4:
            projections = torch.stack([item.T for item in rest[4::stride]])
            by_role["weights_projection"] = projections.reshape(shapes["weights_projection"])
        return {role: as_array(item) for role, item in by_role.items()}
