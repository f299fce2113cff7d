"""The terminal: streams that may be closed, progress bars, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tqdm import tqdm

__all__ = ["OneInterrupt", "Progress", "repair_streams", "silence_stdout", "tell"]


# -----------------------------------------------------------------------------
# Standard streams that are closed, full or of another encoding: no reason for a traceback.


def repair_streams() -> None:
    """Put the null device in the place of closed streams, and let every text be printed.

    A closed descriptor would otherwise be given to the next file that is opened, and what is
    printed would land in there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - for good
            if stream.fileno() <= 2:
                os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
        elif mode == "w" and getattr(stream, "errors", None) == "strict":
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")


def silence_stdout() -> None:
    """Drop what could not be printed; Python would try once more at exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def tell(text: str) -> None:
    """Print a line on standard error; if that is full, there is nobody left to tell."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


# -----------------------------------------------------------------------------
# A progress bar on standard error, for runs of more than two seconds on a terminal.

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


# -----------------------------------------------------------------------------
# Ctrl-C ends the measuring, once; what is finished is then shown and saved undisturbed.


class OneInterrupt:
    """Context in which the first SIGINT raises ``KeyboardInterrupt``; all later ones do nothing.

    Impatient people press Ctrl-C twice. Does nothing outside of the main thread and where SIGINT
    is ignored or handled by somebody else already.
    """

    def __init__(self) -> None:
        """Listen from ``__enter__`` on."""
        self._listening = True
        self._before: Any = None

    def __enter__(self) -> Self:
        """Install the handler."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the handler back that was there before."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def ignore(self) -> None:
        """Do nothing on SIGINT from now on."""
        self._listening = False

    def _handle(self, *_: object) -> None:
        if self._listening:
            self._listening = False
            raise KeyboardInterrupt
