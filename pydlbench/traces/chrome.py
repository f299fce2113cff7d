"""Traces in Chrome's format: of PyTorch's profiler (``record_shapes=True``), and onnxruntime's."""

from __future__ import annotations

import ast
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.records.trace import ProgramCall
from pydlbench.traces import nodes
from pydlbench.traces.recorded import Recorded, Round, alike
from pydlbench.traces.torch_calls import (
    DTYPES,
    is_idle,
    is_operator,
    is_read,
    tensor,
    write_signature,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Time = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Duration = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Event(msgspec.Struct):
    """An event of a trace. Times in microseconds.

    Attributes:
        name: of what ran.
        ph: ``X`` of what has a duration.
        cat: what it is: ``cpu_op``, ``kernel``, ``user_annotation``, ``python_function``, ``Node``.
        ts: when it began.
        dur: how long it took.
        pid: of the process.
        tid: of the thread.
        args: what is known of it.
    """

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: _Time = 0.0
    dur: _Duration = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: dict[str, Any] = {}

    @property
    def end(self) -> float:
        """When it ended."""
        return self.ts + self.dur


def read(name: str, events: Sequence[Event]) -> Recorded:
    """Read a trace.

    Args:
        name: of the file, for messages.
        events: all of them.

    Raises:
        UsageError: no calls with shapes are in it.
    """
    complete = [event for event in events if event.ph == "X"]
    ran = [event for event in complete if event.cat == "Node"]
    if ran:
        return _of_onnxruntime(name, complete)
    operators = [event for event in complete if event.cat in ("cpu_op", "Operator")]
    if not operators:
        raise UsageError(
            f"{name}: no operators among its {len(events):,} events; nearest: a trace of PyTorch's "
            "profiler with record_shapes=True"
        )
    if not any("Input Dims" in event.args for event in operators):
        raise UsageError(
            f"{name}: recorded without shapes; nearest: torch.profiler.profile(record_shapes=True)"
        )
    return _of_torch(complete)


def _inside(event: Event, outer: Event) -> bool:
    return outer.ts <= event.ts < outer.end


# -----------------------------------------------------------------------------
# PyTorch. Of operators that call others, a call is the outermost that a rule reads; what has no
# rule and calls nothing is a call that nobody reads.

_STEP: Final = "ProfilerStep#"
_MODULE: Final = "nn.Module: "
_BACKWARD: Final = "autograd::engine::evaluate_function"
_OPTIMIZER: Final = "Optimizer."
_COMPILED: Final = "## Call CompiledFxGraph"
_MICRO: Final = 1e-6


@dataclass(slots=True)
class _Frame:
    """An event that is open, while those inside it are read."""

    event: Event
    direction: str
    module: str
    is_call: bool
    calls_others: bool = False
    inner_s: float = 0.0
    #: Of a call, ids of all that it called: those of a GPU's kernels are among them.
    ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Call:
    begin: float
    seconds: float
    call: ProgramCall


def _of_torch(events: Sequence[Event]) -> Recorded:
    steps = sorted((e for e in events if e.name.startswith(_STEP)), key=attrgetter("ts"))
    # The profiler shows a step on the GPU's rows again.
    steps = [e for e in steps if e.cat == "user_annotation" or not e.cat] or steps
    kernels: dict[int, float] = defaultdict(float)
    for event in events:
        if event.cat in ("kernel", "gpu_memcpy", "gpu_memset") and _id(event) is not None:
            kernels[_id(event) or 0] += event.dur * _MICRO
    calls, named = _calls_of(events, kernels)
    rounds = [
        _round([call for call in calls if step.ts <= call.begin < step.end], step.dur * _MICRO)
        for step in steps
    ]
    if not steps:
        rounds = [_round(calls, _extent(calls))]
    kept, notes = alike(rounds)
    if steps and (outside := sum(not any(s.ts <= c.begin < s.end for s in steps) for c in calls)):
        notes += (f"{outside} calls outside of the profiler's steps are left out",)
    return Recorded(
        source="PyTorch profiler", rounds=kept, named=named, on_gpu=bool(kernels), notes=notes
    )


def _round(calls: Sequence[_Call], step_s: float) -> Round:
    return Round(tuple(each.call for each in calls), tuple(each.seconds for each in calls), step_s)


def _extent(calls: Sequence[_Call]) -> float:
    """Return the seconds from the first call to the end of the last."""
    if not calls:
        return 0.0
    return (max(c.begin + c.seconds / _MICRO for c in calls) - calls[0].begin) * _MICRO


def _id(event: Event) -> int | None:
    number = event.args.get("External id", event.args.get("external id"))
    return number if isinstance(number, int) else None


def _calls_of(events: Sequence[Event], kernels: Mapping[int, float]) -> tuple[list[_Call], bool]:
    """Return the calls of all threads by their beginning, and whether modules are named."""
    threads: dict[tuple[int | str, int | str], list[Event]] = defaultdict(list)
    for event in events:
        own = event.cat in ("cpu_op", "Operator", "user_annotation")
        if own or event.name.startswith(_MODULE):
            threads[event.pid, event.tid].append(event)
    #: Modules of forward calls by autograd's number, which the gradient's events have as well.
    modules: dict[int, str] = {}
    calls: list[_Call] = []
    # The thread that begins first runs forward.
    for own_events in sorted(threads.values(), key=lambda every: min(e.ts for e in every)):
        calls += _Thread(own_events, kernels, modules).calls
    return sorted(calls, key=attrgetter("begin")), any(
        event.name.startswith(_MODULE) for event in events
    )


class _Thread:
    """Reads what one thread ran.

    Args:
        events: of it.
        kernels: seconds on a GPU by the id of what launched them.
        modules: by autograd's number; added to.
    """

    def __init__(
        self, events: Sequence[Event], kernels: Mapping[int, float], modules: dict[int, str]
    ) -> None:
        self.calls: list[_Call] = []
        self._kernels, self._modules = kernels, modules
        self._open: list[_Frame] = []
        for event in sorted(events, key=lambda e: (e.ts, -e.dur)):
            while self._open and self._open[-1].event.end <= event.ts:
                self._close()
            self._begin(event)
        while self._open:
            self._close()

    def _begin(self, event: Event) -> None:
        outer = self._open[-1] if self._open else None
        frame = _Frame(event, *self._place(event, outer), is_call=_is_read(event))
        number = event.args.get("Sequence number")
        if frame.direction == "forward" and isinstance(number, int):
            self._modules[number] = frame.module
        if outer is not None and outer.is_call:
            # Part of a call: only what it launched is looked at.
            outer.ids += [_id(event) or 0]
            return
        if outer is not None and _is_operator(event):
            for caller in self._open:
                caller.calls_others = True
        self._open.append(frame)

    def _place(self, event: Event, outer: _Frame | None) -> tuple[str, str]:
        """Return direction and module of what an event runs."""
        direction, module = (outer.direction, outer.module) if outer else ("forward", "")
        if event.name.startswith(_BACKWARD):
            number = event.args.get("Sequence number")
            known = self._modules.get(number, "") if isinstance(number, int) else ""
            return "backward", known or "backward"
        if event.name.startswith(_OPTIMIZER):
            return "optimizer", "optimizer"
        if event.name.startswith(_MODULE):
            return direction, event.name.removeprefix(_MODULE)
        annotated = event.cat == "user_annotation" and not event.name.startswith((_STEP, "## "))
        if annotated and not module:
            return direction, event.name
        return direction, module or direction * (direction != "forward")

    def _close(self) -> None:
        frame = self._open.pop()
        event, outer = frame.event, self._open[-1] if self._open else None
        unread = _is_operator(event) and not frame.calls_others and not is_idle(event.name)
        if frame.is_call or unread:
            self._add(frame, _operator_of(event.name), _signature_of(event), event.dur * _MICRO)
        elif event.name.startswith(_COMPILED):
            # What the compiler has written shows in no event of its own.
            own_s = event.dur * _MICRO - frame.inner_s
            self._add(frame, "generated kernels", "inductor.generated.default()", own_s)
        elif outer is not None:
            outer.inner_s += frame.inner_s

    def _add(self, frame: _Frame, operator: str, signature: str, seconds: float) -> None:
        ids = [_id(frame.event) or 0, *frame.ids]
        if self._kernels:
            seconds = sum(self._kernels.get(number, 0.0) for number in dict.fromkeys(ids))
        if self._open:
            self._open[-1].inner_s += frame.event.dur * _MICRO
        call = ProgramCall(
            operator=operator,
            module=frame.module or frame.direction,
            direction=frame.direction,
            signature=signature,
        )
        self.calls.append(_Call(frame.event.ts, max(0.0, seconds), call))


def _is_operator(event: Event) -> bool:
    return event.cat in ("cpu_op", "Operator") and is_operator(event.name)


def _operator_of(name: str) -> str:
    return name.replace("::", ".")


def _is_read(event: Event) -> bool:
    return _is_operator(event) and is_read(event.name)


def _signature_of(event: Event) -> str:
    args = event.args
    every = (args.get(f"Input {what}") or [] for what in ("type", "Dims", "Strides"))
    types, shapes, strides = (noted if isinstance(noted, list) else [] for noted in every)
    concrete = args.get("Concrete Inputs")
    texts = concrete if isinstance(concrete, list) else []
    noted = itertools.zip_longest(types, shapes, strides, texts, fillvalue="")
    arguments = [_argument(*each) for each in noted]
    return write_signature(event.name, arguments)


def _argument(kind: Any, shape: Any, strides: Any, text: Any) -> str:
    """Return an argument as text; what was not noted stands in angle brackets."""
    dtype = DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is not None:
        listed = shape if _is_sizes(shape) else []
        return tensor(dtype, listed, strides if _is_sizes(strides) else [])
    if kind == "":
        return "None"
    try:
        return repr(ast.literal_eval(str(text)[:1000]))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return str(text) if text in ("inf", "nan", "-inf") else f"<{kind}>"


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


# -----------------------------------------------------------------------------
# onnxruntime: a node's event has its tensors; an execution of the model has one around them.

_RUN: Final = "model_run"
_ENDING: Final = "_kernel_time"


def _of_onnxruntime(name: str, events: Sequence[Event]) -> Recorded:
    ran = [e for e in events if e.cat == "Node" and e.name.endswith(_ENDING)]
    ran = [e for e in ran if "input_type_shape" in e.args]
    if not ran:
        raise UsageError(f"{name}: nodes without shapes; nearest: a profile of onnxruntime 1.10 on")
    ran.sort(key=attrgetter("ts"))
    runs = sorted((e for e in events if e.name == _RUN), key=attrgetter("ts"))
    calls = [(event, nodes.call_of(event.name.removesuffix(_ENDING), event.args)) for event in ran]
    rounds = []
    for run in runs:
        own = [(event, call) for event, call in calls if _inside(event, run)]
        seconds = tuple(event.dur * _MICRO for event, _ in own)
        rounds.append(Round(tuple(call for _, call in own), seconds, run.dur * _MICRO))
    if not runs:
        seconds = tuple(event.dur * _MICRO for event, _ in calls)
        rounds = [Round(tuple(call for _, call in calls), seconds)]
    kept, notes = alike(rounds)
    providers = Counter(str(event.args.get("provider", "")) for event in ran)
    on_gpu = any(name.startswith(("CUDA", "Tensorrt", "ROCM")) for name in providers)
    inferred = "strides and paddings are not in this profile: they are inferred from sizes"
    return Recorded(
        source="onnxruntime profile",
        rounds=kept,
        named=True,
        on_gpu=on_gpu,
        notes=(*notes, inferred),
    )
