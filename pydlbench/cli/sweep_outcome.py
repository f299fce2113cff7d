"""What came of a sweep's row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.errors import PydlbenchError
    from pydlbench.sweep import Job, Row

__all__ = ["Outcome", "is_ok", "verdict"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a row.

    Attributes:
        job: that it belongs to.
        row: what was wanted.
        table: of the store; empty where there is nothing to keep.
        document: its JSON object.
        status: ``ok``, ``skipped`` or ``failed``.
        reason: why it is not ok.
    """

    job: Job
    row: Row
    table: str
    document: Mapping[str, Any]
    status: str
    reason: str | None = None


def is_ok(document: Mapping[str, Any]) -> bool:
    """Whether a row's document says that it was measured."""
    return str(document.get("status", "ok")) == "ok"


def verdict(error: PydlbenchError) -> tuple[str, str]:
    """Return status and reason of what ``error`` has stopped."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return status, " ".join(str(error).split())
