"""The channel between host and worker: typed requests, replies, and heartbeats.

A message is one JSON object on a line; structs and dataclasses in it are objects of their fields,
which the other side reads back into the same class. A request is ``{"op": name, ...fields}``, one
of :data:`Operation`. A reply is ``{"ok": result}`` or ``{"error": {"type": exception name,
"message": text}}``, one per request, in order. Between a request and its reply there may be lines
``{"heartbeat": number}``, and ``{"told": message}`` where an operation has something to say before
it is done.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import threading
import time
from typing import IO, TYPE_CHECKING, Any

import msgspec

from pydlbench import errors
from pydlbench.backends.base import insufficient_memory, is_out_of_memory
from pydlbench.timing.chunk import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO


class _Operation(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """Base of all requests; the lower-case name of the class is their tag."""


class Describe(_Operation, frozen=True):
    """Return the backend's description."""


class Build(_Operation, frozen=True):
    """Prepare a kernel and keep it under a number.

    Attributes:
        builder: ``module:function``; called with the backend and the arguments.
        arguments: arguments by name, as JSON.
    """

    builder: str
    arguments: dict[str, Any]


class Call(_Operation, frozen=True):
    """Call a function that may send messages before it returns.

    Attributes:
        function: ``module:function``; called with the backend, a function that sends a message to
            the host, and the arguments. Its result is written as JSON.
        arguments: arguments by name, as JSON.
    """

    function: str
    arguments: dict[str, Any]


class Sample(_Operation, frozen=True):
    """Time samples of a kernel."""

    kernel: int
    request: Request


class Trace(_Operation, frozen=True):
    """Record a step, so that its samples can be traced ones, too."""

    kernel: int


class Release(_Operation, frozen=True):
    """Free a kernel."""

    kernel: int


class Probe(_Operation, frozen=True):
    """Run one of the backend's probes."""

    name: str
    arguments: dict[str, Any]


Operation = Describe | Build | Call | Sample | Trace | Release | Probe

# Exceptions that cross the wire as themselves; any other arrives as a WorkerError.
_TYPES: dict[str, type[errors.PydlbenchError]] = {
    kind.__name__: kind
    for kind in (
        errors.UsageError,
        errors.UnsupportedError,
        errors.PrimitiveError,
        errors.InsufficientMemoryError,
        errors.ModelError,
        errors.BackendMissingError,
        errors.DeviceLostError,
        errors.WorkerError,
    )
}


def encode(message: Mapping[str, Any] | Operation) -> bytes:
    """Turn a message into one line."""
    return json.dumps(message, separators=(",", ":"), default=_fields).encode() + b"\n"


def _fields(value: object) -> dict[str, Any]:
    """Return the fields of an object that JSON does not know; of an operation with its tag."""
    if isinstance(value, _Operation):
        return {"op": type(value).__name__.lower(), **msgspec.structs.asdict(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be sent")


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


def decode_request(line: bytes) -> Operation:
    """Read a request back.

    Raises:
        WorkerError: it is not one.
    """
    try:
        operation: Operation = msgspec.convert(decode(line), Operation)
    except msgspec.ValidationError as error:
        raise errors.WorkerError(
            f"unreadable message {line[:80]!r}: not an operation: {error}"
        ) from error
    return operation


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
# The host's end: reads a worker's lines, skips heartbeats, and notices when they cease.


class EndOfWorkerError(Exception):
    """The worker has closed its end."""


class OverdueError(Exception):
    """There are heartbeats, but the reply has not come in time."""


class SilentError(Exception):
    """Nothing has come from the worker for too long, not even a heartbeat."""


class ReplyReader:
    """Reads one worker's messages.

    Args:
        stream: what the worker writes; it is not closed here.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._descriptor = stream.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(stream, selectors.EVENT_READ)
        self._pending = b""

    def reply(
        self,
        total: float,
        silence: float,
        hear: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Return the next message that is neither a heartbeat nor sent before the reply.

        Everything that has arrived is read before a limit is applied, as this process itself may
        have been stopped.

        Args:
            total: seconds until the reply.
            silence: seconds until the next line of any kind.
            hear: called with messages before the reply; None if there are none.

        Raises:
            EndOfWorkerError: the worker has closed its end.
            OverdueError: there are heartbeats, and no reply.
            SilentError: not even heartbeats come.
            WorkerError: a line is no message.
        """
        heard = time.monotonic()
        deadline = heard + total
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                message = decode(line)
                if hear is not None and "told" in message:
                    hear(message["told"])
                elif "heartbeat" not in message:
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
# The worker's end. While a request is served, a thread says every few seconds that the process
# runs, also through native code that lets go of Python's lock. It is silent while the process is
# stopped, while it is swapped out, and while native code keeps the lock.

#: Seconds between two heartbeats. The thread's wake-ups fall into timed samples: one in two seconds
#: is some 30 microseconds of them, and what it displaces is seen by the counters around each chunk.
HEARTBEAT_S = 2.0
# To wait for the thread when the process ends; it is a daemon and could not keep it alive.
_JOIN_S = 1.0


class ReplyWriter:
    """Writes replies, and heartbeats between request and reply.

    Only requests that take longer than ``heartbeat_s`` have heartbeats, so that short ones of
    sampling do not wake the host. Without requests the thread sleeps.

    Args:
        stream: stream for the lines; unbuffered.
        heartbeat_s: seconds between two heartbeats.
    """

    def __init__(self, stream: BinaryIO, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._stream = stream
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()  # of the stream and of all below
        self._serving = False
        self._since = 0.0
        self._count = 0
        self._ended = threading.Event()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Note that a request has come: send heartbeats until it is answered."""
        with self._lock:
            self._serving = True
            self._since = time.monotonic()
            self._busy.set()

    def answer(self, message: dict[str, Any]) -> None:
        """Send the reply to the present request; no heartbeat follows it."""
        line = encode(message)
        with self._lock:
            self._serving = False
            self._write(line)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message before the reply to the present request."""
        line = encode({"told": message})
        with self._lock:
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
            if self._ended.wait(self._heartbeat_s):
                return
            with self._lock:
                if not self._serving:
                    self._busy.clear()
                elif time.monotonic() - self._since >= self._heartbeat_s:
                    self._count += 1
                    try:
                        self._write(encode({"heartbeat": self._count}))
                    except OSError:
                        os._exit(1)  # the host is gone; what is being computed is for nobody
