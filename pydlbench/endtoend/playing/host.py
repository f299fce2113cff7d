"""The host's side of a protocol: has it played in the framework's process, passes its lines on."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.endtoend.playing.paper import read_while

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.endtoend.playing.case import ProtocolCase
    from pydlbench.workers.host import Worker

__all__ = ["Host", "Played", "play"]


class Host(Protocol):
    """What playing a protocol needs of a session."""

    def worker(self, backend: str = ..., device: str = ...) -> Worker:
        """Return a framework's worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a protocol came to.

    Attributes:
        numbers: those that the script prints, as :class:`protocols.Number` has them.
        library: name and version of the framework.
        environment: what the framework says of itself.
        data: where the images are from; None without any.
    """

    numbers: tuple[dict[str, Any], ...]
    library: str
    environment: dict[str, Any]
    data: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {
            "library": self.library,
            "data": self.data,
            "numbers": list(self.numbers),
            "environment": self.environment,
        }


def play(
    case: ProtocolCase,
    session: Host,
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> Played:
    """Play a protocol in its framework's process.

    Args:
        case: what is played.
        session: whose worker plays it; it needs a patience for hours (``Options.timeout_s``).
        write: takes each line of the script, as soon as it is written there.
        note: takes remarks that are not the script's.

    Raises:
        UsageError: data that is missing or damaged, a batch that does not fit it.
        UnsupportedError: the framework cannot do what the script does.
        PydlbenchError: the framework is missing, or its process died.
    """
    worker = session.worker(str(case.framework), case.device)

    def ask(path: str) -> Any:
        return worker.ask("prepare", case={"step": case.to_dict()}, preparation={"paper": path})

    def stop() -> None:
        # Its end ends the question too.
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)

    facts = read_while(ask, stop, write, note)["facts"]
    return Played(**{**facts, "numbers": tuple(facts["numbers"])})
