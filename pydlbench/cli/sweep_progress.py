"""How far a sweep is and how long it will take: a bar on a terminal, now and then a line elsewhere.

A row of one job may take a hundred times as long as one of another, so the time that is left is
counted in forecast seconds, not in rows: what the finished ones took against what they should have.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, TextIO

from pydlbench.cli.progress import Progress
from pydlbench.cli.streams import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.sweep import Job, Span

__all__ = ["SweepProgress"]


class SweepProgress:
    """Callback for ``Runner``; call ``close`` before anything else is printed.

    Args:
        stream: where the bar is drawn; lines go to standard error.
        jobs: all of them.
        spans: forecast of each.
        quiet: show nothing.
        every_s: seconds between two lines where there is no terminal.
        now: clock, for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        jobs: Sequence[Job],
        spans: Sequence[Span],
        *,
        quiet: bool = False,
        every_s: float = 30.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bar = Progress(stream, quiet=quiet)
        self._lines = not quiet and not stream.isatty()
        self._every_s, self._now = every_s, now
        self._total = sum(len(job.rows) for job in jobs)
        self._place = {id(job): index for index, job in enumerate(jobs)}
        self._rows = [len(job.rows) for job in jobs]
        self._seconds = [math.sqrt(max(span.low, 1e-3) * max(span.high, 1e-3)) for span in spans]
        self._done = [0.0] * len(jobs)
        self._there = 0.0  # forecast seconds of rows that an earlier attempt has finished
        self._measured = False
        self._start = self._told = now()

    def __call__(self, job: Job, done: float, label: str) -> None:
        """Show that ``done`` rows of a job are ready and ``label`` is being timed."""
        self._done[self._place[id(job)]] = done
        if not label and not self._measured:
            self._there = self._forecast_done()
        self._measured = self._measured or bool(label)
        rows = int(sum(self._done))
        self._bar(rows, self._total, self._text(label))
        if self._lines and label and self._now() - self._told >= self._every_s:
            self._told = self._now()
            tell(f"{rows} of {self._total} rows; {self._text(label)}")

    def left_s(self) -> float | None:
        """Return the seconds that are left, or None before anything is finished."""
        done = self._forecast_done() - self._there
        if done <= 0:
            return None
        rest = sum(self._seconds) - self._there - done
        return (self._now() - self._start) * rest / done

    def close(self) -> None:
        """Wipe the bar."""
        self._bar.close()

    def _forecast_done(self) -> float:
        return sum(
            seconds * done / rows
            for seconds, done, rows in zip(self._seconds, self._done, self._rows, strict=True)
        )

    def _text(self, label: str) -> str:
        left = self.left_s()
        return label if left is None else f"{label}; about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
