"""From a layer to the native module's problem: names and passes translated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pydlbench._cpu as _cpu
from pydlbench.layers import Conv2d, Gemm, Pointwise, Pool2d

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.case import Case

__all__ = ["candidates", "native_pass", "without_narrower_code"]

# What follows the colon in ``jit:avx2`` and in each half of ``brg_fwd:avx2+brgconv:avx2``.
_CODE_FOR = re.compile(r":\w+")
# Matrix units are another kind of code of the same width: neither is always the faster one.
_VECTORS: Final = {"avx512": 512, "avx2": 256, "avx": 256, "sse41": 128}


def native_pass(case: Case) -> _cpu.Pass:
    """Return the propagation kind of a case."""
    if case.pass_ == "forward":
        training = case.propagation == "training"
        return _cpu.Pass.forward_training if training else _cpu.Pass.forward_inference
    return _cpu.Pass[case.pass_.replace("-", "_")]


def candidates(case: Case, thorough: bool = False) -> list[_cpu.Candidate]:
    """List every implementation x layout that there is for ``case``.

    Args:
        case: what is to be computed.
        thorough: of our own loops those for all instruction sets that this CPU has, too.

    Raises:
        UnsupportedError: there is none.
        PrimitiveError: the library refused the problem.
    """
    pass_ = native_pass(case)
    precision = _cpu.Precision[case.precision]
    layer = case.layer
    if isinstance(layer, Conv2d):
        return _cpu.conv2d_candidates(
            pass_,
            precision,
            batch=layer.batch,
            groups=layer.groups,
            in_channels=layer.in_channels,
            in_height=layer.in_height,
            in_width=layer.in_width,
            out_channels=layer.out_channels,
            out_height=layer.out_height,
            out_width=layer.out_width,
            kernel_height=layer.kernel_height,
            kernel_width=layer.kernel_width,
            stride_height=layer.stride_height,
            stride_width=layer.stride_width,
            pad_top=layer.pad_top,
            pad_left=layer.pad_left,
            pad_bottom=layer.pad_bottom,
            pad_right=layer.pad_right,
            dilation_height=layer.dilation_height,
            dilation_width=layer.dilation_width,
        )
    if isinstance(layer, Gemm):
        return _cpu.gemm_candidates(
            pass_, precision, batch_count=layer.batch_count, m=layer.m, k=layer.k, n=layer.n
        )
    if isinstance(layer, Pointwise):
        return _cpu.pointwise_candidates(
            pass_,
            precision,
            layer.op,
            batch=layer.batch,
            channels=layer.channels,
            height=layer.height,
            width=layer.width,
            thorough=thorough,
            **layer.parameters,
        )
    return _cpu.pool2d_candidates(
        pass_,
        precision,
        _pool_mode(layer),
        batch=layer.batch,
        channels=layer.channels,
        in_height=layer.in_height,
        in_width=layer.in_width,
        out_height=layer.out_height,
        out_width=layer.out_width,
        kernel_height=layer.kernel_height,
        kernel_width=layer.kernel_width,
        stride_height=layer.stride_height,
        stride_width=layer.stride_width,
        pad_top=layer.pad_top,
        pad_left=layer.pad_left,
        pad_bottom=layer.pad_bottom,
        pad_right=layer.pad_right,
    )


def _pool_mode(layer: Pool2d) -> _cpu.PoolMode:
    if layer.mode == "max":
        return _cpu.PoolMode.max
    if layer.count_include_pad:
        return _cpu.PoolMode.avg_include_padding
    return _cpu.PoolMode.avg_exclude_padding


def without_narrower_code(found: Sequence[_cpu.Candidate]) -> list[_cpu.Candidate]:
    """Leave out code for narrower vectors where there is some of the same kind for wider ones.

    Args:
        found: candidates in any order.
    """

    def kind(candidate: _cpu.Candidate) -> tuple[str, str]:
        return _CODE_FOR.sub("", candidate.implementation), candidate.variant

    widest: dict[tuple[str, str], int] = {}
    for one in found:
        widest[kind(one)] = max(widest.get(kind(one), 0), _vector_bits(one.implementation))
    return [one for one in found if _vector_bits(one.implementation) == widest[kind(one)]]


def _vector_bits(implementation: str) -> int:
    """Return the width of the vectors that an implementation is named for; 0 without a name."""
    return next((bits for name, bits in _VECTORS.items() if name in implementation), 0)
