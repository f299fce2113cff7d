"""Which of PyTorch's events are a step's calls: the outermost that a rule reads.

Operators call each other: ``aten::linear`` is read, and what it calls belongs to it;
``aten::conv2d`` is not, and ``aten::convolution`` inside it is the call. What has no rule and calls
no operator is a call that nobody reads.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydlbench.calls.seen import aten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OPERATOR: Final = re.compile(r"\w+::\w+")
#: These have a rule, and call what moves elements where they have to.
_MAY_CALL: Final = ("reshape",)
#: Where these call nothing, there was nothing to do.
_IDLE_ALONE: Final = (
    *("to", "contiguous", "reshape", "flatten", "type_as", "item", "dropout", "expand_as"),
    *("view_as", "resolve_conj", "resolve_neg", "requires_grad_", "numpy_T", "chunk"),
    *("cudnn_is_acceptable", "unflatten", "matmul", "result_type"),
)
_MODULE: Final = "nn.Module: "
_BACKWARD: Final = "autograd::engine::evaluate_function"
_OPTIMIZER: Final = "Optimizer."
#: Around a compiled graph, of which what the compiler has written shows in no event of its own.
COMPILED: Final = "## Call CompiledFxGraph"


@dataclass(slots=True)
class Event:
    """Something that PyTorch has noted.

    Attributes:
        name: of it.
        place: of it in the file.
        inner: what it called, in order of time.
        number: autograd's, which a gradient's event has as well; None without one.
        annotates: whether the user has named a part of the step so.
    """

    name: str
    place: int
    inner: list[Event] = field(default_factory=list)
    number: int | None = None
    annotates: bool = False

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator's call, and not a function or a part of autograd."""
        return _OPERATOR.fullmatch(self.name) is not None

    def all(self) -> Iterator[Event]:
        """Give it and all that it called, directly or not."""
        waiting = [self]
        while waiting:
            event = waiting.pop()
            yield event
            waiting += event.inner

    @property
    def is_call(self) -> bool:
        """Whether it is a call: read by a rule, or calling no operator and not idle."""
        if not self.is_operator:
            return False
        if _is_read(self.name):
            return True
        idle = self.name.removeprefix("aten::") in _IDLE_ALONE
        inside = (event for inner in self.inner for event in inner.all())
        return not idle and not any(event.is_operator for event in inside)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a step.

    Attributes:
        event: what was noted of it; of generated kernels what is around them.
        direction: ``forward``, ``backward`` or ``optimizer``.
        module: that it is of; its direction where nothing names one.
    """

    event: Event
    direction: str
    module: str


def calls_of(roots: Sequence[Event]) -> Iterator[Call]:
    """Give the calls within some events, and each compiled graph before its calls.

    Args:
        roots: in order of time; gradients behind the forward calls that they are of.
    """
    modules: dict[int, str] = {}
    waiting = [(event, "forward", "") for event in reversed(roots)]
    while waiting:
        event, direction, module = waiting.pop()
        if event.name.startswith(_BACKWARD):
            direction, module = "backward", modules.get(event.number or -1, "")
        elif event.name.startswith(_OPTIMIZER):
            direction, module = "optimizer", ""
        elif event.name.startswith(_MODULE):
            module = event.name.removeprefix(_MODULE)
        elif event.annotates:
            module = module or event.name
        is_call = event.is_call
        if direction == "forward":
            inside = event.all() if is_call else (event,)
            modules |= {each.number: module for each in inside if each.number is not None}
        if is_call or event.name.startswith(COMPILED):
            yield Call(event, direction, module or direction)
        if not is_call:
            waiting += [(inner, direction, module) for inner in reversed(event.inner)]


def name_modules(roots: Sequence[Event]) -> bool:
    """Whether some events are of the user's modules."""
    return any(event.name.startswith(_MODULE) for root in roots for event in root.all())


@functools.cache
def _is_read(name: str) -> bool:
    """Whether a rule reads the calls of an operator."""
    namespace, _, operator = name.partition("::")
    plain = operator.rstrip("_").removeprefix("_foreach_")
    return namespace == "aten" and plain in aten.RULES and plain not in _MAY_CALL
