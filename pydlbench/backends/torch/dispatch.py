"""A mode of PyTorch's dispatcher, in which every call of an operator can be seen."""

import contextlib
from collections.abc import Iterator
from typing import Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# Bound before the code of users is imported, which may replace it; without public names.
_UNPATCHED: Final = torch._C.DisableTorchFunction, _disable_current_modes  # noqa: SLF001 - see above


@contextlib.contextmanager
def unpatched() -> Iterator[None]:
    """Call PyTorch's operators, and no function of the user's for a type or a mode."""
    with _UNPATCHED[0](), _UNPATCHED[1]():
        yield


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]  # an unknown class to mypy
    """A dispatch mode inside which nothing is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise PyTorch imports its compiler, which takes seconds."""
        return False
