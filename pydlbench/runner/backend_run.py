"""One backend's way through a problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydlbench.backends.base import KernelFacts
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.study.loop import Size
    from pydlbench.study.table import Series
    from pydlbench.workers.host import RemoteKernel


@dataclass(slots=True, eq=False)
class BackendRun:
    """One backend's way through a problem that several backends solve.

    Attributes:
        spec: what it computes.
        kernel: as users run it.
        warm: the same in a process whose allocator keeps the pages that were freed.
        row: what came of it, once no more visits are wanted.
        variant: what the first preparation has found the fastest; the others time the same.
        facts: of the kernel, from the first preparation.
        warm_facts: likewise, with kept pages.
        rival: the kernel that was nearly as fast in the search, visited beside this one until it is
            known which of the two is faster.
        second: the variant that was nearly as fast; None where there is none, or it is not yet
            known which of the two it is.
        samples: its visits, once its row is to be made.
        warm_samples: likewise, with kept pages.
        log: what the library itself reports of a call, from a process that does nothing else.
        size: how long ``kernel`` (False) and ``warm`` (True) run.
        patience: how often the death of its worker is followed by another visit all the same.
        lost: why visits have no samples, one reason each.
        visited: whether there are samples of it.
        ended: why no visit follows, the ones there are make the row; empty where they do.
    """

    spec: KernelSpec
    kernel: RemoteKernel[KernelFacts] | None = None
    warm: RemoteKernel[KernelFacts] | None = None
    row: Measurement | None = None
    variant: str | None = None
    facts: KernelFacts | None = None
    warm_facts: KernelFacts | None = None
    rival: BackendRun | None = None
    second: str | None = None
    samples: Series | None = None
    warm_samples: Series | None = None
    log: dict[str, Any] = field(default_factory=dict)
    size: dict[bool, Size] = field(default_factory=dict)
    patience: int = 0
    lost: list[str] = field(default_factory=list)
    visited: bool = False
    ended: str = ""

    @property
    def name(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.spec.backend, self.spec.mode)))

    @property
    def kernels(self) -> list[RemoteKernel[KernelFacts]]:
        """What is prepared of it, its rival's included."""
        own = [kernel for kernel in (self.kernel, self.warm) if kernel is not None]
        return own if self.rival is None else [*own, *self.rival.kernels]
