"""Traces of TensorFlow's profiler, and names of the kernels that a function runs."""

import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydlbench.backends.frameworks import hlo
from pydlbench.backends.steps.device import DeviceProfile, Span, device_times
from pydlbench.backends.steps.trace import StepTrace
from pydlbench.backends.tensorflow.layers.layer_pass import FunctionOperator
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.backends.tensorflow.steps.graph import run_graphs
from pydlbench.errors import PrimitiveError
from pydlbench.timing.statistics import median
from pydlbench.units import some_names

# -----------------------------------------------------------------------------
# Times of kernels. The profiler records start and end of each node of a graph, and of XLA's
# programs and instructions. The difference to the time of the call is TensorFlow's overhead.

# The whole program that XLA compiled, including the wait for its threads.
_PROGRAM = "CpuExecutable::ExecuteAsyncOnStream"
# Instructions continue in other threads after their events; these events mark their ends.
_END = "end: "
# A node of a graph with its name and operator: Conv2D:_MklNativeConv2D.
_NODE = re.compile(r"([\w./-]+):([A-Za-z_]\w*)")
# Operators that pass tensors in and out, and calls.
_TRACE_PLUMBING = ("_Arg", "_Retval", "Const", "NoOp", "__inference")
# Reorders of operands: transpose_copy_fusion.1.
_CONVERTS = re.compile(r"transpose|copy", re.IGNORECASE)
# Number of calls in a trace; one if a call takes longer than the limit.
_TRACED_CALLS = 7
_MAX_CALL_S = 0.5
# The profiler drops an event now and then, so that traces are repeated.
_ATTEMPTS = 3
#: Plane of the host, which has the threads of TensorFlow's pools, too.
_HOST = "/host:CPU"


@dataclass(frozen=True, slots=True)
class TensorFlowEvent:
    """An event of a trace: name, start and duration in seconds, where it is, and its facts."""

    name: str
    start_s: float
    seconds: float
    plane: str = _HOST
    line: str = ""
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFunction:
    """The times of a traced function, in seconds per call.

    Attributes:
        kernel_s: time of the kernels, without reorders.
        reorder_s: time of the reorders of operands.
        call_s: time of the whole traced call, by pydlbench's clock.
    """

    kernel_s: float
    reorder_s: float
    call_s: float


def kernels_in(events: Sequence[TensorFlowEvent], calls: int) -> tuple[float, float] | None:
    """Return the seconds per call of kernels, and of reorders, from a trace's events.

    Args:
        events: events of equal calls, in any order.
        calls: number of calls.

    Returns:
        Medians over calls, of XLA's program if there is one, else of the graph's nodes. None if
        events are missing; one in ten may be lost.
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
    """Whether there is an event for each call; the profiler may have dropped a tenth."""
    return calls - calls // 10 <= len(taken) <= calls


def _until_end(events: Sequence[TensorFlowEvent], name: str) -> list[float]:
    """Return the seconds of each execution of an instruction; empty if they are unknown."""
    starts = sorted(event.start_s for event in events if event.name == name)
    ends = sorted(event.start_s for event in events if event.name == _END + name)
    if len(starts) != len(ends):
        return []
    return [end - start for start, end in zip(starts, ends, strict=True)]


def calls_for(seconds: float) -> int:
    """Return the number of calls to trace, given the seconds of one call."""
    return _TRACED_CALLS if seconds < _MAX_CALL_S else 1


def trace(call: Callable[[], Any], calls: int) -> TracedFunction | None:
    """Trace some calls of a function that has run before.

    Args:
        call: runs the function once.
        calls: number of calls.

    Returns:
        None if the trace lacks kernels.
    """
    try:
        for _ in range(_ATTEMPTS):
            events, seconds = _recorded(call, calls)
            if times := kernels_in(events, calls):
                return TracedFunction(kernel_s=times[0], reorder_s=times[1], call_s=median(seconds))
    except Exception:  # noqa: BLE001 - a trace is not worth a row, and its format is not stable
        return None
    return None


def node_runs(call: Callable[[], Any]) -> dict[str, int]:
    """Return how often the nodes of a function run in one call, by name.

    Args:
        call: runs the function once; it has run before.

    Returns:
        Nodes that run, without those that only forward their operands.
    """
    counts: Counter[str] = Counter()
    for _ in range(_ATTEMPTS):
        events = _recorded(call, 1)[0]
        matches = (_NODE.fullmatch(event.name) for event in events)
        counts |= Counter(match[1] for match in matches if match)
    return dict(counts)


# Nodes that forward their operands, for which TensorFlow records no event; share of other nodes
# that a profile may lack.
_MAX_UNRECORDED = 0.05
_FORWARDING = ("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "Snapshot")


class StepProfiles:
    """Profiles of a step, one execution each.

    TensorFlow does not record nodes whose estimated cost is below 8,000 cycles (``KernelStats`` in
    its executor). The first estimate is far above, so that the first executions are recorded
    completely. A node that was recorded then, and is missing in several consecutive profiles, is
    cheap: from then on its time is recorded as 0, and counts as time between calls. So does that
    of a few nodes that are never recorded.

    Args:
        call: runs the step once; it has run before.
        nodes: operators of the step's graph by name, in an order in which they can run.
        loops: whether nodes may run several times, which are added up, or not at all.
    """

    def __init__(
        self, call: Callable[[], Any], nodes: Mapping[str, str], *, loops: bool = False
    ) -> None:
        self._call, self._nodes, self._loops = call, nodes, loops
        self._recorded: set[str] = set()
        self._optional = {name for name, operator in nodes.items() if operator in _FORWARDING}

    def take(self) -> StepTrace:
        """Run the step once under TensorFlow's profiler.

        Raises:
            PrimitiveError: the profile has other nodes; the message names the first that differs.
        """
        missing = set(self._nodes)
        for _ in range(_ATTEMPTS):
            events, (step_s,) = _recorded(self._call, 1)
            seconds = self.seconds(events)
            lacking = {name for name, taken in seconds.items() if taken is None} - self._optional
            if not lacking:
                break
            missing &= lacking
        else:
            few = len(missing - self._recorded) <= _MAX_UNRECORDED * len(self._nodes)
            self._optional |= missing if few or self._loops else missing & self._recorded
            for number, name in enumerate(self._nodes, start=1):
                if name in lacking - self._optional:
                    self._refuse(number, name, "is not in the profile")
        return StepTrace(step_s, [taken or 0.0 for taken in seconds.values()])

    def seconds(self, events: Sequence[TensorFlowEvent]) -> dict[str, float | None]:
        """Return the seconds of each node, from a profile of one execution of the step.

        Names of nodes are unique, so that their order, which may vary, does not matter.

        Args:
            events: events of the profile.

        Returns:
            Seconds by name, in the order of the nodes; None for nodes that were not recorded.

        Raises:
            PrimitiveError: a node ran several times, or is not in the graph.
        """
        times: dict[str, list[float]] = {name: [] for name in self._nodes}
        for event in events:
            match = _NODE.fullmatch(event.name)
            if match is None or match[2].startswith(_TRACE_PLUMBING):
                continue
            if match[1] not in times:
                if self._loops:  # a node of the loop itself
                    continue
                raise PrimitiveError(
                    "the profile is not of the recorded step: it has "
                    f"{event.name}, which is no node of its graph"
                )
            times[match[1]].append(event.seconds)
        for number, (name, seconds) in enumerate(times.items(), start=1):
            if len(seconds) > 1 and not self._loops:
                self._refuse(number, name, f"is in the profile {len(seconds)} times")
        self._recorded |= {name for name, seconds in times.items() if seconds}
        return {name: sum(seconds) if seconds else None for name, seconds in times.items()}

    def _refuse(self, number: int, name: str, why: str) -> None:
        node = f"node {number} of {len(self._nodes)}, {name}:{self._nodes[name]}"
        raise PrimitiveError(f"the profile is not of the recorded step: {node}, {why}")


def _recorded(call: Callable[[], Any], calls: int) -> tuple[list[TensorFlowEvent], list[float]]:
    """Return the events of some calls, and the seconds of each call by pydlbench's clock."""
    whole = []

    def timed() -> None:
        for _ in range(calls):
            start = time.perf_counter()
            call()
            whole.append(time.perf_counter() - start)

    return [event for event in _events(_planes(timed)) if event.plane == _HOST], whole


def _planes(run: Callable[[], Any], *, device: bool = False) -> list[Any]:
    """Return the planes of a profile: one of the host, one of each device."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tf.profiler.experimental
    options = profiler.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=int(device)
    )
    with tempfile.TemporaryDirectory(prefix="pydlbench-") as folder:
        profiler.start(folder, options)
        try:
            run()
        finally:
            profiler.stop()
        planes: list[Any] = []
        for path in Path(folder).glob("**/*.xplane.pb"):
            space = xplane_pb2.XSpace()
            space.ParseFromString(path.read_bytes())
            planes += space.planes
        return planes


def _events(planes: Iterable[Any]) -> Iterator[TensorFlowEvent]:
    for plane in planes:
        names = {number: item.name for number, item in plane.event_metadata.items()}
        stats = {number: item.name for number, item in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                yield TensorFlowEvent(
                    names[event.metadata_id],
                    line.timestamp_ns / 1e9 + event.offset_ps / 1e12,
                    event.duration_ps / 1e12,
                    plane.name,
                    line.name,
                    {stats[stat.metadata_id]: _value(stat, stats) for stat in event.stats},
                )


def _value(stat: Any, names: Mapping[int, str]) -> Any:
    kind = stat.WhichOneof("value")
    return names.get(stat.ref_value) if kind == "ref_value" else getattr(stat, kind)


# -----------------------------------------------------------------------------
# A step on a GPU: nodes return before their kernels run, of which the profile has the intervals.

_GPU: Final = "/device:GPU:"
# Lines of a GPU's plane that are no streams repeat its kernels, summed in other ways.
_STREAM: Final = "Stream"
#: Event around each profiled execution of a step.
STEP_EVENT: Final = "pydlbench_step"


def gpu_trace(planes: Iterable[Any], nodes: Mapping[str, str]) -> StepTrace:
    """Return the second of two executions of a step on a GPU, from their profile.

    Kernels name their node. A node without kernels takes no time of the device.

    Args:
        planes: planes of the profile, with a :data:`STEP_EVENT` around each execution.
        nodes: operators of the step's graph by name.

    Raises:
        PrimitiveError: the profile has no kernels, not two steps, or kernels of other nodes.
    """
    places = {name: place for place, name in enumerate(nodes)}
    spans = [Span(0, 0)] * len(nodes)
    steps: list[Span] = []
    launches: dict[int, Span] = {}
    kernels: list[tuple[int, Span]] = []
    owners: dict[int, int] = {}
    others: set[str] = set()
    for event in sorted(_events(planes), key=lambda event: event.start_s):
        begin_ns = round(1e9 * event.start_s)
        span = Span(begin_ns, begin_ns + round(1e9 * event.seconds))
        number = int(event.stats.get("correlation_id", 0))  # 0: none
        if event.plane.startswith(_GPU) and event.line.startswith(_STREAM):
            kernels.append((number, span))
            match = _NODE.fullmatch(str(event.stats.get("tf_op", "")))
            if match and match[1] in places:
                owners[number] = places[match[1]]
            elif match and match[2] not in _PLUMBING and not match[2].startswith(_TRACE_PLUMBING):
                others.add(match[1])
        elif event.name == STEP_EVENT:
            steps.append(span)
        elif event.plane == _HOST and number:
            launches[number] = span
        elif len(steps) == 2 and (match := _NODE.fullmatch(event.name)) and match[1] in places:
            spans[places[match[1]]] = span
    if len(steps) != 2:
        raise PrimitiveError(f"the profile has {len(steps)} of 2 executions of the step")
    if others:
        raise PrimitiveError(
            "the profile is not of the recorded step: it has kernels of "
            f"{some_names(sorted(others))}, which its graph does not have"
        )
    profile = DeviceProfile(step=steps[1], operators=(), launches=launches, kernels=kernels)
    host_s = [1e-9 * (span.end_ns - span.begin_ns) for span in spans]
    return device_times(profile, spans, host_s, owners)


def gpu_profile(
    call: Callable[[], Any], wait: Callable[[], Any], nodes: Mapping[str, str]
) -> StepTrace:
    """Run a step on a GPU twice under TensorFlow's profiler, and return the second execution.

    Args:
        call: runs the step once; it has run before.
        wait: returns when the device has finished.
        nodes: operators of the step's graph by name.
    """

    def twice() -> None:
        for _ in range(2):
            with tf.profiler.experimental.Trace(STEP_EVENT):
                call()
        wait()

    return gpu_trace(_planes(twice, device=True), nodes)


# Executions without a trace, one behind the other as in a loop of steps.
_PLAIN_STEPS: Final = 4


def gpu_seconds(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Return the seconds of a step on a GPU without a trace, in a loop of a few steps."""
    call()
    wait()
    begin = time.perf_counter()
    for _ in range(_PLAIN_STEPS):
        call()
    wait()
    return (time.perf_counter() - begin) / _PLAIN_STEPS


# -----------------------------------------------------------------------------
# Names of kernels, from the graph or the program that TensorFlow made of a function.

# Nodes that only pass tensors in and out.
_PLUMBING = {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "Const", "_EagerConst", "NoOp"}
_PLUMBING |= {"Identity", "_HostSend", "_HostRecv", "_Send", "_Recv"}


def kernels_behind(operator: FunctionOperator) -> tuple[str | None, str]:
    """Return the names of an operator's kernels, and details; None and an empty text if unknown.

    In graph mode the function is traced again and run, and TensorFlow's optimized graph is read.
    """
    try:
        if operator.mode == "xla":
            program = operator.function.experimental_get_compiler_ir(*operator.operands)
            text = program(stage="optimized_hlo")
            return hlo.kernels(text), hlo.detail(text)
        graphs = run_graphs(operator.new_function(), operator.operands)
        return graph_kernels(node.op for graph in graphs for node in graph.node), ""
    except Exception:  # noqa: BLE001 - a name is not worth a row, and none of this is stable
        return None, ""


def graph_kernels(nodes: Iterable[str]) -> str | None:
    """Return the names of operators that compute: ``_MklNativeConv2D`` is oneDNN's."""
    names = dict.fromkeys(name for name in nodes if name not in _PLUMBING)
    return ", ".join(names) or None
