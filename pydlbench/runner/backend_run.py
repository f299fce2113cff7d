"""One backend's way through a problem, and the kernels that it samples."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydlbench.backends.base import KernelFacts
from pydlbench.records.measurement import Measurement
from pydlbench.records.specs import KernelSpec
from pydlbench.study.loop import Subject
from pydlbench.study.table import Series
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import Policy
from pydlbench.workers.host import RemoteKernel


def _unprepared(_request: ChunkRequest) -> NoReturn:
    raise AssertionError("the kernel is prepared before it is sampled")


@dataclass(slots=True, eq=False, kw_only=True)
class KernelSubject(Subject):
    """A kernel of a backend as a subject of the study, prepared anew in each repetition.

    It is its own key in the table.

    Attributes:
        variant: the name by which it is prepared again; None before a search has chosen one.
        kernel: the prepared kernel; None while it is not prepared.
        facts: facts about the kernel, from the first preparation.
        samples: visits of the kernel; set when its row is to be made.
    """

    key: Hashable = None
    sample: Callable[[ChunkRequest], Chunk] = _unprepared
    policy: Policy = field(default_factory=Policy)
    variant: str | None = None
    kernel: RemoteKernel[KernelFacts] | None = None
    facts: KernelFacts | None = None
    samples: Series | None = None

    def __post_init__(self) -> None:
        self.key = self

    @property
    def ready(self) -> bool:
        """Whether it is prepared, in a process that is still running."""
        return self.kernel is not None and self.kernel.alive


@dataclass(slots=True, eq=False)
class BackendRun:
    """One backend's way through a problem that several backends solve.

    Attributes:
        spec: what it computes.
        patience: the number of deaths of its worker after which it still has another repetition.
        usual: the kernel as users run it.
        warm: the same kernel in a process whose allocator keeps freed pages.
        rival: the kernel that was nearly as fast in the search; it is sampled beside the usual one
            until it is known which of the two is faster.
        row: result of the run, once no more repetitions are wanted.
        second: the variant that was nearly as fast; None if there is none, or if that is not known
            yet.
        log: the library's log of a call, from a process that does nothing else.
        lost: reason for each repetition without samples.
        ended: why no repetition follows although the row lacks some; empty where one follows.
    """

    spec: KernelSpec
    patience: int = 0
    usual: KernelSubject = field(default_factory=KernelSubject)
    warm: KernelSubject = field(default_factory=KernelSubject)
    rival: KernelSubject | None = None
    row: Measurement | None = None
    second: str | None = None
    log: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    ended: str = ""

    @property
    def name(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.spec.backend, self.spec.mode)))

    @property
    def subjects(self) -> list[KernelSubject]:
        """All its kernels."""
        known = (self.usual, self.warm, self.rival)
        return [subject for subject in known if subject is not None]
