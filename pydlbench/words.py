"""The words that name what is measured, in options, records and documents alike.

Whatever reads a command line needs them, so this module imports next to nothing. Backends, modes
and models are declared where they are: in :mod:`pydlbench.backends.capabilities` and
:mod:`pydlbench.models`.
"""

from __future__ import annotations

import re
import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Seconds that a request may take in which the user's own code runs, unless told otherwise.
CODE_LIMIT_S: Final = 600.0

# -----------------------------------------------------------------------------
# Of a layer.

PASSES: Final = ("forward", "backward-data", "backward-weights")
PRECISIONS: Final = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc", "bf16")
#: Precisions that exist on CPUs; the others are modes of GPUs.
CPU_PRECISIONS: Final = ("fp32", "bf16", "fp16")
#: Precisions that exist on GPUs.
GPU_PRECISIONS: Final = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc")
PROPAGATIONS: Final = ("inference", "training")
CACHES: Final = ("hot", "weights-cold", "all-cold")
LAYOUTS: Final = ("best", "any", "nchw", "nhwc", "blocked")
#: How samples are taken on a GPU; ``auto`` is what suits the cache state.
TIMINGS: Final = ("auto", "events", "cuda-graph")
#: What is computed in the same call: a bias (or its gradient), or a bias and a ReLU.
FUSIONS: Final = ("none", "bias-relu", "bias")

# -----------------------------------------------------------------------------
# Of a model's step; the first of each is the default.

#: The images' way through; and back to each weight; and the weights' update.
PHASES: Final = ("forward", "forward-backward", "training")
#: Where in a step a call is made.
DIRECTIONS: Final = ("forward", "loss", "backward", "optimizer")
#: The backends that run whole steps of the catalogue's models where none is named.
FRAMEWORKS: Final = ("torch", "tensorflow")
#: That of them whose steps on a GPU are recorded and timed call by call.
GPU_FRAMEWORK: Final = "torch"
#: That of them whose recorded steps say what reads what.
RECORDED_FRAMEWORK: Final = "torch"
#: The backend that runs ``FILE.onnx``, and nothing else does.
ONNX_FRAMEWORK: Final = "onnxruntime"
#: The ways in which each of them runs a step.
FRAMEWORK_MODES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "torch": ("eager", "compiled"),
        "tensorflow": ("graph", "xla"),
        "jax": ("xla",),
        ONNX_FRAMEWORK: ("optimized", "unoptimized"),
    }
)
#: Below fp32: weights stay in float32, or the whole model is narrow.
CASTS: Final = ("mixed", "whole")
IMAGE_LAYOUTS: Final = ("nhwc", "nchw")
FEEDS: Final = ("resident", "host")


def check_word(option: str, value: str, choices: Sequence[str]) -> None:
    """Make sure that a word is among its choices.

    Args:
        option: its name, for the message.
        value: the word.
        choices: what it may be.

    Raises:
        UsageError: it is not; with the nearest that is.
    """
    if value not in choices:
        near = nearest(str(value), choices) or list(choices)
        raise UsageError(f"{option} {value}: not one of {', '.join(choices)}; nearest: {near[0]}")


def check_device(device: str) -> None:
    """Make sure that a word names a device, whether it is there or not.

    Raises:
        UsageError: it is neither ``cpu`` nor ``cuda:N``.
    """
    if device == "cpu" or re.fullmatch(r"cuda:(0|[1-9][0-9]{0,3})", device):
        return
    near = "cuda:0" if nearest(device, ("cuda:0", "gpu:0"), 1) else "cpu"
    given = shlex.quote(device)
    raise UsageError(f"--device {given}: no such device; nearest: {near}; choices: cpu, cuda:N")


def check_gpu_framework(framework: str, device: str) -> None:
    """Make sure that a framework's steps can be explained where they run.

    Raises:
        UsageError: it is a GPU, and they are not timed call by call there.
    """
    if device != "cpu" and framework != GPU_FRAMEWORK:
        raise UsageError(
            f"--framework {framework}: on {device} only PyTorch's steps are explained call by "
            f"call; nearest: --framework {GPU_FRAMEWORK}, or --device cpu, or pydlbench step"
        )


#: The range of a GPU row's one execution that profilers are pointed at, in NVTX's domain
#: ``pydlbench``.
PROFILED_RANGE: Final = "execution"
