"""The words that options, records and documents share for what is measured.

The command line's parser needs them, so this module imports next to nothing. Backends, modes
and models are declared where they are: in :mod:`pydlbench.backends.capabilities` and
:mod:`pydlbench.models`.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pydlbench.errors import UsageError, nearest, unknown_word

#: Default time limit, in seconds, of a request that runs the user's own code.
CODE_LIMIT_S: Final = 600.0

# -----------------------------------------------------------------------------
# Layers.

PASSES: Final = ("forward", "backward-data", "backward-weights")
#: 8-bit floating point (e4m3) on tensor cores: with partial sums promoted to float32, and without.
FP8_PRECISIONS: Final = ("fp8-tc", "fp8-tc-fast")
#: 8-bit and 4-bit floating point (e4m3, e2m1) with a scale for each 32 or 16 elements, and results
#: in bfloat16: products only.
BLOCK_SCALED_PRECISIONS: Final = ("mxfp8-tc", "nvfp4-tc")
#: oneDNN's types of source, weights and result, by precisions of CPUs in which these differ; the
#: other words are benchdnn's. ``int8`` has ``s8s8s32``.
MIXED_TYPES: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "int8": ("s8", "s8", "s32"),
        "u8s8s32": ("u8", "s8", "s32"),
        **{
            f"{src}s8{dst}": (src, "s8", dst) for src in ("s8", "u8") for dst in ("s8", "u8", "f32")
        },
        "bf16bf16f32": ("bf16", "bf16", "f32"),
        "f16f16f32": ("f16", "f16", "f32"),
    }
)
#: The precision whose arithmetic, and so whose peak, a precision with mixed types has.
_ARITHMETIC: Final = {"bf16": "bf16", "f16": "fp16", "s8": "int8", "u8": "int8"}
#: Products of 8-bit integers.
INT8_PRECISIONS: Final = tuple(
    name for name, kinds in MIXED_TYPES.items() if _ARITHMETIC[kinds[0]] == "int8"
)
PRECISIONS: Final = (
    *("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", *FP8_PRECISIONS, "bf16"),
    *BLOCK_SCALED_PRECISIONS,
    *MIXED_TYPES,
)
#: Precision of a data type, and of the peak that it is compared with.
TYPE_PRECISIONS: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
#: Precisions of whole models on CPUs; the others are modes of GPUs, or of single layers.
CPU_PRECISIONS: Final = ("fp32", "bf16", "fp16")
#: Precisions of single layers on CPUs, and those in which their peaks differ.
CPU_LAYER_PRECISIONS: Final = (*CPU_PRECISIONS, *MIXED_TYPES)
CPU_PEAKS: Final = (*CPU_PRECISIONS, "int8")
#: Precisions that exist on GPUs.
GPU_PRECISIONS: Final = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", *FP8_PRECISIONS)
#: Precisions of single layers on GPUs.
GPU_LAYER_PRECISIONS: Final = (*GPU_PRECISIONS, "int8", *BLOCK_SCALED_PRECISIONS)
PROPAGATIONS: Final = ("inference", "training")
CACHES: Final = ("hot", "weights-cold", "all-cold")
LAYOUTS: Final = ("best", "any", "nchw", "nhwc", "blocked")
#: How samples are taken on a GPU; ``auto`` is what suits the cache state.
TIMINGS: Final = ("auto", "events", "cuda-graph")
#: Operations fused with a layer: a bias (or its gradient), or a bias and a ReLU. For CPUs there are
#: those of ``pydlbench.ops.fused``, too.
FUSIONS: Final = ("none", "bias-relu", "bias")

# -----------------------------------------------------------------------------
# Steps of models; the first of each is the default.

#: Forward pass; with the gradients of all weights; with loss and optimizer as well.
PHASES: Final = ("forward", "forward-backward", "training")
#: The part of a step that a call belongs to.
DIRECTIONS: Final = ("forward", "loss", "backward", "optimizer")
#: The backends that run whole steps of catalogue models by default.
FRAMEWORKS: Final = ("torch", "tensorflow")
#: The framework whose steps on a GPU are recorded and timed call by call.
GPU_FRAMEWORK: Final = "torch"
#: The only backend that runs ``FILE.onnx``.
ONNX_FRAMEWORK: Final = "onnxruntime"
#: The modes in which each framework runs a step.
FRAMEWORK_MODES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "torch": ("eager", "compiled"),
        "tensorflow": ("graph", "xla"),
        "jax": ("xla",),
        ONNX_FRAMEWORK: ("optimized", "unoptimized"),
    }
)
#: Below fp32: weights stay in float32, or the whole model is cast.
CASTS: Final = ("mixed", "whole")
IMAGE_LAYOUTS: Final = ("nhwc", "nchw")
#: The layout of a user's model, unless ``nhwc`` is requested.
AS_BUILT: Final = "as-built"
FEEDS: Final = ("resident", "host")


#: oneDNN's names of types.
ONEDNN_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "float32": "f32",
        "bfloat16": "bf16",
        "float16": "f16",
        "int32": "s32",
        "int8": "s8",
        "uint8": "u8",
    }
)


def mixed_precision(source: str, weights: str, result: str) -> str | None:
    """Return the precision with these types, by NumPy's names; None if there is none."""
    types = tuple(ONEDNN_TYPES.get(dtype, dtype) for dtype in (source, weights, result))
    return next((name for name, kinds in MIXED_TYPES.items() if kinds == types), None)


def arithmetic(precision: str) -> str:
    """Return the precision of the products, whose peak counts: ``int8`` for ``u8s8f32``."""
    return _ARITHMETIC[MIXED_TYPES[precision][0]] if precision in MIXED_TYPES else precision


def check_word(option: str, value: str, choices: Sequence[str]) -> None:
    """Check that a value is one of the choices.

    Args:
        option: name of the option, for the message.
        value: value to check.
        choices: valid values.

    Raises:
        UsageError: the value is not among the choices; names the nearest one.
    """
    if value not in choices:
        raise unknown_word(
            f"{option} {value}: not one of {', '.join(choices)}", str(value), choices, 1
        )


def check_device(device: str) -> None:
    """Check that a text names a device, whether that is present or not.

    Raises:
        UsageError: the text is neither ``cpu`` nor ``cuda:N``.
    """
    if device == "cpu" or re.fullmatch(r"cuda:(0|[1-9][0-9]{0,3})", device):
        return
    near = "cuda:0" if nearest(device, ("cuda:0", "gpu:0"), 1) else "cpu"
    given = shlex.quote(device)
    raise UsageError(f"--device {given}: no such device; nearest: {near}; choices: cpu, cuda:N")


def check_gpu_framework(framework: str, device: str) -> None:
    """Check that a framework's steps can be explained on a device.

    Raises:
        UsageError: the device is a GPU, and this framework's calls are not timed there.
    """
    if device != "cpu" and framework != GPU_FRAMEWORK:
        raise UsageError(
            f"--framework {framework}: on {device} only PyTorch's steps are explained call by "
            f"call; nearest: --framework {GPU_FRAMEWORK}, or --device cpu, or pydlbench step"
        )


def option_words(*options: tuple[str, object, object]) -> list[str]:
    """Return the options of a command line, without those that have the usual value.

    Args:
        options: name, value and usual value of each option.
    """
    asked = [(name, str(value)) for name, value, usual in options if value != usual]
    return [word for pair in asked for word in pair]


#: Name of the NVTX range, in the domain ``pydlbench``, around the execution for profilers.
PROFILED_RANGE: Final = "execution"
