"""A recorded step of PyTorch: every call of an operator, below autograd.

A :class:`DispatchRecorder` sees each call that reaches PyTorch's dispatcher: the calls of the
network, the loss, the backward pass and the optimizer. It keeps a program: operators on numbered
values, with the points at which memory is freed. It holds no tensor that the step created, because
autograd takes over a gradient, or accumulates into it in place, only if nobody else holds it.

Recording changes one thing that matters here: while a dispatch mode is active, autograd never
accumulates gradients in place. :meth:`DispatchRecorder.finish` corrects the recorded calls.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from pydlbench.backends.torch.dispatch import DispatchMode
from pydlbench.backends.torch.steps.signature import signature, unpacked
from pydlbench.calls.groups import StepCall, distinct_calls
from pydlbench.calls.seen.aten import leaves, map_leaves
from pydlbench.records.trace import Direction, OperatorsFacts, RecordedCall

_aten: Any = torch.ops.aten
# Modules whose frames lie between the caller of an operator and the recorder.
_DISPATCH_MODULES: Final = (
    __name__,
    "torch._compile",
    "torch._dynamo",
    "torch.utils._python_dispatch",
)
# Namespaces of operators that compute nothing: they mark time spans, or return a tensor's device.
_IGNORED_NAMESPACES: Final = ("profiler", "prim")


# -----------------------------------------------------------------------------
# The program of a step.


@dataclass(frozen=True, slots=True)
class StorageSlot:
    """A value by its number: a location in memory with a shape, strides and a type."""

    number: int


@dataclass(slots=True, kw_only=True)
class DispatchedCall:
    """A call of an operator, as the dispatcher sees it.

    Attributes:
        function: the operator's overload.
        arguments: positional arguments, with a :class:`StorageSlot` for each tensor.
        keywords: keyword arguments by name, with a :class:`StorageSlot` for each tensor.
        results: results, with a :class:`StorageSlot` for each tensor.
        freed: values whose memory is freed after the call.
        signature: see :mod:`pydlbench.backends.torch.steps.signature`.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        names: the user's modules or nodes of the graph that the call belongs to; ``loss`` after
            them.
        bytes: size of the call's operands and results in bytes.
        trained: see :class:`~pydlbench.records.trace.RecordedCall`; empty outside backward
            passes.
        sums: whether autograd adds two gradients of one value.
        of_view: whether a sum in place would write into a view, whose base shares the memory.
        implied: whether the recorder has added it, for a view that the step made without the
            dispatcher.
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
        calls: calls of the step, in their order.
        given: values that existed before the step, by number: weights, buffers, images.
        results: results of the step, with a :class:`StorageSlot` for each tensor.
        places: location of each value, by number: storage, first element, shape, strides, type.
        sizes: size in bytes of each storage that the step created.
        opaque: the reason why the program cannot be replayed; None if it can.
        lines: the line of the user's code that made the first call of a module, by module:
            ``my_model.py:15``.
    """

    calls: list[DispatchedCall]
    given: dict[int, torch.Tensor]
    results: Any
    places: list[tuple[Any, ...]]
    sizes: dict[int, int]
    opaque: str | None
    lines: dict[str, str]

    def distinct(self) -> tuple[RecordedCall, ...]:
        """Return each distinct call once, in the order of first occurrence."""
        return distinct_calls(self.in_order())

    def in_order(self) -> list[StepCall]:
        """Return the step's own calls in their order."""
        return [
            StepCall(
                signature=call.signature,
                operator=call.operator,
                direction=call.direction,
                names=call.names,
                bytes=call.bytes,
                trained=call.trained,
            )
            for call in self.calls
            if not call.implied
        ]

    def order(self) -> tuple[int, ...]:
        """Return the calls in their order, each by its index in :meth:`distinct`."""
        places: dict[tuple[str, str], int] = {}
        keys = [(call.signature, call.direction) for call in self.in_order()]
        return tuple(places.setdefault(key, len(places)) for key in keys)

    def facts(self, batch: int, notes: tuple[str, ...] = ()) -> OperatorsFacts:
        """Return the distinct calls with their order, batch and lines.

        Args:
            batch: batch of the step.
            notes: notes for the reader.
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
        step: runs the step once and returns its tensors: output and loss.
        recording: recording of a step that was not the first one.
        again: records one more step.
    """

    step: Callable[[], Any]
    recording: Recording
    again: Callable[[], Recording]

    def twice(self) -> tuple[Recording, tuple[str, ...]]:
        """Record one more step; return it, with a note if it makes other calls."""
        second = self.again()
        first, other = (
            [(call.signature, call.direction) for call in recording.calls]
            for recording in (self.recording, second)
        )
        if first == other:
            return second, ()
        note = (
            f"two steps made other calls ({len(first)} and {len(other)}): the model's control "
            "flow depends on data or chance; the second was taken"
        )
        return second, (note,)


# -----------------------------------------------------------------------------
# Names of calls.

#: Makes a context that tells a recorder which part of the network is running.
Naming: TypeAlias = Callable[["DispatchRecorder"], contextlib.AbstractContextManager[None]]


def by_module(root: nn.Module) -> Naming:
    """Name calls after the modules that are running: ``features.4.block.1``.

    Args:
        root: the module that the step calls; calls until it returns are ``forward``, later ones
            ``loss``.
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

        # Global hooks: with a hook of its own nn.MultiheadAttention takes no fused path.
        handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return naming


# -----------------------------------------------------------------------------
# Recording.


class DispatchRecorder(DispatchMode):
    """A dispatch mode that records every call.

    Args:
        device: device that the step runs on.
        parameters: name of each parameter's module or node, by parameter.
        line: returns the line of the user's code that is running; None if there is none.
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
        # A weak reference keeps the address of a storage from being reused.
        self._storages: dict[int, StorageWeakRef] = {}
        self._alive: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._values: dict[int, list[int]] = {}
        self._kept: list[torch.Tensor] = []
        self._views: set[int] = set()
        # The call that created each value; autograd's current node, and the first call in it.
        self._born: dict[int, int] = {}
        self._node = -1
        self._entered = 0
        self._opaque: str | None = None
        self._name, self._direction = "", "forward"
        # Number of autograd's next node when last read. Forward calls create nodes, so a change
        # tells which nodes belong to which module.
        self._numbered = _sequence()
        self._owners: dict[int, str] = {}
        self._parameters = {id(tensor): name for tensor, name in parameters.items()}
        self._weights = {
            tensor.untyped_storage()._cdata: name for tensor, name in parameters.items()
        }

    def at(self, name: str, direction: Direction) -> None:
        """Set the name and direction of the following calls.

        Args:
            name: name of the running module or node; empty if none is running.
            direction: ``forward``, ``loss`` or ``optimizer``; backward passes are detected.
        """
        self._number()
        self._name, self._direction = name, direction

    def updates(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the calls of an optimizer; gradients and states belong to their parameters."""
        self.at("", "optimizer")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._parameters.get(id(parameter), "")
                states = list(optimizer.state.get(parameter, {}).values())
                for tensor in leaves([parameter.grad, states], torch.Tensor):
                    with contextlib.suppress(NotImplementedError):  # sparse tensors have no storage
                        self._weights[tensor.untyped_storage()._cdata] = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record a call, and make it."""
        kwargs = kwargs or {}
        if func.namespace in _IGNORED_NAMESPACES:
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
        # After the calls that its arguments have implied.
        self._calls.append(call)
        result = func(*args, **kwargs)
        call.results = map_leaves(result, self._created)
        if direction == "optimizer":
            self._pass_on(names, args, result)
        self._note_views(call)
        tensors = leaves([map_leaves([args, kwargs], unpacked), result], torch.Tensor)
        call.bytes = sum(map(_bytes, tensors))
        return result

    def _pass_on(self, names: tuple[str, ...], args: tuple[Any, ...], result: Any) -> None:
        """Assign an optimizer's temporaries to the parameters of the operands.

        An operator on lists returns as many tensors as its first list has.
        """
        results = list(leaves([result], torch.Tensor))
        owners = [self._owner(tensor) for tensor in leaves(args[:1], torch.Tensor)]
        if len(owners) != len(results) or None in owners:
            owners = [*names] * len(results) if len(names) == 1 else []
        for tensor, owner in zip(results, owners, strict=False):
            with contextlib.suppress(NotImplementedError):  # sparse tensors have no storage
                self._weights.setdefault(tensor.untyped_storage()._cdata, owner or "")

    def slots(self, results: Any) -> Any:
        """Return the slots of the step's results."""
        return map_leaves(results, self._slot_of)

    def finish(self, results: Any) -> Recording:
        """Return the recording; call it when nobody holds the step's results any more.

        Args:
            results: slots of the step's results.
        """
        self._sweep()
        places = list(self._slots)
        for index, call in enumerate(self._calls):
            if call.sums:
                _in_place(self._calls, index, places, self._sizes)
        for call in reversed(self._calls):
            if call.sums:  # a sum belongs to the call that reads it
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
            owners = (self._owner(tensor) for tensor in leaves([args], torch.Tensor))
            return "optimizer", tuple(dict.fromkeys(owner for owner in owners if owner)), False
        return self._direction, (self._name,) if self._name else (), False

    def _copies(self, tensor: torch.Tensor, same: bool) -> bool:
        """Whether a ``detach`` is autograd's own, of a tensor that it saves or restores.

        The dispatcher sees these only while a mode is active. In the forward pass they follow the
        call whose result is saved; a ``detach`` of the user's code at that point is left out, too.

        Args:
            tensor: tensor that is detached.
            same: whether autograd has created no node since the last call.
        """
        if torch._C._current_graph_task_id() != -1:
            node = torch._C._current_autograd_node()
            return not hasattr(node, "variable") and _asked_by_autograd()
        slot = self._slots.get(_place(tensor))
        last = self._calls[-1].results if self._calls else None
        return same and slot is not None and StorageSlot(slot) in leaves([last], StorageSlot)

    def _sums(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether autograd adds two gradients of one value, outside of any node.

        In that case one of the two comes from an earlier node, and no Python code makes the call.
        """
        if func is not _aten.add.Tensor or not all(isinstance(x, torch.Tensor) for x in args):
            return False
        return (
            _asked_by_autograd()
            and self._born.get(self._slots[_place(args[0])], -1) < self._entered
        )

    def _trained(self, operands: Any) -> tuple[int, ...]:
        """Return the indices of a call's operands that are parameters, or views of them."""
        tensors = leaves(operands, torch.Tensor)
        return tuple(
            place for place, tensor in enumerate(tensors) if self._owner(tensor) is not None
        )

    def _owner(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the parameter that a tensor belongs to; None if it does not."""
        with contextlib.suppress(NotImplementedError):  # sparse tensors have no storage
            return self._weights.get(tensor.untyped_storage()._cdata)
        return None

    def _number(self) -> None:
        """Assign autograd's new nodes to the running module; the backward pass creates none."""
        if torch._C._current_graph_task_id() != -1:
            return
        now = _sequence()
        for number in range(self._numbered, now):
            self._owners[number] = self._name
        self._numbered = now

    def _sweep(self) -> None:
        """Add the values freed since the last call to that call."""
        # As StorageWeakRef.expired() does, without two Python calls for each value and call.
        expired: Any = torch.UntypedStorage._expired
        gone = [storage for storage in self._alive if expired(self._storages[storage].cdata)]
        self._alive.difference_update(gone)
        if self._calls:
            freed = (slot for storage in gone for slot in self._values[storage])
            self._calls[-1].freed += sorted(freed)

    def _read(self, value: Any) -> Any:
        """Return the slot of an argument, which may be new; other values unchanged."""
        if not isinstance(value, torch.Tensor):
            return value
        place, known = self._enter(value)
        if place in self._slots:
            return StorageSlot(self._slots[place])
        slot = self._new(place)
        if not known:
            # Detached: a weight would keep autograd's graph alive.
            self._given[slot] = value.detach()
        elif place[0] in self._sizes:
            self._imply(slot, value)
        else:
            self._given[slot] = value.detach()
        return StorageSlot(slot)

    def _created(self, value: Any) -> Any:
        """Return the slot of a result; None for other values."""
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
        """Keep track of the values that are views; in-place calls return their arguments."""
        aliases = [value.alias_info for value in call.function._schema.returns]
        slots = {slot.number for slot in leaves([call.results], StorageSlot)}
        if all(alias is None for alias in aliases):
            self._views -= slots
        elif not any(alias is not None and alias.is_write for alias in aliases):
            self._views |= slots

    def _slot_of(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        slot = self._slots.get(_place(value))
        return None if slot is None else StorageSlot(slot)

    def _enter(self, tensor: torch.Tensor) -> tuple[tuple[Any, ...], bool]:
        """Return a tensor's location, and whether its memory has been seen before."""
        place = _place(tensor)
        storage = place[0]
        if storage in self._values:
            return place, True
        self._values[storage] = []
        try:
            self._storages[storage] = StorageWeakRef(tensor.untyped_storage())
        except NotImplementedError:
            self._opaque = f"a {tensor.layout} tensor, whose memory cannot be followed"
            self._kept.append(tensor)  # so that its id is not reused
        return place, False

    def _new(self, place: tuple[Any, ...]) -> int:
        slot = self._slots[place] = len(self._slots)
        self._values[place[0]].append(slot)
        return slot

    def _imply(self, slot: int, tensor: torch.Tensor) -> None:
        """Add the call for a view that was made without the dispatcher."""
        others = [other for other in self._values[_place(tensor)[0]] if other != slot]
        places = list(self._slots)
        bases = [other for other in others if places[other][4:] == places[slot][4:]]
        if not bases:
            self._opaque = f"a view of another type ({tensor.dtype}) made without the dispatcher"
            return
        view = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
        self._calls.append(
            DispatchedCall(
                function=_aten.as_strided.default,
                arguments=(StorageSlot(bases[0]), *view),
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
    """Run a step and record its calls.

    Args:
        step: runs the step once and returns its tensors, if any. It has run before, because a first
            step creates the state of later ones.
        naming: naming of the step's calls.
        parameters: name of each parameter's module or node, by parameter.
        optimizer: optimizer of the step; None if it has none.
        device: device that the step runs on.
        line: returns the line of the user's code that is running; None if there is none.
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
        for handle in handles:
            handle.remove()


def _in_place(
    calls: list[DispatchedCall], index: int, places: list[tuple[Any, ...]], sizes: dict[int, int]
) -> None:
    """Change a sum of gradients to one in place if autograd would make it so without a recorder.

    Autograd writes into the first gradient if that gradient is dense and not shared: it is no
    view, and it is freed after the sum.
    """
    call = calls[index]
    storage = places[call.arguments[0].number][0]
    dead = [slot for slot in call.freed if places[slot][0] == storage]
    if call.of_view or not dead or not _dense(*places[call.arguments[0].number][2:4]):
        return
    call.signature = call.signature.replace(str(call.function), str(_aten.add_.Tensor), 1)
    call.function = _aten.add_.Tensor
    call.freed = [slot for slot in call.freed if slot not in dead]
    # The sum has this memory from now on, and frees it.
    unused = places[call.results.number][0]
    sizes.pop(unused, None)
    for later in calls[index + 1 :]:
        if any(places[slot][0] == unused for slot in later.freed):
            later.freed += dead
            return


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor's elements fill its memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _reader(calls: list[DispatchedCall], call: DispatchedCall) -> tuple[str, ...]:
    """Return the names of the first call that reads another call's result."""
    begin = next(index for index, other in enumerate(calls) if other is call)
    for later in calls[begin + 1 :]:
        if call.results in leaves([later.arguments, later.keywords], StorageSlot):
            return later.names
    return ()


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor's storage, first element, shape, strides, type, and lazy conjugation."""
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
    """Whether autograd itself, not Python code, calls an operator."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"].startswith(_DISPATCH_MODULES):
        frame = frame.f_back
    # A thread of autograd has no Python frames below.
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def _sequence() -> int:
    """Return the number of the next node of autograd's graph."""
    number: int = torch.autograd._get_sequence_nr()
    return number
