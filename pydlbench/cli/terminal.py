"""The terminal: streams that may be closed, and how far a run is."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tqdm import tqdm

    from pydlbench.cli.options import Measuring


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


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """Let SIGTERM interrupt as Ctrl-C does; yield a list that gets its number when it comes.

    Outside of the main thread, or where somebody else handles the signal, it stays as it is.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)

    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def silence(stream: TextIO) -> None:
    """Drop what could not be printed; Python would try once more at exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)


def tell(text: str) -> None:
    """Print a line on standard error; if that is full, there is nobody left to tell."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


# -----------------------------------------------------------------------------
# How far a run is: a bar on a terminal, elsewhere a line now and then.

_FORMAT = "{n_fmt}/{total_fmt} {bar} {elapsed}<{remaining} {postfix}"


class ProgressLine:
    """Shows rows done, rows in all and what is done next; ``close`` before anything is printed.

    On a terminal a thread draws a bar, because a row may take longer than anybody likes to look at
    nothing. Elsewhere (a log, a pipe) the same thread prints a line at growing intervals.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        quiet: bool = False,
        verbose: bool = False,
        delay_s: float = 2.0,
        every_s: float = 1.0,
        line_s: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            stream: Where to draw or to write.
            quiet: Show nothing at all.
            verbose: Write a line for everything that is begun, instead of the rest.
            delay_s: Seconds before the bar appears.
            every_s: Seconds between two updates of the elapsed time.
            line_s: Seconds before the first line where there is no terminal; each later one waits
                half as long again, up to ten minutes.
            now: Clock, for tests.
        """
        self._stream, self._delay_s, self._every_s, self._now = stream, delay_s, every_s, now
        self._enabled = not quiet and stream is not None
        self._verbose = verbose
        self._terminal = stream is not None and stream.isatty() and not verbose
        self._start = now()
        self._line_s, self._next_line = line_s, self._start + line_s
        self._bar: tqdm[Any] | None = None
        self._state = (0, 1, "")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def from_options(cls, args: Measuring) -> Self:
        """Return what a command's options ask for, on standard error."""
        return cls(sys.stderr, quiet=args.quiet, verbose=args.verbose)

    def __call__(self, done: int, total: int, label: str) -> None:
        """Show that ``done`` of ``total`` rows are ready and ``label`` is being timed."""
        if not self._enabled:
            return
        before, self._state = self._state, (done, total, label)
        if self._verbose:
            if label and before != self._state:
                tell(self._line())
            return
        self._draw()
        if self._thread is None:
            if self._terminal:
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
        """Draw the bar, or write a line, once it is time for one."""
        with self._lock:
            now = self._now()
            if not self._enabled:
                return
            try:
                if self._terminal and now - self._start >= self._delay_s:
                    self._update(now - self._start)
                elif not self._terminal and now >= self._next_line:
                    self._line_s = min(1.5 * self._line_s, 600.0)
                    self._next_line = now + self._line_s
                    print(self._line(), file=self._stream, flush=True)
            except (OSError, ValueError):
                self._enabled = False  # a terminal that is gone must not cost the run

    def _line(self) -> str:
        done, total, label = self._state
        elapsed = self._now() - self._start
        rest = f", about {_duration(elapsed * (total - done) / done)} left" if done else ""
        return f"{done} of {total} done after {_duration(elapsed)}{rest}: {label}"

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


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
