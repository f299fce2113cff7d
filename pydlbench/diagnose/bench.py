"""What experiments need of a session, and the same with another allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.results import Measurement
    from pydlbench.session.options import Options
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["Allocated", "Bench"]


class Bench(Protocol):
    """What experiments need of a session."""

    @property
    def options(self) -> Options:
        """Its settings."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical CPUs that workers are pinned to."""

    def worker(
        self,
        backend: str = ...,
        device: str = ...,
        *,
        warm: bool = ...,
        logging: bool = ...,
        allocator: str | None = ...,
    ) -> Worker:
        """Return a worker."""

    def prepare(self, case: Case, *, warm: bool = ..., variant: str | None = ...) -> RemoteKernel:
        """Have an operator made ready."""

    def measure(
        self, cases: Sequence[Case], progress: Callable[[int, int, str], None] | None = ...
    ) -> Iterator[Measurement]:
        """Measure cases; those that differ in backend and mode only, in turn."""

    def cache_bytes(self, device: str = ...) -> int:
        """Return the size of the last cache before memory."""


class Allocated:
    """A session whose workers have a certain allocator."""

    def __init__(self, session: Bench, allocator: str) -> None:
        self._session = session
        self._allocator = allocator
        self.options = session.options
        self.cpus = session.cpus

    def worker(
        self,
        backend: str = "native",
        device: str = "cpu",
        *,
        warm: bool = False,  # noqa: ARG002 - as a session's; the allocator says it
    ) -> Worker:
        """Return a worker with it."""
        return self._session.worker(backend, device, allocator=self._allocator)
