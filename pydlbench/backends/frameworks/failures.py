"""What a framework raises, as errors of ours: each costs one variant, unless the device is lost."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pydlbench.backends.memory import insufficient_memory, is_out_of_memory
from pydlbench.errors import DeviceLostError, PrimitiveError, PydlbenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["translated"]

# By name: no framework is imported here. A GPU's context is beyond use after it.
_LOST = ("AcceleratorError",)


@contextlib.contextmanager
def translated(algorithm: str) -> Iterator[None]:
    """Turn whatever is raised within into an error that crosses the wire as itself.

    Args:
        algorithm: what was called, for the message.

    Raises:
        DeviceLostError: the GPU's context is beyond use.
        InsufficientMemoryError: it does not fit.
        PrimitiveError: anything else.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise insufficient_memory(error) from error
        text = " ".join(str(error).split())
        lost = type(error).__name__ in _LOST
        kind = DeviceLostError if lost else PrimitiveError
        raise kind(f"{algorithm}: {type(error).__name__}: {text[:300]}") from error
