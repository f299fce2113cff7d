"""A progress bar on standard error, for runs of more than two seconds on a terminal."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from tqdm import tqdm

__all__ = ["Progress"]

_FORMAT = "{n_fmt}/{total_fmt} {bar} {elapsed}<{remaining} {postfix}"


class Progress:
    """Callback for ``Session.measure``; call ``close`` before anything else is printed.

    A thread draws, because a row may take longer than anybody likes to look at nothing. It sleeps
    between two looks at the clock, and exists only where there is a terminal to draw on.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        quiet: bool = False,
        delay_s: float = 2.0,
        every_s: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            stream: Where to draw; nothing is drawn unless it is a terminal.
            quiet: Draw nothing at all.
            delay_s: Seconds before the bar appears.
            every_s: Seconds between two updates of the elapsed time.
            now: Clock, for tests.
        """
        self._stream, self._delay_s, self._every_s, self._now = stream, delay_s, every_s, now
        self._enabled = not quiet and stream is not None and stream.isatty()
        self._start = now()
        self._bar: tqdm[Any] | None = None
        self._state = (0, 1, "")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, done: int, total: int, label: str) -> None:
        """Show that ``done`` of ``total`` rows are ready and ``label`` is being timed."""
        if not self._enabled:
            return
        self._state = (done, total, label)
        self._draw()
        if self._thread is None:
            # Here, before anything is timed: its import costs more than all the drawing.
            import tqdm  # noqa: F401 - loaded before the clock runs

            self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and wipe the bar."""
        self._enabled = False
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            self._thread = None
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._bar.close()
            self._bar = None

    def _watch(self) -> None:
        wait_s = self._delay_s
        while self._enabled and not self._closed.wait(wait_s):
            self._draw()
            wait_s = self._every_s

    def _draw(self) -> None:
        """Draw the bar as it is now, once it is time for one."""
        with self._lock:
            late_s = self._now() - self._start
            if not self._enabled or late_s < self._delay_s:
                return
            try:
                self._update(late_s)
            except (OSError, ValueError):
                self._enabled = False  # a terminal that is gone must not cost the run

    def _update(self, late_s: float) -> None:
        done, total, label = self._state
        if self._bar is None:
            from tqdm import tqdm

            # No monitor thread besides ours.
            tqdm.monitor_interval = 0
            bar: tqdm[Any] = tqdm(
                total=total,
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
                bar_format=_FORMAT,
            )
            bar.start_t -= late_s
            self._bar = bar
        self._bar.total = total
        self._bar.n = done
        self._bar.set_postfix_str(label, refresh=True)
