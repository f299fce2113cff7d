"""Experiments that a hypothesis can name: what is changed, and beside what it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pydlbench.backends.case import Case

__all__ = ["Contest", "Experiment", "LayerChange", "Rounds", "StepChange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The whole step beside the same with one thing changed, in turn.

    Attributes:
        what: in words that follow "with": ``huge pages``.
        changes: fields of the step's case and their new values.
        options: of the model, and their new values.
        both: options of the model that differ from the step's on both sides.
        allocator: of the changed step's process.
        images: of the changed step over those of the step: times are compared per image.
        kept_s: what of the difference has to be done all the same, in seconds: it is no saving.
        kept_how: what that is, and how it was measured.
        checks: check the changed step (shapes, gradients, descent) before it is timed.
        setup_s: what making it ready may take longer than the step itself: compilers are slow.
    """

    what: str
    changes: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    both: tuple[tuple[str, str], ...] = ()
    allocator: str = "default"
    images: int = 1
    kept_s: float = 0.0
    kept_how: str = ""
    checks: bool = False
    setup_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """A step and the same with one thing changed, whose rounds the cross-check has taken already.

    Attributes:
        what: in words that follow "with".
        pairs: seconds of both, round by round.
        again: the same, to be run once more.
    """

    what: str
    pairs: tuple[tuple[float, float], ...]
    again: StepChange


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One operator of the framework beside another one, in turn.

    Attributes:
        what: in words that follow "with".
        case: as the step has it.
        changed: the other one.
        variant: how the step runs it, where the framework has several ways; None is its best.
        changed_variant: how the other one is run.
        count: how often the step has it.
        images: of the changed one over those of the step.
    """

    what: str
    case: Case
    changed: Case
    variant: str | None = None
    changed_variant: str | None = None
    count: int = 1
    images: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One operator of the framework beside the native library's fastest kernel, in turn.

    Attributes:
        case: as the framework runs it.
        count: how often the step has it.
    """

    case: Case
    count: int = 1

    @property
    def what(self) -> str:
        """In words that follow "with"."""
        name = (self.case.layer.name or self.case.layer.problem).rpartition("/")[2]
        return f"the fastest native kernel for {name} {self.case.pass_}"


Experiment: TypeAlias = StepChange | Rounds | LayerChange | Contest
