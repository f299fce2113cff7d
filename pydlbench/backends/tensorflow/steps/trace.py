"""TensorFlow's own trace of its calls: the kernels behind a function, and their times."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydlbench.backends.frameworks import hlo
from pydlbench.backends.steps.trace import StepTrace
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.backends.tensorflow.steps.graph import executed
from pydlbench.errors import PrimitiveError
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.backends.tensorflow.layers.layer_pass import FunctionOperator


# -----------------------------------------------------------------------------
# TensorFlow's own trace of its calls: how long the kernels behind a function took.
#
# Its profiler records when each node of a graph begins and ends, each program of XLA's and each
# instruction in it. That is a measurement of its own, beside the time of the call: what TensorFlow
# does around its kernels is not in it.

# The whole program that XLA compiled, its threads waited for.
_PROGRAM = "CpuExecutable::ExecuteAsyncOnStream"
# An instruction goes on in other threads after its own event: this one marks that it is done.
_END = "end: "
# A node of a graph, by its name and its operator: Conv2D:_MklNativeConv2D.
_NODE = re.compile(r"([\w./-]+):([A-Za-z_]\w*)")
# What brings tensors in and out, and calls.
_TRACE_PLUMBING = ("_Arg", "_Retval", "Const", "NoOp", "__inference")
# Brings operands into another order: transpose_copy_fusion.1.
_CONVERTS = re.compile(r"transpose|copy", re.IGNORECASE)
_CALLS = 7
_LONG_S = 0.5
# How often a trace is taken until the profiler has lost too little to matter.
_ATTEMPTS = 3
#: The threads of its pools have their lines in the host's plane too.
_HOST = "/host:CPU"


@dataclass(frozen=True, slots=True)
class TensorFlowEvent:
    """An event of a trace: its name, when it began and how long it took, in seconds."""

    name: str
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFunction:
    """What a call's time went into, in seconds per call.

    Attributes:
        kernel_s: kernels, without conversions.
        reorder_s: operands brought into another order.
        call_s: the traced call as a whole, by our clock.
    """

    kernel_s: float
    reorder_s: float
    call_s: float


def kernels_in(events: Sequence[TensorFlowEvent], calls: int) -> tuple[float, float] | None:
    """Return the seconds per call of kernels, and of conversions, from a trace's events.

    Args:
        events: of so many equal calls, in any order.
        calls: how many.

    Returns:
        Of XLA's program where there is one, else of the graph's nodes; each in the middle of its
        calls. None if the events do not belong to so many equal calls; one in ten may be lost.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        times[event.name].append(event.seconds)
    if _PROGRAM in times:
        if not _complete(times[_PROGRAM], calls):
            return None
        converting = sum(
            median(taken)
            for name in times
            if _CONVERTS.search(name) and _complete(taken := _until_end(events, name), calls)
        )
        return median(times[_PROGRAM]) - converting, converting
    nodes = {
        name: taken
        for name, taken in times.items()
        if (match := _NODE.fullmatch(name)) and not match[2].startswith(_TRACE_PLUMBING)
    }
    if not nodes or not all(_complete(taken, calls) for taken in nodes.values()):
        return None
    total = sum(median(taken) for taken in nodes.values())
    converting = sum(median(taken) for name, taken in nodes.items() if _CONVERTS.search(name))
    return total - converting, converting


def _complete(taken: Sequence[float], calls: int) -> bool:
    """Whether there is an event for each call; of many, the profiler may have dropped some."""
    return calls - calls // 10 <= len(taken) <= calls


def _until_end(events: Sequence[TensorFlowEvent], name: str) -> list[float]:
    """Seconds from each beginning of an instruction until it was done; nothing if unknown."""
    starts = sorted(event.start_s for event in events if event.name == name)
    ends = sorted(event.start_s for event in events if event.name == _END + name)
    if len(starts) != len(ends):
        return []
    return [end - start for start, end in zip(starts, ends, strict=True)]


def calls_for(seconds: float) -> int:
    """Return how many calls are traced: one where a call takes long."""
    return _CALLS if seconds < _LONG_S else 1


def trace(call: Callable[[], Any], calls: int) -> TracedFunction | None:
    """Trace some calls of a function that has run before.

    Args:
        call: runs it once.
        calls: how often.

    Returns:
        None where the trace tells nothing of the kernels.
    """
    try:
        # The profiler drops an event now and then; half a trace tells nothing.
        whole = (_trace(call, calls) for _ in range(_ATTEMPTS))
        return next((each for each in whole if each is not None), None)
    except Exception:  # noqa: BLE001 - a trace is not worth a row, and its format is not stable
        return None


def node_runs(call: Callable[[], Any]) -> dict[str, int]:
    """Return how often the nodes of a function run in one call, by name.

    Args:
        call: runs it once; it has run before.

    Returns:
        Nothing of nodes that did not run, nor of those that only hand on what they are given.
    """
    counts: Counter[str] = Counter()
    for _ in range(_ATTEMPTS):  # the profiler drops an event now and then
        events = _recorded(call, 1)[0]
        matches = (_NODE.fullmatch(each.name) for each in events)
        counts |= Counter(match[1] for match in matches if match)
    return dict(counts)


# Nodes that hand on what they are given: TensorFlow runs them without an event.
_HANDS_ON = ("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "Snapshot")


class StepProfiles:
    """Profiles of a step, one execution each.

    TensorFlow stops recording a node once its running estimate of the kernel is below 8,000 cycles
    (``KernelStats`` in its executor). The estimate begins far above, so that the first executions
    are recorded whole: a node that was recorded then, and is missing in several profiles in a row,
    is cheap. Its seconds are 0 from then on, and stay between the calls.

    Args:
        call: runs the step once; it has run before.
        nodes: of its graph: operators by name, in an order in which they can run.
    """

    def __init__(self, call: Callable[[], Any], nodes: Mapping[str, str]) -> None:
        self._call, self._nodes = call, nodes
        self._recorded: set[str] = set()
        self._optional = {name for name, operator in nodes.items() if operator in _HANDS_ON}

    def take(self) -> StepTrace:
        """Run the step once under TensorFlow's profiler.

        Raises:
            PrimitiveError: the profile has other nodes; with the first that differs.
        """
        missing = set(self._nodes)
        for _ in range(_ATTEMPTS):  # the profiler drops an event now and then
            events, (step_s,) = _recorded(self._call, 1)
            seconds = self.seconds(events)
            lacking = {name for name, taken in seconds.items() if taken is None} - self._optional
            if not lacking:
                break
            missing &= lacking
        else:
            self._optional |= missing & self._recorded
            for place, name in enumerate(self._nodes, start=1):
                if name in lacking - self._optional:
                    self._refuse(place, name, "is not in the profile")
        return StepTrace(step_s, [taken or 0.0 for taken in seconds.values()])

    def seconds(self, events: Sequence[TensorFlowEvent]) -> dict[str, float | None]:
        """Return the seconds of each node of the step, from a profile of one execution of it.

        A node's name is its own, so that the order in which nodes run, which may be another one
        each time, tells nothing.

        Args:
            events: of a profile.

        Returns:
            By name, in the order of the nodes; None of one that is not in the profile.

        Raises:
            PrimitiveError: a node ran several times, or is not in the graph.
        """
        times: dict[str, list[float]] = {name: [] for name in self._nodes}
        for event in events:
            match = _NODE.fullmatch(event.name)
            if match is None or match[2].startswith(_TRACE_PLUMBING):
                continue
            if match[1] not in times:
                raise PrimitiveError(
                    "the profile is not of the recorded step: it has "
                    f"{event.name}, which is no node of its graph"
                )
            times[match[1]].append(event.seconds)
        for place, (name, seconds) in enumerate(times.items(), start=1):
            if len(seconds) > 1:
                self._refuse(place, name, f"is in the profile {len(seconds)} times")
        self._recorded |= {name for name, seconds in times.items() if seconds}
        return {name: seconds[0] if seconds else None for name, seconds in times.items()}

    def _refuse(self, place: int, name: str, why: str) -> None:
        node = f"node {place} of {len(self._nodes)}, {name}:{self._nodes[name]}"
        raise PrimitiveError(f"the profile is not of the recorded step: {node}, {why}")


def _trace(call: Callable[[], Any], calls: int) -> TracedFunction | None:
    events, whole = _recorded(call, calls)
    kernels = kernels_in(events, calls)
    if kernels is None:
        return None
    return TracedFunction(kernel_s=kernels[0], reorder_s=kernels[1], call_s=median(whole))


def _recorded(call: Callable[[], Any], calls: int) -> tuple[list[TensorFlowEvent], list[float]]:
    """Return the events of some calls, and the seconds of each by our clock."""
    profiler = tf.profiler.experimental
    options = profiler.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    whole = []
    with tempfile.TemporaryDirectory(prefix="pydlbench-") as folder:
        profiler.start(folder, options)
        try:
            for _ in range(calls):
                start = time.perf_counter()
                call()
                whole.append(time.perf_counter() - start)
        finally:
            profiler.stop()
        return _events(Path(folder)), whole


def _events(folder: Path) -> list[TensorFlowEvent]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    recorded = []
    for path in folder.glob("**/*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            if plane.name != _HOST:
                continue
            names = {number: each.name for number, each in plane.event_metadata.items()}
            recorded += [
                TensorFlowEvent(
                    names[event.metadata_id],
                    line.timestamp_ns / 1e9 + event.offset_ps / 1e12,
                    event.duration_ps / 1e12,
                )
                for line in plane.lines
                for event in line.events
            ]
    return recorded


# -----------------------------------------------------------------------------
# The kernel behind an operator: what TensorFlow or XLA made of the function that was traced.

# Nodes that only bring tensors in and out.
_PLUMBING = {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "Const", "_EagerConst", "NoOp"}
_PLUMBING |= {"Identity", "_HostSend", "_HostRecv", "_Send", "_Recv"}


def kernels_behind(operator: FunctionOperator) -> tuple[str | None, str]:
    """Return the names of the kernels that compute an operator, and what else is known of them.

    The names are None, the rest is empty, where they are not known.

    In graph mode the function is traced and run anew, with TensorFlow's record of the graph that it
    makes of it.
    """
    try:
        if operator.mode == "xla":
            program = operator.function.experimental_get_compiler_ir(*operator.operands)
            text = program(stage="optimized_hlo")
            return hlo.kernels(text), hlo.detail(text)
        # A graph is recorded when it is made, so one that has run before would not be.
        graphs = executed(operator.traced(), operator.operands)
        return graph_kernels(node.op for graph in graphs for node in graph.node), ""
    except Exception:  # noqa: BLE001 - a name is not worth a row, and none of this is stable
        return None, ""


def graph_kernels(nodes: Iterable[str]) -> str | None:
    """Return the operators among a graph's nodes: ``_MklNativeConv2D`` is oneDNN's."""
    names = dict.fromkeys(name for name in nodes if name not in _PLUMBING)
    return ", ".join(names) or None
