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
class Arm:
    """One kernel of a backend: a subject of the study, prepared anew in each repetition.

    Attributes:
        variant: the name by which it is prepared again; None before a search has chosen one.
        kernel: as it is prepared now; None where it is not.
        facts: of the kernel, from the first preparation.
        size: how long it runs, as far as that is known.
        samples: its visits, once its row is to be made.
    """

    variant: str | None = None
    kernel: RemoteKernel[KernelFacts] | None = None
    facts: KernelFacts | None = None
    size: Size | None = None
    samples: Series | None = None

    @property
    def ready(self) -> bool:
        """Whether it is prepared, in a process that is still running."""
        return self.kernel is not None and self.kernel.alive


@dataclass(slots=True, eq=False)
class BackendRun:
    """One backend's way through a problem that several backends solve.

    Attributes:
        spec: what it computes.
        patience: how often the death of its worker is followed by another repetition all the same.
        usual: the kernel as users run it.
        warm: the same in a process whose allocator keeps the pages that were freed.
        rival: the kernel that was nearly as fast in the search, sampled beside the usual one until
            it is known which of the two is faster.
        row: its result, once no more repetitions are wanted.
        second: the variant that was nearly as fast; None where there is none, or it is not yet
            known which of the two it is.
        log: what the library itself reports of a call, from a process that does nothing else.
        lost: why repetitions have no samples, one reason each.
        ended: why no repetition follows and those there are make the row; empty where one does.
    """

    spec: KernelSpec
    patience: int = 0
    usual: Arm = field(default_factory=Arm)
    warm: Arm = field(default_factory=Arm)
    rival: Arm | None = None
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
    def arms(self) -> list[Arm]:
        """All its kernels."""
        return [arm for arm in (self.usual, self.warm, self.rival) if arm is not None]
