"""What is known of a native chain besides its time."""

from __future__ import annotations

import msgspec

from pydlbench.records.record import Record
from pydlbench.records.step import Check


class ChainStep(Record, frozen=True, kw_only=True):
    """One kernel or conversion of a chain.

    Attributes:
        name: ``conv1 forward``, ``conv1/weights reorder``.
        tensor: that is converted; empty where this is a kernel.
        algorithm: the implementation, by its library's name.
        layout: the layouts it works in; of a conversion from and to, dimensions as ``abcd``.
        bytes: read and written by a conversion; 0 of a kernel.
        seconds: within the chain, the clock being read behind each step: the median of a few runs.
    """

    name: str
    tensor: str = ""
    algorithm: str
    layout: str
    bytes: int = 0
    seconds: float = 0.0


class ChainFacts(Record, frozen=True, kw_only=True):
    """What is known of a native chain. Sizes in bytes, times in seconds.

    Attributes:
        library: name and version.
        layouts: how convolutions' tensors lie: ``channels last``, ``blocked`` or ``as each row``
            (the kernel that was the fastest alone, or the library's first choice, with conversions
            in between).
        tried: seconds of the chain in each of these ways; the fastest one is the chain.
        steps: in the order of execution.
        reorder_runs: seconds of all conversions together, in each of these few runs.
        loaded: tensors that are laid out before the first execution, as no kernel reads them as the
            caller has them: images, and weights that the chain does not change.
        memory: ``kept`` (weights, gradients, the output), ``shared`` (everything else, by
            lifetime), ``unshared`` (the same if nothing shared its memory) and ``scratch``. All of
            it stays between executions: none of them touches fresh pages.
        checks: ``update``: weights moved as the optimizer says; ``agreement``: with a framework's
            output and gradients, added by the host. Empty where nobody checked.
        setup_s: choosing kernels, planning, and creating all primitives.
        notes: what a reader has to know.
    """

    library: str
    layouts: str
    tried: dict[str, float] = msgspec.field(default_factory=dict)
    steps: tuple[ChainStep, ...] = ()
    reorder_runs: tuple[float, ...] = ()
    loaded: tuple[str, ...] = ()
    memory: dict[str, int] = msgspec.field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    setup_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def kernels(self) -> tuple[ChainStep, ...]:
        """The steps that are kernels."""
        return tuple(step for step in self.steps if not step.tensor)

    @property
    def reorders(self) -> tuple[ChainStep, ...]:
        """The steps that are conversions, packing of weights among them."""
        return tuple(step for step in self.steps if step.tensor)

    @property
    def reorder_s(self) -> float:
        """Seconds of all conversions."""
        return sum(step.seconds for step in self.reorders)
