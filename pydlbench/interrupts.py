"""Signals that end a measurement: Ctrl-C, SIGTERM and a time limit."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

# Where SIGINT has no handler of Python, an interrupt calls the last of these.
_handlers: list[Callable[[int, FrameType | None], Any]] = [signal.default_int_handler]


class OneInterrupt:
    """Context in which only the first SIGINT or SIGTERM raises ``KeyboardInterrupt``.

    Users press Ctrl-C twice, and batch systems send SIGTERM before SIGKILL; finished results are
    stored and shown nevertheless. A time limit ends the context in the same way. It does nothing
    outside of the main thread, and leaves signals alone that are ignored or handled by others;
    but it gets the SIGTERM of :func:`sigterm_interrupts`, also if SIGINT is ignored.

    Args:
        limit_s: seconds after which ``KeyboardInterrupt`` is raised, too; None for no limit.

    Attributes:
        expired: whether the limit raised it.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.expired = False
        self._limit_s = limit_s
        self._listening = True
        self._held = self._pending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        usual: dict[signal.Signals, Any]
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        if self._limit_s is not None:
            usual[signal.SIGALRM] = signal.SIG_DFL
        if threading.current_thread() is threading.main_thread():
            _handlers.append(self._handle)
            for number, handler in usual.items():
                if signal.getsignal(number) is handler:
                    self._before[number] = signal.signal(number, self._handle)
        if self._limit_s is not None and signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._handle in _handlers:
            _handlers.remove(self._handle)

    def ignore(self) -> None:
        """Ignore all signals from now on."""
        self._listening = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Delay a signal until the end of the block, which is completed. Blocks do not nest."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt

    def _handle(self, number: int, _frame: object = None) -> None:
        if not self._listening:
            return
        self._listening = False
        self.expired = number == signal.SIGALRM
        if self._held:
            self._pending = True
        else:
            raise KeyboardInterrupt


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """Make SIGTERM interrupt like Ctrl-C; yield a list that receives the signal's number.

    Outside of the main thread, or if the signal has another handler, nothing changes.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)
        # A shell lets its background commands ignore SIGINT.
        interrupt_of = handler if callable(handler) else _handlers[-1]
        interrupt_of(signal.SIGINT, frame)

    replaced = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if replaced:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        if replaced:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
