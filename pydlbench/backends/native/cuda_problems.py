"""From a case to plans and to the device's float64 reference: names and passes translated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pydlbench._cuda as _cuda
from pydlbench.layers import Conv2d, Gemm, Pool2d

if TYPE_CHECKING:
    from pydlbench.backends.case import Case

__all__ = ["plans", "reference"]

_CONV = (
    *("batch", "groups", "in_channels", "in_height", "in_width"),
    *("out_channels", "out_height", "out_width", "kernel_height", "kernel_width"),
    *("stride_height", "stride_width", "pad_top", "pad_left", "pad_bottom", "pad_right"),
    *("dilation_height", "dilation_width"),
)
_POOL = (
    *("batch", "channels", "in_height", "in_width", "out_height", "out_width"),
    *("kernel_height", "kernel_width", "stride_height", "stride_width"),
    *("pad_top", "pad_left", "pad_bottom", "pad_right"),
)
_GEMM = ("batch_count", "m", "k", "n")


# cuDNN's lists for float32 on a card with tensor cores hold next to nothing but TF32: what its
# other engines can do has to be found by trying them.
_SWEPT = ("fp32", "fp16")


def plans(
    device: _cuda.Device, case: Case, workspace_bytes: int, thorough: bool = False
) -> list[_cuda.Plan]:
    """List every plan that the libraries and our own kernels have for ``case``.

    For a convolution these are cuDNN's heuristic lists and its list of fallbacks; off the tensor
    cores, and when ``thorough``, the engines that are on none of them as well.

    Args:
        device: the GPU.
        case: what is to be computed; its layout restricts the plans.
        workspace_bytes: scratch memory that a plan may ask for at most.
        thorough: leave out nothing.

    Raises:
        UnsupportedError: there is none, or the GPU lacks the precision.
        PrimitiveError: a library refused the problem.
    """
    layer, pass_, fused = case.layer, _pass(case), case.fuse == "bias-relu"
    if isinstance(layer, Conv2d):
        return _cuda.conv2d_plans(
            device,
            pass_,
            case.precision,
            **_fields(layer, _CONV),
            layout=case.layout,
            workspace_limit=workspace_bytes,
            fused=fused,
            sweep=thorough or case.precision in _SWEPT,
        )
    if isinstance(layer, Gemm):
        found = _cuda.gemm_plans(
            device,
            pass_,
            case.precision,
            **_fields(layer, _GEMM),
            workspace_limit=workspace_bytes,
            fused=fused,
        )
        # Matrices know the caller's rows and transposed weights, as torch.nn.Linear keeps them.
        plain = case.layout in ("nchw", "nhwc")
        return [plan for plan in found if not plain or plan.variant == "plain"]
    if isinstance(layer, Pool2d):
        return _cuda.pool2d_plans(
            device,
            pass_,
            case.precision,
            _pool_mode(layer),
            **_fields(layer, _POOL),
            layout=case.layout,
        )
    return _cuda.pointwise_plans(
        device,
        pass_,
        case.precision,
        layer.op,
        batch=layer.batch,
        channels=layer.channels,
        height=layer.height,
        width=layer.width,
        layout=case.layout,
        **layer.parameters,
    )


def reference(device: _cuda.Device, case: Case) -> _cuda.Reference | None:
    """Return what computes the exact result on the device, or None where only the host can."""
    layer, pass_, fused = case.layer, _pass(case), case.fuse == "bias-relu"
    if isinstance(layer, Conv2d):
        return _cuda.conv2d_reference(device, pass_, **_fields(layer, _CONV), fused=fused)
    if isinstance(layer, Gemm):
        return _cuda.gemm_reference(device, pass_, **_fields(layer, _GEMM), fused=fused)
    if isinstance(layer, Pool2d):
        return _cuda.pool2d_reference(device, pass_, _pool_mode(layer), **_fields(layer, _POOL))
    return None


def _pass(case: Case) -> str:
    return f"forward-{case.propagation}" if case.pass_ == "forward" else case.pass_


def _fields(layer: Conv2d | Gemm | Pool2d, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in names}


def _pool_mode(layer: Pool2d) -> str:
    if layer.mode == "max":
        return "max"
    return "avg-include-padding" if layer.count_include_pad else "avg-exclude-padding"
