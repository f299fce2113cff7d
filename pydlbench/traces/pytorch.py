"""Profiles of PyTorch: operators of the host, launches, and what the device executed.

Kernels are attributed by the launch that has their correlation id: what was on the stack of its
thread when it was called is what the kernel belongs to. Profilers before 2022 number operators and
launches apart, so the external id is asked only where no launch was recorded. Categories have had
several names: ``Kernel`` was in files of 2021 what ``kernel`` is today, and each kind of device has
a runtime of its own.
"""

from __future__ import annotations

import ast
import bisect
import difflib
import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pydlbench.calls.meaning import bytes_of_type
from pydlbench.errors import UsageError
from pydlbench.grouping import group_by
from pydlbench.records.trace import ProgramCall
from pydlbench.traces import kernel_names, timeline
from pydlbench.traces.events import ChromeEvent
from pydlbench.traces.outermost import (
    COMPILED,
    MODULE,
    OperatorEvent,
    OutermostCall,
    is_gradient,
    visit,
)
from pydlbench.traces.timeline import Activity, Origin, RecordedTrace, TimeSpan, Wait, split_steps
from pydlbench.traces.torch_calls import DTYPES, tensor, write_signature
from pydlbench.units import format_seconds, holding

_STEP: Final = "ProfilerStep#"
_HOST: Final = ("cpu_op", "operator", "user_annotation")
_RUNTIME: Final = ("_runtime", "_driver", "runtime", "driver")
#: Kinds of activities by category, in lower case.
_DEVICE: Final = {
    "kernel": timeline.KERNEL,
    "gpu_memcpy": timeline.COPY,
    "gpu_memset": timeline.FILL,
    "memcpy": timeline.COPY,
    "memset": timeline.FILL,
    "mtia_ccp_events": timeline.KERNEL,
    "privateuse1_kernel": timeline.KERNEL,
}
_WAITS: Final = ("Synchronize", "WaitValue")
_BLOCKING: Final = ("cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream")
_GRAPH_LAUNCH: Final = "GraphLaunch"
_CAPTURE_BEGINS, _CAPTURE_ENDS = "StreamBeginCapture", "StreamEndCapture"
#: Calls of a runtime that put something into a graph while it is captured.
_ENQUEUES: Final = ("Launch", "Memcpy", "Memset")
_MICRO: Final = 1e-6
_MAX_DEPTH: Final = 1000
#: Largest copy that is believed.
MAX_BYTES: Final = 1 << 50
#: An operator that spends this share of its time itself is more than a wrapper of what it calls.
_OWN_SHARE: Final = 0.5
NO_SHAPES: Final = (
    "recorded without shapes: there are no limits; "
    "torch.profiler.profile(record_shapes=True) notes them"
)
#: A gap of this share of a file is worth a note.
_LONG_GAP: Final = 0.1


def is_profile(events: Sequence[ChromeEvent]) -> bool:
    """Whether events are those of a profile of PyTorch: operators, or activities of a device."""
    return any(
        event.cat.lower() in _DEVICE or event.cat.lower() in ("cpu_op", "operator")
        for event in events
    )


def read(name: str, events: Sequence[ChromeEvent], device: str | None) -> RecordedTrace:
    """Read a profile.

    Args:
        name: of the file, for messages.
        events: those with a duration.
        device: the device's name from the file, if it has one.

    Raises:
        UsageError: operators lie within each other too deep.
    """
    profile = _Profile.from_events(name, events)
    kinds = {_DEVICE[event.cat.lower()] for event in profile.device_events}
    # Copies alone are no step of a device: the CPU computed.
    if timeline.KERNEL in kinds or (kinds and not profile.roots):
        return profile.on_device(device)
    return profile.on_host()


class CapturedLaunch(NamedTuple):
    """What was put into a graph: its origin, the kernel's name, and its threads, where known."""

    origin: Origin
    kernel: str
    threads: str


def captured_launches(
    name: str, events: Sequence[ChromeEvent]
) -> tuple[tuple[CapturedLaunch, ...], ...]:
    """Return the launches in each capture of a graph, in order.

    Args:
        name: of the file, for messages.
        events: those with a duration.

    Raises:
        UsageError: no capture is in it.
    """
    profile = _Profile.from_events(name, events)
    launches = sorted(
        (each for each in profile.visited.values() if each.event.launches),
        key=lambda each: events[each.event.place].ts,
    )
    captures: list[tuple[CapturedLaunch, ...]] = []
    current: list[CapturedLaunch] | None = None
    for launch in launches:
        if _CAPTURE_BEGINS in launch.event.name:
            current = []
        elif _CAPTURE_ENDS in launch.event.name and current:
            captures.append(tuple(current))
            current = None
        elif current is not None and any(word in launch.event.name for word in _ENQUEUES):
            event = events[launch.event.place]
            kernel = str(event.noted.kernel or "")
            current.append(CapturedLaunch(profile.origin_of(launch), kernel, _threads_of(event)))
    if not captures:
        raise UsageError(
            f"--capture {name}: no capture of a graph in it; nearest: a profile of the process "
            "while it captures its graphs"
        )
    return tuple(captures)


def with_captures(
    recorded: RecordedTrace, captures: Sequence[Sequence[CapturedLaunch]]
) -> tuple[RecordedTrace, int, int]:
    """Return a recording whose replayed kernels have the operators of a capture.

    Args:
        recorded: with replays of graphs.
        captures: see :func:`captured_launches`.

    Returns:
        The recording, and the numbers of replayed kernels that have an operator by it and of those
        that have none: no capture has them, or several do that differ there.
    """
    replays, named, unnamed = itertools.count(1), 0, 0
    known: dict[tuple[tuple[str, str], ...], list[Origin | None]] = {}
    steps = []
    for step in recorded.timelines:
        launched: dict[TimeSpan | None, list[int]] = defaultdict(list)
        for place, activity in enumerate(step.activities):
            if activity.replayed:
                launched[activity.launch].append(place)
        activities = list(step.activities)
        for places in launched.values():
            kernels = tuple((activities[each].name, activities[each].threads) for each in places)
            if kernels not in known:
                known[kernels] = _captured_origins(kernels, captures)
            # Calls of this replay are others than those of the next one.
            first = next(replays) << 40
            for place, origin in zip(places, known[kernels], strict=True):
                if origin is not None:
                    own = replace(origin, number=origin.number + first)
                    activities[place] = replace(activities[place], origin=own)
            named += sum(each is not None for each in known[kernels])
            unnamed += sum(each is None for each in known[kernels])
        steps.append(replace(step, activities=tuple(activities)))
    shaped = any(each is not None and each.shapes for own in known.values() for each in own)
    notes = tuple(note for note in recorded.notes if not (shaped and note == NO_SHAPES))
    return replace(recorded, timelines=tuple(steps), notes=notes), named, unnamed


def _captured_origins(
    kernels: Sequence[tuple[str, str]], captures: Sequence[Sequence[CapturedLaunch]]
) -> list[Origin | None]:
    """Return the origins of replayed kernels in which the captures agree that fit them best.

    Args:
        kernels: name and threads of each, in order.
        captures: all of them.
    """
    best, fitting = (0, 0), list[dict[int, Origin]]()
    for capture in captures:
        pairs = list(_pairs([kernel for kernel, _ in kernels], capture))
        same = sum(kernels[place][1] == capture[other].threads for place, other in pairs)
        score = (len(pairs), same)
        if score > best:
            best, fitting = score, []
        if pairs and score == best:
            fitting.append({place: capture[other].origin for place, other in pairs})
    origins: list[Origin | None] = []
    for place in range(len(kernels)):
        found = [each.get(place) for each in fitting]
        texts = {(o.call, o.modules, o.shapes) if o else None for o in found}
        origins.append(found[0] if len(texts) == 1 else None)
    return origins


def _pairs(names: Sequence[str], capture: Sequence[CapturedLaunch]) -> Iterator[tuple[int, int]]:
    """Yield the places of equal kernels in a replay and a capture, in order.

    Where no launch names its kernel, a capture of as many launches has them in the same order.
    """
    if not any(launch.kernel for launch in capture):
        if len(capture) == len(names):
            yield from zip(range(len(names)), range(len(names)), strict=True)
        return
    captured = [launch.kernel for launch in capture]
    matcher = difflib.SequenceMatcher(None, names, captured, autojunk=False)
    for begin, other, size in matcher.get_matching_blocks():
        yield from zip(range(begin, begin + size), range(other, other + size), strict=True)


def _threads_of(event: ChromeEvent) -> str:
    """Return blocks and threads of a kernel as text; empty if they were not recorded."""
    grid, block = event.noted.grid, event.noted.block
    return "" if grid is None and block is None else f"{grid} {block}"


@dataclass(frozen=True, slots=True)
class _Profile:
    """The events of a profile, nested by thread.

    Attributes:
        events: all of them.
        roots: events that no other event of their thread has called.
        visited: each nested event with its call, by its place in ``events``.
        device_events: what a device executed.
        begin: when the first event began, in microseconds.
        listed: the most common type of tensors, which those in lists are taken to have.
    """

    events: Sequence[ChromeEvent]
    roots: Sequence[OperatorEvent]
    visited: dict[int, OutermostCall]
    device_events: Sequence[ChromeEvent]
    begin: float
    listed: str | None

    @classmethod
    def from_events(cls, name: str, events: Sequence[ChromeEvent]) -> _Profile:
        roots = _nest(name, events)
        return cls(
            events=events,
            roots=roots,
            visited={each.event.place: each for each in visit(roots)},
            # An event that is in the file twice was executed once.
            device_events=list(
                {
                    (e.ts, e.dur, e.pid, e.tid, e.name, e.noted.correlation): e
                    for e in events
                    if e.cat.lower() in _DEVICE
                }.values()
            ),
            begin=min((event.ts for event in events), default=0.0),
            listed=_common_type(events),
        )

    # -------------------------------------------------------------------------
    # A device.

    def on_device(self, device: str | None) -> RecordedTrace:
        """Return the steps as the device's time line has them."""
        activities = self._activities()
        windows = self._windows()
        if not windows:
            return self._steps_on_device([[each for each, _ in activities]], [], [], device)
        begins = [window.begin for window in windows]
        steps: list[list[Activity]] = [[] for _ in windows]
        outside: list[Activity] = []
        # Kernels launched before the recording began belong to the step before the first one.
        first = min(
            (
                activity.interval.begin
                for activity, moment in activities
                if activity.launch is not None and moment >= begins[0]
            ),
            default=begins[0],
        )
        for activity, moment in activities:
            place = bisect.bisect_right(begins, moment) - 1
            inside = place >= 0 and moment <= windows[place].end
            unknown = activity.launch is None and activity.origin.call is None
            early = unknown and activity.interval.begin < first
            (steps[place] if inside and not early else outside).append(activity)
        return self._steps_on_device(steps, windows, outside, device)

    def _steps_on_device(
        self,
        steps: list[list[Activity]],
        windows: Sequence[TimeSpan],
        outside: list[Activity],
        device: str | None,
    ) -> RecordedTrace:
        hosts_s: list[float | None] = [window.end - window.begin for window in windows] or [None]
        waits = sorted(self._waits(), key=lambda wait: wait.interval)
        begins = [wait.interval.begin for wait in waits]
        within = [
            waits[
                bisect.bisect_left(begins, window.begin) : bisect.bisect_right(begins, window.end)
            ]
            for window in windows
        ] or [waits]
        notes = []
        if not any(steps):
            notes.append("the device executed nothing that was launched in the profiler's steps")
            steps, hosts_s, within, outside = [outside], [None], [waits], []
        timelines = split_steps(steps, hosts_s, within)
        if not windows and timelines:
            notes += _note_on_gap(timelines[0])
        outside_s = sum(activity.seconds for activity in outside)
        launched = group_by(outside, lambda each: each.launch is not None)
        whys = {
            True: "were launched outside of the profiler's steps",
            False: "have no recorded launch and ran before those of the first step",
        }
        notes += [
            f"{len(group):,} activities of {format_seconds(sum(each.seconds for each in group))} "
            f"in all {why} and are left out"
            for known, why in whys.items()
            if (group := launched.get(known))
        ]
        operators = (e for e in self.events if e.cat.lower() in ("cpu_op", "operator"))
        devices = {event.noted.device for event in self.device_events} - {None}
        other_notes = {
            NO_SHAPES: not any(event.noted.shapes for event in operators),
            f"{len(devices)} devices: their time lines are taken together": len(devices) > 1,
        }
        notes += holding(other_notes)
        return RecordedTrace(
            source="PyTorch profiler",
            timelines=timelines,
            on_gpu=True,
            device=device,
            outside_s=outside_s,
            notes=tuple(notes),
        )

    def _activities(self) -> list[tuple[Activity, float]]:
        """Return the device's activities, each with the moment that decides its step."""
        launches = {
            number: visited
            for place, visited in self.visited.items()
            if visited.event.launches
            and (number := self.events[place].noted.correlation) is not None
        }
        externals: dict[Any, OutermostCall] = {}
        for place, visited in self.visited.items():
            external = self.events[place].noted.external
            if external is not None and visited.event.is_operator:
                externals.setdefault(external, visited)
        numbers = itertools.count(-1, -1)
        activities = []
        for event in self.device_events:
            launch = launches.get(event.noted.correlation)
            origin = Origin(number=next(numbers), call=None)
            span = None
            moment = self._relative(event).begin
            if launch is not None:
                span = self._relative(self.events[launch.event.place])
                moment = span.begin
                if launch.call is not None or launch.modules or launch.direction != "forward":
                    origin = self.origin_of(launch)
            numbered_apart = event.noted.external == event.noted.correlation
            operator = None if numbered_apart else externals.get(event.noted.external)
            if origin.call is None and operator is not None:
                origin = self.origin_of(operator)
                if launch is None:
                    moment = self._relative(self.events[operator.event.place]).begin
            replayed = launch is not None and _GRAPH_LAUNCH in launch.event.name
            kind = _DEVICE[event.cat.lower()]
            if kind == timeline.KERNEL and kernel_names.category_of(event.name) == "collective":
                kind = timeline.COLLECTIVE
            interval = self._relative(event)
            activities.append(
                (
                    Activity(
                        name=event.name,
                        kind=kind,
                        interval=interval,
                        seconds=interval.end - interval.begin,
                        launch=span,
                        origin=origin,
                        bytes=_byte_count(event.noted.bytes),
                        threads=_threads_of(event) if replayed else "",
                        group=str(event.noted.group or ""),
                        replayed=replayed,
                    ),
                    moment,
                )
            )
        return activities

    def origin_of(self, visited: OutermostCall) -> Origin:
        """Return the origin of what an event launches."""
        call = visited.call
        if call is None or _GRAPH_LAUNCH in visited.event.name:
            return Origin(
                number=visited.event.place,
                call=None,
                direction=visited.direction,
                modules=visited.modules,
            )
        event = self.events[call.place]
        generated = call.name.startswith("triton_")
        return Origin(
            number=call.place,
            call=_program_call(event, visited, self.listed),
            direction=visited.direction,
            modules=visited.modules,
            shapes=_shapes_of(event),
            moved=_bytes_of(event) if generated else None,
        )

    def _windows(self) -> list[TimeSpan]:
        steps = [e for e in self.events if e.name.startswith(_STEP) and not e.cat.startswith("gpu")]
        return sorted(map(self._relative, steps))

    def _waits(self) -> list[Wait]:
        waits = []
        for place, visited in self.visited.items():
            name = visited.event.name
            if visited.event.launches and (
                any(word in name for word in _WAITS) or name in _BLOCKING
            ):
                operator = "" if visited.call is None else visited.call.name.replace("::", ".")
                waits.append(
                    Wait(name=name, operator=operator, interval=self._relative(self.events[place]))
                )
        return waits

    def _relative(self, event: ChromeEvent) -> TimeSpan:
        begin = (event.ts - self.begin) * _MICRO
        return TimeSpan(begin, begin + event.dur * _MICRO)

    # -------------------------------------------------------------------------
    # A CPU.

    def on_host(self) -> RecordedTrace:
        """Return the steps of a CPU, whose time line is that of its calls."""
        owners = self._owners()
        activities = [
            activity for root in self.roots for activity in self._host_activities(root, owners)
        ]
        activities.sort(key=lambda each: each.interval)
        windows = self._windows()
        outside = 0
        if windows:
            begins = [each.interval.begin for each in activities]
            steps = [
                activities[
                    bisect.bisect_left(begins, window.begin) : bisect.bisect_left(
                        begins, window.end
                    )
                ]
                for window in windows
            ]
            outside = len(activities) - sum(map(len, steps))
        else:
            steps = [activities]
            end = max((each.interval.end for each in activities), default=0.0)
            begin = activities[0].interval.begin if activities else 0.0
            windows = [TimeSpan(begin, end)]
        notes = (f"{outside} calls outside of the profiler's steps are left out",)
        return RecordedTrace(
            source="PyTorch profiler",
            timelines=tuple(
                timeline.StepTimeline(
                    activities=tuple(step), begin=window.begin, host_s=window.end - window.begin
                )
                for step, window in zip(steps, windows, strict=True)
            ),
            notes=notes if outside else (),
        )

    def _own_us(self, event: OperatorEvent) -> float:
        """Return the microseconds of an event outside of the events inside of it."""
        inner = sum(self.events[each.place].dur for each in event.inner)
        return self.events[event.place].dur - inner

    def _owners(self) -> set[str]:
        """Return the operators without a rule that spend most of their time themselves.

        All others without a rule are wrappers of the operators that they call.
        """
        own: dict[str, float] = defaultdict(float)
        whole: dict[str, float] = defaultdict(float)
        for place, visited in self.visited.items():
            event = visited.event
            if visited.call is event and not event.is_call:
                own[event.name] += self._own_us(event)
                whole[event.name] += self.events[place].dur
        return {name for name in own if own[name] >= _OWN_SHARE * whole[name]}

    def _host_activities(self, root: OperatorEvent, owners: Collection[str]) -> Iterable[Activity]:
        """Yield the calls of a CPU within an event; each has its own time.

        Args:
            root: the event.
            owners: see :meth:`_owners`.
        """
        for event in root.all():
            visited = self.visited[event.place]
            span = self.events[event.place]
            seconds = span.dur * _MICRO
            if event.name.startswith(COMPILED):
                calls = (e for e in event.all() if self.visited[e.place].call is e and e.is_call)
                inside = [e for e in calls if e is not event]
                seconds -= sum(self.events[each.place].dur for each in inside) * _MICRO
            elif visited.call is not event or not event.is_operator:
                continue
            elif not event.is_call:
                if event.name not in owners:
                    continue
                seconds = self._own_us(event) * _MICRO
            interval = self._relative(span)
            yield Activity(
                name=event.name,
                kind=timeline.KERNEL,
                interval=interval,
                seconds=max(0.0, seconds),
                launch=None,
                origin=Origin(
                    number=event.place,
                    call=_program_call(span, visited, self.listed),
                    direction=visited.direction,
                    modules=visited.modules,
                    shapes=_shapes_of(span),
                ),
            )


def _note_on_gap(whole: timeline.StepTimeline) -> list[str]:
    """Return a note on the longest gap of a file without steps; none if it is short."""
    gap_s, before, after = whole.largest_gap()
    if gap_s < _LONG_GAP * whole.span_s:
        return []
    names = " and ".join(map(kernel_names.short_name, (before, after)))
    idle = f"{format_seconds(gap_s)} of its {format_seconds(whole.span_s - whole.busy_s)} idle time"
    note = f"no steps are marked: the whole file is one; {idle} are one gap, between {names}"
    return [f"{note}; torch.profiler.schedule and prof.step() leave out what lies between steps"]


def _nest(name: str, events: Sequence[ChromeEvent]) -> list[OperatorEvent]:
    """Return the events that no other event of their thread has called, thread by thread.

    Raises:
        UsageError: events lie within each other too deep.
    """
    threads: dict[tuple[int | str, int | str], list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        category = event.cat.lower()
        runtime = category.endswith(_RUNTIME)
        if category in _HOST or runtime or event.name.startswith(MODULE):
            threads[event.pid, event.tid].append(place)
    roots: list[OperatorEvent] = []
    # The thread that begins first runs forward.
    for places in sorted(threads.values(), key=lambda own: min(events[place].ts for place in own)):
        callers: list[OperatorEvent] = []
        before = len(roots)
        for place in sorted(places, key=lambda place: (events[place].ts, -events[place].dur)):
            event = events[place]
            while callers and events[callers[-1].place].end <= event.ts:
                callers.pop()
            if len(callers) == _MAX_DEPTH:
                raise UsageError(
                    f"{name}: {event.name[:60]!r}: more than {_MAX_DEPTH:,} events around it; "
                    "nearest: record it again"
                )
            number = event.noted.sequence
            annotation = event.cat == "user_annotation"
            nested = OperatorEvent(
                name=event.name,
                place=place,
                number=number if isinstance(number, int) else None,
                annotates=annotation and not event.name.startswith(_STEP),
                launches=event.cat.lower().endswith(_RUNTIME),
            )
            (callers[-1].inner if callers else roots).append(nested)
            callers.append(nested)
        own = [each for each in roots[before:] if not each.launches]
        # A thread of autograd's engine: what it launches besides gradients belongs to them.
        if (
            own
            and is_gradient(own[0].name)
            and not any(each.name.startswith((_STEP, MODULE, "Optimizer.")) for each in own)
        ):
            for each in roots[before:]:
                each.direction = "backward"
    return roots


def _program_call(event: ChromeEvent, visited: OutermostCall, listed: str | None) -> ProgramCall:
    """Return a call.

    Args:
        event: of the operator.
        visited: the same with its direction and module.
        listed: type of the tensors in lists, which profiles do not note.
    """
    generated = event.name.startswith((COMPILED, "triton_"))
    operator = event.name.replace("::", ".")
    if event.name.startswith(COMPILED):
        operator = "generated kernels"
    elif generated:
        operator = " ".join(("fused", *kernel_names.fused_operators(event.name)))
    signature = "inductor.generated.default()"
    if not generated:
        arguments = [_argument(*each, listed) for each in _arguments(event)]
        signature = write_signature(event.name, arguments)
    return ProgramCall(
        operator=operator,
        module=visited.module,
        direction=visited.direction,
        signature=signature,
    )


def _byte_count(value: Any) -> int | None:
    """Return a number of bytes; None of what is none."""
    return value if isinstance(value, int) and 0 <= value <= MAX_BYTES else None


def _common_type(events: Sequence[ChromeEvent]) -> str | None:
    types = Counter(
        DTYPES[kind]
        for event in events
        for kind in (event.noted.types if isinstance(event.noted.types, list) else ())
        if isinstance(kind, str) and kind in DTYPES
    )
    floating = [kind for kind, _ in types.most_common() if "float" in kind]
    return floating[0] if floating else None


def _arguments(event: ChromeEvent) -> Iterable[tuple[Any, Any, Any, Any]]:
    """Yield type, shape, strides and text of each argument, as far as they were noted."""
    args = event.noted
    every = (args.types, args.shapes, args.strides, args.concrete)
    lists = (noted if isinstance(noted, list) else [] for noted in every)
    return itertools.zip_longest(*lists, fillvalue="")


def _argument(kind: Any, shape: Any, strides: Any, text: Any, listed: str | None) -> str:
    """Return an argument as text; what was not noted stands in angle brackets."""
    dtype = DTYPES.get(kind) if isinstance(kind, str) else None
    if kind == "TensorList" and listed and isinstance(shape, list) and all(map(_is_sizes, shape)):
        return f"[{', '.join(tensor(listed, sizes, []) for sizes in shape)}]"
    if dtype is not None:
        sizes = shape if _is_sizes(shape) else []
        return tensor(dtype, sizes, strides if _is_sizes(strides) else [])
    if kind == "":
        return "None"
    return _literal(str(text)[:1000]) or f"<{kind}>"


@functools.lru_cache(maxsize=1 << 14)
def _literal(text: str) -> str:
    """Return a value as Python writes it; empty if the text is none."""
    try:
        return repr(ast.literal_eval(text))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text if text in ("inf", "nan", "-inf") else ""


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _shapes_of(event: ChromeEvent) -> str:
    """Return the shapes of a call's tensors as text: ``8944x1024 1024x2816``."""
    noted = (shape for _, shape, _, _ in _arguments(event) if shape and isinstance(shape, list))
    shapes = (
        sizes
        for shape in noted
        for sizes in (shape if isinstance(shape[0], list) else [shape])
        if sizes and _is_sizes(sizes)
    )
    return " ".join("x".join(map(str, shape)) for shape in shapes)


def _bytes_of(event: ChromeEvent) -> int | None:
    """Return the bytes of a generated kernel's tensors, each of which it reads or writes once."""
    sizes = [
        math.prod(shape) * bytes_of_type(DTYPES[kind])
        for kind, shape, _, _ in _arguments(event)
        if isinstance(kind, str) and kind in DTYPES and shape and _is_sizes(shape)
    ]
    return sum(sizes) or None
