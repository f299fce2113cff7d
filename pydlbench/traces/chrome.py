"""Traces in Chrome's format: of PyTorch's profiler (``record_shapes=True``), and onnxruntime's."""

from __future__ import annotations

import ast
import bisect
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.records.trace import ProgramCall
from pydlbench.traces import nodes, outermost
from pydlbench.traces.outermost import COMPILED, calls_of, name_modules
from pydlbench.traces.recorded import Recorded, Round, alike
from pydlbench.traces.torch_calls import DTYPES, tensor, write_signature

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    return _of_torch(name, complete)


def _within(timed: Sequence[_Timed], outer: Event) -> tuple[int, int]:
    """Return where the calls begin and end that begin within an event, of all in order of time."""
    begin = attrgetter("begin")
    first = bisect.bisect_left(timed, outer.ts, key=begin)
    return first, bisect.bisect_left(timed, outer.end, lo=first, key=begin)


@dataclass(frozen=True, slots=True)
class _Timed:
    begin: float
    seconds: float
    call: ProgramCall


def _round(calls: Sequence[_Timed], step_s: float | None) -> Round:
    seconds = tuple(each.seconds for each in calls)
    return Round(tuple(each.call for each in calls), seconds, step_s)


# -----------------------------------------------------------------------------
# PyTorch.

_STEP: Final = "ProfilerStep#"
#: Of what a thread has called; ``Operator`` in older versions.
_NOTED: Final = ("cpu_op", "Operator", "user_annotation")
_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_MICRO: Final = 1e-6
_DEEPEST: Final = 1000


def _of_torch(name: str, events: Sequence[Event]) -> Recorded:
    steps = sorted((e for e in events if e.name.startswith(_STEP)), key=attrgetter("ts"))
    # The profiler shows a step on the GPU's rows again.
    steps = [e for e in steps if e.cat == "user_annotation"] or steps
    kernels: dict[int, float] = defaultdict(float)
    for event in events:
        if event.cat in _GPU and (number := _id(event)) is not None:
            kernels[number] += event.dur * _MICRO
    roots = _nested(name, events)
    calls = sorted(_timed(events, roots, kernels), key=attrgetter("begin"))
    rounds = [_round(calls[slice(*_within(calls, step))], step.dur * _MICRO) for step in steps]
    if not steps:
        end = max((call.begin + call.seconds / _MICRO for call in calls), default=0.0)
        rounds = [_round(calls, (end - calls[0].begin) * _MICRO if calls else 0.0)]
    kept, notes = alike(rounds)
    outside = len(calls) - sum(len(each.calls) for each in rounds)
    if outside:
        notes += (f"{outside} calls outside of the profiler's steps are left out",)
    return Recorded(
        source="PyTorch profiler",
        rounds=kept,
        named=name_modules(roots),
        on_gpu=bool(kernels),
        notes=notes,
    )


def _id(event: Event) -> int | None:
    number = event.args.get("External id", event.args.get("external id"))
    return number if isinstance(number, int) else None


def _nested(name: str, events: Sequence[Event]) -> list[outermost.Event]:
    """Return what no other event of its thread has called, thread by thread.

    Raises:
        UsageError: events lie in each other too deep.
    """
    threads: dict[tuple[int | str, int | str], list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        if event.cat in _NOTED or event.name.startswith("nn.Module: "):
            threads[event.pid, event.tid].append(place)
    roots: list[outermost.Event] = []
    # The thread that begins first runs forward.
    for places in sorted(threads.values(), key=lambda own: min(events[place].ts for place in own)):
        callers: list[outermost.Event] = []
        for place in sorted(places, key=lambda place: (events[place].ts, -events[place].dur)):
            event = events[place]
            while callers and events[callers[-1].place].end <= event.ts:
                callers.pop()
            if len(callers) == _DEEPEST:
                raise UsageError(
                    f"{name}: {event.name[:60]!r}: more than {_DEEPEST:,} events around it; "
                    "nearest: record it again"
                )
            number = event.args.get("Sequence number")
            annotates = event.cat == "user_annotation" and not event.name.startswith((_STEP, "## "))
            nested = outermost.Event(
                name=event.name,
                place=place,
                number=number if isinstance(number, int) else None,
                annotates=annotates,
            )
            (callers[-1].inner if callers else roots).append(nested)
            callers.append(nested)
    return roots


def _timed(
    events: Sequence[Event], roots: Sequence[outermost.Event], kernels: Mapping[int, float]
) -> Iterator[_Timed]:
    """Give the calls; what runs on a GPU takes what its kernels take."""
    for call in calls_of(roots):
        event = events[call.event.place]
        operator, signature = event.name.replace("::", "."), "inductor.generated.default()"
        seconds = event.dur * _MICRO
        if event.name.startswith(COMPILED):
            operator = "generated kernels"
            inside = calls_of(call.event.inner)
            seconds -= sum(events[each.event.place].dur for each in inside) * _MICRO
        else:
            signature = _signature_of(event)
        if kernels:
            numbers = dict.fromkeys(_id(events[inner.place]) for inner in call.event.all())
            seconds = sum(kernels.get(number or 0, 0.0) for number in numbers)
        made = ProgramCall(
            operator=operator, module=call.module, direction=call.direction, signature=signature
        )
        yield _Timed(event.ts, max(0.0, seconds), made)


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
    calls = [
        _Timed(
            event.ts,
            event.dur * _MICRO,
            nodes.call_of(event.name.removesuffix(_ENDING), event.args),
        )
        for event in ran
    ]
    rounds = [_round(calls[slice(*_within(calls, run))], run.dur * _MICRO) for run in runs]
    rounds = rounds or [_round(calls, None)]
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
