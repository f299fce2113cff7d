"""Ctrl-C ends the measuring, once; what is finished is then shown and saved undisturbed."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["OneInterrupt"]


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
