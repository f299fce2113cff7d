"""A layer's pass as PyTorch runs it, from its forward function.

A new op is an entry in :data:`~pydlbench.backends.torch.forward.FORWARD`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
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
)
from pydlbench.backends.torch.operator import FORMATS, Made, Operands, Recipe
from pydlbench.backends.torch.settings import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.backends.torch.operator import TensorPlace
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
    what is stored. What is converted to float32 stays in it. Where one matrix stands for several,
    products are rounded before those of its gradient are added up.
    """
    if layer.op == "gemm" and "aten::sum" in names:
        return stored(case.precision)
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
