"""``pydlbench check``: a framework's step rung by rung, and what lies between the rungs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import (
    FAILED,
    add,
    one_of,
    positive_seconds,
    taking,
    whole_number,
)
from pydlbench.cli.steps import (
    EXPECTED_NODES,
    ModelTask,
    add_own,
    frameworks_of,
    mistaken,
    read_steps,
    summands,
)
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.runner.tasks import Result, Row, Task
from pydlbench.words import PRECISIONS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Mapping

    from pydlbench.cli.output import Outputs
    from pydlbench.models.graph import Model
    from pydlbench.records.check import CheckResult
    from pydlbench.records.forecast import ForecastRecord
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepSpec
    from pydlbench.report.blocks import Block
    from pydlbench.runner.execute import Results
    from pydlbench.runner.tasks import View

# Fewer laps have no interval at 95 %.
_LAPS: Final = 6


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "check",
        description="Measure a framework's step rung by rung, from the hardware's limit over "
        "native layers and the framework's operators to the step, and explain what lies between.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="alexnet-owt, vgg16, resnet50...; FILE.py:CALLABLE; FILE.onnx",
    )
    add(
        parser.add_argument_group("what is checked"),
        *("framework", "mode", "phase", "batch", "precision", "layout", "feed", "option"),
        many=("framework", "mode"),
        framework={"help": "torch, tensorflow, jax, or all: the first two, if installed (default)"},
        precision={"type": (one_of, PRECISIONS), "default": "fp32"},
    )
    add_own(parser)
    how = parser.add_argument_group("how it is timed")
    how.add_argument(
        "--laps",
        metavar="N",
        default=15,
        type=taking("--laps", whole_number, _LAPS),
        help="laps at the most, each of which visits all rungs; 6 at the least (15)",
    )
    how.add_argument(
        "--stop-after",
        metavar="S",
        default=60.0,
        type=taking("--stop-after", positive_seconds),
        help="no lap after the sixth of a framework and mode begins after so many seconds (60), "
        "but three where a rung was disturbed too often",
    )
    add(
        how,
        *("device", "threads", "budget", "seed"),
        budget={"default": 0.25, "help": "seconds of sampling per native kernel (0.25)"},
    )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument(
        "--depth",
        metavar="N",
        type=taking("--depth", whole_number, 1),
        help="join modules below the Nth level, and show the table of parts",
    )
    add(
        shown,
        *("explain", "json", "md", "fail-on", "quiet", "verbose", "store"),
        fail_on=FAILED | {"help": "failed: end with exit code 3 if a check has failed"},
    )


def run(
    args: argparse.Namespace,
    session_factory: Callable[..., Any] | None = None,
    checker: Callable[..., Any] | None = None,
) -> int:
    """Check the step in each framework and mode, and show what was found.

    Args:
        args: the command's options.
        session_factory: gives a session for the options of ``session.Options`` as keywords.
        checker: takes the place of ``pydlbench.ladder.check.check_step``.

    Returns:
        0; 1 if no check is ok; 3 under ``--fail-on``; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.measuring import measure
    from pydlbench.cli.output import Outputs

    tasks, notes = read_tasks(args, checker)
    for task in tasks:
        task.check(None)
    outputs = Outputs.from_args(args)
    outputs.note(*notes)

    def shown(results: Results) -> None:
        if results.outcomes:
            show(results, outputs, several=len(tasks) > 1, explain=args.explain, depth=args.depth)

    code, _ = measure(args, "check", tasks, shown, sessions=session_factory, what="checks")
    return code


# -----------------------------------------------------------------------------
# From the options of ``check`` to the steps to be checked, or to one line of complaint.


def read_tasks(
    args: argparse.Namespace, checker: Callable[..., Any] | None = None
) -> tuple[list[Task], tuple[str, ...]]:
    """Return a task for each framework and mode, a sweep's table likewise; and notes on them.

    Args:
        args: the command's options.
        checker: takes the place of ``pydlbench.ladder.check.check_step``.

    Raises:
        UsageError: a value is bad.
        BackendMissingError: no framework is named and none is installed.
    """
    model, rows, notes = read_steps(args)
    _, guessed = frameworks_of(args)
    tasks: list[Task] = [
        CheckTask(
            rows=(row,),
            guessed=guessed,
            options=summands(args),
            model=model,
            laps=args.laps,
            time_limit_s=args.stop_after,
            checker=checker,
        )
        for row in rows
    ]
    return tasks, notes


# -----------------------------------------------------------------------------
# A check of each framework and mode; the first finds the native kernels, which all share.

# Besides its laps: parts, step and log.
_STAGES: Final = 3


@dataclass(frozen=True, kw_only=True)
class CheckTask(ModelTask):
    """The check of one framework and mode; what fails costs itself only.

    Attributes:
        model: the step's graph, with its batch; None of a model of the user's own.
        laps: at the most.
        time_limit_s: no lap after the sixth begins after so many seconds.
        checker: takes the place of ``pydlbench.ladder.check.check_step``.
    """

    kind: ClassVar[str] = "check"
    # Not with other tasks: it opens workers with several allocators.
    opens: ClassVar[str] = "check"
    model: Model | None
    laps: int
    time_limit_s: float
    checker: Callable[..., Any] | None = None

    @property
    def step(self) -> StepSpec:
        """The step that is checked."""
        step: StepSpec = self.rows[0].case
        return step

    def seconds(self) -> float:
        """Return the sampling that is allowed for: a visit of native kernels, and the laps."""
        nodes = EXPECTED_NODES if self.model is None else len(self.model.nodes)
        return 2 * nodes * float(self.options["budget_s"]) / self.laps + self.time_limit_s

    def check(self, session: Any) -> None:
        """Make sure that the step has room where it runs; and a GPU, if it runs on one.

        Args:
            session: None before there is one: a GPU's memory is not known then.
        """
        from pydlbench.devices.cpu.facts import read_cpu_facts
        from pydlbench.steps.run import check_memory_of_parts

        if not self.step.on_gpu:
            available = read_cpu_facts().memory_available_bytes
        elif session is not None:
            available = session.room_bytes(self.step.device)
        else:
            return
        if self.model is not None:  # of another one nobody knows before it has run
            check_memory_of_parts(self.model, self.step, available)

    def native(
        self, session: Any, view: View, stages: int
    ) -> Generator[Result, None, dict[KernelSpec, Measurement]]:
        """Find the native kernels that are not known yet, and return the rows of all.

        Those of a model of the user's own follow from its calls, which its step's first run tells.
        Each is visited once: the laps make the other visits.

        Args:
            session: measures.
            view: of the task.
            stages: that come after them.
        """
        from pydlbench.ladder.check import start_both
        from pydlbench.ladder.estimate import Kernels, plan
        from pydlbench.ladder.mapped import recorded_kernels
        from pydlbench.runner.execute import kernels

        step, cache = self.step, session.cache_bytes(self.step.device)
        if self.model is None:
            start_both(step, session)
            wanted: Kernels = recorded_kernels(step, session)
        else:
            wanted = plan(self.model, step.phase, step.precision, step.device, cache)
        cases, first_of = wanted.cases, self.laps
        return (yield from kernels(self, cases, session, view, stages, first_of=first_of))

    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Find the native kernels, then take the laps."""
        from pydlbench.ladder.check import check_step

        began = time.monotonic()
        self.check(session)
        step, stages = self.step, self.laps + _STAGES
        try:
            native = yield from self.native(session, view, stages)
        except PydlbenchError as error:
            if self.model is not None or mistaken(step, error):
                raise
            yield self.refused(self.rows[0], *_why(error))
            return
        begun: dict[str, None] = {}

        def advance(what: str) -> None:
            begun.setdefault(what.partition(":")[0])  # of a lap, whatever is visited in it
            view.advance(len(begun) - 1, stages, f"{step.framework} {step.mode}: {what}")

        try:
            record = (self.checker or check_step)(
                step,
                session,
                laps=self.laps,
                time_limit_s=self.time_limit_s,
                native=native,
                began=began,
                forecast=lambda case: self._forecast(case, session, view),
                tell=advance,
            )
        except PydlbenchError as error:
            if mistaken(step, error):
                raise
            status, reason = _why(error)
            result = self._result(status=status, reason=reason)
        else:
            result = self._result(record=record)
        yield Result("check", result.to_dict(), self.rows[0], detail=result)

    def _forecast(self, case: StepSpec, session: Any, view: View) -> ForecastRecord | str:
        """Return what stored rows say of a step, and keep that before anything of it is timed.

        Why there is nothing, where some are missing, or nothing is kept.
        """
        from pydlbench.ladder.forecast import forecast_step
        from pydlbench.runner.execute import row_key

        if view.store is None:
            return "there is no store"
        try:
            found = forecast_step(case, session, view.store, measures=False)
        except PydlbenchError as error:  # it would cost the check, which has its own numbers
            return " ".join(str(error).split())
        if found.status != "ok":
            return found.reason or "stored rows are missing"
        key = f"{row_key(self, self.rows[0])}/forecast"
        view.keep(Result("forecast", found.to_dict(), key=key))
        return found

    def refused(self, row: Row, status: str, reason: str) -> Result:
        """Return a check's result without numbers."""
        result = self._result(status=status, reason=reason)
        return Result("check", result.to_dict(), row, detail=result)

    def _result(self, **found: Any) -> CheckResult:
        """Return what came of the check: a record, or status and reason."""
        from pydlbench.records.check import CheckResult

        names = ("model", "batch", "phase", "precision", "framework", "mode", "options", "layout")
        own = {name: getattr(self.step, name) for name in (*names, "feed", "device")}
        return CheckResult(**own, **found)


def _why(error: PydlbenchError) -> tuple[str, str]:
    """Return the status of a check that raised something, and the reason."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return status, " ".join(str(error).split())


# -----------------------------------------------------------------------------
# What is shown of checks.


def show(
    results: Results,
    outputs: Outputs,
    *,
    several: bool,
    explain: bool,
    depth: int | None = None,
) -> None:
    """Write the files, and print.

    Args:
        results: with at least one check.
        outputs: where to.
        several: more than one check was asked for: JSON has a list of them.
        explain: how each term was measured.
        depth: join modules below this level.

    Raises:
        PydlbenchError: a file could not be written after all; the report is printed before.
    """
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.blocks import run_lines
    from pydlbench.report.check import check_report
    from pydlbench.report.json import dump
    from pydlbench.report.text import as_markdown

    native = [one.document for one in results.parts.values() if one.table == "layer"]
    objects = [one.document for one in results.outcomes]
    found: list[CheckResult] = [one.result.detail for one in results.outcomes]
    rows = [Measurement.from_dict(one) for one in native]

    def report() -> list[Block]:
        return check_report(results.run, found, rows, explain=explain, depth=depth)

    def document() -> str:
        head = {"kind": "check", "interrupted": results.early, "run": results.run.to_dict()}
        checks: Mapping[str, Any] = {"checks": objects} if several else objects[0]
        return dump({**head, **checks, "measurements": native})

    outputs.write(
        {"json": document, "md": lambda: as_markdown([*report(), run_lines(results.run)])},
        report,
    )
