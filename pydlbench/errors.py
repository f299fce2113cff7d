"""Exceptions of pydlbench. Each is also a builtin's subclass, so callers can catch either.

What the command line does with them: ``UsageError`` ends with exit code 2 before anything is
measured; ``UnsupportedError`` makes a row ``skipped``; every other one makes a row ``failed``.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class PydlbenchError(Exception):
    """Base class of everything that pydlbench raises on purpose."""


class UsageError(PydlbenchError, ValueError):
    """Bad input: one line naming the input, the reason and the nearest valid choice."""


class UnsupportedError(PydlbenchError, NotImplementedError):
    """The library or the hardware cannot do this case (a precision it lacks, for example)."""


class PrimitiveError(PydlbenchError, RuntimeError):
    """A native library refused or failed; the message names the primitive and the reason."""


class ModelError(PydlbenchError, RuntimeError):
    """A model of the user's own has raised; the message names file, line and what was raised."""


class InsufficientMemoryError(PydlbenchError, MemoryError):
    """A case needs more memory than is available; asked before anything is allocated."""


class BackendMissingError(PydlbenchError, ImportError):
    """A backend is not installed; the message says why and which command installs it."""


class WorkerError(PydlbenchError, RuntimeError):
    """A worker process died, hung or broke the protocol; costs its row, not the run."""


class DeviceLostError(WorkerError):
    """A kernel's fault has made a GPU's context useless; its worker ends and a new one starts."""


class StoreError(PydlbenchError, OSError):
    """Results cannot be kept or read back; one line that names the file and says what to do."""


def nearest(word: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` of ``choices`` that look most like ``word``, best first."""
    folded = {choice.lower(): choice for choice in choices}
    alike = difflib.get_close_matches(word.lower(), folded, n=count, cutoff=0.5)
    return [folded[name] for name in alike]
