"""Logs and traces as input: ``layers --shape @FILE`` and ``export @FILE``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pydlbench.analysis.recorded import StepProblem, describe, distinct_problems, layers_to_time
from pydlbench.calls.meaning import LayerPass
from pydlbench.cli.options import CommandOptions
from pydlbench.errors import UsageError
from pydlbench.records.measurement import Measurement
from pydlbench.records.recorded import RecordedSteps
from pydlbench.report.exports.tritonbench import write_calls
from pydlbench.steps.traced import precision_of
from pydlbench.traces.files import is_recorded, read
from pydlbench.traces.recorded import RecordedTrace

# -----------------------------------------------------------------------------
# ``layers --shape @FILE``: the layers of a recorded step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log or a trace whose layers are timed.

    Attributes:
        file: name of the log's or trace's file.
        recorded: contents of the file.
        problems: problems in the file (kernels to compute), the most expensive first.
        layers: layers that take most of the recorded time, each with its precision.
        notes: notes on problems that are left out.
    """

    file: str
    recorded: RecordedTrace
    problems: Sequence[StepProblem]
    layers: Sequence[tuple[LayerPass, str]]
    notes: tuple[str, ...]

    def described(self, rows: Sequence[Measurement]) -> RecordedSteps:
        """Return the recorded steps, their problems with native times and limits from rows."""
        timed: dict[Hashable, Measurement] = {}
        for row in rows:
            if row.backend == "native" and row.status == "ok":
                key = _key(row.problem, row.pass_, row.propagation, row.precision)
                # The fastest row, if a layer has rows for several cache states, layouts or numbers
                # of threads.
                timed[key] = min(timed.get(key, row), row, key=_median_s)

        def native(problem: StepProblem) -> list[Measurement]:
            precision = precision_of(problem.meaning)
            keys = [
                _key(layer.layer.problem, layer.pass_, layer.propagation, precision)
                for layer in problem.meaning.layers
            ]
            return [timed[key] for key in keys] if set(keys) <= set(timed) else []

        def native_s(problem: StepProblem) -> float | None:
            return sum(row.time.median for row in native(problem) if row.time) or None

        def limit_s(problem: StepProblem) -> float | None:
            roofs = [row.roofline for row in native(problem)]
            return sum(roof.time_s for roof in roofs if roof) if roofs and all(roofs) else None

        limits = {
            (problem.call.signature, problem.call.direction): limit_s(problem)
            for problem in self.problems
        }
        return describe(
            self.recorded,
            self.file,
            self.problems,
            limit_s=lambda call: limits.get((call.signature, call.direction)),
            native_s=native_s,
            limits_of="the machine above",
        )


def _key(problem: str, pass_: str, propagation: str, precision: str) -> Hashable:
    """Return the key that relates rows to layers of calls; propagation is of forward passes."""
    return problem, pass_, pass_ == "forward" and propagation, precision.removesuffix("-tc")


def _median_s(row: Measurement) -> float:
    return row.time.median if row.time else math.inf


def read_log(args: CommandOptions, shapes: Sequence[str], models: Sequence[str]) -> Log | None:
    """Return the log or trace that ``--shape`` names; None if it names none.

    Args:
        args: the command's options.
        shapes: values of ``--shape``.
        models: values of ``--model``.

    Raises:
        UsageError: the file is damaged or has no layers, or an option contradicts it.
    """
    logs = [shape for shape in shapes if shape.startswith("@") and is_recorded(shape[1:])]
    if not logs:
        return None
    given, name = logs[0], logs[0][1:]
    if len(shapes) > 1 or models:
        other = models[0] if models else next(shape for shape in shapes if shape != given)
        raise UsageError(
            f"--shape {given}: a log goes alone, without {other}; nearest: leave it out"
        )
    args.refuse(["batch", "pool"], f"with {given}, which defines it")
    recorded = read(name)
    problems = distinct_problems(recorded)
    layers, light = layers_to_time(problems)
    if not layers:
        reason = next(
            (problem.meaning.layers_missing for problem in problems), "no call computes anything"
        )
        raise UsageError(
            f"--shape {given}: none of its {len(problems)} problems has a native layer ({reason}); "
            f"nearest: pydlbench trace {name}"
        )
    notes = recorded.notes
    if light:
        notes += (f"{light} problems that take less than 5 % together are not timed",)
    return Log(file=name, recorded=recorded, problems=problems, layers=layers, notes=notes)


# -----------------------------------------------------------------------------
# ``export @FILE --format tritonbench``: the calls of a trace as inputs of operators.


def export_recorded(names: Sequence[str], chosen: str) -> tuple[str, list[str]]:
    """Return the calls of traces in TritonBench's format, and notes on calls that it cannot have.

    Args:
        names: ``@FILE`` for each trace.
        chosen: name of the output format.

    Raises:
        UsageError: another format, runs among the files, or a file that is no trace.
    """
    runs = [name for name in names if not name.startswith("@")]
    if chosen != "tritonbench" or runs:
        other = runs[0] if runs else f"--format {chosen}"
        raise UsageError(f"{names[0]}: a trace, without {other}; nearest: --format tritonbench")
    calls = [
        (problem.call.signature, problem.count)
        for name in names
        for problem in distinct_problems(read(name[1:]))
    ]
    return write_calls(calls, ", ".join(names))
