"""The six columns in which deep-learning-benchmark's results are passed on.

=========== ==========================================================================
Timestamp   when the run began
Framework   ``pytorch`` or ``tensorflow``; behind a dash the mode, if it is not the default
Algorithm   the model
BenchStage  ``eval`` (forward), ``train`` (forward-backward, what that benchmark calls so) or
            ``training`` (with loss and optimizer, which it has not)
Precision   ``fp32``, ``fp16``...
Result      median of a step in milliseconds; where that benchmark's own protocol was played
            it is the mean, as there
=========== ==========================================================================

The batch has no column there. Format: the wrapper around u39kun/deep-learning-benchmark.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydlbench.results.records import RunRecord
    from pydlbench.results.store import Entry

__all__ = ["DLB_COLUMNS", "batches", "to_dlb"]

DLB_COLUMNS: Final = ("Timestamp", "Framework", "Algorithm", "BenchStage", "Precision", "Result")
_FRAMEWORKS: Final = {"torch": "pytorch"}
_STAGES: Final = {"forward": "eval", "forward-backward": "train"}
_DEFAULT_MODES: Final = ("eager", "graph", None)
_PROTOCOL: Final = "deep-learning-benchmark"
_TIMES: Final = {"step": "time_s", "check": "measured_s"}


def to_dlb(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> str:
    """Return the heading and a line for each step that was timed."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(DLB_COLUMNS)
    for run, entries in runs:
        for entry in entries:
            for stage, milliseconds in _results(entry):
                document = entry.document
                framework = str(document["framework"])
                name = _FRAMEWORKS.get(framework, framework)
                mode = document.get("mode")
                writer.writerow(
                    [
                        run.created_utc,
                        name if mode in _DEFAULT_MODES else f"{name}-{mode}",
                        document["model"],
                        stage,
                        document["precision"],
                        # No exponent, however long the step.
                        f"{milliseconds:.4g}" if milliseconds < 9999.5 else f"{milliseconds:.0f}",
                    ]
                )
    return buffer.getvalue()


def batches(entries: Iterable[Entry]) -> set[int | None]:
    """Return the batches of the steps that :func:`to_dlb` writes; None is a script's own."""
    return {entry.document.get("batch") for entry in entries if any(_results(entry))}


def _results(entry: Entry) -> Iterator[tuple[str, float]]:
    """Yield stage and milliseconds of what an entry timed."""
    document: Mapping[str, Any] = entry.document
    if entry.table == "protocol":
        if document.get("protocol") == _PROTOCOL:
            for number in document["numbers"]:  # "vgg16 eval"
                yield number["name"].rpartition(" ")[2], number["value"]
        return
    time = document.get(_TIMES.get(entry.table, ""))
    if time and document.get("status", "ok") == "ok":
        phase = str(document["phase"])
        yield _STAGES.get(phase, phase), 1e3 * time["median"]
