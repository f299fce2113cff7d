"""What TensorFlow raises, as errors of ours with its reason in one sentence."""

from __future__ import annotations

import re

from pydlbench.backends.tensorflow.settings import tf
from pydlbench.errors import (
    InsufficientMemoryError,
    PrimitiveError,
    PydlbenchError,
    UnsupportedError,
)

# Kernels that are missing, or that say while they are built or first run what they cannot do.
_REFUSALS = (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)


def reason_of(message: str) -> str:
    """Return the one sentence of a message of TensorFlow's that gives the reason.

    Around it stand the functions and nodes of the graph, and sometimes a trace of Python's.
    """
    text = re.sub(r"\{\{\w+ [^}]*\}\}", "", message.split("[[", 1)[0])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = lines[-1] if lines else message.strip()
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", sentence, maxsplit=1)[0].rstrip(".")


def translated(error: Exception, what: str) -> PydlbenchError:
    """Return the error of ours that says the same.

    Args:
        error: one of ``tf.errors``.
        what: operator, mode and what is special about the problem.
    """
    reason = reason_of(getattr(error, "message", None) or str(error))
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return InsufficientMemoryError(f"TensorFlow, {what}: {reason}")
    if isinstance(error, _REFUSALS):
        return UnsupportedError(f"TensorFlow, {what}: {reason}")
    return PrimitiveError(f"TensorFlow, {what}: {type(error).__name__}: {reason}")
