"""TensorFlow with its threads, devices and precisions.

The other modules import ``tf`` from here, so that its environment is set before.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from pydlbench.backends.base import check_not_emulated, check_precision
from pydlbench.errors import (
    InsufficientMemoryError,
    PrimitiveError,
    PydlbenchError,
    UnsupportedError,
)
from pydlbench.words import FP8_PRECISIONS

# TensorFlow reads this when it is imported. Otherwise its C++ code also prints the messages of
# exceptions on stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Callable, Collection

import tensorflow as tf

__all__ = [
    "DTYPES",
    "TensorFlowArithmetic",
    "Tracer",
    "arithmetic",
    "build_facts",
    "choose",
    "tf",
    "translate_error",
]


def choose(device: str, threads: int) -> str:
    """Set threads, devices and synchronous execution, before anything is computed.

    On a CPU a call then returns with its result. One thread runs operators (``inter_op``), and
    ``threads`` threads compute one operator (``intra_op``). Operators that a device lacks are
    refused; otherwise TensorFlow silently runs them on the CPU.

    Args:
        device: ``cpu`` or ``cuda:N``.
        threads: number of threads.

    Returns:
        TensorFlow's name of the device.

    Raises:
        UnsupportedError: there is no such GPU, or TensorFlow cannot use it.
        PrimitiveError: TensorFlow is already running in this process, with other settings.
    """
    tf.get_logger().setLevel("ERROR")  # no warnings on functions that are traced repeatedly
    gpus = tf.config.list_physical_devices("GPU")
    wanted = int(device.removeprefix("cuda:")) if device != "cpu" else None
    if wanted is not None and wanted >= len(gpus):
        raise UnsupportedError(f"TensorFlow cannot use {device}: {_why_no_gpu(len(gpus))}")
    visible = [] if wanted is None else [gpus[wanted]]
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        if gpus:
            tf.config.set_visible_devices(visible, "GPU")
        for gpu in visible:
            # By default TensorFlow allocates the GPU's whole memory, and other workers have none.
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise PrimitiveError(f"TensorFlow already runs with other settings: {error}") from error
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.set_synchronous_execution(True)
    return "/CPU:0" if wanted is None else "/GPU:0"  # the only visible one


def build_facts() -> dict[str, Any]:
    """Return version, threads, libraries of the build, and settings."""
    build = tf.sysconfig.get_build_info()
    return {
        "version": tf.__version__,
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "onednn": _onednn(),
        "cuda_build": bool(build.get("is_cuda_build")),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "synchronous": bool(tf.config.experimental.get_synchronous_execution()),
    }


def _onednn() -> bool | None:
    """Whether graphs are rewritten to oneDNN's operators; None if this version does not say."""
    try:
        from tensorflow.python.util import _pywrap_util_port as port

        return bool(port.IsMklEnabled())
    except (ImportError, AttributeError):
        return None


def _why_no_gpu(count: int) -> str:
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        return "this build is for CPUs only"
    return f"it finds {count} GPU{'' if count == 1 else 's'}"


# -----------------------------------------------------------------------------
# Precisions on CPUs and GPUs.

#: Data type of all tensors by precision.
DTYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "bf16-tc": "bfloat16",
    "fp16-tc": "float16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowArithmetic:
    """How numbers are stored and multiplied.

    Attributes:
        dtype: TensorFlow's name of the storage type.
        tf32: whether float32 products may be rounded to TF32; None if the switch has no effect.
        accumulate: format of the sums of products.
    """

    dtype: str
    tf32: bool | None
    accumulate: str

    def apply(self) -> None:
        """Set the switch for TF32, which holds for the whole process."""
        if self.tf32 is not None:
            tf.config.experimental.enable_tensor_float_32_execution(self.tf32)

    def accumulator(self, sums: str, mode: str) -> str:
        """Return the accumulator of a pass.

        Eigen's kernel of ``BiasAddGrad``, which graphs run, sums bfloat16 in bfloat16, one row of
        pixels after the other: a gradient over 13,000 pixels has an error of a seventh. XLA sums in
        float32.

        Args:
            sums: ``products``, ``float32``, ``stored`` (the storage type), or ``BiasAddGrad``.
            mode: ``graph`` or ``xla``.
        """
        return {
            "products": self.accumulate,
            "float32": "float32",
            "stored": self.dtype,
            "BiasAddGrad": "float32" if mode == "xla" else self.dtype,
        }[sums]


def arithmetic(precision: str, on_gpu: bool, isa: Collection[str]) -> TensorFlowArithmetic:
    """Return the arithmetic of a precision.

    Args:
        precision: one of ``pydlbench.words.PRECISIONS``.
        on_gpu: whether the device is a GPU.
        isa: instruction sets of the CPU, by the kernel's names.

    Raises:
        UnsupportedError: TensorFlow or this device does not have the precision.
    """
    check_precision(precision, on_gpu)
    if not on_gpu:
        check_not_emulated(precision, isa)
        return TensorFlowArithmetic(dtype=DTYPES[precision], tf32=None, accumulate="float32")
    if precision == "fp16":
        raise UnsupportedError("TensorFlow cannot keep float16 off the tensor cores; see fp16-tc")
    if precision in FP8_PRECISIONS:
        raise UnsupportedError("TensorFlow has no products of 8-bit floating-point numbers")
    if precision == "fp32":
        return TensorFlowArithmetic(dtype="float32", tf32=False, accumulate="float32")
    tf32 = True if precision == "tf32" else None
    return TensorFlowArithmetic(dtype=DTYPES[precision], tf32=tf32, accumulate="float32-tensor")


# -----------------------------------------------------------------------------
# Functions.


@dataclass(frozen=True, slots=True)
class Tracer:
    """Makes functions of tensors in a mode: a graph, or a program of XLA.

    Attributes:
        device: TensorFlow's name of the device.
        mode: ``graph`` or ``xla``.
    """

    device: str
    mode: str

    def __call__(self, body: Callable[..., Any]) -> Any:
        """Return a ``tf.function``, which is traced at its first call."""

        def placed(*tensors: Any) -> Any:
            with tf.device(self.device):
                return body(*tensors)

        # Autograph would translate `if` and `for`, which here build the graph.
        return tf.function(placed, autograph=False, jit_compile=self.mode == "xla")

    def wait(self) -> None:
        """Return when all calls have finished.

        On a CPU each call returns with its result, as :func:`choose` makes execution synchronous,
        also for XLA. On a GPU an operator waits for the stream.
        """
        if self.device != "/CPU:0":
            with tf.device(self.device):
                tf.raw_ops.SyncDevice()


# -----------------------------------------------------------------------------
# Errors of TensorFlow, translated; the message is its reason in one sentence.

# Kernels that are missing, or that fail when they are built or first run.
_REFUSALS = (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)


def reason_of(message: str) -> str:
    """Return the sentence of a message that has the reason.

    The message also has functions and nodes of the graph, and sometimes a Python traceback.
    """
    text = re.sub(r"\{\{\w+ [^}]*\}\}", "", message.split("[[", 1)[0])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = lines[-1] if lines else message.strip()
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", sentence, maxsplit=1)[0].rstrip(".")


def translate_error(error: Exception, what: str) -> PydlbenchError:
    """Return pydlbench's error for an error of TensorFlow.

    Args:
        error: one of ``tf.errors``.
        what: operator, mode and special features of the problem.
    """
    reason = reason_of(getattr(error, "message", None) or str(error))
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return InsufficientMemoryError(f"TensorFlow, {what}: {reason}")
    if isinstance(error, _REFUSALS):
        return UnsupportedError(f"TensorFlow, {what}: {reason}")
    return PrimitiveError(f"TensorFlow, {what}: {type(error).__name__}: {reason}")
