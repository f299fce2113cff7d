"""``pydlbench model``: sum measured layers into the estimate of a step."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydlbench.cli.options import add, fail_on, one_of, read_options, taking, whole_number
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.models.work import PHASES
from pydlbench.runner.execute import Result, Row, Task, execute, kernels

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from pydlbench.cli.output import Outputs
    from pydlbench.ladder.estimate import Estimate, Plan
    from pydlbench.models.graph import Model
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.execute import View

__all__ = ["add_parser", "read_model", "read_tasks", "run"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "model",
        description="Measure every distinct layer of a model alone, with hot and with cold caches, "
        "and sum them into the estimate of a step.",
    )
    parser.add_argument("model", metavar="MODEL", help="alexnet-owt, vgg16, resnet50...")
    what = parser.add_argument_group("what is summed")
    add(what, "phase", "batch", "precision", "option")
    what.add_argument("--summary", action="store_true", help="count, without timing anything")
    add(
        parser.add_argument_group("how it is timed"),
        *("device", "threads", "budget", "seed"),
        budget={"default": 0.25, "help": "seconds of sampling per kernel (0.25)"},
    )
    output = parser.add_argument_group("what is shown")
    output.add_argument(
        "--top",
        metavar="N",
        default=20,
        type=taking(whole_number, 1),
        help="kinds of layers shown, by time (20)",
    )
    output.add_argument("--all", action="store_true", help="show all layers, in their order")
    add(
        output,
        *("json", "fail-on", "quiet", "verbose", "store"),
        fail_on={"help": "failed: end with exit code 3 if a kernel could not be measured"},
    )


def run(args: argparse.Namespace, session_factory: Callable[..., Any] | None = None) -> int:
    """Measure and sum.

    Args:
        args: the command's options.
        session_factory: gives a session for the options of ``session.Options`` as keywords.

    Returns:
        0; 1 if something is missing in the sum; 3 under ``--fail-on``; 130 after Ctrl-C.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
        PydlbenchError: nothing could be measured.
    """
    from pydlbench.cli.options import FOUND, recorder_of
    from pydlbench.cli.output import Outputs, ended
    from pydlbench.cli.terminal import Progress

    outputs = Outputs.from_args(args)
    condition = None if args.fail_on is None else fail_on(args.fail_on, ("failed",))
    if args.summary:
        one_of("--phase", args.phase or PHASES[0], PHASES)
        return show_summary(build(args), outputs)
    tasks, notes = read_tasks(args)
    outputs.note(*notes)
    with recorder_of(args, "model") as recorder:
        results = execute(
            tasks,
            None if session_factory is None else lambda task: session_factory(**task.options),
            recorder,
            progress=Progress.of(args),
        )
        found = [one.result.detail for one in results.outcomes]
        for one in found:
            show_estimate(results.run, one, outputs, top=None if args.all else args.top)
    code = ended(results, "estimates", condition)
    missing = any(one.estimate.missing for one in found)
    if code == 0 and missing:
        return 1 if condition is None else FOUND
    return code


# -----------------------------------------------------------------------------
# From the options to the step that is summed, or to one line of complaint.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One step.

    Attributes:
        model: its graph, with the batch.
        variant: of the model, as given.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        device: ``cpu`` or ``cuda:N``.
        options: keywords of ``measure.Options``.
        notes: what has to be said of the device.
    """

    model: Model
    variant: dict[str, str]
    phase: str
    precision: str
    device: str
    options: dict[str, Any]
    notes: tuple[str, ...] = ()


def build(args: argparse.Namespace) -> Model:
    """Return the graph of the model that was asked for.

    Raises:
        UsageError: no such model, option or batch.
    """
    from pydlbench.models import build_model

    return build_model(args.model, args.batch, **read_options(args.option or []))


def read_model(args: argparse.Namespace) -> ModelRequest:
    """Check the options of ``model``.

    Raises:
        UsageError: a value is bad.
    """
    from pydlbench.backends.capabilities import default_device
    from pydlbench.records.specs import CPU_PRECISIONS, GPU_PRECISIONS, check_device

    phase = one_of("--phase", args.phase or PHASES[0], PHASES)
    model = build(args)
    if phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {model.name} has no optimizer; nearest: "
            "--phase forward-backward, or --option optimizer=sgd"
        )
    device, notes = default_device() if args.device is None else (args.device, ())
    check_device(device)
    if device != "cpu" and args.threads is not None:
        raise UsageError(f"--threads {args.threads}: for CPUs only; nearest: leave it out")
    allowed = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    return ModelRequest(
        model=model,
        variant=read_options(args.option or []),
        phase=phase,
        precision=one_of("--precision", args.precision or "fp32", allowed),
        device=device,
        options={
            "threads": args.threads,
            "seed": args.seed,
            "budget_s": args.budget,
            "keep_samples": True,  # for the store
            "estimate": True,
        },
        notes=notes,
    )


# -----------------------------------------------------------------------------
# Measures the kernels behind an estimate, and sums them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """What came of a model.

    Attributes:
        wanted: the plan.
        rows: a measurement for each of its cases.
        estimate: their sum.
        memory: bytes by what they are for.
        document: the JSON object, all of it but the run and the kernels' rows.
    """

    wanted: Plan
    rows: Mapping[KernelSpec, Measurement]
    estimate: Estimate
    memory: dict[str, int]
    document: dict[str, Any]


def read_tasks(args: argparse.Namespace) -> tuple[list[Task], tuple[str, ...]]:
    """Return what is to be done, a sweep's table of such steps likewise; and notes on it."""
    request = read_model(args)
    model, threads = request.model, request.options["threads"]
    fields = {
        **({"option": " ".join(sorted(args.option))} if args.option else {}),
        "model": model.name,
        "batch": str(model.batch),
        "phase": request.phase,
        "precision": request.precision,
        "device": request.device,
        "threads": "default" if threads is None else str(threads),
    }
    label = f"{model.name} batch {model.batch} {request.phase} {request.precision}"
    row = Row(fields=fields, label=label)
    return [EstimateTask(rows=(row,), options=request.options, request=request)], request.notes


@dataclass(frozen=True, kw_only=True)
class EstimateTask(Task):
    """A step that is summed from its kernels.

    Attributes:
        request: the step.
    """

    kind: ClassVar[str] = "model"
    request: ModelRequest

    def seconds(self) -> float:
        """Return the sampling that is allowed for: two cache states of each distinct layer."""
        return 2 * len(self.request.model.nodes) * float(self.options["budget_s"])

    def check(self, session: Any) -> None:
        """Make sure that each kernel fits into memory."""
        session.check_room(self._plan(session).cases)

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Measure the kernels that are not there yet, and sum them."""
        wanted = self._plan(session)
        rows = yield from kernels(self, wanted.cases, session, view)
        found = summed(self.request, wanted, rows, session.cache_bytes(self.request.device))
        if not found.estimate.layers:
            reasons = dict.fromkeys(one.reason for one in rows.values() if one.reason)
            raise PydlbenchError(f"no layer could be measured: {next(iter(reasons), 'no layers')}")
        yield Result("estimate", found.document, self.rows[0], detail=found)

    def _plan(self, session: Any) -> Plan:
        from pydlbench.ladder.estimate import plan

        asked = self.request
        cache = session.cache_bytes(asked.device)
        return plan(asked.model, asked.phase, asked.precision, asked.device, cache)


def summed(
    asked: ModelRequest, wanted: Plan, rows: Mapping[KernelSpec, Measurement], cache_bytes: int
) -> Summed:
    """Sum the kernels of a step.

    Args:
        asked: the step.
        wanted: its plan.
        rows: a measurement for each of the plan's cases.
        cache_bytes: of the device's last cache, as the plan was made with.
    """
    from pydlbench.ladder.estimate import estimate
    from pydlbench.models.counts import memory

    found = estimate(wanted, rows)
    needs = memory(asked.model, asked.phase, asked.precision)
    document = {
        "model": asked.model.name,
        "batch": asked.model.batch,
        "phase": asked.phase,
        "precision": asked.precision,
        **found.to_dict(),
        "memory_bytes": needs,
        "options": dict(asked.variant),
        "device": asked.device,
        "threads": next((one.threads for one in rows.values() if one.threads), None),
        "cache_bytes": cache_bytes,
    }
    return Summed(wanted=wanted, rows=rows, estimate=found, memory=needs, document=document)


# -----------------------------------------------------------------------------
# Where ``model`` puts its estimate, or its counts.


def show_estimate(run: RunRecord, found: Summed, outputs: Outputs, *, top: int | None) -> None:
    """Write the file, and print.

    Args:
        run: the run.
        found: what came of it.
        outputs: where to.
        top: how many layers are listed; None is all.

    Raises:
        PydlbenchError: the file could not be written after all; the table is printed before.
    """
    from pydlbench.report.json import dump
    from pydlbench.report.model import model_report
    from pydlbench.report.text import Style, as_text

    rows = list(found.rows.values())

    def document() -> str:
        measurements = [row.to_dict() for row in rows]
        head = {"kind": "model", "run": run.to_dict()}
        return dump({**head, **found.document, "measurements": measurements})

    outputs.write(
        {"json": document},
        lambda: as_text(
            model_report(run, found.wanted, found.estimate, found.memory, rows, top=top),
            Style.of(sys.stdout),
        ),
    )


def show_summary(model: Model, outputs: Outputs) -> int:
    """Count, without timing anything; returns the exit code."""
    from pydlbench.models.counts import summary
    from pydlbench.report.json import dump
    from pydlbench.report.model import summary_report
    from pydlbench.report.text import Style, as_text

    found = summary(model)
    outputs.write(
        {"json": lambda: dump(found)},
        lambda: as_text(summary_report(found), Style.of(sys.stdout)),
    )
    return 0
