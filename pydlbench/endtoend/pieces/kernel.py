"""Many parts under one clock: each is run once per round, in the order of the step."""

from __future__ import annotations

import dataclasses
import gc
import time
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.backends.frameworks.counters import StolenTime, WaitingThreads, page_faults
from pydlbench.timing.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.timing.chunk import Request

__all__ = ["Part", "PartsFacts", "PartsKernel"]


class Part(Protocol):
    """A part of a step with its operands in place."""

    @property
    def executions(self) -> int:
        """How often :meth:`run` executes it, one after the other."""

    def run(self) -> float:
        """Run it once and return the seconds of one execution.

        Neither what is set up is in them nor what starting the call costs.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartsFacts:
    """What is known of the parts besides their times.

    Attributes:
        names: in the order in which :meth:`PartsKernel.sample` returns their times.
        once_s: seconds of starting a call, which a step has once.
        dispatch_s: seconds that a framework needs for an operator that computes nothing.
        how: how the two were measured.
        setup_s: building, tracing and compiling all parts.
        traces: by part, the bytes of each block that it allocates; empty where nobody asked.
        log: what the framework's libraries logged; empty where nobody asked.
        library: name and version.
    """

    names: tuple[str, ...] = ()
    once_s: float = 0.0
    dispatch_s: float = 0.0
    how: str = ""
    setup_s: float = 0.0
    traces: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    log: dict[str, Any] = dataclasses.field(default_factory=dict)
    library: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return dataclasses.asdict(self)


class PartsKernel:
    """Parts that are ready to be timed.

    A request's samples are rounds: the chunk has one time per part and round, part by part.

    Args:
        parts: in the order in which a step runs them.
        facts: what is known of them.
        cpus: those that the process is pinned to.
        counts: how often each part is in a step; None is once. Faults are counted so often.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        facts: PartsFacts,
        cpus: Sequence[int],
        counts: Sequence[int] | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._counts = tuple(counts or [1] * len(self._parts))
        self._cpus = tuple(cpus)
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested rounds, after those that are not timed."""
        for _ in range(request.untimed):
            for part in self._parts:
                part.run()
        seconds: list[float] = []
        collecting = gc.isenabled()
        gc.disable()
        waiting, stolen, faults = WaitingThreads(), StolenTime(self._cpus), 0.0
        begin, used = time.monotonic(), time.process_time()
        try:
            for _ in range(request.samples):
                for part, count in zip(self._parts, self._counts, strict=True):
                    before = page_faults()
                    # A part that computes next to nothing may take less than a call is said to.
                    seconds.append(max(0.0, part.run()))
                    faults += count * (page_faults() - before) / part.executions
        finally:
            if collecting:
                gc.enable()
        return Chunk(
            seconds=tuple(seconds),
            run_delay_s=waiting.longest_s(),
            steal_s=stolen.seconds(),
            wall_s=time.monotonic() - begin,
            threads=len(self._cpus),
            faults=faults / request.samples,
            cpu_s=time.process_time() - used,
        )
