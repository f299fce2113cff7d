"""Products of 8-bit floating-point numbers, for which autograd has no gradients."""

import functools

import torch

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.torch.layers.operator import (
    BoundFunction,
    CompilationSite,
    TorchOperands,
    as_array,
)
from pydlbench.errors import UnsupportedError

# FP8 kernels read both factors along the summed dimension, 16 elements at a time.
_MULTIPLE = 16
_LAYOUTS = {
    "forward": "src mk, weights nk, dst mn",
    "backward-data": "src mk, weights kn, dst mn",
    "backward-weights": "src km, weights kn, dst nm",
}


def variants_of(site: CompilationSite) -> list[Variant]:
    """List the one way to run a pass of a product in FP8: ``torch._scaled_mm``, scales of one.

    Raises:
        UnsupportedError: the layer is not a product, or is one with a bias, a batch, or sizes that
            are not multiples of 16.
    """
    spec, layer = site.spec, site.spec.layer
    if layer.op != "gemm":
        raise UnsupportedError(f"torch has {spec.precision} for matrix products only")
    if spec.fuse != "none":
        raise UnsupportedError(f"torch: no product in {spec.precision} with a bias here")
    if layer.batch_count > 1:
        raise UnsupportedError(f"torch has no batched product in {spec.precision}")
    if any(size % _MULTIPLE for size in (layer.m, layer.k, layer.n)):
        raise UnsupportedError(
            f"{spec.precision} needs sizes that are multiples of 16, and {layer.problem} has others"
        )
    fast = spec.precision == "fp8-tc-fast"
    scales = (
        f"scales of one, {'with' if fast else 'no'} fast accumulation; the result is stored in e4m3"
    )
    return [
        site.variant(
            functools.partial(scaled_product, pass_=spec.pass_, fast=fast),
            algorithm="aten::_scaled_mm",
            layout=_LAYOUTS[spec.pass_],
            word="transposed",
            notes=(f"{spec.precision}: {scales}",),
        )
    ]


def scaled_product(operands: TorchOperands, *, pass_: str, fast: bool = False) -> BoundFunction:
    """Bind the operands of a product whose result is stored in e4m3.

    Args:
        operands: operands by role.
        pass_: pass of the product.
        fast: whether partial sums may stay in the tensor cores' accumulator.
    """

    # The second factor is passed as a transposed view, so that its columns are contiguous.
    def operand(role: str, transposed: bool) -> torch.Tensor:
        array = operands.inputs[role][0]
        return operands.place.tensor(array.T if transposed else array)

    if pass_ == "forward":
        left, right = operand("src", transposed=False), operand("weights", transposed=True)
    elif pass_ == "backward-data":
        left, right = operand("dst", transposed=False), operand("weights", transposed=False)
    else:
        left, right = operand("src", transposed=True), operand("dst", transposed=True)
    unit = torch.ones((), dtype=torch.float32, device=operands.place.device)
    role = operands.layer.result(pass_)
    return BoundFunction(
        lambda a, b, scale_a, scale_b: torch._scaled_mm(  # noqa: SLF001 - the one way to FP8
            a, b, scale_a, scale_b, out_dtype=torch.float8_e4m3fn, use_fast_accum=fast
        ),
        (left, right.t(), unit, unit.clone()),
        lambda result: {role: as_array(result[None])},
    )
