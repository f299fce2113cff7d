"""One backend's way through a problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydlbench.backends.base import KernelFacts
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel


@dataclass(slots=True, eq=False)
class BackendRun:
    """One backend's way through a problem that several backends solve.

    Attributes:
        case: what it computes.
        kernel: as users run it.
        warm: the same in a process whose allocator keeps the pages that were freed.
        row: what came of it, once no more visits are wanted.
        variant: what the first visit has found the fastest; the others time the same.
        facts: of the kernel, from the first visit.
        warm_facts: likewise, with kept pages.
        taken: samples of ``kernel``, a visit each, by lap.
        warm_taken: of ``warm``, in the same rounds.
        samples: of all visits together.
        warm_samples: likewise, with kept pages.
        log: what the library itself reports of a call, from a process that does nothing else.
        processes: that it was timed in, by their number among those of its worker.
        known: of ``kernel`` (False) and ``warm`` (True), the process that last timed it, by number,
            and its samples there: it is calibrated and warmed up.
        cost_s: its part of the wall seconds of visits, the search left out.
        patience: how often the death of its worker is followed by another visit all the same.
        lost: why visits have no samples, one reason each.
        ended: no visit follows: the ones there are make the row.
    """

    case: KernelSpec
    kernel: RemoteKernel[KernelFacts] | None = None
    warm: RemoteKernel[KernelFacts] | None = None
    row: Measurement | None = None
    variant: str | None = None
    facts: KernelFacts | None = None
    warm_facts: KernelFacts | None = None
    taken: dict[int, Samples] = field(default_factory=dict)
    warm_taken: dict[int, Samples] = field(default_factory=dict)
    samples: Samples | None = None
    warm_samples: Samples | None = None
    log: dict[str, Any] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    known: dict[bool, tuple[int, Samples]] = field(default_factory=dict)
    cost_s: float = 0.0
    patience: int = 0
    lost: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def name(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.case.backend, self.case.mode)))

    def known_in(self, kernel: RemoteKernel[KernelFacts], warm: bool) -> Samples | None:
        """Return earlier samples from the process that holds a kernel; None where there are none.

        Args:
            kernel: ``kernel`` or ``warm``.
            warm: which of the two.
        """
        process, samples = self.known.get(warm, (0, None))
        return samples if process == kernel.generation else None

    def forget(self) -> None:
        """Free all samples, once the row is made of them."""
        self.samples = self.warm_samples = None
        self.taken.clear()
        self.warm_taken.clear()
        self.known.clear()
