"""PyTorch's global settings: settings for all cases, settings of a case, and their description."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pydlbench.backends.base import INSTRUCTION_SETS
from pydlbench.errors import UnsupportedError
from pydlbench.records.measurement import KernelSpec
from pydlbench.words import FP8_PRECISIONS, MIXED_TYPES, arithmetic

#: Data type of all tensors by precision.
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-tc": torch.bfloat16,
    "fp16-tc": torch.float16,
    **dict.fromkeys(FP8_PRECISIONS, torch.float8_e4m3fn),
    # The type of the source; that of weights is int8.
    **{
        name: torch.uint8 if kinds[0] == "u8" else torch.int8
        for name, kinds in MIXED_TYPES.items()
        if arithmetic(name) == "int8"
    },
}


def stored(precision: str) -> str:
    """Return the data type of all tensors by its name: ``bfloat16``."""
    return str(DTYPES[precision]).removeprefix("torch.")


def check_precision(precision: str, on_gpu: bool) -> None:
    """Refuse a precision that PyTorch or this CPU does not support.

    Raises:
        UnsupportedError: PyTorch or the CPU does not support it; the message has the reason.
    """
    if on_gpu and precision == "fp16":
        raise UnsupportedError("torch cannot keep fp16 off the tensor cores; fp16-tc uses them")
    if not on_gpu and (lacking := emulated(precision)):
        raise UnsupportedError(f"this CPU has no {precision}: it lacks {' and '.join(lacking)}")


def choose(threads: int) -> None:
    """Apply the settings for all cases: exact arithmetic, fastest algorithms, all threads.

    Args:
        threads: number of threads of operators.
    """
    torch.set_num_threads(threads)
    # On a CPU this applies to oneDNN, too: "high" would allow bfloat16.
    torch.set_float32_matmul_precision("highest")
    if torch.are_deterministic_algorithms_enabled():  # changing it imports PyTorch's compilers
        torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    # All precisions accumulate in float32.
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False


def in_words() -> dict[str, Any]:
    """Read the settings back, by the names that PyTorch's users know."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        "cudnn.benchmark": cudnn.benchmark,
        "cudnn.deterministic": cudnn.deterministic,
        "cudnn.allow_tf32": f"{cudnn.allow_tf32}; True for tf32 only",
        "cuda.matmul.allow_tf32": f"{matmul.allow_tf32}; True for tf32 only",
        "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
    }


def guard(spec: KernelSpec) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a factory of contexts in which a case runs as its user would run it.

    Inference runs in inference mode. The forward pass of a training does not, but nothing requires
    gradients. Backward passes run without grad mode, as in autograd.
    """

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with tf32(spec.precision), _grad(spec):
            yield

    return context


def _grad(spec: KernelSpec) -> contextlib.AbstractContextManager[Any]:
    mode: contextlib.AbstractContextManager[Any] = torch.inference_mode()
    if spec.pass_ != "forward":
        mode = torch.no_grad()
    elif spec.propagation == "training":
        mode = contextlib.nullcontext()
    return mode


@contextlib.contextmanager
def tf32(precision: str) -> Iterator[None]:
    """Allow TF32 in products and convolutions on a GPU if that is the precision.

    Otherwise it is not allowed; see :func:`choose`.
    """
    if precision != "tf32":
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


def emulated(precision: str) -> tuple[str, ...]:
    """Return the instruction sets for a precision if this CPU has none of them; otherwise empty."""
    needed = INSTRUCTION_SETS.get(arithmetic(precision), ())
    return () if any(_has(name) for name in needed) else needed


def _has(instructions: str) -> bool:
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is not None:
        return bool(capabilities().get(instructions))
    # Before PyTorch 2.12 there are single functions, and none for amx_bf16, which all AMX has.
    module: Any = torch.cpu
    name = {
        "avx512_bf16": "_is_avx512_bf16_supported",
        "amx_bf16": "_is_amx_tile_supported",
        "amx_fp16": "_is_amx_fp16_supported",
    }.get(instructions)
    if name is None:
        name, module = "_is_mkldnn_fp16_supported", torch.ops.mkldnn
    return bool(getattr(module, name, bool)())
