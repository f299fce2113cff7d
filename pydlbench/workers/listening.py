"""The host's ear: reads a worker's lines, ignores its beats, and notices when they cease."""

from __future__ import annotations

import os
import selectors
import time
from typing import IO, TYPE_CHECKING

from pydlbench.workers.wire import decode

if TYPE_CHECKING:
    from typing import Any

__all__ = ["EndOfWorkerError", "Listener", "OverdueError", "SilentError"]


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
