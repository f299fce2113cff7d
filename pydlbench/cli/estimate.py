"""``pydlbench estimate``: sum measured layers into the estimate of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.machine import check_threads, device_of
from pydlbench.cli.options import (
    BATCH,
    BUDGET,
    DEVICE,
    FAIL_ON,
    OUTPUT,
    PHASE,
    PRECISION,
    REPETITIONS,
    RESUME,
    WHAT,
    JsonOutput,
    ModelOptions,
    flag,
    option,
)
from pydlbench.cli.output import Outputs
from pydlbench.cli.steps import (
    USER_MODEL_NODES,
    ModelTask,
    check_phase,
    frameworks_of,
    kernel_options,
    read_model,
    step_row,
)
from pydlbench.cli.values import FINDING, one_of, whole_number
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.report.blocks import Block
from pydlbench.runner.tasks import Result, Task, View
from pydlbench.words import CPU_PRECISIONS, FRAMEWORKS, GPU_PRECISIONS

if TYPE_CHECKING:
    from pydlbench.analysis.estimate import EstimatePlan
    from pydlbench.models.graph import Model
    from pydlbench.records.measurement import KernelSpec, Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.execute import Results

# Seconds between two sums of the rows so far.
_ANSWER_PERIOD_S: Final = 5.0
#: Options that have no meaning with ``--summary``.
_NOT_IN_SUMMARY: Final = (
    *("threads", "budget", "repetitions", "seed", "top", "all", "fail_on", "store", "minutes"),
    "resume",
)


class EstimateOptions(ModelOptions, JsonOutput):
    """The command's options."""

    description = (
        "Time every distinct layer of a model alone, with hot and with cold caches, and add the "
        "times up: what a step would take with the fastest kernels and no framework."
    )
    phase: str = PHASE()
    batch: int | None = BATCH()
    precision: str = PRECISION()
    summary: bool = flag(
        "only count layers, parameters and multiply-accumulates; measure nothing",
        group=WHAT,
        not_in_sweeps="times nothing; nearest: pydlbench estimate NAME --summary",
    )
    device: str | None = DEVICE()
    budget: float = BUDGET(
        help="sampling time in seconds per kernel, over all repetitions (default: 0.25)",
        default=0.25,
    )
    repetitions: int | None = REPETITIONS(
        help="repetitions of each kernel, each in a new process (default: 4; 3 of kernels that "
        "hardly change the sum)"
    )
    top: int = option(
        "N",
        "list the N slowest kinds of layers (default: 20)",
        group=OUTPUT,
        read=partial(whole_number, least=1),
        default=20,
    )
    all: bool = flag("list all layers, in their order", group=OUTPUT)
    fail_on: tuple[str, float] | None = FAIL_ON(
        help="exit with code 3 if a kernel could not be measured"
    )
    resume: str | None = RESUME()


def run(args: EstimateOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Measure the layers and sum their times.

    Args:
        args: the command's options.
        session_factory: opens a session; its keywords are the session's options.

    Returns:
        0; 1 if a layer is missing in the sum; 3 under ``--fail-on``; 130 after Ctrl-C.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
        PydlbenchError: nothing could be measured.
    """
    if args.summary:
        args.refuse(_NOT_IN_SUMMARY, "with --summary")
        model, _ = read_model(args, args.batch)
        if model is None:
            raise UsageError(
                f"--summary: {args.model} has no graph to be counted; nearest: leave it out"
            )
        return show_summary(model, Outputs.from_options(args))
    from pydlbench.cli.measuring import answer
    from pydlbench.records.estimate import StepEstimate
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.estimate import estimate_report

    def rows(results: Results) -> list[Measurement]:
        if any(outcome.detail is None for outcome in results.outcomes):
            return [part.record(Measurement) for part in results.parts.values()]
        return [row for outcome in results.outcomes for row in outcome.detail[1]]

    def steps(results: Results) -> list[StepEstimate]:
        return [
            outcome.detail[0] if outcome.detail else StepEstimate.from_dict(outcome.document)
            for outcome in results.outcomes
        ]

    def report(record: RunRecord, results: Results) -> list[Block]:
        (step,) = steps(results)
        return estimate_report(record, step, rows(results), top=None if args.all else args.top)

    code, results = answer(
        args,
        "estimate",
        *read_tasks(args),
        report,
        sessions=session_factory,
        what="estimates",
        request=args.request(),
        parts=rows,
    )
    missing = any(step.missing for step in steps(results))
    if code == 0 and missing and not results.early:
        return 1 if args.fail_on is None else FINDING
    return code


def read_tasks(args: EstimateOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return the task, and notes on the device.

    Raises:
        UsageError: a value is bad.
    """
    from pydlbench.records.step import StepSpec
    from pydlbench.timing.policy import LEAST_ROUNDS

    model, named = read_model(args, args.batch)
    # The calls of a user model are recorded in its framework's first mode.
    frameworks, guessed = frameworks_of(args.model)
    check_phase(model, args.phase)
    device, notes = device_of(args.device)
    check_threads(args.threads, device)
    allowed = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    precision = one_of("--precision", args.autocast or args.precision, allowed)
    step = StepSpec(
        **named,
        phase=args.phase,
        framework=(frameworks or FRAMEWORKS)[0],
        precision=precision,
        device=device,
        seed=args.seed,
    )
    names = ("model", "batch", "phase", "precision", "device")
    row = step_row(args, step, names, label=step.what)
    options = {
        **kernel_options(args, args.budget),
        "repetitions": args.repetitions or LEAST_ROUNDS,
    }
    return [EstimateTask(rows=(row,), guessed=guessed, options=options, model=model)], notes


@dataclass(frozen=True, kw_only=True)
class EstimateTask(ModelTask):
    """The estimate of a step from its kernels.

    Attributes:
        model: graph of the model, with its batch; None for a user model.
    """

    kind: ClassVar[str] = "estimate"
    model: Model | None

    @property
    def step(self) -> StepSpec:
        """The step."""
        step: StepSpec = self.rows[0].spec
        return step

    def seconds(self) -> float:
        """Return the seconds of sampling: two cache states of each layer."""
        nodes = USER_MODEL_NODES if self.model is None else len(self.model.nodes)
        return 2 * nodes * float(self.options["budget_s"])

    def check(self, session: Any) -> None:
        """Make sure that each kernel fits into memory."""
        if self.model is not None:  # the kernels of a user model are not known before it has run
            session.check_room(self._plan(session).specs)

    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Measure the kernels that the run does not have yet, and sum them every few seconds."""
        from pydlbench.runner.execute import kernels

        wanted = self._plan(session)
        rows: dict[KernelSpec, Measurement] = {}
        due = 0.0

        def so_far() -> Iterator[Result]:
            if (answer := self._answer(wanted, rows, session)) is not None:
                yield replace(answer, so_far=True)

        try:
            for result in kernels(self, wanted.by_size, session, view, rows, wanted.effort):
                yield result
                if time.monotonic() > due:
                    yield from so_far()
                    due = time.monotonic() + _ANSWER_PERIOD_S
        except KeyboardInterrupt:
            yield from so_far()
            raise
        answer = self._answer(wanted, rows, session)
        if answer is None:
            reasons = dict.fromkeys(row.reason for row in rows.values() if row.reason)
            raise PydlbenchError(f"no layer could be measured: {next(iter(reasons), 'no layers')}")
        yield answer

    def _answer(
        self, wanted: EstimatePlan, rows: Mapping[KernelSpec, Measurement], session: Any
    ) -> Result | None:
        """Return the sum of the rows so far; None if no layer has one."""
        from pydlbench.analysis.estimate import estimate
        from pydlbench.models.passes import memory
        from pydlbench.runner.rows import empty_row

        step, threads = self.step, next((row.threads for row in rows.values() if row.threads), None)
        later = {
            spec: empty_row(spec, threads, "skipped", "the estimate ended before it was measured")
            for spec in wanted.specs
            if spec not in rows
        }
        record = estimate(
            wanted,
            {**rows, **later},
            memory_bytes=memory(self.model, step.phase, step.precision) if self.model else {},
            options=step.options,
            own=step.own,
            device=step.device,
            threads=threads,
            cache_bytes=session.cache_bytes(step.device),
        )
        if not record.layers:
            return None
        return Result("estimate", record.to_dict(), self.rows[0], detail=(record, [*rows.values()]))

    def _plan(self, session: Any) -> EstimatePlan:
        """Return the kernels of the step; the calls of a user model are recorded."""
        from pydlbench.analysis.estimate import plan_step
        from pydlbench.analysis.mapped import listed, recorded_plan

        step, cache_bytes = self.step, session.cache_bytes(self.step.device)
        if self.model is not None:
            return plan_step(self.model, step.phase, step.precision, step.device, cache_bytes)
        recorded = listed(step, session)
        return recorded_plan(
            recorded.calls,
            name=step.model,
            batch=recorded.batch,
            phase=step.phase,
            precision=step.precision,
            device=step.device,
            cache_bytes=cache_bytes,
            notes=recorded.notes,
            types=recorded.types,
        )


def show_summary(model: Model, outputs: Outputs) -> int:
    """Print the counts of a model without timing anything, and return the exit code."""
    from pydlbench.models.passes import summary
    from pydlbench.records.documents import SummaryDocument
    from pydlbench.records.record import SCHEMA_VERSION
    from pydlbench.report.estimate import summary_report

    counts = summary(model)
    shown = SummaryDocument.from_dict({"schema_version": SCHEMA_VERSION, **counts})
    outputs.write(lambda: counts, lambda: summary_report(shown))
    return 0


SUBCOMMANDS: Final = {"": (EstimateOptions, run)}
