"""TensorFlow itself: imported quietly, its threads and devices set before it starts.

The other modules take ``tf`` from here, so that what TensorFlow reads when it is imported is set.
"""

from __future__ import annotations

import os
from typing import Any

from pydlbench.errors import PrimitiveError, UnsupportedError

# Read when TensorFlow is imported: its C++ side reports every refusal on stderr too, although the
# exception says the same.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

__all__ = ["configure", "settings", "tf"]


def configure(device: str, threads: int) -> str:
    """Set threads, devices and synchronous execution; before anything is computed.

    On a CPU a call then returns when its result is there. One thread runs operators
    (``inter_op``), ``threads`` share the work of one (``intra_op``). Operators that a device lacks
    are refused: TensorFlow would else run them on the CPU without a word.

    Args:
        device: ``cpu`` or ``cuda:N``.
        threads: how many threads compute.

    Returns:
        The device by TensorFlow's name.

    Raises:
        UnsupportedError: there is no such GPU, or TensorFlow cannot use it.
        PrimitiveError: TensorFlow is already running in this process, with other settings.
    """
    tf.get_logger().setLevel("ERROR")  # advice about functions that are traced again and again
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
            # Else all of the card's memory is taken at once, from the other workers too.
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise PrimitiveError(f"TensorFlow already runs with other settings: {error}") from error
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.set_synchronous_execution(True)
    return "/CPU:0" if wanted is None else "/GPU:0"  # the only visible one


def settings() -> dict[str, Any]:
    """Return version, threads and what the library was built and started with."""
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
    """Whether graphs are rewritten to oneDNN's operators; None where this version cannot tell."""
    try:
        from tensorflow.python.util import _pywrap_util_port as port

        return bool(port.IsMklEnabled())
    except (ImportError, AttributeError):
        return None


def _why_no_gpu(count: int) -> str:
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        return "this build is for CPUs only"
    return f"it finds {count} GPU{'' if count == 1 else 's'}"
