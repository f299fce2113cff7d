"""Logs and traces as input: ``layers --shape @FILE`` and ``export @FILE``."""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pydlbench.analysis.ledger import ledger_of
from pydlbench.analysis.recorded import (
    StepProblem,
    distinct_problems,
    in_known_type,
    layers_to_time,
)
from pydlbench.calls.meaning import LayerPass, Meaning
from pydlbench.cli.options import CommandOptions
from pydlbench.errors import UsageError
from pydlbench.records.ledger import StepLedger
from pydlbench.records.measurement import Measurement
from pydlbench.records.trace import ProgramCall
from pydlbench.report.exports import write_calls
from pydlbench.steps.traced import meaning_of_call, precision_of
from pydlbench.traces.files import is_recorded, read
from pydlbench.traces.timeline import RecordedTrace

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

    def ledger(self, rows: Sequence[Measurement]) -> StepLedger:
        """Return the recorded step, its calls beside the limits and times of native rows.

        Args:
            rows: of the layers.
        """
        timed: dict[Hashable, Measurement] = {}
        for row in rows:
            if row.backend == "native" and row.status == "ok":
                key = _key(row.problem, row.pass_, row.propagation, row.precision)
                # The fastest row, if a layer has rows for several cache states, layouts or numbers
                # of threads.
                timed[key] = min(timed.get(key, row), row, key=_median_s)

        def native(meaning: Meaning) -> list[Measurement]:
            precision = precision_of(meaning)
            keys = [
                _key(layer.layer.problem, layer.pass_, layer.propagation, precision)
                for layer in in_known_type(meaning).layers
            ]
            return [timed[key] for key in keys] if set(keys) <= set(timed) else []

        @functools.cache
        def limit_s(call: ProgramCall) -> float | None:
            roofs = [
                row.roofline if (row.device != "cpu") == self.recorded.on_gpu else None
                for row in native(meaning_of_call(call))
            ]
            return sum(roof.time_s for roof in roofs if roof) if roofs and all(roofs) else None

        return ledger_of(
            self.recorded,
            self.file,
            limit_s=limit_s,
            limits_of="the machine above",
            best_s=lambda meaning, _: sum(map(_median_s, native(meaning))) or None,
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
