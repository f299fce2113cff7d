"""Convolutions and products of integers on a CPU: the operators of PyTorch's quantized models."""

import functools
from typing import Any, Final

import torch

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.torch.layers.forward import window_of
from pydlbench.backends.torch.layers.operator import (
    BoundFunction,
    CompilationSite,
    TorchOperands,
    as_array,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.fused import NOTHING_FUSED, fused_ops
from pydlbench.ops.table import tensor_types
from pydlbench.records.measurement import KernelSpec

_TYPES: Final = {
    "s8": torch.int8,
    "u8": torch.uint8,
    "s32": torch.int32,
    "f32": torch.float32,
}
_SCALES: Final = ("src_scale", "weights_scale", "dst_scale", "src_zero_point", "dst_zero_point")
_PACKED: Final = "weights packed beforehand, as torch.ao packs those of a quantized model"


def variants_of(site: CompilationSite) -> list[Variant]:
    """List the one way to compute a convolution or a product of integers.

    Raises:
        UnsupportedError: PyTorch has no such operator.
    """
    spec, layer = site.spec, site.spec.layer
    if layer.entry.kind not in ("conv", "gemm"):
        raise UnsupportedError(f"torch: no {layer.kind} in {spec.precision} here")
    if layer.op == "gemm" and layer.batch_count > 1:
        raise UnsupportedError(f"torch has no batched product in {spec.precision}")
    types = tensor_types(layer, spec.precision)
    result = types["dst"]
    if layer.op == "conv" and types["src"] != "u8":
        raise UnsupportedError(
            "torch: quantized convolutions have unsigned sources; nearest: --precision u8s8f32"
        )
    if layer.op == "gemm" and spec.precision == "int8" and spec.fuse == NOTHING_FUSED:
        return [
            site.variant(
                _plain_product,
                algorithm="aten::_int_mm",
                layout="src mk, weights kn, dst mn",
                word="plain",
                accumulate="int32",
            )
        ]
    if result == "s32":
        raise UnsupportedError(
            f"torch: quantized operators have no results of 32 bits; nearest: --precision "
            f"{types['src']}s8f32"
        )
    for op in fused_ops(spec.fuse):
        if op.name not in (*_SCALES, "bias") and op.text != "relu":
            raise UnsupportedError(
                f"torch: quantized operators have no {op.text} here; nearest: --fuse bias-relu"
            )
    if spec.mode == "compiled":
        raise UnsupportedError(
            "torch compiled: quantized operators are compiled with constant weights only; "
            "nearest: --mode frozen"
        )
    is_product = layer.op == "gemm"
    return [
        site.variant(
            functools.partial(_quantized, spec=spec),
            algorithm=f"onednn::q{'linear' if is_product else 'conv2d'}_pointwise",
            layout="src mk, dst mn" if is_product else "src nhwc, dst nhwc",
            word="transposed" if is_product else "nhwc",
            accumulate="int32",
            notes=(_PACKED,),
        )
    ]


def _plain_product(operands: TorchOperands) -> BoundFunction:
    tensors = tuple(
        operands.place.tensor(operands.inputs[role][0], dtype=torch.int8)
        for role in ("src", "weights")
    )

    def product(left: torch.Tensor, right: torch.Tensor) -> Any:
        return torch._int_mm(left, right)  # noqa: SLF001 - the one product of integers

    return BoundFunction(product, tensors, lambda result: {"dst": as_array(result[None])})


def _quantized(operands: TorchOperands, *, spec: KernelSpec) -> BoundFunction:
    """Bind the operands of a quantized operator; a scale that is not fused is one."""
    layer, inputs, place = operands.layer, operands.inputs, operands.place
    types = tensor_types(layer, spec.precision)
    is_product = layer.op == "gemm"
    source, weights = (
        place.tensor(inputs[role][0] if is_product else inputs[role], like, _TYPES[types[role]])
        for role, like in (("src", None if is_product else torch.channels_last), ("weights", None))
    )
    numbers = {role: float(inputs[role][0]) for role in _SCALES if role in inputs}
    channels = layer.n if is_product else layer.out_channels
    scales = torch.ones(channels)
    if "weights_scale" in inputs:
        scales = scales * torch.from_numpy(inputs["weights_scale"])
    biases = [torch.from_numpy(inputs["bias"])] if "bias" in inputs else []
    source_numbers = numbers.get("src_scale", 1.0), int(numbers.get("src_zero_point", 0))
    result_numbers = numbers.get("dst_scale", 1.0), int(numbers.get("dst_zero_point", 0))
    relu = "relu" if any(op.name == "relu" for op in fused_ops(spec.fuse)) else "none"
    after: tuple[Any, ...] = (*result_numbers, _TYPES[types["dst"]], relu, [], "")
    sizes: tuple[Any, ...] = ()
    if is_product:
        packed = torch.ops.onednn.qlinear_prepack(weights.t().contiguous(), list(source.shape))
        function = torch.ops.onednn.qlinear_pointwise
    else:
        window = window_of(layer)
        if window.pads:
            raise UnsupportedError(f"torch: quantized operators lack padding of {layer.problem}")
        sizes = (window.stride, window.padding, window.dilation, layer.groups)
        packed = torch.ops.onednn.qconv_prepack(
            weights, scales, *source_numbers, *sizes, list(source.shape)
        )
        function = torch.ops.onednn.qconv2d_pointwise
    zeros = torch.zeros(channels, dtype=torch.int32)

    def call(x: torch.Tensor, w: torch.Tensor, *more: torch.Tensor) -> Any:
        scales, zeros, *biases = more
        bias = biases[0] if biases else None
        return function(x, *source_numbers, w, scales, zeros, bias, *sizes, *after)

    return BoundFunction(
        call,
        (source, packed, scales, zeros, *biases),
        lambda result: {"dst": as_array(result[None] if is_product else result)},
    )
