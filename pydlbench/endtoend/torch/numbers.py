"""Which numbers a step of PyTorch computes with: type, autocast, TF32; what a device refuses."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends.case import CPU_PRECISIONS, GPU_PRECISIONS
from pydlbench.backends.torch.settings import DTYPES, emulated
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.endtoend.step import StepCase

__all__ = ["check", "mixed", "stored", "tensor_float"]


def check(case: StepCase) -> None:
    """Make sure that PyTorch has a step's precision on its device.

    Raises:
        UnsupportedError: It has not.
    """
    there = GPU_PRECISIONS if case.on_gpu else CPU_PRECISIONS
    if case.precision not in there:
        raise UnsupportedError(
            f"{case.precision} is a mode of {'CPUs' if case.on_gpu else 'GPUs'}; here there is: "
            f"{', '.join(there)}"
        )
    if case.on_gpu and case.precision == "fp16":
        raise UnsupportedError("torch cannot keep fp16 off the tensor cores; fp16-tc uses them")
    if case.precision == "fp8-tc":
        raise UnsupportedError("torch runs no whole models in fp8-tc; nearest: bf16-tc")
    if not case.on_gpu and (lacking := emulated(case.precision)):
        raise UnsupportedError(
            f"this CPU has no {case.precision}: it lacks {' and '.join(lacking)}"
        )


def stored(case: StepCase) -> torch.dtype:
    """Return the type of weights and images."""
    return DTYPES[case.precision] if case.cast == "whole" else torch.float32


def mixed(case: StepCase) -> contextlib.AbstractContextManager[Any]:
    """Return a new context in which the forward phase runs: autocast, or none."""
    narrow = DTYPES[case.precision]
    if case.cast == "whole" or narrow == torch.float32:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = torch.autocast(
        "cuda" if case.on_gpu else "cpu", narrow
    )
    return context


@contextlib.contextmanager
def tensor_float(case: StepCase) -> Iterator[None]:
    """Let a GPU round float32 to TF32 meanwhile, where that is the precision."""
    if case.precision != "tf32":
        yield
        return
    switches: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    for switch in switches:
        switch.allow_tf32 = True
    try:
        yield
    finally:
        for switch in switches:
            switch.allow_tf32 = False
