"""Warm-up: run until time and clock are steady, or say that they never were."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Warmup", "WarmupOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupOutcome:
    """How a warm-up ended: ``reason`` is ``steady``, ``limit`` or ``running``."""

    reason: str
    chunks: int
    seconds: float
    detail: str

    @property
    def steady(self) -> bool:
        """Whether time and clock had settled."""
        return self.reason == "steady"


class Warmup:
    """Finished when the last chunks agree in time and clock, without a trend.

    Agreement: the window's largest median is within the tolerance of its smallest. Trend: the
    window moves in one direction all the way and by more than half the tolerance in total; two
    chunks have none.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._times: list[float] = []
        self._clocks: list[float | None] = []
        self._spent = 0.0

    def add_chunk(
        self, seconds: Sequence[float], clock_hz: Sequence[float] = (), wall_s: float = 0.0
    ) -> None:
        """Add a chunk: its samples, its clock readings (may be empty), its wall time."""
        self._times.append(median(seconds))
        self._clocks.append(median(clock_hz) if clock_hz else None)
        self._spent += max(wall_s, sum(seconds))

    def is_finished(self) -> bool:
        """Whether to go on to the samples that count."""
        return self._settled() or self._spent >= self._policy.warmup_limit_s

    def outcome(self) -> WarmupOutcome:
        """How it ended, or stands."""
        if self._settled():
            reason, detail = "steady", "time and clock steady"
        elif self._spent >= self._policy.warmup_limit_s:
            reason = "limit"
            if len(self._times) < self._policy.warmup_window:
                detail = f"too slow to warm up longer ({len(self._times)} chunks)"
            else:
                what = "clock" if self._window_settled(self._times) else "time"
                detail = f"{what} still not steady after {self._spent:.2g} s"
        else:
            reason, detail = "running", "warm-up not finished"
        return WarmupOutcome(
            reason=reason, chunks=len(self._times), seconds=self._spent, detail=detail
        )

    def _settled(self) -> bool:
        if not self._window_settled(self._times):
            return False
        recent = self._clocks[-self._policy.warmup_window :]
        clocks = [clock for clock in recent if clock is not None]
        return len(clocks) < len(recent) or self._window_settled(clocks)

    def _window_settled(self, values: Sequence[float]) -> bool:
        window = values[-self._policy.warmup_window :]
        if len(window) < self._policy.warmup_window:
            return False
        tolerance = self._policy.warmup_tolerance * min(window)
        steps = [b - a for a, b in itertools.pairwise(window)]
        one_way = all(step > 0 for step in steps) or all(step < 0 for step in steps)
        if one_way and len(window) > 2 and abs(window[-1] - window[0]) > tolerance / 2:
            return False
        return max(window) - min(window) <= tolerance
