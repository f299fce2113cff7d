"""Whether steps fit into the host's memory: asked before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError
from pydlbench.models.counts import memory
from pydlbench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["check_memory", "check_memory_of_parts", "fixed_bytes", "image_bytes"]

#: What a framework's process holds before it has a model.
_PROCESS: Final = 600_000_000
#: Copies of the weights: NumPy's that are loaded and gone back to, the framework's, and the one in
#: which a library may have arranged them for itself.
_WEIGHTS: Final = 3
#: Of the gradients: the framework's, and those that a check or a fetch brings to the host.
_GRADIENTS: Final = 2
#: Of the activations: their gradients or reordered copies live beside them.
_ACTIVATIONS: Final = 2
#: What a cross-check holds at a time: the step, and the same where pages are kept. The operands of
#: its operators, each distinct one once, have room in the factor of the activations.
_CHECKED: Final = 2


def fixed_bytes(model: Model, phase: str, precision: str) -> int:
    """Return what a step needs whatever its batch, without the process."""
    needs = memory(model, phase, precision)
    # Mixed precision keeps weights in float32 and makes narrow copies; the factor covers both.
    return _WEIGHTS * needs["weights"] + _GRADIENTS * needs["gradients"] + needs["optimizer"]


def image_bytes(model: Model, phase: str, precision: str) -> float:
    """Return what each image of the batch adds."""
    return _ACTIVATIONS * memory(model, phase, precision)["activations"] / model.batch


def check_memory_of_parts(model: Model, case: StepCase, available: int | None) -> None:
    """Make sure that a step has room twice, beside its parts: ``check`` and ``diagnose`` need it.

    Args:
        model: with its batch.
        case: the step.
        available: bytes of the host's memory; None where nobody knows.

    Raises:
        UsageError: it has not; with the largest batch that has.
    """
    # The parts have a process of their own.
    check_memory(model, [case] * _CHECKED, available, processes=_CHECKED + 1)


def check_memory(
    model: Model,
    cases: Sequence[StepCase],
    available: int | None,
    processes: int | None = None,
) -> None:
    """Make sure that steps have room beside each other, as they have while they take turns.

    Args:
        model: theirs, with their batch.
        cases: steps of one batch and phase; a GPU's activations are not the host's.
        available: bytes of the host's memory; None where nobody knows.
        processes: that they run in; None is one for each framework and device.

    Raises:
        UsageError: they have not; with the largest batch that has.
    """
    if available is None or not cases:
        return
    if processes is None:
        processes = len({(case.framework, case.device) for case in cases})
    fixed = processes * _PROCESS
    each = 0.0
    for case in cases:
        fixed += fixed_bytes(model, case.phase, case.precision)
        if not case.on_gpu:
            each += image_bytes(model, case.phase, case.precision)
    needed = fixed + model.batch * each
    if needed <= available:
        return
    batch = int((available - fixed) // each) if each else 0
    alike = len(set(_ways(cases))) == 1
    turns = f"{len(cases)} steps in turn" if not alike else "the step twice and its operators"
    several = f" for {turns}" if len(cases) > 1 else ""
    near = f"--batch {batch}" if batch >= 1 else "a smaller model"
    if batch < 1 and not alike:
        near = "fewer of --framework, --mode and --precision"
    raise UsageError(
        f"{model.name} at batch {model.batch}: needs about {format_bytes(needed)} of memory"
        f"{several}, {format_bytes(available)} are available; nearest: {near}"
    )


def _ways(cases: Sequence[StepCase]) -> list[tuple[str, str | None, str]]:
    return [(case.framework, case.mode, case.precision) for case in cases]
