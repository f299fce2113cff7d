"""A layer's pass as PyTorch runs it, from its forward function.

A new op is an entry in :data:`~pydlbench.backends.torch.layers.forward.FORWARD`.
"""

import itertools
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pydlbench.backends.frameworks.backend import Variant, entry_of, op_of
from pydlbench.backends.frameworks.operands import (
    FrameworkLayerPass,
    LayerLayout,
    axes_of,
    layouts_of,
)
from pydlbench.backends.torch.layers import fp8, gradients, quantized, recurrent
from pydlbench.backends.torch.layers.forward import (
    FORWARD,
    GRADIENT,
    GROUPED,
    RESULTS,
    SAVED,
    TorchForwardOptions,
    kernels_of,
    padding_note,
    with_fused,
)
from pydlbench.backends.torch.layers.operator import (
    FORMATS,
    BoundFunction,
    CompilationSite,
    TensorPlace,
    TorchOperands,
    as_array,
)
from pydlbench.backends.torch.settings import stored
from pydlbench.errors import UnsupportedError
from pydlbench.ops.fused import NOTHING_FUSED, fused_shapes
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.words import FP8_PRECISIONS, INT8_PRECISIONS

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
    """List the ways to run a pass of a layer: one for each layout of its tensors and each kernel.

    Args:
        site: the case, with device and type of its tensors.

    Raises:
        UnsupportedError: PyTorch does not support this layer.
    """
    spec, layer = site.spec, site.spec.layer
    if spec.precision in FP8_PRECISIONS:
        return fp8.variants_of(site)
    if spec.precision in INT8_PRECISIONS and layer.entry.kind != "pool":
        return quantized.variants_of(site)
    if layer.kind == "recurrent":
        return recurrent.variants_of(site)
    entry = entry_of("torch", FORWARD, layer)
    if spec.precision in INT8_PRECISIONS and layer.mode == "avg":
        raise UnsupportedError("torch: no average pooling of integers; nearest: --pool max")
    variants = []
    for word, kernel in itertools.product(layouts_of(layer), kernels_of(spec)):
        if word == "nhwc" and layer.sides == 1:  # PyTorch has no such memory format
            continue
        options = TorchForwardOptions(
            training=spec.pass_ != "forward" or spec.propagation == "training",
            transposed=word == "transposed",
            on_gpu=spec.on_gpu,
            dtype=site.place.dtype,
            device=site.place.device,
            kernel=kernel,
        )
        layout = LayerLayout(layer, "transposed" if word == "transposed" else "plain")
        forward = with_fused(entry(layer, options), spec, options)
        run = _TorchPass(spec, forward, layout, GRADIENT, recorded=kernel is not None)
        try:
            names = run.names(site.place, word)
        except UnsupportedError:  # building it raises the error again
            names = ("aten::scaled_dot_product_attention",)
        note = _GROUPED if kernel == GROUPED else _NOTES.get((run.op, spec.pass_))
        variants.append(
            site.variant(
                run.bind,
                algorithm=(f"{kernel}: " if kernel else "")
                + " + ".join(names)
                + ("" if spec.fuse == NOTHING_FUSED else f" with {spec.fuse}"),
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
    """Return the type of a pass's accumulators; each operator of a chain rounds its results.

    Kernels on CPUs sum the gradients of overlapping windows, and of a normalisation's weights, in
    the stored type. Values that are converted to float32 stay float32. If a matrix is broadcast,
    the products for its gradient are rounded before they are added up.
    """
    if layer.op == "gemm" and "aten::sum" in names:
        return stored(spec.precision)
    if layer.entry.kind in ("gather", "unfold", "grid-sample"):
        return stored(spec.precision)
    if (layer.op, spec.pass_) == ("area", "backward-data"):
        return stored(spec.precision)
    if spec.fuse not in (NOTHING_FUSED, "bias"):
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
    """A pass of a layer, with gradients derived by autograd.

    Args:
        spec: see :class:`FrameworkLayerPass`.
        forward: see :class:`FrameworkLayerPass`.
        layout: see :class:`FrameworkLayerPass`.
        gradients: see :class:`FrameworkLayerPass`.
        recorded: whether a forward pass, too, is run as the recorded calls of ATen.
    """

    def __init__(self, *layer_pass: Any, recorded: bool = False) -> None:
        super().__init__(*layer_pass)
        self._recorded = recorded

    def names(self, place: TensorPlace, variant: str) -> tuple[str, ...]:
        """Return the names of the calls of the pass, found with tensors without memory."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            forward = self.spec.pass_ == "forward"
            shapes = fused_shapes(self.layer, self.spec.fuse) if forward else {}
            fused = {role: np.zeros(shape, np.float32) for role, shape in shapes.items()}
            operands = TorchOperands(self.layer, fused, place, variant)
            if self.roles.derived:
                return self._gradients(operands).names
            tensors = map(operands.tensor, self.roles.reads)
            return gradients.forward_names(self.function, (*tensors, *self.turns[:1]))

    def bind(self, operands: TorchOperands) -> BoundFunction:
        """Bind the function of the pass to operands."""
        tensors: tuple[torch.Tensor, ...] = ()
        program = self._gradients(operands) if self.roles.derived else None
        if program is None:
            tensors = tuple(map(operands.tensor, self.roles.reads))
            if self._recorded:
                program = gradients.forward_program(self.function, tensors)
        if program is not None:
            finish = program.finish

            def finished_by_role(returned: Any) -> Mapping[str, Any]:
                return self.plain(self.by_role(finish(returned), tensors), as_array)

            return BoundFunction(program.function, program.arguments, finished_by_role)

        def results_by_role(returned: Any) -> Mapping[str, Any]:
            # The first of several results is the layer's, unless the table has their roles.
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
        # The incoming gradient of a loss is one.
        incoming = torch.ones((), device=operands.place.device)
        if "dst" in self.layer.reads(self.spec.pass_) and self.op != "softmax-xent":
            incoming = operands.tensor("dst")
        program = gradients.gradient(self.function, tuple(tensors.values()), wanted, incoming)
        if self.op in SAVED and operands.inputs:
            given = {tensor.data_ptr() for tensor in (*tensors.values(), incoming)}
            saved = [tensor for tensor in program.arguments if tensor.data_ptr() not in given]
            values = SAVED[self.op](operands)
            assert len(saved) >= len(values), (
                f"the gradient of {self.op} reads {len(saved)} tensors"
            )
            for tensor, value in zip(saved, values, strict=False):
                tensor.copy_(value.reshape(tensor.shape))
        return program
