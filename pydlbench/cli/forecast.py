"""``pydlbench forecast``: a step's time from stored rows of its operators; it is not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import EXPLAIN, HOW, REPETITIONS, RESUME, ExplainedStep, flag
from pydlbench.cli.steps import ModelTask, code_limit, read_steps
from pydlbench.report.blocks import Block
from pydlbench.runner.tasks import Result, Task, View

if TYPE_CHECKING:
    from pydlbench.records.run import RunRecord
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.execute import Results
    from pydlbench.store.documents import Loaded


_REPETITIONS: Final = 3


class ForecastOptions(ExplainedStep):
    """The command's options."""

    description = (
        "Add up the times of a step's operators and page faults, without timing the step. Times of "
        "operators come from the store, whatever model they were measured for; those that it lacks "
        "are measured alone, in processes of their own."
    )
    known_only: bool = flag(
        "measure nothing, use stored rows only; exit code 1 if some are missing", group=HOW
    )
    repetitions: int = REPETITIONS(
        help="repetitions of each missing operator, each in a new process (default: "
        f"{_REPETITIONS}); a 95 % interval needs 4",
        default=_REPETITIONS,
    )
    explain: bool = EXPLAIN(help="show all operators")
    resume: str | None = RESUME()


def run(args: ForecastOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Show the forecast of the step in each framework and mode.

    Args:
        args: the command's options.
        session_factory: opens a session; its keywords are the session's options.

    Returns:
        0; 1 if no forecast is complete; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.measuring import answer
    from pydlbench.report.estimate import forecast_report

    def report(record: RunRecord, results: Results) -> list[Block]:
        documents = [outcome.document for outcome in results.outcomes]
        return forecast_report(record, documents, explain=args.explain)

    tasks, notes = read_tasks(args)
    # An error of the GPU or of a user model would end all tasks.
    steps = [row.spec for task in tasks for row in task.rows]
    tolerant = not any(step.on_gpu or step.own is not None for step in steps)
    return answer(
        args,
        "forecast",
        tasks,
        notes,
        report,
        tolerant=tolerant,
        sessions=session_factory,
        what="forecasts",
        request=args.request(),
    )[0]


def read_tasks(args: ForecastOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return a task for each framework and mode, and notes on them.

    Raises:
        UsageError: a value is bad.
        BackendMissingError: no framework is named and none is installed.
    """
    _, rows, notes, guessed = read_steps(args)
    tasks: list[Task] = [
        ForecastTask(
            rows=(row,),
            guessed=guessed,
            options={"threads": args.threads, "seed": args.seed, **code_limit(args)},
            measures=not args.known_only,
            visits=args.repetitions,
        )
        for row in rows
    ]
    return tasks, notes


@dataclass(frozen=True, kw_only=True)
class ForecastTask(ModelTask):
    """The forecast of one framework and mode; others go on if it fails.

    Attributes:
        measures: whether operators that the store lacks are measured.
        visits: number of processes in which each of these operators is timed.
    """

    kind: ClassVar[str] = "forecast"
    # A session of its own, because it starts new workers for each repetition.
    opens: ClassVar[str] = "forecast"
    measures: bool
    visits: int

    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Yield the forecast; measured operators are stored before."""
        from pydlbench.analysis.forecast import forecasts

        (row,) = self.rows
        step: StepSpec = row.spec
        if step.on_gpu:
            session.room_bytes(step.device)  # raises an error if there is no GPU

        def tell(stage: str) -> None:
            view.advance(0, 1, f"{step.framework} {step.mode}: {stage}")

        def keep(table: str, document: dict[str, Any], key: str) -> None:
            view.keep(Result(table, document, key=key))

        records = forecasts(
            *(step, session, view.store()),
            measures=self.measures,
            visits=self.visits,
            keep=keep,
            tell=tell,
        )
        yield from self.answers(session, row, records)


def stored_report(stored: Loaded) -> list[Block]:
    """Return the report of a stored run."""
    from pydlbench.report.estimate import forecast_report

    return forecast_report(stored.record, [entry.document for entry in stored.table("forecast")])


SUBCOMMANDS: Final = {"": (ForecastOptions, run)}
