"""What PyTorch has: from a case to the ways to run it, or one sentence why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.backends.case import CPU_PRECISIONS, GPU_PRECISIONS
from pydlbench.backends.torch import conv, gemm, pointwise, pool
from pydlbench.backends.torch.settings import DTYPES, emulated
from pydlbench.errors import UnsupportedError
from pydlbench.layers import Conv2d, Gemm, Pool2d

if TYPE_CHECKING:
    from pydlbench.backends.case import Case
    from pydlbench.backends.torch.recipe import Recipe

__all__ = ["MODES", "check", "recipes"]

MODES = ("eager", "compiled")


def check(case: Case) -> None:
    """Make sure that PyTorch can do what a case's words ask for.

    Raises:
        UnsupportedError: It cannot.
    """
    if case.mode not in (None, *MODES):
        raise UnsupportedError(f"torch has no mode {case.mode}; it has {' and '.join(MODES)}")
    if case.fuse not in ("none", "bias"):
        raise UnsupportedError(
            f"torch: --fuse {case.fuse} is for the native GPU backend so far; nearest: bias"
        )
    if case.on_gpu:
        _check_gpu(case)
    else:
        _check_cpu(case)


def _check_cpu(case: Case) -> None:
    if case.precision not in CPU_PRECISIONS:
        raise UnsupportedError(
            f"{case.precision} is a GPU mode; on a CPU there is: {', '.join(CPU_PRECISIONS)}"
        )
    if lacking := emulated(case.precision):
        raise UnsupportedError(
            f"this CPU has no {case.precision}: it lacks {' and '.join(lacking)}"
        )
    if case.timing != "auto":
        raise UnsupportedError(f"--timing {case.timing} is for GPUs; CPUs have one clock")


def _check_gpu(case: Case) -> None:
    if case.precision not in GPU_PRECISIONS:
        raise UnsupportedError(
            f"{case.precision} is a CPU mode; on a GPU there is: {', '.join(GPU_PRECISIONS)}"
        )
    if case.precision == "fp16":
        raise UnsupportedError("torch cannot keep fp16 off the tensor cores; fp16-tc uses them")
    if case.precision == "fp8-tc" and not isinstance(case.layer, Gemm):
        raise UnsupportedError("torch has fp8-tc for matrix products only")


def recipes(case: Case) -> list[Recipe]:
    """List the ways to run a case.

    Raises:
        UnsupportedError: PyTorch has no such operator, mode or precision here.
    """
    check(case)
    layer = case.layer
    if isinstance(layer, Conv2d):
        return conv.recipes(layer, case.pass_, bias=case.fuse == "bias")
    if isinstance(layer, Gemm):
        if case.precision == "fp8-tc":
            if case.fuse != "none":
                raise UnsupportedError("torch: no product in fp8-tc with a bias here")
            return gemm.scaled_recipes(layer, case.pass_)
        return gemm.recipes(layer, case.pass_, bias=case.fuse == "bias")
    if isinstance(layer, Pool2d):
        # GPU kernels sum overlapping windows in float32, CPU kernels in what is stored.
        sums = "float32" if case.on_gpu else _stored(case.precision)
        return pool.recipes(layer, case.pass_, case.propagation == "training", sums)
    return pointwise.recipes(
        layer,
        case.pass_,
        training=case.propagation == "training",
        on_gpu=case.on_gpu,
        stored=_stored(case.precision),
    )


def _stored(precision: str) -> str:
    return str(DTYPES[precision]).removeprefix("torch.")
