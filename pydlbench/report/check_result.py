"""What came of checking a step in one framework and mode: a record, or the reason for none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydlbench.report.check_ladder import rungs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.report.check_ladder import Limits

__all__ = ["CheckResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One framework and mode.

    Attributes:
        model: the model's name.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's.
        status: ``ok``, ``skipped`` (it cannot) or ``failed``.
        record: what was found; None unless ``ok``.
        reason: why there is none.
        options: of the model.
        layout: of images: ``nhwc`` or ``nchw``.
        feed: ``resident`` or ``host``.
    """

    model: str
    batch: int
    phase: str
    precision: str
    framework: str
    mode: str
    status: str = "ok"
    record: CheckRecord | None = None
    reason: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "nhwc"
    feed: str = "resident"

    @property
    def who(self) -> str:
        """Framework and mode: ``torch eager``."""
        return f"{self.framework} {self.mode}"

    def to_dict(self, found: Limits | None) -> dict[str, Any]:
        """Return the JSON object.

        Args:
            found: the two lowest rungs; None if they were not measured.
        """
        head = {
            "model": self.model,
            "batch": self.batch,
            "phase": self.phase,
            "precision": self.precision,
            "framework": self.framework,
            "mode": self.mode,
            "options": dict(self.options),
            "layout": self.layout,
            "feed": self.feed,
            "status": self.status,
            "reason": self.reason,
        }
        if self.record is None:
            return head
        ladder = {} if found is None else {"ladder": rungs(self.record, found)}
        return {**head, **self.record.to_dict(), **ladder}
