"""A mode of PyTorch's dispatcher, in which every call of an operator can be seen."""

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]  # an unknown class to mypy
    """A dispatch mode inside which nothing is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise PyTorch imports its compiler, which takes seconds."""
        return False
