"""Signs of life: while a request is served, a thread says every few seconds that the process runs.

The thread beats through native code that lets go of Python's lock. It is silent while the process
is stopped, while it is swapped out, and while native code keeps the lock.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from pydlbench.workers.wire import encode

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["BEAT_S", "Replies"]

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
