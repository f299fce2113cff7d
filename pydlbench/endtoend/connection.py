"""What a framework's builder hands to whoever prepares a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.kernel import HostClock
    from pydlbench.endtoend.checks import Subject

__all__ = ["Connection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A step in its framework.

    Attributes:
        subject: what is checked.
        clock: what times it.
        library: name and version of the framework.
        notes: what a reader has to know.
        gpu: name, capability and memory of the GPU that runs it; None on a CPU.
    """

    subject: Subject
    clock: HostClock
    library: str
    notes: tuple[str, ...] = ()
    gpu: dict[str, Any] | None = None
