"""The workers of a session, each started when it is first asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.workers.host import Worker

__all__ = ["Workers"]


class Workers:
    """One process per backend, device and environment.

    Args:
        cpus: logical CPUs that each of them is pinned to.
        timeout_s: see ``Options``.
    """

    def __init__(self, cpus: Sequence[int], timeout_s: float | None) -> None:
        self._cpus = tuple(cpus)
        self._limits = (
            {} if timeout_s is None else {"timeout": timeout_s, "prepare_timeout": timeout_s}
        )
        self._found: dict[tuple[str, str, str, bool], Worker] = {}

    def get(self, backend: str, device: str, *, allocator: str, logging: bool) -> Worker:
        """Return a worker; see ``Session.worker``."""
        from pydlbench.session.allocators import allocator_environment
        from pydlbench.workers.environment import LOG_KERNELS
        from pydlbench.workers.host import Worker

        key = (backend, device, allocator, logging)
        if key not in self._found:
            extra = {**allocator_environment(allocator), **(LOG_KERNELS if logging else {})}
            self._found[key] = Worker(
                backend, device, self._cpus, environment=extra, **self._limits
            )
        return self._found[key]

    def close(self) -> None:
        """End them all."""
        for worker in self._found.values():
            worker.discard()
        self._found.clear()
