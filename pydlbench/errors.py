"""Exceptions of pydlbench. Each is also a subclass of a builtin one, so callers can catch either.

The command line ends with exit code 2 on a ``UsageError``, before anything is measured. An
``UnsupportedError`` makes a row ``skipped``, every other exception makes it ``failed``.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path


class PydlbenchError(Exception):
    """Base class of everything that pydlbench raises on purpose."""


class UsageError(PydlbenchError, ValueError):
    """Bad input: one line naming the input, the reason and the nearest valid choice."""


class UnsupportedError(PydlbenchError, NotImplementedError):
    """The library or the hardware cannot compute this, for lack of a precision for example."""


class PrimitiveError(PydlbenchError, RuntimeError):
    """A native library refused or failed; the message names the primitive and the reason."""


class ModelError(PydlbenchError, RuntimeError):
    """The user's own model raised an exception; the message names file, line and exception."""


class InsufficientMemoryError(PydlbenchError, MemoryError):
    """More memory is needed than is available; checked before anything is allocated."""


class BackendMissingError(PydlbenchError, ImportError):
    """A backend is not installed; the message names the reason and the command that installs it."""


class WorkerError(PydlbenchError, RuntimeError):
    """A worker process died, hung or broke the protocol. Its row fails, the run goes on."""


class RefusedKernelError(PydlbenchError, ValueError):
    """A user's kernel is wrong in a timed sample, or its time cannot be right: it gets no time."""


class DeviceLostError(WorkerError):
    """A faulty kernel made the GPU's context unusable; the worker ends and a new one starts."""


class StoreError(PydlbenchError, OSError):
    """Results cannot be stored or read back; one line with the file and a remedy."""


def nearest(word: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` of the ``choices`` that resemble ``word`` most, the closest first."""
    folded = {_sound(choice): choice for choice in choices}
    alike = difflib.get_close_matches(_sound(word), folded, n=count, cutoff=0.5)
    return [folded[name] for name in alike]


def unknown_word(text: str, word: str, choices: Iterable[str], count: int = 3) -> UsageError:
    """Return the error for a word that is not among the choices.

    Args:
        text: what is wrong, without the nearest choices.
        word: the word.
        choices: valid words.
        count: number of nearest choices; without a similar one all are listed, or the first if only
            one is wanted.
    """
    known = list(choices)
    near = nearest(word, known, count) or (known if count > 1 else known[:1])
    return UsageError(f"{text}; nearest: {', '.join(near)}")


def _sound(word: str) -> str:
    """Return a word as it is compared: in lower case, with ``f`` for ``ph``."""
    return word.lower().replace("ph", "f")


def nearest_file(path: Path, ending: str = "") -> str:
    """Return ``; nearest: FILE`` for a similar file of the same folder; empty without one.

    Args:
        path: path that does not exist.
        ending: ending of the names that are considered.
    """
    names = [file.name for file in path.parent.glob(f"*{ending}")] if path.parent.is_dir() else []
    alike = nearest(path.name, names, 1)
    return f"; nearest: {path.parent / alike[0]}" if alike else ""
