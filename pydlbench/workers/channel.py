"""The channel between host and worker: typed requests, replies, and heartbeats.

A message is a line with one JSON object. Structs and dataclasses are objects with their fields,
which the other side converts back to the same class. A request is ``{"op": name, ...fields}``, one
of :data:`Operation`. A reply is ``{"ok": result}`` or ``{"error": {"type": exception name,
"message": text}}``, one per request, in order. Between a request and its reply there may be lines
``{"heartbeat": number}``, and ``{"told": message}`` with messages of the operation.
"""

import dataclasses
import json
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, BinaryIO

import msgspec

from pydlbench import errors
from pydlbench.backends.base import insufficient_memory, is_out_of_memory
from pydlbench.timing.chunk import ChunkRequest


class _Operation(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """Base of all requests; their tag is the lower-case name of the class."""


class Describe(_Operation, frozen=True):
    """Return the backend's description."""


class Build(_Operation, frozen=True):
    """Prepare a kernel, and store it under a number.

    Attributes:
        builder: ``module:function``; called with the backend and the arguments.
        arguments: arguments by name, as JSON.
    """

    builder: str
    arguments: dict[str, Any]


class CallFunction(_Operation, frozen=True):
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
    request: ChunkRequest


class TraceStep(_Operation, frozen=True):
    """Record a step, so that samples of it can be traced."""

    kernel: int


class Release(_Operation, frozen=True):
    """Free a kernel."""

    kernel: int


class Probe(_Operation, frozen=True):
    """Run one of the backend's probes."""

    name: str
    arguments: dict[str, Any]


Operation = Describe | Build | CallFunction | Sample | TraceStep | Release | Probe

# Exceptions that the host raises with their own type; all others become a WorkerError.
_TYPES: dict[str, type[errors.PydlbenchError]] = {
    kind.__name__: kind
    for kind in (
        errors.UsageError,
        errors.RefusedKernelError,
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
    """Encode a message as one line."""
    return json.dumps(message, separators=(",", ":"), default=_fields).encode() + b"\n"


def _fields(value: object) -> dict[str, Any]:
    """Return the fields of a struct or dataclass as JSON, with the tag of an operation."""
    if isinstance(value, _Operation):
        return {"op": type(value).__name__.lower(), **msgspec.structs.asdict(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def decode(line: bytes) -> dict[str, Any]:
    """Decode one line.

    Raises:
        WorkerError: The line is not a message.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise errors.WorkerError(f"unreadable message {line[:80]!r}: {error}") from error
    if not isinstance(message, dict):
        raise errors.WorkerError(f"unreadable message {line[:80]!r}: not an object")
    return message


def decode_request(line: bytes) -> Operation:
    """Decode a request.

    Raises:
        WorkerError: The line is not a request.
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
    """Whether a worker cannot continue after an error, given its :func:`error_reply`."""
    return description["type"] == errors.DeviceLostError.__name__


def raise_error(description: dict[str, str]) -> None:
    """Raise on the host the exception that :func:`error_reply` described in the worker."""
    kind = _TYPES.get(description["type"], errors.WorkerError)
    raise kind(description["message"])


# -----------------------------------------------------------------------------
# The host's end: reads a worker's lines, skips heartbeats, and notices their absence.


class EndOfWorkerError(Exception):
    """The worker has closed its end."""


class OverdueError(Exception):
    """Heartbeats arrive, but no reply within its time limit."""


class SilentError(Exception):
    """Nothing has arrived from the worker for too long, not even a heartbeat."""


class ReplyReader:
    """Reads one worker's messages.

    Args:
        stream: the worker's output; not closed here.
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
        on_message: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Wait for the reply to a request.

        Everything that has arrived is read before a limit applies, because this process itself may
        have been stopped.

        Args:
            total: maximum seconds until the reply.
            silence: maximum seconds until the next line of any kind.
            on_message: called with messages before the reply; None to ignore them.

        Raises:
            EndOfWorkerError: the worker has closed its end.
            OverdueError: heartbeats arrive, but no reply.
            SilentError: not even heartbeats arrive.
            WorkerError: a line is not a message.
        """
        heard = time.monotonic()
        deadline = heard + total
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                message = decode(line)
                if on_message is not None and "told" in message:
                    on_message(message["told"])
                elif "heartbeat" not in message:
                    return message
            # Past the deadline, select() returns at once, but the pipe is emptied first.
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
# The worker's end. While a request is served, a thread sends a heartbeat every few seconds, also
# during native code that releases Python's lock. There are none while the process is stopped or
# swapped out, or while native code holds the lock.

#: Seconds between two heartbeats. The thread also wakes up during timed samples: every two seconds
#: it takes some 30 microseconds, and the counters around each chunk show what it displaces.
HEARTBEAT_S = 2.0
# Maximum time to wait for the thread at exit; it is a daemon, so the process ends anyway.
_JOIN_TIMEOUT_S = 1.0


class ReplyWriter:
    """Writes replies, and heartbeats between request and reply.

    Requests shorter than ``heartbeat_s``, such as samples, have no heartbeats, so that they do not
    wake the host. Without requests the thread sleeps.

    Args:
        stream: unbuffered output stream.
        heartbeat_s: seconds between two heartbeats.
    """

    def __init__(self, stream: BinaryIO, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._stream = stream
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()  # guards the stream and the state of the request
        self._serving = False
        self._since = 0.0
        self._count = 0
        self._ended = threading.Event()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Send heartbeats until the next answer."""
        with self._lock:
            self._serving = True
            self._since = time.monotonic()
            self._busy.set()

    def answer(self, message: dict[str, Any]) -> None:
        """Send the reply to the present request; heartbeats end."""
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
        with self._lock:  # not while the thread is about to sleep until the next request
            self._ended.set()
            self._busy.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._stream.write(rest) or 0 :]  # a pipe may accept only a part

    def _run(self) -> None:
        while True:
            self._busy.wait()
            if self._ended.wait(self._heartbeat_s):
                return
            with self._lock:
                if self._ended.is_set():
                    return
                if not self._serving:
                    self._busy.clear()
                elif time.monotonic() - self._since >= self._heartbeat_s:
                    self._count += 1
                    try:
                        self._write(encode({"heartbeat": self._count}))
                    except OSError:
                        os._exit(1)  # the host is gone, so nobody needs the result
