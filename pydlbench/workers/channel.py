"""The channel between host and worker: one JSON object per line, and heartbeats."""

from __future__ import annotations

import json
import os
import selectors
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from pydlbench import errors
from pydlbench.backends.base import insufficient_memory, is_out_of_memory

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = [
    "BEAT_S",
    "EndOfWorkerError",
    "Listener",
    "OverdueError",
    "Replies",
    "SilentError",
    "decode",
    "encode",
    "error_reply",
    "is_fatal",
    "raise_error",
]


# -----------------------------------------------------------------------------
# The wire format between host and worker: one JSON object per line.
#
# Requests are ``{"op": name, ...arguments}``. Replies are ``{"ok": result}`` or
# ``{"error": {"type": exception name, "message": text}}``, one per request, in order. Between a
# request and its reply there may be lines ``{"beat": number}``.

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


# -----------------------------------------------------------------------------
# The host's ear: reads a worker's lines, ignores its beats, and notices when they cease.


class EndOfWorkerError(Exception):
    """The worker has closed its end."""


class OverdueError(Exception):
    """The worker beats, but the reply has not come in time."""


class SilentError(Exception):
    """Nothing has come from the worker for too long, not even a beat."""


class Listener:
    """Reads one worker's messages.

    Args:
        stream: what the worker writes; it is not closed here.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._descriptor = stream.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(stream, selectors.EVENT_READ)
        self._pending = b""

    def reply(self, total: float, silence: float) -> dict[str, Any]:
        """Return the next message that is no beat.

        What has come is read before any limit is held against it: it may have been this process
        that was stopped.

        Args:
            total: seconds until the reply.
            silence: seconds until the next line of any kind.

        Raises:
            EndOfWorkerError: the worker has closed its end.
            OverdueError: it beats, and there is no reply.
            SilentError: not even beats come.
            WorkerError: a line is no message.
        """
        heard = time.monotonic()
        deadline = heard + total
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                message = decode(line)
                if "beat" not in message:
                    return message
            # Past the deadline this still empties the pipe, and only then gives up.
            wait = min(deadline, heard + silence) - time.monotonic()
            if not self._selector.select(max(0.0, wait)):
                raise OverdueError if time.monotonic() >= deadline else SilentError
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                raise EndOfWorkerError
            heard = time.monotonic()
            self._pending += data

    def close(self) -> None:
        """Stop reading."""
        self._selector.close()


# -----------------------------------------------------------------------------
# Signs of life: while a request is served, a thread says every few seconds that the process runs.
#
# The thread beats through native code that lets go of Python's lock. It is silent while the
# process
# is stopped, while it is swapped out, and while native code keeps the lock.

#: Seconds between two beats. The thread's wake-ups fall into timed samples: one in two seconds is
#: some 30 microseconds of them, and what it displaces is seen by the counters around each chunk.
BEAT_S = 2.0
# To wait for the thread when the process ends; it is a daemon and could not keep it alive.
_JOIN_S = 1.0


class Replies:
    """A worker's end of the wire: replies, and between request and reply the beats.

    Only requests that take longer than ``beat_s`` beat, so the host is not woken by the short ones
    of sampling. Without requests the thread sleeps for good.

    Args:
        stream: takes the lines; unbuffered, or flushed by nobody.
        beat_s: seconds between two beats.
    """

    def __init__(self, stream: BinaryIO, beat_s: float = BEAT_S) -> None:
        self._stream = stream
        self._beat_s = beat_s
        self._lock = threading.Lock()  # of the stream and of all below
        self._serving = False
        self._since = 0.0
        self._beats = 0
        self._ended = threading.Event()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A request has come: beat until it is answered."""
        with self._lock:
            self._serving = True
            self._since = time.monotonic()
            self._busy.set()

    def answer(self, message: dict[str, Any]) -> None:
        """Send the reply to the present request; no beat follows it."""
        line = encode(message)
        with self._lock:
            self._serving = False
            self._write(line)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._busy.set()
        self._thread.join(_JOIN_S)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._stream.write(rest) or 0 :]  # a pipe may take a part only

    def _run(self) -> None:
        while True:
            self._busy.wait()
            if self._ended.wait(self._beat_s):
                return
            with self._lock:
                if not self._serving:
                    self._busy.clear()
                elif time.monotonic() - self._since >= self._beat_s:
                    self._beats += 1
                    try:
                        self._write(encode({"beat": self._beats}))
                    except OSError:
                        os._exit(1)  # the host is gone; what is being computed is for nobody
