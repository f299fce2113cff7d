"""Traces in Chrome's format: profiles of PyTorch (see ``traces/pytorch.py``) and onnxruntime."""

from __future__ import annotations

import bisect
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.traces import nodes, pytorch, timeline
from pydlbench.traces.recorded import RecordedTrace, Round, alike
from pydlbench.traces.timeline import Activity, Origin, StepTimeline, TimeSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

_Time = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Duration = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_MICRO: Final = 1e-6


class Arguments(
    msgspec.Struct,
    rename={
        "external": "External id",
        "external_lower": "external id",
        "sequence": "Sequence number",
        "types": "Input type",
        "shapes": "Input Dims",
        "strides": "Input Strides",
        "concrete": "Concrete Inputs",
    },
):
    """What a profiler notes of an event. Other keys are not read.

    Attributes:
        external: number of the operator; of old files of the launch.
        external_lower: the same under another name.
        correlation: number that a launch shares with what it launched.
        sequence: autograd's sequence number.
        types: of the operands, in C++'s words.
        shapes: of the operands.
        strides: of the operands, in elements.
        concrete: values of what is no tensor.
        device: number of the device.
        bytes: that a copy moves.
        provider: onnxruntime's execution provider.
        op_name: onnxruntime's operator.
        input_type_shape: onnxruntime's operands.
        output_type_shape: onnxruntime's results.
    """

    external: Any = None
    external_lower: Any = None
    correlation: Any = None
    sequence: Any = None
    types: Any = None
    shapes: Any = None
    strides: Any = None
    concrete: Any = None
    device: Any = None
    bytes: Any = None
    provider: Any = None
    op_name: Any = None
    input_type_shape: Any = None
    output_type_shape: Any = None

    def __post_init__(self) -> None:
        """Use one name of the external id, and no ids that cannot be keys."""
        ids = (self.external if self.external is not None else self.external_lower,)
        self.external = next((each for each in ids if isinstance(each, (int, str))), None)
        if not isinstance(self.correlation, (int, str)):
            self.correlation = None
        if not isinstance(self.device, (int, str)):
            self.device = None


class ChromeEvent(msgspec.Struct):
    """An event of a trace. Times in microseconds.

    Attributes:
        name: of what ran.
        ph: ``X`` of what has a duration.
        cat: category: ``cpu_op``, ``kernel``, ``user_annotation``, ``python_function``, ``Node``.
        ts: when it began.
        dur: how long it took.
        pid: of the process.
        tid: of the thread.
        args: what was noted of it.
    """

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: _Time = 0.0
    dur: _Duration = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: Arguments = msgspec.field(default_factory=Arguments)

    @property
    def end(self) -> float:
        """When it ended."""
        return self.ts + self.dur


def read(name: str, events: Sequence[ChromeEvent], device: str | None = None) -> RecordedTrace:
    """Read a trace.

    Args:
        name: of the file, for messages.
        events: all of them.
        device: the device's name from the file, if it has one.

    Raises:
        UsageError: neither operators nor kernels are in it.
    """
    complete = [event for event in events if event.ph == "X"]
    if any(event.cat == "Node" for event in complete):
        return _read_onnxruntime(name, complete)
    if not pytorch.is_profile(complete):
        raise UsageError(
            f"{name}: no operators and no kernels among its {len(events):,} events; nearest: a "
            "trace of PyTorch's profiler with record_shapes=True"
        )
    return pytorch.read(name, complete, device)


# -----------------------------------------------------------------------------
# onnxruntime: a node's event has its tensors; an execution of the model has one around them.

_RUN: Final = "model_run"
_ENDING: Final = "_kernel_time"
_CPU_PROVIDER: Final = "CPUExecutionProvider"


def _read_onnxruntime(name: str, events: Sequence[ChromeEvent]) -> RecordedTrace:
    ran = [e for e in events if e.cat == "Node" and e.name.endswith(_ENDING)]
    ran = [e for e in ran if e.args.input_type_shape is not None]
    if not ran:
        raise UsageError(f"{name}: nodes without shapes; nearest: a profile of onnxruntime 1.10 on")
    ran.sort(key=attrgetter("ts"))
    first = ran[0].ts
    activities = [_node(event, place, first) for place, event in enumerate(ran)]
    runs = sorted((e for e in events if e.name == _RUN), key=attrgetter("ts"))
    begins = [event.ts for event in ran]
    parts = [
        (activities[bisect.bisect_left(begins, run.ts) : bisect.bisect_left(begins, run.end)], run)
        for run in runs
    ]
    rounds = [_round(part, run.dur * _MICRO) for part, run in parts]
    kept, notes = alike(rounds or [_round(activities, None)])
    providers = Counter(str(event.args.provider or "") for event in ran)
    on_gpu = any(provider not in ("", _CPU_PROVIDER) for provider in providers)
    inferred = "strides and paddings are not in this profile: they are inferred from sizes"
    timelines = [
        StepTimeline(
            activities=tuple(part), begin=(run.ts - first) * _MICRO, host_s=run.dur * _MICRO
        )
        for part, run in parts
        if part
    ]
    return RecordedTrace(
        source="onnxruntime profile",
        rounds=kept,
        timelines=tuple(timelines or [StepTimeline(activities=tuple(activities), begin=0.0)]),
        named=True,
        on_gpu=on_gpu,
        host_times=True,
        notes=(*notes, inferred),
    )


def _node(event: ChromeEvent, place: int, first: float) -> Activity:
    args = msgspec.structs.asdict(event.args)
    call = nodes.call_of(event.name.removesuffix(_ENDING), args)
    begin = (event.ts - first) * _MICRO
    return Activity(
        name=event.name,
        kind=timeline.KERNEL,
        interval=TimeSpan(begin, begin + event.dur * _MICRO),
        seconds=event.dur * _MICRO,
        launch=None,
        origin=Origin(number=place, call=call, direction="forward", modules=(call.module,)),
    )


def _round(activities: Sequence[Activity], step_s: float | None) -> Round:
    calls = [each for each in activities if each.origin.call is not None]
    return Round(
        tuple(each.origin.call for each in calls if each.origin.call),
        tuple(each.seconds for each in calls),
        step_s,
    )
