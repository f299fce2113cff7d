"""PyTorch's execution traces (PARAM's and Chakra's format): calls with all operands, no times."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec

from pydlbench.calls.meaning import bytes_of_type
from pydlbench.errors import UsageError
from pydlbench.records.trace import ProgramCall
from pydlbench.traces.outermost import OperatorEvent, visit
from pydlbench.traces.timeline import RecordedTrace, sequence_of_calls
from pydlbench.traces.torch_calls import DTYPES, read_schema, tensor, write_signature

_TENSOR: Final = re.compile(r"Tensor\((.+)\)")


class Values(msgspec.Struct):
    """Arguments or results of a node, as parallel lists."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] = []


class Attribute(msgspec.Struct):
    """A named value."""

    name: str
    value: Any = None


class ExecutionNode(msgspec.Struct):
    """A node of an execution trace; ``ctrl_deps`` is what called it (``parent`` in older ones)."""

    id: int
    name: str = ""
    ctrl_deps: int | None = None
    parent: int | None = None
    inputs: Values | list[Any] = []
    input_shapes: list[Any] = []
    input_types: list[str] = []
    outputs: Values | list[Any] = []
    output_shapes: list[Any] = []
    output_types: list[str] = []
    op_schema: str = ""
    attrs: list[Attribute] = []

    @property
    def caller(self) -> int | None:
        """The id of what called it."""
        return self.ctrl_deps if self.ctrl_deps is not None else self.parent

    @property
    def schema(self) -> str:
        """Of its operator; empty of what is none."""
        noted = (each.value for each in self.attrs if each.name == "op_schema")
        return str(next(noted, "")) or self.op_schema

    @property
    def arguments(self) -> Values:
        """What it reads."""
        if isinstance(self.inputs, Values):
            return self.inputs
        return Values(self.inputs, self.input_shapes, self.input_types)

    @property
    def results(self) -> Values:
        """What it writes."""
        if isinstance(self.outputs, Values):
            return self.outputs
        return Values(self.outputs, self.output_shapes, self.output_types)


def read(name: str, nodes: Sequence[ExecutionNode]) -> RecordedTrace:
    """Read an execution trace.

    Args:
        name: of the file, for messages.
        nodes: all of them.

    Raises:
        UsageError: no operators are in it.
    """
    events = {node.id: OperatorEvent(node.name, place) for place, node in enumerate(nodes)}
    roots: list[OperatorEvent] = []
    for node in sorted(nodes, key=attrgetter("id")):
        caller = events.get(node.id if node.caller is None else node.caller)
        known = caller is not None and caller is not events[node.id]
        (caller.inner if caller and known else roots).append(events[node.id])
    calls = [
        _call_of(nodes[call.event.place], call.direction)
        for call in visit(roots)
        if call.call is call.event and call.event.is_call
    ]
    if not calls:
        raise UsageError(
            f"{name}: no operators among its {len(nodes):,} nodes; nearest: a trace of "
            "torch.profiler.ExecutionTraceObserver"
        )
    seen = sum(len(list(root.all())) for root in roots)
    notes = ["an execution trace has no times: what dominates is judged by the limits"]
    if seen < len(nodes):
        notes.append(f"{len(nodes) - seen} nodes that nothing calls are left out")
    return RecordedTrace(
        source="PyTorch execution trace",
        timelines=(sequence_of_calls(calls, [0.0] * len(calls)),),
        timed=False,
        on_gpu=any(map(_is_on_gpu, nodes)),
        host_times=True,
        notes=tuple(notes),
    )


def _is_on_gpu(node: ExecutionNode) -> bool:
    """Whether it reads a tensor of a GPU: the last of what is noted of one is its device."""
    tensors = (value for value in node.arguments.values if isinstance(value, list) and value)
    return any(str(value[-1]).startswith("cuda") for value in tensors)


def _call_of(node: ExecutionNode, direction: str) -> ProgramCall:
    overload, parameters = read_schema(node.schema)
    writer = _ExecutionWriter()
    arguments = writer.texts(node.arguments)
    writer.texts(node.results)
    return ProgramCall(
        operator=node.name.replace("::", "."),
        module=direction,
        direction=direction,
        signature=write_signature(node.name, arguments, overload or "default", parameters),
        bytes=writer.bytes,
    )


@dataclass(slots=True)
class _ExecutionWriter:
    """Writes the arguments of one call, and counts the bytes of its tensors."""

    bytes: int = 0

    def texts(self, every: Values) -> list[str]:
        """Return arguments as texts."""
        shapes = [*every.shapes, *[[]] * len(every.values)]
        strides = [*every.strides, *[[]] * len(every.values)]
        return [
            self._text(value, kind, shape, stride)
            for value, kind, shape, stride in zip(
                every.values, every.types, shapes, strides, strict=False
            )
        ]

    def _text(self, value: Any, kind: str, shape: Any, strides: Any) -> str:
        if match := _TENSOR.fullmatch(kind):
            return self._tensor(match[1], shape, strides)
        if kind.startswith("GenericList[") and isinstance(value, list):
            kinds = kind[len("GenericList[") : -1].split(",")
            shapes, each = _padded(shape, len(value)), _padded(strides, len(value))
            inner = zip(value, kinds, shapes, each, strict=False)
            return f"[{', '.join(self._text(*each) for each in inner)}]"
        if kind == "None" or value == "<None>":
            return "None"
        if isinstance(value, (bool, int, float)) or (
            isinstance(value, list)
            and all(isinstance(number, (bool, int, float)) for number in value)
        ):
            return repr(value)
        return repr(value) if kind == "String" and isinstance(value, str) else f"<{kind}>"

    def _tensor(self, kind: str, shape: Any, strides: Any) -> str:
        dtype = DTYPES.get(kind)
        if dtype is None:  # one that was left out says that it is uninitialised
            return "None" if "nullptr" in kind else f"<{kind}>"
        sizes, steps = (
            each if isinstance(each, list) and all(type(n) is int for n in each) else []
            for each in (shape, strides)
        )
        self.bytes += math.prod(sizes) * bytes_of_type(dtype)
        return tensor(dtype, sizes, steps)


def _padded(listed: Any, number: int) -> list[Any]:
    return [*(listed if isinstance(listed, list) else []), *[[]] * number]
