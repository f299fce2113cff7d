"""What a protocol drives: a model in some framework, and the clock and the paper beside it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.endtoend.protocols.spec import StepSpec

__all__ = ["Batch", "Outcome", "Step", "Stepper", "Surroundings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Images ``(batch, channels, height, width)`` in float32, labels ``(batch,)`` in int64."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step brought to the host, as its ``fetch`` says.

    Attributes:
        loss: with the L2 terms; None where it was not asked for.
        predictions: ``(batch, classes)``; any increasing function of the logits will do.
    """

    loss: float | None = None
    predictions: NDArray[np.float32] | None = None


class Step(Protocol):
    """One kind of step, built and ready."""

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; may return before the device has finished unless something is fetched.

        Args:
            batch: what is fed where ``StepSpec.feed`` is ``host``, else None.
            rate: learning rate of this step; None for the model's own.
        """
        ...


class Stepper(Protocol):
    """A model in a framework. All its steps share one set of weights."""

    def prepare(self, spec: StepSpec) -> Step:
        """Build a step; UnsupportedError where the framework cannot do what the script does."""
        ...

    def initialize(self) -> None:
        """Give all weights their starting values."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all steps; nothing to do on a CPU."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where lines go and what time it is; tests invent both.

    Attributes:
        write: takes one line as the script prints it, without the line feed.
        note: takes a remark that is not the script's: it belongs on standard error.
        now: seconds of a monotonic clock.
        today: the time of day for lines that carry it.
    """

    write: Callable[[str], None]
    note: Callable[[str], None]
    now: Callable[[], float] = field(default=time.perf_counter)
    today: Callable[[], datetime] = field(default=datetime.now)

    def stamp(self) -> str:
        """Return the time of day as Python prints it: ``2019-01-08 10:01:15.496202``."""
        # str() leaves the microseconds out when they happen to be zero.
        return self.today().isoformat(sep=" ", timespec="microseconds")
