"""A layer's pass as PyTorch runs it, and the layer in a network, from its forward function.

A new op is an entry in :data:`~pydlbench.backends.torch.forward.FORWARD`.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pydlbench.backends.frameworks.backend import entry_of, op_of
from pydlbench.backends.frameworks.layouts import axes_of
from pydlbench.backends.frameworks.operands import Lie, roles_of, words_of
from pydlbench.backends.torch import fp8, gradients, recurrent
from pydlbench.backends.torch.forward import (
    FORWARD,
    GRADIENT,
    KEPT,
    RESULTS,
    How,
    padding_note,
    window_of,
)
from pydlbench.backends.torch.operator import FORMATS, Made, NodeCall, Operands, Recipe
from pydlbench.backends.torch.settings import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.backends.torch.operator import NodeSite, TensorPlace
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec


# -----------------------------------------------------------------------------
# The ways to run a pass.

_CHAIN: Final = (
    "a chain of operators, each reading and writing memory; torch has no kernel for it, and on "
    "CPUs no avg_pool3d in bfloat16 or float16: there it is converted to float32 and back"
)
_NOTES: Final[Mapping[tuple[str, str], str]] = {
    ("concat", "backward-data"): (
        "autograd hands out views of the incoming gradient, and moves nothing; what reads them in "
        "place (a ReLU) pays nothing, a convolution copies its part first"
    ),
    ("lrn", "forward"): _CHAIN,
    ("lrn", "backward-data"): _CHAIN,
}


def recipes_of(layer: Layer, case: KernelSpec, place: TensorPlace) -> list[Recipe]:
    """List the ways to run a pass of a layer: one for each way that its tensors can lie.

    Args:
        layer: of the case.
        case: what is computed.
        place: where tensors live.

    Raises:
        UnsupportedError: PyTorch has no such layers, or not this one.
    """
    if case.precision == "fp8-tc":
        return fp8.recipes(layer, case)
    if layer.kind == "recurrent":
        return recurrent.recipes(layer, case)
    entry, word_of = entry_of("torch", FORWARD, layer), op_of(layer)
    found = []
    for word in words_of(layer):
        if word == "nhwc" and layer.sides == 1:  # PyTorch has no such memory format
            continue
        how = How(
            training=case.pass_ != "forward" or case.propagation == "training",
            transposed=word == "transposed",
            on_gpu=case.on_gpu,
            dtype=place.dtype,
            device=place.device,
        )
        run = _Pass(entry(layer, how), case)
        names = run.names(place, word)
        found.append(
            Recipe(
                algorithm=" + ".join(names) + (" with bias" if case.fuse == "bias" else ""),
                layout=Lie(layer, word, _filters(layer, word)).text(case.pass_),
                variant=word,
                make=run.made,
                accumulate=_accumulate(layer, case, names),
                notes=(
                    *padding_note(layer),
                    *filter(None, [_NOTES.get((word_of, case.pass_))]),
                ),
            )
        )
    return found


def _filters(layer: Layer, word: str) -> str:
    filters = "io" if layer.op == "deconv" else "oi"
    return axes_of(word, 2, filters) if word in FORMATS else "oihw"


def _accumulate(layer: Layer, case: KernelSpec, names: tuple[str, ...]) -> str:
    """Return what a pass sums in: each operator of a chain rounds what it writes.

    Kernels on CPUs sum overlapping windows' gradients, and those of a normalisation's weights, in
    what is stored. What is converted to float32 stays in it.
    """
    if layer.op in ("conv", "deconv", "gemm") or "aten::_to_copy" in names:
        return "float32"
    kernel_rounds = (op_of(layer), case.pass_, case.on_gpu) in (
        ("pool", "backward-data", False),
        ("layernorm", "backward-data", False),
        ("layernorm", "backward-data", True),
    )
    return stored(case.precision) if len(names) > 1 or kernel_rounds else "float32"


# -----------------------------------------------------------------------------
# A pass, from the forward function.


class _Pass:
    """A pass of a layer.

    Args:
        forward: what is called for the layer.
        case: says which pass.
    """

    def __init__(self, forward: Callable[..., Any], case: KernelSpec) -> None:
        self._case, self._layer = case, case.layer
        self._op, self._roles = op_of(case.layer), roles_of(case, GRADIENT)
        self._function = forward
        if case.pass_ != "forward" and not self._roles.derived:
            self._function = GRADIENT[self._op](case.layer)

    def names(self, place: TensorPlace, variant: str) -> tuple[str, ...]:
        """Return the calls that it makes, which are run on tensors without memory."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            operands = Operands(self._layer, {}, place, variant)
            if self._roles.derived:
                return self._gradients(operands).names
            tensors = map(operands.tensor, self._roles.reads)
            return gradients.forward_names(self._function, (*tensors, *self._turns[:1]))

    def made(self, operands: Operands) -> Made:
        """Put operands in place."""
        if self._roles.derived:
            program = self._gradients(operands)

            def by_role(found: Any) -> Mapping[str, torch.Tensor]:
                results = zip(self._roles.writes, program.finish(found), strict=True)
                return {role: operands.plain(role, one) for role, one in results}

            return Made(program.function, program.arguments, by_role)
        tensors = {role: operands.tensor(role) for role in self._roles.reads}
        written, updated = self._roles.writes, self._roles.updated

        def results_by_role(found: Any) -> Mapping[str, torch.Tensor]:
            results = {role: tensors[role] for role in updated}
            if self._op in RESULTS:
                results |= RESULTS[self._op](self._layer, found)
            else:
                main = found[0] if isinstance(found, tuple) else found
                results[written[0]] = main
            return {
                role: operands.plain(role, results[role]) for role in written if role in results
            }

        return Made(
            self._function,
            tuple(tensors.values()),
            results_by_role,
            updated=tuple(map(self._roles.reads.index, updated)),
            turns=self._turns,
        )

    @property
    def _turns(self) -> tuple[float, ...]:
        """Optimizers step forth and back in turn; see :class:`Made`."""
        optimizer = self._op in ("sgd", "momentum")
        return (self._layer.rate, -self._layer.rate) if optimizer else ()

    def _gradients(self, operands: Operands) -> gradients.Program:
        tensors = {role: operands.tensor(role) for role in self._roles.reads}
        wanted = [tensors[role] for role in self._roles.writes]
        # The loss is a number, whose gradient is one.
        incoming = torch.ones((), device=operands.place.device)
        if self._op != "softmax-xent":
            incoming = operands.tensor("dst")
        program = gradients.gradient(self._function, tuple(tensors.values()), wanted, incoming)
        if self._op in KEPT and operands.inputs:
            own = {one.data_ptr() for one in (*tensors.values(), incoming)}
            kept = [one for one in program.arguments if one.data_ptr() not in own]
            values = KEPT[self._op](operands)
            assert len(kept) >= len(values), f"the gradient of {self._op} reads {len(kept)} tensors"
            for tensor, value in zip(kept, values, strict=False):
                tensor.copy_(value.reshape(tensor.shape))
        return program


# -----------------------------------------------------------------------------
# The same layers in a network.

#: What works in place, where nobody else reads the source.
_IN_PLACE: Final[Mapping[str, Callable[..., Any]]] = {
    "relu": torch.relu_,
    **{
        op: functools.partial(getattr(F, op), inplace=True)
        for op in ("relu6", "hardswish", "elu", "silu", "mish")
    },
}
# Whose gradient leaves the layer's own result unread, so that what follows may overwrite it.
_OVERWRITABLE: Final = ("conv", "deconv", "gemm", "add", "batchnorm")


def overwritable(layer: Layer) -> bool:
    """Whether what follows a layer may overwrite its result."""
    return op_of(layer) in _OVERWRITABLE


class Applied(nn.Module):  # type: ignore[misc]  # an unknown class to mypy
    """A layer of a network: its forward function, with parameters of its own.

    Args:
        function: of the inputs, then weight and bias.
        shapes: of weight and bias, those that it has.
    """

    def __init__(
        self, function: Callable[..., Any], shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        super().__init__()
        self._function = function
        for name, shape in (shapes or {}).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self._names = tuple(shapes or {})

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the layer's result."""
        return self._function(*inputs, *[getattr(self, name) for name in self._names])


class ScaledAverage(nn.Module):  # type: ignore[misc]  # an unknown class to mypy
    """An average over what is padded beforehand, scaled so that padding does not count.

    Args:
        layer: the pooling.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._window = window_of(layer)
        scale = np.prod(self._window.kernel) / np.multiply.outer(*layer.elements_inside)
        self.register_buffer("scale", torch.from_numpy(scale.astype(np.float32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the averages over the elements inside the image."""
        scale: Any = self.scale
        x = F.pad(x, self._window.pads)
        average: torch.Tensor = F.avg_pool2d(x, self._window.kernel, self._window.stride)
        return average.mul(scale.to(x.dtype))


def in_network(layer: Any, site: NodeSite) -> NodeCall:
    """Return what a network calls for a layer.

    Raises:
        UnsupportedError: PyTorch has not this layer.
    """
    op = op_of(layer)
    if op == "add":
        return NodeCall(operator.iadd if site.overwrites else operator.add, site.inputs)
    if op == "scale":
        return NodeCall(operator.mul, site.inputs)
    if op == "concat":
        return NodeCall(torch.cat, (list(site.inputs), 1))
    module: nn.Module
    if op == "dropout":
        module = nn.Dropout(1 - layer.keep)
    elif op == "batchnorm":  # which counts its minibatches, too
        module = nn.BatchNorm2d(layer.channels, layer.epsilon, layer.momentum)
        module.weight.requires_grad_(site.node.scale)  # an untrained factor stays at one
    elif layer.op == "pool" and _leaves_padding_out(layer):
        module = ScaledAverage(layer)
    elif op in _IN_PLACE and site.overwrites:
        module = Applied(_IN_PLACE[op])
    else:
        module = Applied(FORWARD[op](layer, How()), _parameters(layer, bias=site.node.bias))
    return NodeCall(module, site.inputs)


def _leaves_padding_out(layer: Layer) -> bool:
    counts = layer.mode == "max" or layer.count_include_pad
    return bool(window_of(layer).pads) and not counts


def _parameters(layer: Any, *, bias: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's parameters by PyTorch's names."""
    if layer.op == "gemm":
        shapes, outputs = {"weight": (layer.n, layer.k)}, layer.n
    elif layer.kind != "pointwise" and layer.weight_elements:
        shapes, outputs = {"weight": layer.shapes()["weights"]}, layer.out_channels
    else:
        return {}
    return shapes | ({"bias": (outputs,)} if bias else {})
