"""The entries of a contest made ready: whoever cannot be gets a row that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.rows import empty_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.case import Case
    from pydlbench.contest.host import Host
    from pydlbench.explain import Entry
    from pydlbench.results import Measurement

__all__ = ["prepare", "without_time"]


def prepare(host: Host, entry: Entry, before: Sequence[Entry]) -> None:
    """Have an entry made ready; those that its crash takes along are made ready once more.

    Args:
        host: prepares kernels.
        entry: gets its kernels, or a row that says why not.
        before: those that were made ready before.
    """
    same = [
        one
        for one in before
        if (one.case.backend, one.case.device) == (entry.case.backend, entry.case.device)
    ]
    if _prepare_default(host, entry):
        for one in same:
            if one.kernel is not None:
                _prepare_default(host, one)
    if entry.kernel is not None and host.allocates(entry.case) and _prepare_warm(host, entry):
        for one in same:
            if one.warm is not None:
                _prepare_warm(host, one)


def _prepare_default(host: Host, entry: Entry) -> bool:
    """Prepare as users run it; return whether the worker died of it."""
    entry.kernel = None
    try:
        entry.kernel = host.prepare(entry.case)
    except PydlbenchError as error:
        entry.row = without_time(host, entry.case, error)
        return isinstance(error, WorkerError)
    return False


def _prepare_warm(host: Host, entry: Entry) -> bool:
    """Prepare the same where pages are kept; return whether the worker died of it."""
    entry.warm = None
    if entry.kernel is None:
        return False
    variant = entry.kernel.facts["evidence"].get("variant")
    try:
        entry.warm = host.prepare(entry.case, warm=True, variant=variant)
    except PydlbenchError as error:
        # The column stays empty; the row itself is what was asked for.
        return isinstance(error, WorkerError)
    return False


def without_time(host: Host, case: Case, error: PydlbenchError) -> Measurement:
    """Return the row of a case that could not be prepared or sampled."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return empty_row(case, host.threads(case), status, str(error))
