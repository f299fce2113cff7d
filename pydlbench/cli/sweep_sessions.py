"""The sessions of a sweep: one at a time, kept for as long as the next job wants the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pydlbench.results import RunRecord

__all__ = ["Sessions"]


class Sessions:
    """Opens, keeps and closes sessions, and remembers the devices that they described.

    Args:
        factories: by name, what opens a session for keywords of ``measure.Options``.
    """

    def __init__(self, factories: Mapping[str, Callable[..., AbstractContextManager[Any]]]) -> None:
        self._factories = factories
        self._key: tuple[str, dict[str, Any]] | None = None
        self._manager: AbstractContextManager[Any] | None = None
        self._session: Any = None
        self._runs: list[RunRecord] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, name: str, options: Mapping[str, Any]) -> Any:
        """Return a session with these options: the one that is open, or a new one."""
        key = (name, dict(options))
        if self._key != key:
            self.close()
            manager = self._factories[name](**options)
            self._session = manager.__enter__()
            self._manager, self._key = manager, key
        return self._session

    def close(self) -> None:
        """Close the session that is open, its device noted down before."""
        manager, key = self._manager, self._key
        self._manager = self._key = None
        if manager is None or key is None:
            return
        try:
            self.note(self._session.run)
        finally:
            self._session = None
            manager.__exit__(None, None, None)

    def note(self, run: RunRecord | None) -> None:
        """Remember what a session said of its run."""
        if run is not None:
            self._runs.append(run)

    def described(self, run: RunRecord) -> RunRecord:
        """Return a run's record with all that was found on the devices that were used.

        Sessions come one after another, and each probes only what its own rows need.
        """
        from pydlbench.results.store import continued

        found: RunRecord | None = None
        for one in [*self._runs, *([] if self._session is None else [self._session.run])]:
            found = one if found is None else continued(found, one)
        if found is None:
            return run
        environment = {**run.environment, **found.environment}
        return dataclasses.replace(run, device=found.device, environment=environment)
