"""What onnxruntime raises, told in one line."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from pydlbench.backends.base import insufficient_memory, is_out_of_memory
from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What onnxruntime puts around its sentences: the error's number and name, and its place in the
# source.
_NUMBER: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE: Final = re.compile(r"/\S*onnxruntime\S*\.(?:h|cc):\d+ .*?\)\s+(?=[A-Z])")


@contextlib.contextmanager
def told(model: str, kind: type[PydlbenchError]) -> Iterator[None]:
    """Turn what is raised within into one line that names the file.

    Args:
        model: the file.
        kind: of the error; memory that ran out is one of its own.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except Exception as error:  # onnxruntime's errors have no class in common but this
        if is_out_of_memory(error):
            raise insufficient_memory(MemoryError(f"{model}: {words(error)}")) from error
        raise kind(f"{model}: {words(error)}") from error


def words(error: Exception) -> str:
    """Return in one line what onnxruntime says, without its numbers and places in its source."""
    text = _PLACE.sub("", _NUMBER.sub("", " ".join(str(error).split())))
    return f"{type(error).__name__}: {text[:400]}"
