"""A step of onnxruntime traced: by its own profile of the graph that it has made of the file."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onnxruntime

from pydlbench.backends.capabilities import FOLDER_VARIABLE
from pydlbench.backends.onnxruntime.recording import PREFIX, SUFFIX, recorded_in
from pydlbench.backends.steps.trace import StepTracer, Trace
from pydlbench.errors import PrimitiveError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.backends.onnxruntime.recording import Sessions
    from pydlbench.records.trace import ProgramCall

#: A session's first runs allocate.
_UNTIMED: Final = 2


def tracer(made: Sessions) -> StepTracer:
    """Return what runs the step traced.

    A profile is written once its session ends, so that each traced step has a session of its own,
    of the very graph that the step's session has made of the file.

    Args:
        made: the file with its inputs; it is run several times.
    """
    traced = _Traced(made)
    source = f"onnxruntime {onnxruntime.__version__}'s own profile"
    return StepTracer(
        calls=tuple(traced.nodes.values()),
        ways={"profile": (source, traced.profiled)},
        untimed=_UNTIMED,
    )


class _Traced:
    """A recorded step that is run traced; its constants lie in a folder as long as it is there."""

    def __init__(self, made: Sessions) -> None:
        self._made = made
        # Beneath the worker's folder, which goes with its process.
        there = os.environ.get(FOLDER_VARIABLE)
        self._folder = Path(tempfile.mkdtemp(prefix="pydlbench-trace-", dir=there))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        recording = recorded_in(self._folder, made)
        self._graph, self.nodes = recording.graph, recording.in_order
        self._results = [one.name for one in made.session.get_outputs()]

    def profiled(self) -> Trace:
        """Run the step in a session that profiles itself, after runs that do not count."""
        options = self._made.options("unoptimized")
        options.enable_profiling = True
        options.profile_file_prefix = str(self._folder / "profile")
        session = self._graph.opened(self._made, options, self._folder)
        for _ in range(_UNTIMED):
            session.run(self._results, self._made.feeds)
        start = time.perf_counter()
        found = session.run(self._results, self._made.feeds)
        seconds = time.perf_counter() - start
        del found
        path = Path(session.end_profiling())
        events = json.loads(path.read_bytes())
        path.unlink()
        return Trace(seconds, node_seconds(events, self.nodes))


def node_seconds(events: Sequence[dict[str, Any]], nodes: Mapping[int, ProgramCall]) -> list[float]:
    """Return the seconds of each node in the last run of a profile.

    Args:
        events: of the whole file; ``model_run`` spans a run, and nodes are numbered.
        nodes: of the step, by number.

    Raises:
        PrimitiveError: a node is missing, ran several times, or is not of the step.
    """
    run = [one for one in events if one["name"] == "model_run"][-1]
    found: dict[int, list[float]] = {number: [] for number in nodes}
    for one in events:
        name = one["name"].removesuffix(SUFFIX)
        inside = run["ts"] <= one["ts"] <= run["ts"] + run["dur"]
        if not inside or name == one["name"] or not name.startswith(PREFIX):
            continue
        number = int(name.removeprefix(PREFIX))
        if number not in found:
            _refuse(f"the profile has node {number}, which did not run before")
        found[number].append(one["dur"] / 1e6)
    for number, seconds in found.items():
        if len(seconds) != 1:
            node = f"node {number}, {nodes[number].operator} of {nodes[number].module}"
            _refuse(f"{node}, is in the profile {len(seconds)} times")
    return [seconds for (seconds,) in found.values()]


def _refuse(why: str) -> None:
    raise PrimitiveError(f"the profile is not of the recorded step: {why}")
