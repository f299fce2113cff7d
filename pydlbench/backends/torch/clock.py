"""The host's clock around operators that want a context of PyTorch's around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.backends.frameworks.kernel import HostClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.torch.operator import TorchOperator
    from pydlbench.timing.chunk import Chunk, Request

__all__ = ["GuardedClock"]


class GuardedClock(HostClock):
    """Enters the operator's context once per chunk, not once per call.

    Args:
        operator: what is timed.
        cpus: those that the process is pinned to.
    """

    def __init__(self, operator: TorchOperator, cpus: Sequence[int]) -> None:
        super().__init__(operator, cpus)
        self._guard = operator.guard

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""
        with self._guard():
            return super().sample(request)
