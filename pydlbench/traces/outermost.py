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
MODULE: Final = "nn.Module: "
#: Functions of autograd, and operators that compute gradients.
_BACKWARD: Final = re.compile(
    r"autograd::engine::evaluate_function|(?:torch::autograd::)?\w+Backward\d*$|\w+::\w+_backward$"
)
_ENGINE: Final = "autograd::engine"
_OPTIMIZER: Final = "Optimizer."
#: Operators that update many tensors at once.
_UPDATE: Final = re.compile(r"aten::_(?:foreach_(?!copy_)|fused_(?:ada|sgd))")
_LOSS: Final = re.compile(r"\w+::\w*(?:loss|cross_entropy)\w*|aten::kl_div")
_LOSS_MODULE: Final = re.compile(r"\w*(?:Loss|Criterion)(?:_\d+)?")
#: Annotations that name a direction and nothing else.
_ANNOTATED: Final = re.compile(
    r"\W*(?:(?:compute|calc)_)?(loss|backward|optimizer)(?:[_ ](?:step|pass))?\W*", re.IGNORECASE
)
#: The cast that autocast puts in front of an operator, inside of it.
_CAST: Final = "aten::_to_copy"
_CASTS: Final = ("aten::to", _CAST, "aten::copy_", "aten::clone", "aten::contiguous")
#: How annotations begin that mark phases of a program, and no parts of a model.
_MARKED: Final = "## "
#: How the modules around an event are known: none is, a user named that part of the step, they are
#: on the stack, or they are those of the forward call that a gradient belongs to.
_OUTSIDE, _ANNOTATION, _STACK, _GRADIENT = range(4)
#: An event, its call, whether that has a rule, direction, modules, and how these are known.
_Entry = tuple["OperatorEvent", "OperatorEvent | None", bool, str, tuple[str, ...], int]
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
        direction: of what runs in it, if nothing inside says otherwise.
    """

    name: str
    place: int
    inner: list[OperatorEvent] = field(default_factory=list)
    number: int | None = None
    annotates: bool = False
    launches: bool = False
    direction: str = "forward"

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
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
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
    around = _Around(roots)
    waiting: list[_Entry] = [(e, None, False, e.direction, (), _OUTSIDE) for e in reversed(roots)]
    while waiting:
        event, call, within, direction, modules, known = waiting.pop()
        direction, modules, known = around.inside(event, direction, modules, known)
        if not within and event.is_operator:
            call, within = event, event.is_call
        yield OutermostCall(event, call, direction, modules)
        waiting += [(e, call, within, direction, modules, known) for e in reversed(event.inner)]


class _Around:
    """Finds the direction and the modules of events that are visited in order.

    Args:
        roots: see :func:`visit`.
    """

    def __init__(self, roots: Sequence[OperatorEvent]) -> None:
        self._roots = roots
        self._forward: dict[int | None, tuple[str, ...]] = {}
        self._recomputed: dict[int | None, tuple[str, ...]] = {}
        self._paths: dict[str, tuple[str, ...]] = {}

    def inside(
        self, event: OperatorEvent, direction: str, modules: tuple[str, ...], known: int
    ) -> tuple[str, tuple[str, ...], int]:
        """Return direction and modules of what runs in an event, from those around it.

        Args:
            event: the event.
            direction: around it.
            modules: around it.
            known: how these modules are known.
        """
        kind = _kind_of(event.name)
        if kind in ("engine", "gradient"):
            if known == _GRADIENT and kind == "gradient":
                return direction, modules, known
            # An engine inside of a function runs the gradients of what was recomputed there.
            again = self._recomputed if known == _GRADIENT else self._forward
            own = again.get(event.number) or self._forward.get(event.number) or modules
            return "backward", own, _GRADIENT
        if kind == "optimizer":
            return "optimizer", (), _OUTSIDE
        if kind == "module":
            direction, modules = self._in_module(event, direction, modules, known)
            known = _STACK
        elif event.annotates:
            if not event.name.startswith(_MARKED):
                modules, known = modules or (event.name,), known or _ANNOTATION
            direction = _direction_named(event.name, direction)
        elif direction == "forward" and known != _STACK:
            direction = self._of_operator(kind)
        if event.number is not None and (direction != "backward" or known == _STACK):
            of = self._recomputed if direction == "backward" else self._forward
            of[event.number] = modules
        return direction, modules, known

    def _of_operator(self, kind: str) -> str:
        """Return the direction of an operator outside of modules that run forward."""
        if kind == "update" and self._trains:
            return "optimizer"
        return "loss" if kind == "loss" else "forward"

    def _in_module(
        self, event: OperatorEvent, direction: str, modules: tuple[str, ...], known: int
    ) -> tuple[str, tuple[str, ...]]:
        own = event.name.removeprefix(MODULE)
        # Inside of a gradient a module runs again, and belongs where it ran forward.
        modules = self._paths.get(own, (own,)) if known == _GRADIENT else (*modules, own)
        if direction == "forward":
            self._paths[own] = modules
            direction = "loss" if _LOSS_MODULE.fullmatch(own) else "forward"
        return direction, modules

    @functools.cached_property
    def _trains(self) -> bool:
        """Whether anything computes gradients."""
        return any(is_gradient(event.name) for root in self._roots for event in root.all())


def _direction_named(name: str, around: str) -> str:
    """Return the direction that an annotation names inside of a forward pass; else that around."""
    word = _ANNOTATED.fullmatch(name) if around == "forward" else None
    return word[1].lower() if word else around


@functools.cache
def _kind_of(name: str) -> str:
    """Return the kind of an event, by its name: the ones that tell directions, or ``other``."""
    if is_gradient(name):
        return "engine" if name.startswith(_ENGINE) else "gradient"
    if name.startswith((MODULE, _OPTIMIZER)):
        return "module" if name.startswith(MODULE) else "optimizer"
    if _LOSS.fullmatch(name):
        return "loss"
    return "update" if _UPDATE.match(name) else "other"


def is_gradient(name: str) -> bool:
    """Whether an event computes gradients, by its name."""
    return _BACKWARD.match(name) is not None


@functools.cache
def _has_rule(name: str) -> bool:
    """Whether a rule reads the calls of an operator."""
    namespace, _, operator = name.partition("::")
    plain = operator.rstrip("_").removeprefix("_foreach_")
    return namespace == "aten" and plain in aten.RULES and plain not in _MAY_COPY
