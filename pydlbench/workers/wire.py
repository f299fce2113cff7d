"""The wire format between host and worker: one JSON object per line.

Requests are ``{"op": name, ...arguments}``. Replies are ``{"ok": result}`` or
``{"error": {"type": exception name, "message": text}}``, one per request, in order. Between a
request and its reply there may be lines ``{"beat": number}``.
"""

from __future__ import annotations

import json
from typing import Any

from pydlbench import errors
from pydlbench.backends.memory import insufficient_memory, is_out_of_memory

__all__ = ["decode", "encode", "error_reply", "is_fatal", "raise_error"]

# Exceptions that cross the wire as themselves; any other arrives as a WorkerError.
_TYPES: dict[str, type[errors.PydlbenchError]] = {
    kind.__name__: kind
    for kind in (
        errors.UsageError,
        errors.UnsupportedError,
        errors.PrimitiveError,
        errors.InsufficientMemoryError,
        errors.BackendMissingError,
        errors.DeviceLostError,
        errors.WorkerError,
    )
}


def encode(message: dict[str, Any]) -> bytes:
    """Turn a message into one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Read one line back.

    Raises:
        WorkerError: it is not a message.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise errors.WorkerError(f"unreadable message {line[:80]!r}: {error}") from error
    if not isinstance(message, dict):
        raise errors.WorkerError(f"unreadable message {line[:80]!r}: not an object")
    return message


def error_reply(error: BaseException) -> dict[str, Any]:
    """Describe an exception for the host."""
    if not isinstance(error, errors.PydlbenchError) and is_out_of_memory(error):
        error = insufficient_memory(error)
    name = type(error).__name__
    text = str(error)
    if name not in _TYPES:
        text = f"{name}: {text}"
    return {"error": {"type": name, "message": text}}


def is_fatal(description: dict[str, str]) -> bool:
    """Whether the worker that sent :func:`error_reply`'s description can do nothing more."""
    return description["type"] == errors.DeviceLostError.__name__


def raise_error(description: dict[str, str]) -> None:
    """Raise on the host what :func:`error_reply` described in the worker."""
    kind = _TYPES.get(description["type"], errors.WorkerError)
    raise kind(description["message"])
