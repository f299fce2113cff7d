"""A progress bar on standard error, for runs of more than two seconds on a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from tqdm import tqdm

__all__ = ["Progress"]


class Progress:
    """Callback for ``Session.measure``; call ``close`` before anything else is printed."""

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        delay_s: float = 2.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            stream: Where to draw; nothing is drawn unless it is a terminal.
            quiet: Draw nothing at all.
            delay_s: Seconds before the bar appears.
            now: Clock, for tests.
        """
        self._stream, self._delay_s, self._now = stream, delay_s, now
        self._enabled = not quiet and stream.isatty()
        self._start = now()
        self._bar: tqdm[Any] | None = None

    def __call__(self, done: int, total: int, label: str) -> None:
        """Show that ``done`` of ``total`` rows are ready and ``label`` is being timed."""
        if not self._enabled or self._now() - self._start < self._delay_s:
            return
        if self._bar is None:
            # Imported late: a short run never pays for it.
            from tqdm import tqdm

            # No monitor thread: it would wake up beside the kernels that are being timed.
            tqdm.monitor_interval = 0
            bar: tqdm[Any] = tqdm(
                total=total,
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
                bar_format="{n_fmt}/{total_fmt} {bar} {elapsed}<{remaining} {postfix}",
            )
            bar.start_t -= self._now() - self._start
            self._bar = bar
        self._bar.total = total
        self._bar.n = done
        self._bar.set_postfix_str(label, refresh=True)

    def close(self) -> None:
        """Wipe the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
