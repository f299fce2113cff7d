"""A worker's side of parts: what is asked for by kind, prepared in the worker's framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.base import Backend
    from pydlbench.endtoend.pieces.kernel import PartsKernel
    from pydlbench.endtoend.step import StepCase

__all__ = ["KINDS", "prepare_parts"]

#: What a host can ask for.
KINDS = ("parts", "faults", "replay", "log")


def prepare_parts(backend: Backend, case: StepCase, wanted: Mapping[str, Any]) -> PartsKernel:
    """Make parts of a step ready.

    Args:
        backend: of this process.
        case: the step that they are parts of.
        wanted: ``kind``, one of :data:`KINDS`, and its arguments: ``parts`` (those of a step, as
            :class:`pydlbench.crosscheck.pieces.Piece` describes them, and ``traces``, whether their
            allocations are wanted), ``faults`` (a call that allocates ``bytes``), ``replay``
            (blocks of these ``sizes``, ``live`` bytes held at once, in any process), ``log`` (the
            libraries' own report of a whole step, ``calls`` times).

    Raises:
        UsageError: no such kind.
        UnsupportedError: the framework has not what is asked for.
    """
    kind = wanted["kind"]
    if kind not in KINDS:
        raise UsageError(
            f"parts of kind {kind}: none; nearest: {(nearest(kind, KINDS) or KINDS)[0]}"
        )
    if kind == "replay":
        from pydlbench.endtoend.pieces.replaying import replay

        return replay(wanted["sizes"], wanted["live"])
    from pydlbench.models import build_model

    model = build_model(case.model, batch=case.batch, **case.options)
    if case.framework == "torch":
        from pydlbench.endtoend.pieces.torch_serving import prepare as prepare_torch

        return prepare_torch(backend, model, case, wanted)
    from pydlbench.endtoend.pieces.tensorflow_serving import prepare as prepare_tensorflow

    return prepare_tensorflow(backend, model, case, wanted)
