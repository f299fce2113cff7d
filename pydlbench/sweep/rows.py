"""What a sweep does: jobs that run on their own, and the rows that each of them gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Job", "Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement, estimate, step or check that is wanted.

    Attributes:
        fields: what tells it from others, by the names that ``exclude`` uses; all as text.
        label: a short name for progress lines.
        case: what is handed to whoever measures it.
    """

    fields: Mapping[str, str]
    label: str
    case: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Rows that are measured together.

    Attributes:
        kind: ``layers``, ``model``, ``e2e`` or ``check``.
        table: number of the table that asked for it.
        place: how messages call that table.
        words: of the command line that asks for the same.
        rows: what comes of it.
        options: keywords of ``measure.Options``.
        request: what the command's reader returned.
    """

    kind: str
    table: int
    place: str
    words: tuple[str, ...]
    rows: tuple[Row, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    request: Any = None
