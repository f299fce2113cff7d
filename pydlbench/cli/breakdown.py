"""``pydlbench breakdown``: where a real step's time goes, from the limit to the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import (
    BUDGET,
    EXPLAIN,
    FAIL_ON,
    REPETITIONS,
    RESUME,
    WIDTH,
    ExplainedStep,
)
from pydlbench.cli.steps import (
    USER_MODEL_NODES,
    ModelTask,
    kernel_options,
    read_steps,
    with_framework_ahead,
)
from pydlbench.cli.values import whole_number
from pydlbench.errors import PydlbenchError
from pydlbench.report.blocks import Block
from pydlbench.runner.tasks import Result, Task, View
from pydlbench.timing.policy import LEAST_ROUNDS, STEP_BUDGET_S

if TYPE_CHECKING:
    from pydlbench.models.graph import Model
    from pydlbench.records.estimate import ForecastRecord
    from pydlbench.records.run import RunRecord
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.execute import Results
    from pydlbench.store.documents import Loaded


# Subjects that take as long as a step or longer: the step, the step with kept pages, the traced
# step, its calls alone, and their log.
_SUBJECTS: Final = 5


class BreakdownOptions(ExplainedStep):
    """The command's options."""

    description = (
        "Show where a framework's step spends its time, from the hardware's limit to the step. "
        "Measured in turn: the step; its calls in a traced step; the same calls alone; and the "
        "fastest native kernels of the same layers."
    )
    budget: float = BUDGET(
        help="sampling time in seconds per native kernel (default: 0.25)", default=0.25
    )
    repetitions: int = REPETITIONS(
        help="rounds: in each the step runs in a new process, and its parts are measured beside it "
        f"(default and minimum: {LEAST_ROUNDS})",
        read=partial(whole_number, least=LEAST_ROUNDS),
        default=LEAST_ROUNDS,
    )
    width: float | None = WIDTH()
    explain: bool = EXPLAIN()
    fail_on: tuple[str, float] | None = FAIL_ON(help="exit with code 3 if a breakdown has failed")
    resume: str | None = RESUME()


@with_framework_ahead
def run(args: BreakdownOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Measure and show the breakdown of the step in each framework and mode.

    Args:
        args: the command's options.
        session_factory: opens a session; its keywords are the session's options.

    Returns:
        0; 1 if no breakdown is ok; 3 under ``--fail-on``; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.measuring import answer
    from pydlbench.report.breakdown import breakdown_report

    def report(record: RunRecord, results: Results) -> list[Block]:
        documents = [outcome.document for outcome in results.outcomes]
        return breakdown_report(record, documents, explain=args.explain)

    tasks, notes = read_tasks(args)
    for task in tasks:
        task.check(None)
    return answer(
        *(args, "breakdown", tasks, notes, report),
        sessions=session_factory,
        what="breakdowns",
        request=args.request(),
    )[0]


def read_tasks(args: BreakdownOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return a task for each framework and mode, and notes on them.

    Raises:
        UsageError: a value is bad.
        BackendMissingError: no framework is named and none is installed.
    """
    if args.width:
        args.refuse(("repetitions",), "with --width")
    graph, rows, notes, guessed = read_steps(args)
    tasks: list[Task] = [
        BreakdownTask(
            rows=(row,),
            guessed=guessed,
            options=kernel_options(args, args.budget),
            graph=graph,
            rounds=args.repetitions,
            width=args.width,
        )
        for row in rows
    ]
    return tasks, notes


@dataclass(frozen=True, kw_only=True)
class BreakdownTask(ModelTask):
    """The breakdown of one framework and mode; others go on if it fails.

    Attributes:
        graph: graph of the step, with its batch; None for a user model.
        rounds: number of rounds.
        width: half-width of the interval of the step's time, relative to its median, that
            determines the number of rounds; None if ``rounds`` is the number.
    """

    kind: ClassVar[str] = "breakdown"
    # A session of its own, because it starts workers with several allocators.
    opens: ClassVar[str] = "breakdown"
    graph: Model | None
    rounds: int
    width: float | None = None

    def seconds(self) -> float:
        """Return the seconds of sampling, of steps, their calls and native kernels."""
        nodes = USER_MODEL_NODES if self.graph is None else len(self.graph.nodes)
        return nodes * float(self.options["budget_s"]) + _SUBJECTS * STEP_BUDGET_S

    def check(self, session: Any) -> None:  # noqa: ARG002 - as all tasks
        """Make sure that the step fits into memory, if its graph is known."""
        from pydlbench.devices.cpu.facts import read_cpu_facts
        from pydlbench.steps.run import check_memory_of_parts

        step = self.rows[0].spec
        if self.graph is not None:
            check_memory_of_parts(self.graph, step, read_cpu_facts().memory_available_bytes)

    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Yield the breakdown after each round, or a failed result with the reason."""
        from pydlbench.analysis.breakdown_run import broken_down
        from pydlbench.runner.execute import kernel_result, known_kernel
        from pydlbench.steps.run import planned_rounds

        (row,) = self.rows
        step = row.spec
        rounds = self.rounds
        if self.width is not None:
            rounds = planned_rounds(view.store(), [step], self.width)
        if step.on_gpu:
            session.room_bytes(step.device)  # raises an error if there is no GPU

        def advance(done: float, total: int, stage: str) -> None:
            view.advance(done, total, f"{step.framework} {step.mode}: {stage}")

        records = broken_down(
            step,
            session,
            rounds=rounds,
            known=lambda spec: known_kernel(spec, view),
            keep=lambda spec, found: view.keep(kernel_result(self, spec, found)),
            forecast=lambda spec: self._forecast(spec, session, view),
            advance=advance,
        )
        yield from self.answers(session, row, records, status="ok")

    def _forecast(self, step: StepSpec, session: Any, view: View) -> ForecastRecord | str:
        """Return the forecast of a step, which is stored before anything is timed.

        If there is no store, or rows are missing, return the reason.
        """
        from pydlbench.analysis.forecast import forecast_step
        from pydlbench.runner.execute import row_key

        # This begins the run and so creates its store.
        view.advance(0, 1, f"{step.framework} {step.mode}: forecast")
        if view.store() is None:
            return "there is no store"
        try:
            record = forecast_step(step, session, view.store(), measures=False)
        except PydlbenchError as error:  # the breakdown does not depend on it
            return " ".join(str(error).split())
        if record.status != "ok":
            return record.reason or "stored rows are missing"
        key = f"{row_key(self, self.rows[0])}/forecast"
        view.keep(Result("forecast", record.to_dict(), key=key))
        return record


def stored_report(stored: Loaded) -> list[Block]:
    """Return the report of a stored run."""
    from pydlbench.report.breakdown import breakdown_report

    return breakdown_report(stored.record, [entry.document for entry in stored.table("breakdown")])


SUBCOMMANDS: Final = {"": (BreakdownOptions, run)}
