"""The calls among PyTorch's events: the outermost operators that a rule reads.

Operators call each other: ``aten::linear`` has a rule, and what it calls belongs to it;
``aten::conv2d`` has none, and ``aten::convolution`` inside it is the call. An operator without a
rule that calls no other operator is a call that no rule reads. An operator without a rule that
calls others keeps the time that it spends itself, and the kernels that it launches itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydlbench.calls.seen import aten

_OPERATOR: Final = re.compile(r"\w+::\w+")
#: Kernels of Triton, which PyTorch notes like operators.
_GENERATED: Final = "triton_"
#: Operators with a rule that call copies where they have to move elements.
_MAY_COPY: Final = ("reshape",)
#: Operators that have computed nothing if they called nothing.
_EMPTY_ALONE: Final = (
    *("to", "contiguous", "reshape", "flatten", "type_as", "item", "dropout", "expand_as"),
    *("view_as", "resolve_conj", "resolve_neg", "requires_grad_", "numpy_T", "chunk"),
    *("cudnn_is_acceptable", "unflatten", "matmul", "result_type"),
)
_MODULE: Final = "nn.Module: "
_BACKWARD: Final = "autograd::engine::evaluate_function"
_OPTIMIZER: Final = "Optimizer."
#: The cast that autocast puts in front of an operator, inside of it.
_CAST: Final = "aten::_to_copy"
_CASTS: Final = ("aten::to", _CAST, "aten::copy_", "aten::clone", "aten::contiguous")
#: An event, its call, whether that has a rule, direction and modules.
_Entry = tuple["OperatorEvent", "OperatorEvent | None", bool, str, tuple[str, ...]]
#: Around a compiled graph, whose generated kernels may have no events of their own.
COMPILED: Final = "## Call CompiledFxGraph"


@dataclass(slots=True)
class OperatorEvent:
    """An event on a thread of the host.

    Attributes:
        name: of the operator, function, module or annotation.
        place: of the event in the file.
        inner: the events inside of it, in order of time.
        number: autograd's sequence number, which the gradient's event shares; None without one.
        annotates: whether the user named a part of the step so.
        launches: whether it is a call of the device's runtime.
    """

    name: str
    place: int
    inner: list[OperatorEvent] = field(default_factory=list)
    number: int | None = None
    annotates: bool = False
    launches: bool = False

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator, and neither a function nor a part of autograd."""
        return not self.launches and (
            _OPERATOR.fullmatch(self.name) is not None or self.name.startswith(_GENERATED)
        )

    def all(self) -> Iterator[OperatorEvent]:
        """Yield the event and all events inside of it, directly or not."""
        waiting = [self]
        while waiting:
            event = waiting.pop()
            yield event
            waiting += event.inner

    @property
    def is_call(self) -> bool:
        """Whether it is a call: an operator with a rule, or one that calls no operator."""
        if not self.is_operator:
            return False
        if _has_rule(self.name):
            return self.name in _CASTS or not self._is_cast_first
        if self.name.removeprefix("aten::") in _EMPTY_ALONE:
            return False
        return not any(event.is_operator for inner in self.inner for event in inner.all())

    @property
    def _is_cast_first(self) -> bool:
        """Whether autocast converts the operands first.

        The event is not a call in that case; the casts and the operator inside of it are.
        """
        first = self.inner[0] if self.inner else None
        return (
            first is not None
            and "backward" not in self.name
            and first.name in ("aten::to", _CAST)
            and any(each.name == _CAST for each in first.all())
        )


@dataclass(frozen=True, slots=True)
class OutermostCall:
    """An event in its step, with the call that it belongs to.

    Attributes:
        event: the event.
        call: the call that it is or belongs to; the innermost operator if none of the operators
            around it is a call; None outside of operators.
        direction: ``forward``, ``backward`` or ``optimizer``.
        modules: names of the modules around it, the outermost first.
    """

    event: OperatorEvent
    call: OperatorEvent | None
    direction: str
    modules: tuple[str, ...]

    @property
    def module(self) -> str:
        """The innermost module; the direction if there is none."""
        return self.modules[-1] if self.modules else self.direction


def visit(roots: Sequence[OperatorEvent]) -> Iterator[OutermostCall]:
    """Yield all events with the calls, directions and modules that they belong to.

    Args:
        roots: in order of time; gradients behind the forward calls that they belong to.
    """
    modules_of: dict[int, tuple[str, ...]] = {}
    waiting: list[_Entry] = [(event, None, False, "forward", ()) for event in reversed(roots)]
    while waiting:
        event, call, within, direction, modules = waiting.pop()
        if event.name.startswith(_BACKWARD):
            number = -1 if event.number is None else event.number
            direction, modules = "backward", modules_of.get(number, modules)
        elif event.name.startswith(_OPTIMIZER):
            direction, modules = "optimizer", ()
        elif event.name.startswith(_MODULE):
            modules = (*modules, event.name.removeprefix(_MODULE))
        elif event.annotates and not modules:
            modules = (event.name,)
        if not within and event.is_operator:
            call, within = event, event.is_call
        if direction == "forward" and event.number is not None:
            modules_of[event.number] = modules
        yield OutermostCall(event, call, direction, modules)
        waiting += [(inner, call, within, direction, modules) for inner in reversed(event.inner)]


def calls_of(roots: Sequence[OperatorEvent]) -> Iterator[OutermostCall]:
    """Yield the calls within some events, and each compiled graph before its calls.

    Args:
        roots: see :func:`visit`.
    """
    for visited in visit(roots):
        event = visited.event
        outermost = visited.call is event and event.is_call
        if outermost or event.name.startswith(COMPILED):
            yield visited


@functools.cache
def _has_rule(name: str) -> bool:
    """Whether a rule reads the calls of an operator."""
    namespace, _, operator = name.partition("::")
    plain = operator.rstrip("_").removeprefix("_foreach_")
    return namespace == "aten" and plain in aten.RULES and plain not in _MAY_COPY
