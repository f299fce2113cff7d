"""Profiles of JAX (xplane files), read by JAX's own reader in a process of its own.

A plane is a device or the host, a line a stream or a thread. Devices' streams have kernels; where
lines are derived from them (``XLA Modules``), only the streams are read, or else ``XLA Ops``.
Without a device plane the operators of the CPU have the name of an HLO instruction.
"""

import bisect
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.traces import kernel_names, timeline
from pydlbench.traces.timeline import (
    Activity,
    Origin,
    RecordedTrace,
    StepTimeline,
    TimeSpan,
    split_steps,
)

_ENDING: Final = ".xplane.pb"
_DEVICE: Final = "/device:"
_OPERATORS: Final = "XLA Ops"
_NANO: Final = 1e-9
#: Number that makes an instruction's name unique: ``fusion.3``.
_NUMBER: Final = re.compile(r"\.\d+$")
#: Statistics of events that are read.
_NOTED: Final = ("hlo_op", "hlo_module", "tf_op", "step_num", "correlation_id")
_COPIES: Final = {"memcpy": timeline.COPY, "memset": timeline.FILL}
_TIMEOUT_S: Final = 300


class PlaneEvent(msgspec.Struct, array_like=True):
    """An event of a line.

    Attributes:
        plane: name of the device or host.
        line: name of the stream or thread.
        name: name of the event.
        begin_ns: begin in nanoseconds.
        length_ns: duration in nanoseconds.
        noted: the statistics that are read, by name.
    """

    plane: str
    line: str
    name: str
    begin_ns: float
    length_ns: float
    noted: dict[str, int | str | float]

    @property
    def span(self) -> TimeSpan:
        """The event's time, in seconds."""
        return TimeSpan(self.begin_ns * _NANO, (self.begin_ns + self.length_ns) * _NANO)


def find(name: str) -> Path | None:
    """Return the xplane file that a name means: itself, or the newest in a folder of logs."""
    path = Path(name)
    if path.is_dir():
        return max(path.rglob(f"*{_ENDING}"), key=lambda file: file.stat().st_mtime, default=None)
    return path if path.name.endswith(_ENDING) and path.is_file() else None


def read(name: str, path: Path) -> RecordedTrace:
    """Read a profile.

    Args:
        name: the name that was given, for messages.
        path: the xplane file.

    Raises:
        UsageError: JAX is not installed, or cannot read the file; in one line.
    """
    if importlib.util.find_spec("jax") is None:
        raise UsageError(
            f"{name}: JAX, whose reader is used, is not installed; get it with: pip install jax"
        )
    words = [sys.executable, "-m", __name__, str(path)]
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{name}: not read in {_TIMEOUT_S} s; nearest: record fewer steps"
        ) from None
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise UsageError(f"{name}: JAX cannot read it ({''.join(last)}); nearest: record it again")
    return recorded_from(name, msgspec.json.decode(done.stdout, type=list[PlaneEvent]))


def events_of(data: Any) -> Iterator[PlaneEvent]:
    """Yield the events of a ``jax.profiler.ProfileData`` that the reader needs."""
    for plane in data.planes:
        lines = list(plane.lines)
        if plane.name.startswith(_DEVICE):
            streams = [line for line in lines if line.name.startswith("Stream")]
            lines = streams or [line for line in lines if line.name == _OPERATORS] or lines
        for line in lines:
            for event in line.events:
                noted = {key: value for key, value in event.stats if key in _NOTED}
                if noted or plane.name.startswith(_DEVICE):
                    yield PlaneEvent(
                        plane.name, line.name, event.name, event.start_ns, event.duration_ns, noted
                    )


def recorded_from(name: str, events: Sequence[PlaneEvent]) -> RecordedTrace:
    """Return a recording.

    Args:
        name: the name that was given, for messages.
        events: see :func:`events_of`.

    Raises:
        UsageError: no operators are in it.
    """
    on_device = [event for event in events if event.plane.startswith(_DEVICE)]
    own = on_device or [
        event for event in events if "hlo_op" in event.noted and not event.name.startswith("end: ")
    ]
    if not own:
        raise UsageError(f"{name}: no operators in it; nearest: jax.profiler.trace around steps")
    launches = {
        event.noted["correlation_id"]: event.span
        for event in events
        if "correlation_id" in event.noted and not event.plane.startswith(_DEVICE)
    }
    windows = sorted(event.span for event in events if "step_num" in event.noted)
    begins = [window.begin for window in windows]
    steps: list[list[Activity]] = [[] for _ in windows] or [[]]
    outside_s = 0.0
    for number, (event, seconds) in enumerate(_with_own_times(own)):
        launch = launches.get(event.noted.get("correlation_id", ""))
        moment = event.span.begin if launch is None else launch.begin
        place = bisect.bisect_right(begins, moment) - 1 if windows else 0
        if place < 0:
            outside_s += seconds
        else:
            steps[place].append(_activity(event, seconds, number, launch))
    hosts_s: list[float | None] = [window.end - window.begin for window in windows] or [None]
    if on_device:
        timelines = split_steps(steps, hosts_s, [()] * len(steps))
    else:
        timelines = tuple(
            StepTimeline(activities=tuple(each), begin=each[0].interval.begin, host_s=host_s)
            for each, host_s in zip(steps, hosts_s, strict=True)
            if each
        )
    planes = {event.plane for event in on_device}
    notes = ["JAX's profiles have no operands: there are no limits"]
    if len(planes) > 1:
        notes.append(f"{len(planes)} devices: their time lines are taken together")
    return RecordedTrace(
        source="JAX profiler",
        timelines=timelines or (StepTimeline(activities=(), begin=0.0),),
        on_gpu=bool(on_device),
        outside_s=outside_s,
        notes=tuple(notes),
    )


def _with_own_times(events: Sequence[PlaneEvent]) -> Iterator[tuple[PlaneEvent, float]]:
    """Yield events in order of time with their seconds outside of the events inside of them."""
    inner_ns: dict[int, float] = {}
    around: dict[tuple[str, str], list[tuple[int, float]]] = {}
    ordered = sorted(events, key=lambda event: (event.begin_ns, -event.length_ns))
    for place, event in enumerate(ordered):
        stack = around.setdefault((event.plane, event.line), [])
        end = event.begin_ns + event.length_ns
        while stack and stack[-1][1] < end:
            stack.pop()
        if stack:
            inner_ns[stack[-1][0]] = inner_ns.get(stack[-1][0], 0.0) + event.length_ns
        stack.append((place, end))
    for place, event in enumerate(ordered):
        yield event, max(0.0, event.length_ns - inner_ns.get(place, 0.0)) * _NANO


def _activity(event: PlaneEvent, seconds: float, number: int, launch: TimeSpan | None) -> Activity:
    """Return an activity by the name of its kernel or instruction, which has no operator's call."""
    name = _NUMBER.sub("", event.name).replace("-", "_")
    # The path of what was traced: jit(step)/jit(main)/Dense_0/dot_general.
    *path, _ = str(event.noted.get("tf_op", "")).split("/")
    module = str(event.noted.get("hlo_module", ""))
    kind = next((_COPIES[word] for word in _COPIES if word in name.lower()), timeline.KERNEL)
    if kernel_names.category_of(name) == "collective":
        kind = timeline.COLLECTIVE
    return Activity(
        name=name,
        kind=kind,
        interval=event.span,
        seconds=seconds,
        launch=launch,
        origin=Origin(
            number=number,
            call=None,
            direction="backward" if any("transpose(" in each for each in path) else "forward",
            modules=tuple(path or filter(None, [module])),
        ),
    )


if __name__ == "__main__":
    from jax.profiler import ProfileData

    profile = ProfileData.from_file(sys.argv[1])
    sys.stdout.buffer.write(msgspec.json.encode(list(events_of(profile))))
