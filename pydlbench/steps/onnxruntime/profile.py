"""onnxruntime's own profile of a step: which operators it runs, and what each takes by its clock.

A session that profiles writes a file of events in Chrome's format, their times in whole
microseconds: ``model_run`` for each call, and one of category ``Node`` for each operator in it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onnxruntime

from pydlbench.records.step import ProfiledOperator, StepProfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.steps.onnxruntime.step import OnnxModel

#: Steps before those that count: the first allocate.
_UNTIMED: Final = 3
_STEPS: Final = 11
_SUFFIX: Final = "_kernel_time"


def profile(
    made: OnnxModel, options: onnxruntime.SessionOptions, nodes: Iterable[str]
) -> StepProfile:
    """Run steps of a session of their own that profiles itself, and read what it has written.

    Args:
        made: the file with its inputs.
        options: of the session that is timed.
        nodes: names of the file's nodes.
    """
    with tempfile.TemporaryDirectory(prefix="pydlbench-profile-") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = made.opened(options)
        for _ in range(_UNTIMED + _STEPS):
            session.run(None, made.feeds)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    return read_profile(events, nodes, untimed=_UNTIMED)


def read_profile(
    events: Sequence[dict[str, Any]], nodes: Iterable[str], *, untimed: int
) -> StepProfile:
    """Return what a profile's events say of a step.

    Args:
        events: of the whole file.
        nodes: names of the user's nodes.
        untimed: steps that do not count.
    """
    runs = [one for one in events if one["name"] == "model_run"][untimed:]
    ran = [one for one in events if one.get("cat") == "Node" and one["name"].endswith(_SUFFIX)]
    # By node: its times in each step; a node of a loop's body runs several times in one.
    times: dict[tuple[str, str], list[float]] = {}
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for step, run in enumerate(runs):
        begin, end = run["ts"], run["ts"] + run["dur"]
        for one in ran:
            if begin <= one["ts"] <= end:
                key = one["args"].get("node_index", ""), one["name"]
                first.setdefault(key, one)
                times.setdefault(key, [0.0] * len(runs))[step] += one["dur"] / 1e6
    operators = tuple(
        ProfiledOperator(
            name=one["name"].removesuffix(_SUFFIX),
            operator=one["args"].get("op_name", ""),
            inputs=tuple(
                f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"
                for each in one["args"].get("input_type_shape", ())
                for dtype, shape in each.items()
            ),
            time_s=statistics.median(times[key]),
        )
        for key, one in first.items()
    )
    seen = {one.name for one in operators}
    return StepProfile(
        source=f"onnxruntime {onnxruntime.__version__}",
        steps=len(runs),
        step_s=statistics.median(one["dur"] for one in runs) / 1e6,
        operators=operators,
        absent=tuple(name for name in nodes if name and name not in seen),
    )
