"""Traces in Chrome's format: profiles of PyTorch (see ``traces/pytorch.py``) and onnxruntime."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.traces import nodes, pytorch, timeline
from pydlbench.traces.events import ChromeEvent
from pydlbench.traces.recorded import RecordedTrace
from pydlbench.traces.timeline import Activity, Origin, StepTimeline, TimeSpan

_MICRO: Final = 1e-6


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
    ran = [e for e in ran if e.noted.input_type_shape is not None]
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
    providers = Counter(str(event.noted.provider or "") for event in ran)
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
        timelines=tuple(timelines or [StepTimeline(activities=tuple(activities), begin=0.0)]),
        on_gpu=on_gpu,
        host_times=True,
        notes=(inferred,),
    )


def _node(event: ChromeEvent, place: int, first: float) -> Activity:
    args = msgspec.structs.asdict(event.noted)
    call = nodes.call_of(event.name.removesuffix(_ENDING), args)
    begin = (event.ts - first) * _MICRO
    return Activity(
        name=event.name,
        kind=timeline.KERNEL,
        interval=TimeSpan(begin, begin + event.dur * _MICRO),
        seconds=event.dur * _MICRO,
        launch=None,
        origin=Origin(
            number=place, call=call, modules=(call.module,), shapes=timeline.shapes_of(call)
        ),
    )
