"""The paper that a protocol writes on: a named pipe from the framework's process to the host's.

Lines must arrive as they are written, and a worker's own pipe carries one reply per request.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Paper", "read_while"]


class Paper:
    """The worker's end.

    Args:
        path: of the pipe.
    """

    def __init__(self, path: str) -> None:
        self._pipe = os.open(path, os.O_WRONLY)

    def line(self, text: str) -> None:
        """Write a line of the script's."""
        self._send({"line": text})

    def note(self, text: str) -> None:
        """Write a remark that is not the script's."""
        self._send({"note": text})

    def close(self) -> None:
        """Say that nothing follows."""
        os.close(self._pipe)

    def _send(self, message: dict[str, str]) -> None:
        rest = json.dumps(message).encode() + b"\n"
        while rest:
            rest = rest[os.write(self._pipe, rest) :]


def read_while(
    work: Callable[[str], Any],
    stop: Callable[[], None],
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> Any:
    """Do some work in a thread and hand on what is written on its paper meanwhile.

    Args:
        work: takes the pipe's path; blocks until the other process is done.
        stop: makes ``work`` end early; called when a line cannot be handed on, or on Ctrl-C.
        write: takes the script's lines.
        note: takes remarks.

    Returns:
        What ``work`` returns; raises what it raises.
    """
    with tempfile.TemporaryDirectory(prefix="pydlbench-") as folder:
        path = str(Path(folder) / "paper")
        os.mkfifo(path, 0o600)
        # Without blocking: there is no writer yet.
        paper = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        ended, end = os.pipe()
        thread = _Work(lambda: work(path), end)
        thread.start()
        try:
            _hand_on(paper, ended, write, note)
        except BaseException:
            stop()
            raise
        finally:
            thread.join()
            for descriptor in (paper, ended, end):
                os.close(descriptor)
    if thread.error is not None:
        raise thread.error
    return thread.result


class _Work(threading.Thread):
    """Runs a function and writes a byte to a pipe when it has ended."""

    def __init__(self, function: Callable[[], Any], end: int) -> None:
        super().__init__(name="protocol", daemon=True)
        self._function, self._end = function, end
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
        finally:
            os.write(self._end, b"\n")


def _hand_on(
    paper: int, ended: int, write: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Hand on lines until the work has ended and the paper is empty."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(paper, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        over = False
        while not over:
            ready = {key.fd for key, _ in selector.select()}
            over = ended in ready
            data = _read(paper)
            if not data and paper in ready:  # its writer has closed it: it would be ready for ever
                selector.unregister(paper)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "line" in message:
                    write(message["line"])
                else:
                    note(message["note"])


def _read(paper: int) -> bytes:
    found = b""
    with contextlib.suppress(BlockingIOError):  # nothing there at present
        while data := os.read(paper, 1 << 16):
            found += data
    return found
