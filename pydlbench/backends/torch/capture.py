"""What libraries print while a function runs: oneDNN and MKL write to file descriptor 1."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["library_output", "logged_turn", "printed"]


def library_output(call: Callable[[], Any]) -> str:
    """Call once with oneDNN's and MKL's reports switched on, and return what they printed.

    Empty where PyTorch was built without them.
    """
    with printed() as lines, _reports():
        call()
    return "".join(lines)


def logged_turn(call: Callable[[], Any]) -> tuple[str, float, float]:
    """Call with the reports switched on, right after the same call without them.

    Returns:
        What was printed, and the seconds of the call with the reports and of that without.
    """
    with printed() as lines:
        call()  # threads have fallen asleep, and caches hold something else
        plain_s = _seconds(call)
        with _reports():
            logged_s = _seconds(call)
    return "".join(lines), logged_s, plain_s


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextlib.contextmanager
def _reports() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            # Without the library its switch is missing, or says that it failed.
            with contextlib.suppress(AssertionError, AttributeError, RuntimeError):
                stack.enter_context(library.verbose(library.VERBOSE_ON))
        yield


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Divert file descriptor 1 into a file; the list is filled at the end."""
    lines: list[str] = []
    _flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield lines
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            lines.append(file.read().decode(errors="replace"))


def _flush() -> None:
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # the C library's own buffer
