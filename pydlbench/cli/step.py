"""``pydlbench step``: a real framework step, also in the published scripts' own protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.output import row_warnings
from pydlbench.cli.steps import (
    ModelTask,
    StepOptions,
    StepsTask,
    check_phase,
    code_limit,
    devices_of,
    framework_modes,
    frameworks_of,
    read_model,
    step_row,
    with_framework_ahead,
)
from pydlbench.cli.values import choices
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.runner.tasks import Result, Task, TaskRow, View
from pydlbench.words import (
    CASTS,
    CPU_PRECISIONS,
    FEEDS,
    FRAMEWORK_MODES,
    FRAMEWORKS,
    GPU_PRECISIONS,
    PRECISIONS,
)

if TYPE_CHECKING:
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.execute import Results


@with_framework_ahead
def run(args: StepOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Time steps, or run a published protocol.

    Args:
        args: the command's options.
        session_factory: opens a session; its keywords are the session's options.

    Returns:
        0; 1 if no row is ok, or the frameworks disagree; 3 under ``--fail-on``; 130 after Ctrl-C.

    Raises:
        UsageError: bad input; nothing was run and nothing written.
    """
    if args.protocol is not None:
        from pydlbench.cli.step_protocol import run_protocol

        return run_protocol(args, session_factory)
    from pydlbench.cli.measuring import answer
    from pydlbench.records.step import StepRecord
    from pydlbench.report.step import steps_document, steps_report, to_csv

    def records(results: Results) -> list[StepRecord]:
        return [outcome.record(StepRecord) for outcome in results.outcomes]

    def agreements(results: Results) -> list[dict[str, Any]]:
        return [part.document for part in results.parts.values()]

    def document(results: Results) -> dict[str, Any]:
        return steps_document(results.run, records(results), agreements(results))

    tasks, notes = read_tasks(args)
    code, results = answer(
        *(args, "step", tasks, notes),
        lambda record, results: steps_report(record, records(results), agreements(results)),
        document=document,
        csv=lambda results: to_csv(results.run, records(results)),
        warnings=lambda results: row_warnings(records(results)),
        sessions=session_factory,
        request=args.request(),
    )
    disagree = any(part.document["status"] != "ok" for part in results.parts.values())
    return 1 if code == 0 and disagree else code


# -----------------------------------------------------------------------------
# From the options of ``step`` to tasks, or to one line that says what is wrong.

#: Attributes that identify a step among the rows of a sweep.
_STEP_FIELDS: Final = (
    *("model", "batch", "phase", "framework", "mode", "precision", "cast", "layout", "feed"),
    "device",
)
_PROTOCOL_ONLY: Final = ("steps", "warmup", "every", "epochs", "quirk", "data")


def read_tasks(args: StepOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return a task for each batch and phase, and notes on them.

    Raises:
        UsageError: a value is bad, or two options exclude each other.
    """
    from pydlbench.models.user_model import is_user_model
    from pydlbench.records.step import StepSpec
    from pydlbench.timing.policy import LEAST_ROUNDS, STEP_BUDGET_S

    args.refuse(_PROTOCOL_ONLY, "without --protocol", "--protocol NAME")
    if args.width:
        args.refuse(("repetitions",), "with --width")
    if not args.model:
        raise UsageError("MODEL: none given; nearest: pydlbench step alexnet-owt --batch 16")
    frameworks, guessed = frameworks_of(args.model, args.framework)
    pairs, notes = framework_modes(frameworks, args.mode, FRAMEWORKS, guessed=guessed)
    pythons = _interpreters(args.python or {}, [framework for framework, _ in pairs])
    devices, more = devices_of(args)
    if is_user_model(args.model) and (args.agree or args.feed == "host"):
        text = "--agree" if args.agree else "--feed host"
        raise UsageError(f"{text}: for models of the catalogue; nearest: leave it out")
    precision = args.precision
    if args.autocast:
        precision = (args.autocast if "cpu" in devices else f"{args.autocast}-tc",)
    precisions = _precisions(precision, devices)
    if args.agree and len({framework for framework, _ in pairs}) != 2:
        raise UsageError("--agree: needs two frameworks; nearest: --framework all")
    tasks: list[Task] = []
    for batch, phase in product(args.batch or [None], args.phase):
        model, named = read_model(args, batch)
        check_phase(model, phase)
        steps = [
            StepSpec(
                **named,
                phase=phase,
                framework=framework,
                mode=mode,
                precision=precision,
                cast=args.cast or CASTS[0],
                layout=args.layout or "",
                feed=args.feed or FEEDS[0],
                device=device,
                seed=args.seed,
            )
            for precision, (framework, mode), device in product(precisions, pairs, devices)
        ]
        tasks.append(
            StepTask(
                rows=tuple(step_row(args, step, _STEP_FIELDS) for step in steps),
                options={
                    "budget_s": args.budget or STEP_BUDGET_S,
                    "repetitions": args.repetitions or LEAST_ROUNDS,
                    "threads": args.threads,
                    "seed": args.seed,
                    "pythons": pythons,
                    **code_limit(args),
                },
                guessed=guessed,
                model=model,
                width=args.width,
                checks=not args.no_checks,
                trace=not args.no_trace,
                agree=args.agree,
            )
        )
    return tasks, (*notes, *more)


def _interpreters(given: Mapping[str, str], frameworks: Sequence[str]) -> Mapping[str, str]:
    """Return the interpreters of frameworks that are installed elsewhere.

    Raises:
        UsageError: a framework is not measured, or an interpreter has no pydlbench of the same
            messages.
    """
    from pydlbench.workers.installation import read_installation

    for name, path in given.items():
        if name not in frameworks:
            raise UsageError(
                f"--python {name}={path}: {name} is not measured; nearest: --framework "
                f"{','.join(dict.fromkeys([*frameworks, name]))}"
            )
        read_installation(path)
    return given


def _precisions(given: Sequence[str], devices: Sequence[str]) -> list[str]:
    cpu, gpu = "cpu" in devices, any(device != "cpu" for device in devices)
    allowed = [
        name
        for name in PRECISIONS
        if (cpu and name in CPU_PRECISIONS) or (gpu and name in GPU_PRECISIONS)
    ]
    if cpu and not gpu:
        for value in given:
            if value in GPU_PRECISIONS and value not in CPU_PRECISIONS:
                raise UsageError(f"--precision {value}: for GPUs only; nearest: --device cuda:0")
    return choices("--precision", ",".join(given), allowed, "all")


@dataclass(frozen=True, kw_only=True)
class StepTask(ModelTask, StepsTask):
    """Steps of one batch and phase, checked and timed interleaved.

    Attributes:
        model: graph of the model, with its batch; None for a user model.
        width: half-width of the interval of the time, relative to the median, that determines the
            number of repetitions; None for the default number of repetitions.
        checks: whether each step is first checked against the graph.
        trace: whether a step is traced for the times of modules and calls.
        agree: whether the results of the frameworks are compared.
    """

    model: Model | None
    width: float | None = None
    checks: bool = True
    trace: bool = True
    agree: bool = False

    def check(self, session: Any) -> None:
        """Make sure that each step fits into memory, if its graph is known."""
        from pydlbench.steps.run import check_memory

        if self.model is None:
            return
        for row in self.rows:  # while one runs, the process of the next one exists
            check_memory(self.model, row.spec, session.room_bytes(), processes=2)

    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Time the steps interleaved."""
        from pydlbench.records.step import StepPreparation
        from pydlbench.runner.execute import row_key
        from pydlbench.steps.run import planned_rounds, runs_in_turn

        self.check(session)
        cases = [row.spec for row in self.rows]
        if self.agree:
            view.advance(0, len(cases), f"{cases[0].label}: agreement")
            key = f"{row_key(self, self.rows[0])}/agreement"
            yield Result("agreement", _compare(session, cases), key=key)
        visits = None if self.width is None else planned_rounds(view.store(), cases, self.width)
        results: dict[int, Result] = {}
        for index, record in runs_in_turn(
            *(cases, session),
            visits=visits,
            preparation=StepPreparation(checks=self.checks),
            trace=self.trace,
            progress=view.advance,
        ):
            document = record.to_dict()
            results[index] = Result("step", document, self.rows[index], detail=record, so_far=True)
            yield results[index]
        for index in range(len(cases)):
            yield replace(results[index], so_far=False)

    def refused(self, row: TaskRow, status: str, reason: str) -> Result:
        """Return a step's record without numbers."""
        from pydlbench.records.step import StepRecord

        record = StepRecord(spec=row.spec, status=status, reason=reason)
        return Result("step", record.to_dict(), row)


def _compare(session: Any, cases: Sequence[StepSpec]) -> dict[str, Any]:
    """Compare the results of two frameworks."""
    from pydlbench.steps.agreement import agree

    step = cases[0]
    # PyTorch is the reference, whichever is named first.
    first, second = sorted({spec.framework for spec in cases}, key=tuple(FRAMEWORK_MODES).index)
    where = {"batch": step.batch, "phase": step.phase}
    try:
        agreement = agree(step, session, (first, second))
    except PydlbenchError as error:  # the steps can still be timed
        return {**where, "status": "failed", "detail": str(error)}
    check = agreement.check
    return {**where, "status": check.status, "detail": check.detail, **agreement.to_dict()}


SUBCOMMANDS: Final = {"": (StepOptions, run)}
