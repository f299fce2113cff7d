"""What a check asks workers for: parts, replays, steps and logs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.timing.chunk import Request
from pydlbench.timing.statistics import median
from pydlbench.workers.host import RemoteKernel, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.crosscheck.pieces import Piece
    from pydlbench.endtoend import StepCase
    from pydlbench.results import Measurement
    from pydlbench.session.options import Options

__all__ = ["Host", "ask_log", "ask_parts", "ask_replay", "keeps_pages"]

# A block that the C library's allocator always asks the system for, and gives back.
_LARGE = 1 << 26
_PAGE = 4096
# Fewer faults than this share of its pages: an allocator of the framework's own keeps them.
_KEPT = 0.05
_LOGGED_CALLS = 3
# Of the last cache, so that pages which come back are in it no more.
_OUT_OF_CACHES = 4


class Host(Protocol):
    """What a check needs of a session."""

    @property
    def options(self) -> Options:
        """Its settings."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical CPUs that workers are pinned to."""

    def worker(
        self, backend: str = ..., device: str = ..., *, warm: bool = ..., logging: bool = ...
    ) -> Worker:
        """Return a worker; ``warm`` for one whose allocator keeps its pages."""

    def measure(
        self, cases: Sequence[Case], progress: Callable[[int, int, str], None] | None = ...
    ) -> Iterator[Measurement]:
        """Measure native rows."""

    def cache_bytes(self, device: str = ...) -> int:
        """Return the size of the last cache before memory."""


def ask_parts(
    case: StepCase,
    session: Host,
    found: Sequence[Piece],
    besides: Sequence[Piece] = (),
    *,
    warm: bool,
    traces: bool,
) -> RemoteKernel:
    """Have all parts of a step made ready where pages are kept.

    Args:
        case: the step.
        session: whose worker is asked.
        found: the parts.
        besides: what is timed too, and in no sum: its faults do not count.
        warm: in a process whose C library keeps pages; else the framework does that by itself.
        traces: whether the blocks that they allocate are to be recorded.
    """
    parts = [one.to_dict() for one in found] + [{**one.to_dict(), "count": 0} for one in besides]
    wanted = {"kind": "parts", "parts": parts, "traces": traces}
    # What comes from the host is a part of its own.
    resident = dataclasses.replace(case, feed="resident")
    return _ask(session.worker(case.framework, case.device, warm=warm), resident, wanted)


def keeps_pages(case: StepCase, session: Host) -> bool:
    """Whether a framework's own allocator keeps freed pages: its results then fault no more."""
    wanted = {"kind": "faults", "bytes": _LARGE}
    kernel = _ask(session.worker(case.framework, case.device), case, wanted)
    try:
        chunk = kernel.sample(Request(samples=5, untimed=2))
        return (chunk.faults or 0.0) < _KEPT * _LARGE / _PAGE
    finally:
        kernel.release()


def ask_replay(case: StepCase, session: Host, worker: Worker, sizes: Sequence[int]) -> RemoteKernel:
    """Have blocks made ready in a process that has no framework in it.

    Args:
        case: the step.
        session: knows the caches.
        worker: any that gets new pages for each block and that nobody else uses.
        sizes: of the blocks, in bytes.
    """
    live = _OUT_OF_CACHES * session.cache_bytes("cpu")
    return _ask(worker, case, {"kind": "replay", "sizes": list(sizes), "live": live})


def ask_log(case: StepCase, session: Host) -> dict[str, Any]:
    """Return what oneDNN logged of whole steps: seconds and executions by primitive.

    Empty where there is no such log.
    """
    logging = case.framework == "tensorflow"
    worker = session.worker(case.framework, case.device, warm=True, logging=logging)
    if logging:
        return _said(case, worker)
    kernel = _ask(worker, case, {"kind": "log", "calls": _LOGGED_CALLS})
    try:
        return dict(kernel.facts["log"])
    finally:
        kernel.release()


def _said(case: StepCase, worker: Worker) -> dict[str, Any]:
    """Read the log that a process writes to standard error while it runs steps."""
    from pydlbench.backends.frameworks.verbose import parse
    from pydlbench.endtoend.facts import StepPreparation
    from pydlbench.endtoend.pieces.logs import summary

    how = dataclasses.asdict(StepPreparation(checks=False))
    reply = worker.ask("prepare", case={"step": case.to_dict()}, preparation=how)
    kernel = RemoteKernel(worker, reply["kernel"], reply["facts"])
    try:
        calls = []
        for _ in range(_LOGGED_CALLS):
            kernel.sample(Request(samples=1))
            calls.append(parse(worker.said()))
        return summary(calls)
    finally:
        kernel.release()


def _ask(worker: Worker, case: StepCase, wanted: dict[str, Any]) -> RemoteKernel:
    reply = worker.ask("prepare", case={"step": case.to_dict()}, preparation={"pieces": wanted})
    return RemoteKernel(worker, reply["kernel"], reply["facts"])


def paired(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the differences of pairs that were taken in the same rounds."""
    return median(a - b for a, b in zip(first, second, strict=True))
