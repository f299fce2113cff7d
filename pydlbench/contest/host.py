"""What a contest needs of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pydlbench.backends.case import Case
    from pydlbench.results import Measurement
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel

__all__ = ["Host"]


class Host(Protocol):
    """What a contest needs of a session."""

    @property
    def seed(self) -> int:
        """Of the order of the rounds."""

    def threads(self, case: Case) -> int | None:
        """Return the threads of a row."""

    def prepare(
        self, case: Case, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready; ``warm`` in a process whose allocator keeps its pages."""

    def sampling_policy(self, case: Case, facts: dict[str, Any]) -> Policy:
        """Return the constants for a kernel."""

    def row(self, case: Case, facts: dict[str, Any], samples: Samples) -> Measurement:
        """Return the row of a timed case, its limits included."""

    def empty_call_s(self, case: Case) -> float | None:
        """Return the seconds of a call that does nothing, made as this case's backend calls."""

    def logged(
        self, case: Case, variant: str | None, beside: RemoteKernel | None
    ) -> dict[str, Any]:
        """Return what the library itself logs of a call, where its backend has not told.

        ``beside`` is the same kernel in a process without a log.
        """

    def allocates(self, case: Case) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""
