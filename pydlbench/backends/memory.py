"""Out of memory, in the words of every framework: one exception that says what to do."""

from __future__ import annotations

from pydlbench.errors import InsufficientMemoryError

__all__ = ["insufficient_memory", "is_out_of_memory"]

# torch, TensorFlow; CuPy's is a MemoryError as well.
_NAMES = ("OutOfMemoryError", "ResourceExhaustedError")
# torch's allocator on CPUs raises a RuntimeError; Numba's driver an error with CUDA's own name.
_WORDS = ("can't allocate memory", "cannot allocate memory", "bad_alloc", "out_of_memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of whatever library says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ in _NAMES:
        return True
    text = str(error).lower()
    return any(words in text for words in _WORDS)


def insufficient_memory(error: BaseException) -> InsufficientMemoryError:
    """Return the exception that stands for it in a row."""
    text = " ".join(str(error).split())[:300]
    said = f": {text}" if text else ""
    return InsufficientMemoryError(f"out of memory{said}; try a smaller --batch")
