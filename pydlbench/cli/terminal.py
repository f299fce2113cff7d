"""The terminal: standard streams that may be closed, and the progress of a run."""

import _thread
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from pydlbench.cli.options import Measuring

if TYPE_CHECKING:
    from tqdm import tqdm


# -----------------------------------------------------------------------------
# Standard streams that are closed, full or of another encoding cause no traceback.


def repair_streams() -> None:
    """Replace closed streams by the null device, and make every text printable.

    The next file that is opened would otherwise get a closed descriptor, and printed text with it.
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


def silence(stream: TextIO) -> None:
    """Drop unprinted text; Python would try to print it at exit and report an error."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)


def tell(text: str) -> None:
    """Print a line on standard error; drop it if that fails."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


# -----------------------------------------------------------------------------
# Progress: a bar on a terminal, elsewhere a line every ten seconds.

_FORMAT: Final = "{n_fmt}/{total_fmt} {bar} {elapsed}<{remaining} {postfix}"


class ProgressLine:
    """Shows what is finished, the rest, and the next; ``close`` it before anything is printed.

    A thread updates it, because a single row may take minutes. On a terminal it draws a bar,
    elsewhere (a log, a pipe) it prints a line every ten seconds.
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
        limit_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            stream: Stream to draw or write on.
            quiet: Whether nothing is shown.
            verbose: Whether a line is written when a row begins, instead of the bar and the timed
                lines.
            delay_s: Seconds before the bar appears.
            every_s: Seconds between two updates of the elapsed time.
            line_s: Seconds between two lines without a terminal.
            limit_s: Seconds after which the run ends at the latest; None if there is no limit.
            now: Function that returns the time in seconds; tests replace it.
        """
        self._stream, self._delay_s, self._every_s, self._now = stream, delay_s, every_s, now
        self._enabled = not quiet and stream is not None
        self._verbose = verbose
        self._terminal = stream is not None and stream.isatty() and not verbose
        self._start = now()
        self._limit_s = limit_s
        self._line_s, self._next_line = line_s, self._start + line_s
        self._bar: tqdm[Any] | None = None
        self._state: tuple[float, int, str] = (0, 1, "")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread: int | None = None

    @classmethod
    def from_options(cls, args: Measuring) -> Self:
        """Return the display that a command's options define, on standard error."""
        minutes = getattr(args, "minutes", None)
        limit_s = None if minutes is None else 60.0 * minutes
        return cls(sys.stderr, quiet=args.quiet, verbose=args.verbose, limit_s=limit_s)

    def __call__(self, done: float, total: int, label: str) -> None:
        """Show that ``done`` of ``total`` parts are finished and ``label`` is being timed."""
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
                # Its import would disturb measurements more than all the drawing.
                import tqdm  # noqa: F401 - loaded before the clock runs

            # Thread.start waits forever if the new thread has no memory for its first function.
            self._thread = _thread.start_new_thread(self._watch, ())

    def close(self) -> None:
        """End the thread and wipe the bar."""
        self._enabled = False
        self._closed.set()
        if self._thread is not None:
            self._ended.wait(timeout=5.0)
            self._thread = None
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._bar.close()
            self._bar = None

    def _watch(self) -> None:
        wait_s = self._delay_s
        try:
            while self._enabled and not self._closed.wait(wait_s):
                self._draw()
                wait_s = self._every_s
        finally:
            self._ended.set()

    def _draw(self) -> None:
        """Draw the bar, or write a line if its time has come."""
        with self._lock:
            now = self._now()
            if not self._enabled:
                return
            try:
                if self._terminal and now - self._start >= self._delay_s:
                    self._update(now - self._start)
                elif not self._terminal and now >= self._next_line:
                    self._next_line = now + self._line_s
                    print(self._line(), file=self._stream, flush=True)
            except (OSError, ValueError):
                self._enabled = False  # a closed terminal must not end the run

    def _line(self) -> str:
        done, total, label = self._state
        elapsed = self._now() - self._start
        # A single part has its own "x of y" in the label.
        parts = f"{int(done)} of {total} done " if total > 1 else ""
        return f"{parts}after {_duration(elapsed)}{self._rest(elapsed)}: {label}"

    def _rest(self, elapsed: float) -> str:
        """Return how long the run still takes, as far as it is known."""
        done, total, _ = self._state
        about = elapsed * (total - done) / done if done else math.inf
        most = math.inf if self._limit_s is None else max(0.0, self._limit_s - elapsed)
        if min(about, most) == math.inf:
            return ""
        return f", {'about' if about <= most else 'at most'} {_duration(min(about, most))} left"

    def _update(self, late_s: float) -> None:
        done, total, label = self._state
        if not done:  # the bar itself says nothing yet
            label += self._rest(late_s)
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
