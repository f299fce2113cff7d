"""Traces in Chrome's format: profiles of PyTorch (see ``traces/pytorch.py``) and onnxruntime."""

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from pydlbench.calls.seen.onnx import OnnxNode, Tensor
from pydlbench.errors import UsageError
from pydlbench.records.trace import ProgramCall
from pydlbench.traces import pytorch, timeline
from pydlbench.traces.events import ChromeEvent
from pydlbench.traces.timeline import Activity, Origin, RecordedTrace, StepTimeline, TimeSpan

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
    call = call_of(event.name.removesuffix(_ENDING), args)
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


# -----------------------------------------------------------------------------
# Nodes of an ONNX model from onnxruntime's profile, which has tensors and no attributes.

_DTYPES: Final = {"float": "float32", "double": "float64"}
#: ONNX's number of a list of integers, and of an integer.
_INTS, _INT = 7, 2
_VERSION: Final = 17
_WINDOWS: Final = ("MaxPool", "AveragePool", "LpPool")
_PRODUCTS: Final = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul")
#: Number of gates of recurrent layers, whose weights onnxruntime packs.
_GATES: Final = {"LSTM": 4, "GRU": 3}


def call_of(module: str, args: Mapping[str, Any]) -> ProgramCall:
    """Return a node that ran.

    Args:
        module: its name.
        args: of its event.
    """
    operator = str(args.get("op_name", ""))
    inputs, outputs = (_tensors(args.get(f"{what}_type_shape")) for what in ("input", "output"))
    inputs = _with_packed(operator, inputs, outputs)
    inputs = _with_batches_first(operator, inputs, outputs)
    node = OnnxNode(
        operator=operator,
        version=_VERSION,
        inputs=inputs,
        outputs=outputs,
        attributes=_attributes(operator, inputs, outputs),
        lacks="its window is not in onnxruntime's profile" if operator in _WINDOWS else "",
    )
    return ProgramCall(
        operator=node.name,
        module=module,
        direction="forward",
        signature=node.signature,
        bytes=node.bytes,
    )


def _tensors(listed: Any) -> tuple[Tensor, ...]:
    items = listed if isinstance(listed, list) else []
    pairs = [pair for each in items if isinstance(each, dict) for pair in each.items()]
    return tuple(
        Tensor(dtype=_DTYPES.get(str(dtype), str(dtype)), shape=tuple(shape))
        for dtype, shape in pairs
        if isinstance(shape, list) and all(type(size) is int for size in shape)
    )


def _with_packed(
    operator: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return a call's operands with its weights, which the profile lacks once they are packed."""
    if not inputs or not outputs or not inputs[0].shape or not outputs[0].shape:
        return inputs
    left, result = inputs[0], outputs[0]
    sides = [len(each.shape) for each in inputs[1:3]]
    shapes: list[tuple[int, ...]] = []
    if operator in _GATES and 3 not in sides[:1] and len(result.shape) > 2:
        hidden, gates = result.shape[-1], (result.shape[-3], _GATES[operator] * result.shape[-1])
        shapes = [(*gates, left.shape[-1]), (*gates, hidden)]
    elif operator in _PRODUCTS and (not sides or sides[0] < 2 <= len(left.shape)):
        shapes = [(left.shape[-1], result.shape[-1])]
    weights = [Tensor(dtype=left.dtype, shape=shape, constant=True) for shape in shapes]
    return (left, *weights, *inputs[1:])


def _with_batches_first(
    operator: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return a product's operands with their batch axes first."""
    if operator != "FusedMatMul" or not outputs:
        return inputs
    batches = outputs[0].shape[:-2]
    return tuple(
        Tensor(dtype=each.dtype, shape=(*batches, each.shape[0], each.shape[-1]))
        if each.shape[:-2] != batches == each.shape[1:-1]
        else each
        for each in inputs
    )


def _attributes(
    operator: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> dict[str, tuple[int, Any]]:
    if len(inputs) < 2 or not outputs:
        return {}
    left, right, result = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if operator in ("Conv", "FusedConv", "NhwcFusedConv") and len(left) == len(right) > 2:
        return _window(left, right, result)
    if operator in ("Gemm", "FusedGemm", "FusedMatMul") and len(left) == len(result) > 1:
        turned = left[-2] != result[-2]
        inner = left[-2 if turned else -1]
        across = len(right) > 1 and (right[-2], right[-1]) != (inner, result[-1])
        return {"transA": (_INT, int(turned)), "transB": (_INT, int(across))}
    return {}


def _window(
    source: Sequence[int], weights: Sequence[int], result: Sequence[int]
) -> dict[str, tuple[int, Any]]:
    strides, before, after = [], [], []
    for size, taps, out in zip(source[2:], weights[2:], result[2:], strict=True):
        stride = max(1, round(size / max(1, out)))
        around = max(0, (out - 1) * stride + taps - size)
        strides.append(stride)
        # Where it is odd, the pads that a model asks for are mostly alike, and the last is idle.
        before.append(around - around // 2)
        after.append(around // 2)
    groups = max(1, source[1] // max(1, weights[1]))
    return {
        "group": (_INT, groups),
        "strides": (_INTS, strides),
        "pads": (_INTS, [*before, *after]),
    }
