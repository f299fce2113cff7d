"""``pydlbench diagnose``: what slows a step down, and what each remedy saves, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import BUDGET, FAIL_ON, FRAMEWORK, MINUTES, RESUME, ExplainedStep
from pydlbench.cli.steps import ModelTask, kernel_options, read_steps, with_framework_ahead
from pydlbench.cli.values import FINDING, choices, fail_on
from pydlbench.errors import UsageError
from pydlbench.report.blocks import Block
from pydlbench.runner.tasks import Result, Task, View
from pydlbench.words import FRAMEWORKS, ONNX_FRAMEWORK

if TYPE_CHECKING:
    from pydlbench.records.run import RunRecord
    from pydlbench.runner.execute import Results


_MINUTES: Final = 5.0


class DiagnoseOptions(ExplainedStep):
    """The command's options."""

    description = (
        "Time a real step of a framework, look for what slows it down, and measure what each "
        "remedy saves: the step with and without it, in turn."
    )
    framework: tuple[str, ...] | None = FRAMEWORK(
        help="torch (default) or tensorflow; default of a model of your own: its framework",
        read=partial(choices, allowed=(*FRAMEWORKS, ONNX_FRAMEWORK)),
    )
    minutes: float | None = MINUTES(
        help="end after N minutes with the findings so far (default: 5)", default=_MINUTES
    )
    budget: float = BUDGET(help="sampling time in seconds per kernel (default: 0.25)", default=0.25)
    fail_on: tuple[str, float] | None = FAIL_ON(
        metavar="saves:P%",
        help="exit with code 3 if a remedy saves P % of the step or more",
        read=partial(fail_on, allowed=("saves",)),
    )
    resume: str | None = RESUME(help=f"{RESUME.help}; its experiments are not repeated")


@with_framework_ahead
def run(args: DiagnoseOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Diagnose a step and show the findings.

    Args:
        args: the command's options.
        session_factory: opens a session; its keywords are the session's options.

    Returns:
        0; 3 under ``--fail-on`` with such a finding; 130 after Ctrl-C, with what was found by then.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
        PydlbenchError: the step cannot be run.
    """
    from pydlbench.cli.measuring import answer
    from pydlbench.report.diagnose import diagnosis_report

    def report(record: RunRecord, results: Results) -> list[Block]:
        (outcome,) = results.outcomes
        return diagnosis_report(record, outcome.detail)

    code, results = answer(
        *(args, "diagnose", *read_tasks(args), report),
        sessions=session_factory,
        what="diagnoses",
        request=args.request(),
    )
    if code == 0 and args.fail_on is not None:
        diagnoses = [outcome.detail for outcome in results.outcomes]
        shares = [finding.saving.share for diagnosis in diagnoses for finding in diagnosis.findings]
        return FINDING if any(share >= args.fail_on[1] for share in shares) else 0
    return code


def read_tasks(args: DiagnoseOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return the task, and notes on its step.

    Raises:
        UsageError: a value is bad, or the step does not fit into memory.
    """
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.steps.run import check_memory_of_parts

    for name in ("framework", "mode"):
        first, *others = getattr(args, name) or ("",)
        if others or (name, first) == ("mode", "all"):
            text = args.given[name]
            near = f"nearest: --{name} {first}" if others else "nearest: leave it out"
            raise UsageError(f"--{name} {text}: one at a time; {near}")
    model, rows, notes, guessed = read_steps(args, FRAMEWORKS[:1])
    if model is not None:
        available = read_cpu_facts().memory_available_bytes
        check_memory_of_parts(model, rows[0].spec, available)
    options = kernel_options(args, args.budget)
    del options["keep_samples"]  # only findings are stored
    task = DiagnoseTask(
        rows=tuple(rows),
        guessed=guessed,
        options=options,
        time_limit_s=60.0 * (args.minutes or 5.0),
    )
    return [task], notes


@dataclass(frozen=True, kw_only=True)
class DiagnoseTask(ModelTask):
    """The diagnosis of a step.

    Attributes:
        time_limit_s: time in seconds after which no further experiment begins.
    """

    kind: ClassVar[str] = "diagnose"
    # A session of its own, because it starts workers with several allocators.
    opens: ClassVar[str] = "diagnose"
    time_limit_s: float

    def seconds(self) -> float:
        """Return the time limit."""
        return self.time_limit_s

    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Yield the diagnosis after each experiment."""
        from pydlbench.diagnose.run import diagnoses
        from pydlbench.records.diagnosis import Diagnosis
        from pydlbench.runner.execute import kernel_result, known_kernel

        (row,) = self.rows
        if row.spec.on_gpu:
            session.room_bytes(row.spec.device)  # raises an error if there is no GPU
        view.advance(0, 1, row.label)
        document = view.begun(row)
        before = None if document is None else Diagnosis.from_dict(document)
        if before is not None:
            yield Result("findings", before.to_dict(), row, detail=before, so_far=True)
        for record in diagnoses(
            row.spec,
            session,
            self.time_limit_s,
            lambda text: view.advance(0, 1, text),
            known=lambda spec: known_kernel(spec, view),
            keep=lambda spec, found: view.keep(kernel_result(self, spec, found)),
            before=before,
        ):
            document = record.to_dict()
            yield Result("findings", document, row, detail=record, so_far=record.interrupted)


SUBCOMMANDS: Final = {"": (DiagnoseOptions, run)}
