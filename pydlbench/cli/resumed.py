"""The run that a recorder goes on with: what is kept of it, and whether it may be continued."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pydlbench.results import RunRecord
    from pydlbench.results.store import Entry, RunInfo, Store

__all__ = ["Resumed"]


class Resumed:
    """A run of a store that more rows are added to.

    Args:
        store: that holds it.
        info: which one.

    Attributes:
        info: as given.
        record: as it was kept.
    """

    def __init__(self, store: Store, info: RunInfo) -> None:
        self._store = store
        self.info = info
        self.record = store.record(info.id)

    def own(self, run: RunRecord) -> RunRecord:
        """Return a session's record as this run's, with all that was found on the device before."""
        from pydlbench.results.store import continued

        return continued(self.record, run)

    def done(self) -> frozenset[str]:
        """Return the keys (see ``case_key``) of the rows that need no measuring."""
        from pydlbench.results.store import done_keys

        return done_keys(self._store, self.info.id)

    def entries(self, table: str | None = None, *, samples: bool = False) -> Sequence[Entry]:
        """Return its entries; see ``Store.entries``."""
        return self._store.entries(self.info.id, table, samples=samples)

    def refuse_differences(self, run: RunRecord, request: Mapping[str, Any]) -> None:
        """Make sure that a session's rows may stand beside those that are there.

        Raises:
            UsageError: machine, libraries or request are not the same.
        """
        from pydlbench.results.store import refuse_differences

        asked = self._store.request(self.info.id)
        refuse_differences(self.record, run, asked, request)
