"""Standard streams that are closed, full or of another encoding: no reason for a traceback."""

from __future__ import annotations

import contextlib
import os
import sys

__all__ = ["repair_streams", "silence_stdout", "tell"]


def repair_streams() -> None:
    """Put the null device in the place of closed streams, and let every text be printed.

    A closed descriptor would otherwise be given to the next file that is opened, and what is
    printed would land in there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - for good
            if stream.fileno() <= 2:
                os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
        elif mode == "w" and getattr(stream, "errors", None) == "strict":
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")


def silence_stdout() -> None:
    """Drop what could not be printed; Python would try once more at exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def tell(text: str) -> None:
    """Print a line on standard error; if that is full, there is nobody left to tell."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
