"""What is measured of two backends, and what a cause says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["LOG", "Account", "Cause", "Evidence"]

#: How a kernel's time is known where nothing else is said.
LOG = "by the library's own log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where one backend's time goes, as far as it was measured. Seconds per execution.

    Attributes:
        time_s: all of it, as users run it.
        allocation_s: what it takes longer than with an allocator that keeps its pages.
        faults: page faults per call that this allocator saves.
        empty_s: a call that does nothing, the same way.
        queued: calls are put into a queue: their cost shows only where it is all there is.
        reorder_s: what the library itself spent on bringing operands into other layouts.
        reorder_by: how that was measured.
        kernel: the library's name of the kernel behind the call.
        kernel_s: that kernel alone, where it was measured.
        kernel_by: how it was measured, in words that follow the time.
        detail: what else is known of the kernel: of its machine code, for example.
        limit_s: what the problem takes at the measured peak or bandwidth of the device, whichever
            is more.
        bound: which of them that is: ``compute`` or ``memory``.
        busy: share of the threads' time in which they had a CPU or waited for one.
        threads: that were given to it.
    """

    time_s: float
    allocation_s: float | None = None
    faults: float | None = None
    empty_s: float | None = None
    queued: bool = False
    reorder_s: float | None = None
    reorder_by: str = LOG
    kernel: str | None = None
    kernel_s: float | None = None
    kernel_by: str = LOG
    detail: str = ""
    limit_s: float | None = None
    bound: str = "compute"
    busy: float | None = None
    threads: int = 1

    @property
    def kept_s(self) -> float:
        """The call with an allocator that keeps its pages, as far as that is known."""
        return self.time_s - max(0.0, self.allocation_s or 0.0)

    @property
    def beside_s(self) -> float:
        """What the call takes besides its kernels: nothing where the device works meanwhile."""
        return 0.0 if self.queued else self.empty_s or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured of a slow backend and of the fastest one on the same problem.

    Attributes:
        own: of the slow one.
        best: of the fastest one, in the same rounds.
        kind: of the layer: ``conv2d``, ``gemm``...
        plain_over_packed: the fastest backend's time with weights as they are over that with
            packed ones, where it packs them and the slow one does not.
    """

    own: Account
    best: Account
    kind: str = ""
    plain_over_packed: float | None = None

    @property
    def gap_s(self) -> float:
        """What there is to explain."""
        return self.own.time_s - self.best.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for a gap.

    Attributes:
        name: ``allocation``, ``reorders``, ``dispatch``, ``one thread``, ``idle threads``,
            ``weights not packed``, ``generic kernel`` or ``slower kernel``.
        seconds: how much more time it takes than in the fastest backend.
        share: of the gap; more than 1 if without it this backend would be the fastest.
        how: the measurement, in words.
    """

    name: str
    seconds: float
    share: float
    how: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "cause": self.name,
            "seconds": self.seconds,
            "share": self.share,
            "how": self.how,
        }
