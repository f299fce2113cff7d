"""A layer's pass as PyTorch runs it, from its forward function.

A new op is an entry in :data:`~pydlbench.backends.torch.layers.forward.FORWARD`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pydlbench.backends.frameworks.backend import entry_of, op_of
from pydlbench.backends.frameworks.operands import LayerLayout, axes_of, layouts_of
from pydlbench.backends.frameworks.operator import FrameworkLayerPass
from pydlbench.backends.torch.layers import fp8, gradients, recurrent
from pydlbench.backends.torch.layers.forward import (
    FORWARD,
    GRADIENT,
    GROUPED,
    KEPT,
    RESULTS,
    TorchForwardOptions,
    kernels_of,
    padding_note,
)
from pydlbench.backends.torch.layers.operator import FORMATS, BoundFunction, TorchOperands, as_array
from pydlbench.backends.torch.settings import stored
from pydlbench.errors import UnsupportedError
from pydlbench.words import FP8_PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.frameworks.backend import Variant
    from pydlbench.backends.torch.layers.operator import CompilationSite, TensorPlace
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec


# -----------------------------------------------------------------------------
# The ways to run a pass.

_CHAIN: Final = (
    "a chain of operators, each reading and writing memory; torch has no kernel for it, and on "
    "CPUs no avg_pool3d in bfloat16 or float16: there it is converted to float32 and back"
)
_GROUPED: Final = "a grouped product, as of a mixture of experts, whose groups are of equal size"
_NOTES: Final[Mapping[tuple[str, str], str]] = {
    ("concat", "backward-data"): (
        "autograd hands out views of the incoming gradient, and moves nothing; what reads them in "
        "place (a ReLU) pays nothing, a convolution copies its part first"
    ),
    ("lrn", "forward"): _CHAIN,
    ("lrn", "backward-data"): _CHAIN,
}


def variants_of(site: CompilationSite) -> list[Variant]:
    """List the ways to run a pass of a layer: one for each way that its tensors can lie.

    Args:
        site: the case, and where its tensors live.

    Raises:
        UnsupportedError: PyTorch has no such layers, or not this one.
    """
    spec, layer = site.spec, site.spec.layer
    if spec.precision in FP8_PRECISIONS:
        return fp8.variants_of(site)
    if layer.kind == "recurrent":
        return recurrent.variants_of(site)
    entry = entry_of("torch", FORWARD, layer)
    variants = []
    for word, kernel in itertools.product(layouts_of(layer), kernels_of(spec)):
        if word == "nhwc" and layer.sides == 1:  # PyTorch has no such memory format
            continue
        how = TorchForwardOptions(
            training=spec.pass_ != "forward" or spec.propagation == "training",
            transposed=word == "transposed",
            on_gpu=spec.on_gpu,
            dtype=site.place.dtype,
            device=site.place.device,
            kernel=kernel,
        )
        lie = LayerLayout(layer, "transposed" if word == "transposed" else "plain")
        run = _TorchPass(spec, entry(layer, how), lie, GRADIENT, recorded=kernel is not None)
        try:
            names = run.names(site.place, word)
        except UnsupportedError:  # its build fails with the reason
            names = ("aten::scaled_dot_product_attention",)
        note = _GROUPED if kernel == GROUPED else _NOTES.get((run.op, spec.pass_))
        variants.append(
            site.variant(
                run.made,
                algorithm=(f"{kernel}: " if kernel else "")
                + " + ".join(names)
                + (" with bias" if spec.fuse == "bias" else ""),
                layout=LayerLayout(layer, word, _filters(layer, word)).text(spec.pass_),
                word=word,
                accumulate=_accumulate(layer, spec, names),
                notes=(*padding_note(layer), *([note] if note else [])),
            )
        )
    return variants


def _filters(layer: Layer, word: str) -> str:
    filters = "io" if layer.op == "deconv" else "oi"
    return axes_of(word, 2, filters) if word in FORMATS else "oihw"


def _accumulate(layer: Layer, spec: KernelSpec, names: tuple[str, ...]) -> str:
    """Return what a pass sums in: each operator of a chain rounds what it writes.

    Kernels on CPUs sum overlapping windows' gradients, and those of a normalisation's weights, in
    what is stored. What is converted to float32 stays in it. Where one matrix stands for several,
    products are rounded before those of its gradient are added up.
    """
    if layer.op == "gemm" and "aten::sum" in names:
        return stored(spec.precision)
    if layer.op in ("conv", "deconv", "gemm") or "aten::_to_copy" in names:
        return "float32"
    kernel_rounds = (op_of(layer), spec.pass_, spec.on_gpu) in (
        ("pool", "backward-data", False),
        ("layernorm", "backward-data", False),
        ("layernorm", "backward-data", True),
    )
    return stored(spec.precision) if len(names) > 1 or kernel_rounds else "float32"


# -----------------------------------------------------------------------------
# A pass, from the forward function.


class _TorchPass(FrameworkLayerPass):
    """A pass of a layer, whose gradients autograd has.

    Args:
        spec: see :class:`FrameworkLayerPass`, as the rest.
        forward: likewise.
        lie: likewise.
        gradients: likewise.
        recorded: whether a forward pass is called by the calls of ATen that it makes once, too.
    """

    def __init__(self, *layer_pass: Any, recorded: bool = False) -> None:
        super().__init__(*layer_pass)
        self._recorded = recorded

    def names(self, place: TensorPlace, variant: str) -> tuple[str, ...]:
        """Return the calls that it makes, which are run on tensors without memory."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            operands = TorchOperands(self.layer, {}, place, variant)
            if self.roles.derived:
                return self._gradients(operands).names
            tensors = map(operands.tensor, self.roles.reads)
            return gradients.forward_names(self.function, (*tensors, *self.turns[:1]))

    def made(self, operands: TorchOperands) -> BoundFunction:
        """Put operands in place."""
        if self.roles.derived:
            program = self._gradients(operands)

            def gradients_by_role(returned: Any) -> Mapping[str, Any]:
                results = self.by_role(program.finish(returned), ())
                return self.plain(results, as_array)

            return BoundFunction(program.function, program.arguments, gradients_by_role)
        tensors = tuple(map(operands.tensor, self.roles.reads))
        if self._recorded:
            chosen = gradients.forward_program(self.function, tensors)

            def result_by_role(returned: Any) -> Mapping[str, Any]:
                return self.plain(self.by_role(chosen.finish(returned), tensors), as_array)

            return BoundFunction(chosen.function, chosen.arguments, result_by_role)

        def results_by_role(returned: Any) -> Mapping[str, Any]:
            # Of several the first is the layer's, unless the table says what they are.
            several = returned[:1] if isinstance(returned, tuple) else (returned,)
            results = self.by_role(several, tensors)
            if self.op in RESULTS:
                results |= RESULTS[self.op](self.layer, returned)
            return self.plain(results, as_array)

        return BoundFunction(
            self.function, tensors, results_by_role, changed=self.changed, turns=self.turns
        )

    def _gradients(self, operands: TorchOperands) -> gradients.GradientProgram:
        tensors = {role: operands.tensor(role) for role in self.roles.reads}
        wanted = [tensors[role] for role in self.roles.writes]
        # The loss is a number, whose gradient is one.
        incoming = torch.ones((), device=operands.place.device)
        if self.op != "softmax-xent":
            incoming = operands.tensor("dst")
        program = gradients.gradient(self.function, tuple(tensors.values()), wanted, incoming)
        if self.op in KEPT and operands.inputs:
            own = {each.data_ptr() for each in (*tensors.values(), incoming)}
            kept = [each for each in program.arguments if each.data_ptr() not in own]
            values = KEPT[self.op](operands)
            assert len(kept) >= len(values), f"the gradient of {self.op} reads {len(kept)} tensors"
            for tensor, value in zip(kept, values, strict=False):
                tensor.copy_(value.reshape(tensor.shape))
        return program
