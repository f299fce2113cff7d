"""Calls of a step in context: each as long as it took in the step itself."""

from __future__ import annotations

from typing import Annotated

from pydlbench.records.record import Record, one_of
from pydlbench.words import DIRECTIONS

#: How a step is traced: by the framework's own profiler, or by time stamps before and after each
#: call of the step's recorded calls, which run without modules and autograd then.
TRACES = ("profile", "stamps")


class ProgramCall(Record, frozen=True, kw_only=True):
    """A call of a step, in its place.

    Attributes:
        operator: its name, in the framework's words: ``aten.convolution_backward``.
        module: the user's module or the node of the catalogue's network that it is of; of what is
            of several or of none its direction, as an optimizer's call over all weights.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        signature: see :class:`~pydlbench.records.operator.RecordedCall`.
    """

    operator: str
    module: str
    direction: Annotated[str, one_of(*DIRECTIONS)]
    signature: str


class TraceFacts(Record, frozen=True, kw_only=True):
    """What is known of a step that can be traced.

    Attributes:
        calls: of the step, in their order.
        sources: by the ways in which it can be traced (:data:`TRACES`), whose times they are.
    """

    calls: tuple[ProgramCall, ...]
    sources: dict[str, str]


def module_of(names: tuple[str, ...], direction: str) -> str:
    """Return what a call is told under; see :class:`ProgramCall`.

    Args:
        names: of the modules or nodes that it belongs to.
        direction: of the call.
    """
    return names[0] if len(names) == 1 else direction
