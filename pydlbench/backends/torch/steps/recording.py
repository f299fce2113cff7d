"""One step of PyTorch as it really runs: every call of an operator, below autograd.

A :class:`DispatchRecorder` sees each call that reaches PyTorch's dispatcher: the calls of the
network, the loss, the backward pass and the optimizer. It keeps a program: operators on numbered
values, with the points at which memory is freed. It holds no tensor that the step created, because
autograd takes over a gradient, or accumulates into it in place, only if nobody else holds it.

Recording changes one thing that matters here: while a dispatch mode is active, autograd never
accumulates gradients in place. :meth:`DispatchRecorder.finish` corrects the recorded calls.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from pydlbench.backends.torch.steps.signature import signature
from pydlbench.calls.seen.aten import leaves, map_leaves
from pydlbench.calls.step_calls import StepCall, distinct_calls
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from torch import nn

    from pydlbench.records.operator import Direction, RecordedCall

_aten: Any = torch.ops.aten
# Modules between whoever calls an operator and the recorder.
_BETWEEN: Final = (__name__, "torch._compile", "torch._dynamo", "torch.utils._python_dispatch")
# Of what marks spans of time, and asks a tensor for its device: nothing is computed.
_MARKS: Final = ("profiler", "prim")


# -----------------------------------------------------------------------------
# The program that a step is.


@dataclass(frozen=True, slots=True)
class StorageSlot:
    """A value by its number: a place in memory with a shape, strides and a type."""

    number: int


@dataclass(slots=True, kw_only=True)
class DispatchedCall:
    """A call of an operator.

    Attributes:
        function: the operator's overload.
        arguments: by position, a :class:`StorageSlot` for each tensor.
        keywords: by name, likewise.
        results: what it returns, likewise.
        freed: values whose memory is given back once it has returned.
        signature: see :mod:`pydlbench.backends.torch.steps.signature`.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        names: what it is a part of: the user's module or a node of ours; ``loss`` behind them.
        bytes: of its operands and results.
        trained: see :class:`~pydlbench.records.operator.RecordedCall`; empty outside backward
            passes.
        sums: whether autograd adds two gradients of one value.
        of_view: whether what it would write into is a view, whose base has the memory too.
        implied: whether it is no call of the step's, but makes a view that the step made in a way
            that the dispatcher does not see.
    """

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: Any = None
    freed: list[int] = field(default_factory=list)
    signature: str = ""
    direction: Direction = "forward"
    names: tuple[str, ...] = ()
    bytes: int = 0
    trained: tuple[int, ...] = ()
    sums: bool = False
    of_view: bool = False
    implied: bool = False

    @property
    def operator(self) -> str:
        """The operator's name without its overload: ``aten.convolution``."""
        return str(self.function).rpartition(".")[0]


@dataclass(slots=True, kw_only=True)
class Recording:
    """A recorded step.

    Attributes:
        calls: in their order.
        given: values that were there before the step, by number: weights, buffers, images.
        results: what the step returned, a :class:`StorageSlot` for each tensor.
        places: of all values, by number: storage, first element, shape, strides, type.
        sizes: bytes of each storage that the step made.
        opaque: why the program cannot be run again; None if it can.
        lines: by module, where the user's code made its first call: ``my_model.py:15``.
    """

    calls: list[DispatchedCall]
    given: dict[int, torch.Tensor]
    results: Any
    places: list[tuple[Any, ...]]
    sizes: dict[int, int]
    opaque: str | None
    lines: dict[str, str]

    def distinct(self) -> tuple[RecordedCall, ...]:
        """Return each distinct call once, in the order in which they first occur."""
        return distinct_calls(self.in_order())

    def in_order(self) -> list[StepCall]:
        """Return the step's own calls in their order."""
        return [
            StepCall(
                signature=each.signature,
                operator=each.operator,
                direction=each.direction,
                names=each.names,
                bytes=each.bytes,
                trained=each.trained,
            )
            for each in self.calls
            if not each.implied
        ]

    def order(self) -> tuple[int, ...]:
        """Return the calls in their order, each by its place in :meth:`distinct`."""
        places: dict[tuple[str, str], int] = {}
        own = [(each.signature, each.direction) for each in self.in_order()]
        return tuple(places.setdefault(each, len(places)) for each in own)

    def facts(self, batch: int, notes: tuple[str, ...] = ()) -> OperatorsFacts:
        """Return the distinct calls with what else is known of the step.

        Args:
            batch: of the step.
            notes: what a reader has to know.
        """
        return OperatorsFacts(
            calls=self.distinct(),
            order=self.order(),
            batch=batch,
            lines=self.lines,
            notes=notes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step with its recording.

    Attributes:
        step: runs it once and returns the tensors that it computes: output and loss.
        recording: of a step that was not the first one.
        again: records one more.
    """

    step: Callable[[], Any]
    recording: Recording
    again: Callable[[], Recording]

    def twice(self) -> tuple[Recording, tuple[str, ...]]:
        """Record one more step; return it, and a note where it is not the same calls."""
        second = self.again()
        first, other = (
            [(call.signature, call.direction) for call in each.calls]
            for each in (self.recording, second)
        )
        if first == other:
            return second, ()
        note = (
            f"two steps made other calls ({len(first)} and {len(other)}): the model's control "
            "flow depends on data or chance; the second was taken"
        )
        return second, (note,)


# -----------------------------------------------------------------------------
# What calls are named after.

#: Lets a recorder know, as long as it is entered, where in the network the step is.
Naming: TypeAlias = Callable[["DispatchRecorder"], contextlib.AbstractContextManager[None]]


def by_module(root: nn.Module) -> Naming:
    """Name calls after the modules that are running: ``features.4.block.1``.

    Args:
        root: the module that the step calls; what is called before it has returned is ``forward``,
            and what is called afterwards ``loss``.
    """
    paths = {id(module): path for path, module in root.named_modules()}

    @contextlib.contextmanager
    def naming(recorder: DispatchRecorder) -> Iterator[None]:
        running: list[str] = []

        def enter(module: nn.Module, *_: Any) -> None:
            if id(module) in paths:
                running.append(paths[id(module)])
                recorder.at(running[-1], "forward")

        def leave(module: nn.Module, *_: Any) -> None:
            if id(module) in paths:
                running.pop()
                name, direction = (running[-1], "forward") if running else ("loss", "loss")
                recorder.at(name, direction)

        # Not the modules' own hooks: one with any, nn.MultiheadAttention takes no fused path.
        handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for each in handles:
                each.remove()

    return naming


# -----------------------------------------------------------------------------
# Recording.


class DispatchRecorder(TorchDispatchMode):  # type: ignore[misc]  # an unknown class to mypy
    """Writes down every call while it is entered.

    Args:
        device: that the step runs on.
        parameters: by what they belong to, several times if there are several.
        line: says at which line of the user's own code the step is; None at none of it.
    """

    def __init__(
        self,
        device: str,
        parameters: Mapping[torch.Tensor, str],
        line: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._line = line
        self._lines: dict[str, str | None] = {}
        self._device = device
        self._calls: list[DispatchedCall] = []
        self._given: dict[int, torch.Tensor] = {}
        self._slots: dict[tuple[Any, ...], int] = {}
        # A weak reference keeps the address of a storage from being used again.
        self._storages: dict[int, StorageWeakRef] = {}
        self._alive: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._values: dict[int, list[int]] = {}
        self._kept: list[torch.Tensor] = []
        self._views: set[int] = set()
        # The call that made each value; the node that autograd is at, and the first call since.
        self._born: dict[int, int] = {}
        self._node = -1
        self._entered = 0
        self._opaque: str | None = None
        self._name, self._direction = "", "forward"
        # Autograd numbers the nodes of its graph, of which a forward call makes one.
        self._numbered = _sequence()
        self._owners: dict[int, str] = {}
        self._parameters = {id(each): name for each, name in parameters.items()}
        self._weights = {each.untyped_storage()._cdata: name for each, name in parameters.items()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return that nothing within is compiled: else PyTorch imports its compiler, in seconds."""
        return False

    def at(self, name: str, direction: Direction) -> None:
        """Say where the step is from now on.

        Args:
            name: of the module or node that is running; empty for none.
            direction: ``forward``, ``loss`` or ``optimizer``; the recorder sees by itself that it
                is in a backward pass.
        """
        self._number()
        self._name, self._direction = name, direction

    def updates(self, optimizer: torch.optim.Optimizer) -> None:
        """Say that an optimizer begins; gradients and its state are its parameters'."""
        self.at("", "optimizer")
        for group in optimizer.param_groups:
            for each in group["params"]:
                name = self._parameters.get(id(each), "")
                states = list(optimizer.state.get(each, {}).values())
                for tensor in leaves([each.grad, states], torch.Tensor):
                    with contextlib.suppress(NotImplementedError):  # without memory of its own
                        self._weights[tensor.untyped_storage()._cdata] = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Write one call down, and make it."""
        del types
        kwargs = kwargs or {}
        if func.namespace in _MARKS:
            return func(*args, **kwargs)
        self._sweep()
        before = self._numbered
        self._number()
        if func is _aten.detach.default and self._copies(args[0], self._numbered == before):
            return func(*args, **kwargs)
        arguments, keywords = map_leaves(args, self._read), map_leaves(kwargs, self._read)
        direction, names, sums = self._where(func, args)
        if direction == "forward" and names and names[0] not in self._lines:
            self._lines[names[0]] = self._line()
        call = DispatchedCall(
            function=func,
            arguments=arguments,
            keywords=keywords,
            signature=signature(func, args, kwargs, self._device),
            direction=direction,
            names=names,
            trained=self._trained([args, kwargs]) if direction == "backward" else (),
            sums=sums,
            of_view=sums and arguments[0].number in self._views,
        )
        # Behind what was implied by its arguments.
        self._calls.append(call)
        result = func(*args, **kwargs)
        call.results = map_leaves(result, self._made)
        self._note_views(call)
        call.bytes = sum(_bytes(each) for each in leaves([args, kwargs, result], torch.Tensor))
        return result

    def slots(self, results: Any) -> Any:
        """Return what stands for what the step returned."""
        return map_leaves(results, self._slot_of)

    def finish(self, results: Any) -> Recording:
        """Return what was recorded; to be called when nobody holds what the step has returned.

        Args:
            results: what stands for it.
        """
        self._sweep()
        places = list(self._slots)
        for index, call in enumerate(self._calls):
            if call.sums:
                _in_place(self._calls, index, places, self._sizes)
        for call in reversed(self._calls):
            if call.sums:  # it belongs to what reads the sum
                call.names = _reader(self._calls, call)
        return Recording(
            calls=self._calls,
            given=self._given,
            results=results,
            places=places,
            sizes=self._sizes,
            opaque=self._opaque,
            lines={name: line for name, line in self._lines.items() if line is not None},
        )

    def _where(self, func: Any, args: tuple[Any, ...]) -> tuple[Direction, tuple[str, ...], bool]:
        """Return direction and names of a call, and whether it sums gradients."""
        if torch._C._current_graph_task_id() != -1:
            node = torch._C._current_autograd_node()
            number = -1 if node is None else node._sequence_nr()
            if number != self._node:
                self._node, self._entered = number, len(self._calls)
            if node is None or self._sums(func, args):
                return "backward", (), node is not None
            variable = getattr(node, "variable", None)
            if variable is not None:
                name = self._parameters.get(id(variable), "")
            else:
                name = self._owners.get(number, "")
            return "backward", (name,) if name else (), False
        if self._direction == "optimizer":
            owners = (self._owner(each) for each in leaves([args], torch.Tensor))
            return "optimizer", tuple(dict.fromkeys(each for each in owners if each)), False
        return self._direction, (self._name,) if self._name else (), False

    def _copies(self, tensor: torch.Tensor, same: bool) -> bool:
        """Whether a ``detach`` is only autograd's copy of a tensor's head, kept or given back.

        The dispatcher hears of these beside a recorder only. In the forward pass they follow the
        call whose result is kept; one of the user's own right there is left out too.

        Args:
            tensor: that is detached.
            same: whether autograd has made no node since the last call.
        """
        if torch._C._current_graph_task_id() != -1:
            node = torch._C._current_autograd_node()
            return not hasattr(node, "variable") and _asked_by_autograd()
        slot = self._slots.get(_place(tensor))
        last = self._calls[-1].results if self._calls else None
        return same and slot is not None and StorageSlot(slot) in leaves([last], StorageSlot)

    def _sums(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether it is autograd itself that adds, and not the node whose gradients it has.

        One of the two gradients has come from another node then, and no code of Python's asks.
        """
        if func is not _aten.add.Tensor or not all(isinstance(x, torch.Tensor) for x in args):
            return False
        return (
            _asked_by_autograd()
            and self._born.get(self._slots[_place(args[0])], -1) < self._entered
        )

    def _trained(self, operands: Any) -> tuple[int, ...]:
        """Return which of a call's operands are parameters, or views of them."""
        places = []
        for number, each in enumerate(leaves(operands, torch.Tensor)):
            with contextlib.suppress(NotImplementedError):  # without memory of its own
                if each.untyped_storage()._cdata in self._weights:
                    places.append(number)
        return tuple(places)

    def _owner(self, tensor: torch.Tensor) -> str:
        with contextlib.suppress(NotImplementedError):  # without memory of its own: nobody's
            return self._weights.get(tensor.untyped_storage()._cdata, "")
        return ""

    def _number(self) -> None:
        """Let autograd's new nodes belong to where the step is; its own threads make none."""
        if torch._C._current_graph_task_id() != -1:
            return
        now = _sequence()
        for number in range(self._numbered, now):
            self._owners[number] = self._name
        self._numbered = now

    def _sweep(self) -> None:
        """Note, with the last call, what was freed since."""
        gone = [each for each in self._alive if self._storages[each].expired()]
        self._alive.difference_update(gone)
        if self._calls:
            self._calls[-1].freed += sorted(slot for each in gone for slot in self._values[each])

    def _read(self, value: Any) -> Any:
        """Return what stands for an argument."""
        if not isinstance(value, torch.Tensor):
            return value
        place, known = self._enter(value)
        if place in self._slots:
            return StorageSlot(self._slots[place])
        slot = self._new(place)
        if not known:
            # Never a graph with it: a weight would be held together with its gradient's history.
            self._given[slot] = value.detach()
        elif place[0] in self._sizes:
            self._imply(slot, value)
        else:
            self._given[slot] = value.detach()
        return StorageSlot(slot)

    def _made(self, value: Any) -> Any:
        """Return what stands for a result."""
        if not isinstance(value, torch.Tensor):
            return None
        place, known = self._enter(value)
        storage = place[0]
        if not known and storage in self._storages:
            self._alive.add(storage)
            self._sizes[storage] = value.untyped_storage().nbytes()
        slot = self._slots[place] if place in self._slots else self._new(place)
        self._born.setdefault(slot, len(self._calls) - 1)
        return StorageSlot(slot)

    def _note_views(self, call: DispatchedCall) -> None:
        """Note which values are views; what works in place returns what it was given."""
        aliases = [each.alias_info for each in call.function._schema.returns]
        slots = {each.number for each in leaves([call.results], StorageSlot)}
        if all(each is None for each in aliases):
            self._views -= slots
        elif not any(each is not None and each.is_write for each in aliases):
            self._views |= slots

    def _slot_of(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        slot = self._slots.get(_place(value))
        return None if slot is None else StorageSlot(slot)

    def _enter(self, tensor: torch.Tensor) -> tuple[tuple[Any, ...], bool]:
        """Return a tensor's place, and whether its memory has been seen before."""
        place = _place(tensor)
        storage = place[0]
        if storage in self._values:
            return place, True
        self._values[storage] = []
        try:
            self._storages[storage] = StorageWeakRef(tensor.untyped_storage())
        except NotImplementedError:
            self._opaque = f"a {tensor.layout} tensor, whose memory cannot be followed"
            self._kept.append(tensor)  # so that nothing else gets its number
        return place, False

    def _new(self, place: tuple[Any, ...]) -> int:
        slot = self._slots[place] = len(self._slots)
        self._values[place[0]].append(slot)
        return slot

    def _imply(self, slot: int, tensor: torch.Tensor) -> None:
        """Add the call that makes a view which the dispatcher has not seen."""
        others = [each for each in self._values[_place(tensor)[0]] if each != slot]
        places = list(self._slots)
        alike = [each for each in others if places[each][4:] == places[slot][4:]]
        if not alike:
            self._opaque = f"a view of another type ({tensor.dtype}) made without the dispatcher"
            return
        view = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
        self._calls.append(
            DispatchedCall(
                function=_aten.as_strided.default,
                arguments=(StorageSlot(alike[0]), *view),
                keywords={},
                results=StorageSlot(slot),
                implied=True,
            )
        )


def record(
    step: Callable[[], Any],
    *,
    naming: Naming,
    parameters: Mapping[torch.Tensor, str],
    optimizer: torch.optim.Optimizer | None = None,
    device: str = "cpu",
    line: Callable[[], str | None] = lambda: None,
) -> Recording:
    """Run a step and write down what it calls.

    Args:
        step: runs it once and returns the tensors that it computes, if any. It has run before:
            a first step makes what later ones find.
        naming: where in the network it is.
        parameters: by what they belong to.
        optimizer: whose calls are told from the others; None for none.
        device: that it runs on.
        line: says at which line of the user's own code the step is; None at none of it.
    """
    recorder = DispatchRecorder(device, parameters, line)
    handles = []
    if optimizer is not None:
        handles.append(
            optimizer.register_step_pre_hook(lambda *_: recorder.updates(optimizer)),
        )
    try:
        with naming(recorder):
            with recorder:
                results = recorder.slots(step())
            return recorder.finish(results)
    finally:
        for each in handles:
            each.remove()


def _in_place(
    calls: list[DispatchedCall], index: int, places: list[tuple[Any, ...]], sizes: dict[int, int]
) -> None:
    """Let a sum of gradients be made in place where autograd does so without a recorder.

    It writes into the first one if that fills its memory and nobody else has it: no base of a
    view, and if it is given back once the sum is there.
    """
    call = calls[index]
    storage = places[call.arguments[0].number][0]
    dead = [each for each in call.freed if places[each][0] == storage]
    if call.of_view or not dead or not _dense(*places[call.arguments[0].number][2:4]):
        return
    call.signature = call.signature.replace(str(call.function), str(_aten.add_.Tensor), 1)
    call.function = _aten.add_.Tensor
    call.freed = [each for each in call.freed if each not in dead]
    # The sum has that memory from now on, which is given back with it.
    made = places[call.results.number][0]
    sizes.pop(made, None)
    for later in calls[index + 1 :]:
        if any(places[each][0] == made for each in later.freed):
            later.freed += dead
            return


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor's elements fill its memory without a gap, none of them twice."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _reader(calls: list[DispatchedCall], made: DispatchedCall) -> tuple[str, ...]:
    """Return the names of the first call that reads a result."""
    begin = next(index for index, each in enumerate(calls) if each is made)
    for later in calls[begin + 1 :]:
        if made.results in leaves([later.arguments, later.keywords], StorageSlot):
            return later.names
    return ()


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where a tensor is: storage, first element, shape, strides, type, pending signs."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return id(tensor), 0, tuple(tensor.shape), (), tensor.dtype
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _asked_by_autograd() -> bool:
    """Whether it is autograd's own code, not Python's, that calls an operator."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"].startswith(_BETWEEN):
        frame = frame.f_back
    # A thread of autograd's own has no frame of Python's below.
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def _sequence() -> int:
    """Return the number of the next node of autograd's graph."""
    number: int = torch.autograd._get_sequence_nr()
    return number
