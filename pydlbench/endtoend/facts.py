"""What is known of a prepared step besides its time, and how one is to be prepared."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.results.parts import Part

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.kernel import HostClock
    from pydlbench.timing.chunk import Chunk, Request

__all__ = ["Check", "StepFacts", "StepKernel", "StepPreparation"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check(Part):
    """One check's verdict.

    Attributes:
        name: ``shapes``, ``parameters``, ``flops``, ``gradients``, ``descent`` or ``agreement``.
        status: ``ok`` or ``failed``.
        detail: what was found, and what was expected.
    """

    name: str
    status: str
    detail: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepPreparation:
    """How a step is to be made ready.

    Attributes:
        checks: run the checks first.
        save: a folder that gets output and gradients as ``.npy`` files, for a comparison with
            another framework's; None for none.
        disturbance: relative change of every weight, of random size up to this and either sign.
    """

    checks: bool = True
    save: str | None = None
    disturbance: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What is known of a step. Times in seconds.

    Attributes:
        library: name and version of the framework.
        timing: ``steady`` (a CPU's call returns when it is done) or ``host-sync`` (the host waits
            for a GPU after each).
        batch: images per step.
        output: shape of the output, NCHW or (batch, features).
        parameters: trained elements.
        setup_s: building, tracing, compiling and the first call.
        checks: what was checked; empty where nobody asked.
        checks_s: what that took.
        notes: what a reader has to know.
        environment: what the framework says of itself: version, threads, settings.
    """

    library: str
    timing: str
    batch: int
    output: tuple[int, ...]
    parameters: int
    setup_s: float
    checks: tuple[Check, ...] = ()
    checks_s: float = 0.0
    notes: tuple[str, ...] = ()
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return dataclasses.asdict(self)


class StepKernel:
    """A step that is ready to be timed, sampled exactly as a layer's kernel is.

    Args:
        clock: times the step.
        facts: what is known of it.
    """

    def __init__(self, clock: HostClock, facts: StepFacts) -> None:
        self._clock = clock
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""
        return self._clock.sample(request)
