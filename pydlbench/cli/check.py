"""``pydlbench check``: the ledger, a step's estimate against the real step in a framework."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import (
    add,
    choices,
    fail_on,
    one_of,
    positive_seconds,
    read_options,
    taking,
    whole_number,
)
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.runner.execute import Result, Row, Task, execute, kernels

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from pydlbench.cli.output import Outputs
    from pydlbench.ladder.native import NativeSum
    from pydlbench.models.graph import Model
    from pydlbench.records.check import CheckResult
    from pydlbench.report.text import Block
    from pydlbench.runner.execute import Results, View

__all__ = ["CheckRequest", "add_parser", "check_room", "read_check", "read_tasks", "run", "tasks"]

# Fewer rounds have no median to speak of.
_ROUNDS: Final = 5


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "check",
        description="Predict a framework's step from its operators, each run alone, run the step "
        "in turn with them, and name what lies between the hardware's roof and the measured time.",
    )
    parser.add_argument("model", metavar="MODEL", help="alexnet-owt, vgg16, resnet50...")
    add(
        parser.add_argument_group("what is checked"),
        *("framework", "mode", "phase", "batch", "precision", "layout", "feed", "option"),
        many=("framework", "mode"),
        framework={"help": "torch, tensorflow or all; default: those that are installed"},
    )
    how = parser.add_argument_group("how it is timed")
    how.add_argument(
        "--rounds",
        metavar="N",
        default=15,
        type=taking(whole_number, _ROUNDS),
        help="rounds at the most, 5 at the least (15)",
    )
    how.add_argument(
        "--time-limit",
        metavar="S",
        default=60.0,
        type=taking(positive_seconds),
        help="no round of a framework and mode begins after so many seconds (60)",
    )
    add(
        how,
        *("threads", "budget", "seed"),
        budget={"default": 0.25, "help": "seconds of sampling per native kernel (0.25)"},
    )
    add(
        parser.add_argument_group("what is shown"),
        *("explain", "json", "md", "fail-on", "quiet", "verbose", "store"),
        fail_on={"help": "failed: end with exit code 3 if a check has failed"},
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
        checker: takes the place of ``pydlbench.ladder.check.check``.

    Returns:
        0; 1 if no check is ok; 3 under ``--fail-on``; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.options import recorder_of
    from pydlbench.cli.output import Outputs, ended
    from pydlbench.cli.terminal import Progress

    condition = None if args.fail_on is None else fail_on(args.fail_on, ("failed",))
    request = read_check(args)
    check_room(request)
    outputs = Outputs.from_args(args)
    outputs.note(*request.notes)
    with recorder_of(args, "check") as recorder:
        results = execute(
            tasks(request, checker),
            None if session_factory is None else lambda task: session_factory(**task.options),
            recorder,
            progress=Progress.of(args),
        )
        if results.outcomes:
            show(results, outputs, several=len(request.subjects) > 1, explain=args.explain)
    return ended(results, "checks", condition)


# -----------------------------------------------------------------------------
# From the options of ``check`` to the steps to be checked, or to one line of complaint.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """One step and the ways to run it.

    Attributes:
        model: its graph, with the batch.
        model_options: of the model, as given.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        subjects: framework and mode of each check.
        rounds: at the most.
        time_limit_s: no round of a check begins after so many seconds.
        layout: of images: ``nhwc`` or ``nchw``.
        feed: ``resident`` images, or new ones from the ``host`` in each step.
        options: keywords of ``measure.Options``.
        notes: what is done otherwise than it was written.
    """

    model: Model
    model_options: dict[str, str]
    phase: str
    precision: str
    subjects: tuple[tuple[str, str], ...]
    rounds: int
    time_limit_s: float
    layout: str = "nhwc"
    feed: str = "resident"
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def result(self, framework: str, mode: str, **found: Any) -> CheckResult:
        """Return what came of one check: a record, or status and reason."""
        from pydlbench.records.check import CheckResult

        return CheckResult(
            model=self.model.name,
            batch=self.model.batch,
            phase=self.phase,
            precision=self.precision,
            framework=framework,
            mode=mode,
            options=self.model_options,
            layout=self.layout,
            feed=self.feed,
            **found,
        )


def read_check(args: argparse.Namespace) -> CheckRequest:
    """Check the options.

    Raises:
        UsageError: a value is bad.
        BackendMissingError: no framework is named and none is installed.
    """
    from pydlbench.models import build_model
    from pydlbench.models.work import PHASES
    from pydlbench.records.specs import CPU_PRECISIONS
    from pydlbench.records.step import FEEDS, LAYOUTS

    variant = read_options(args.option or [])
    model = build_model(args.model, args.batch, **variant)
    subjects, notes = _subjects(args.framework, args.mode)
    phase = one_of("--phase", args.phase or PHASES[0], PHASES)
    if phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {model.name} has no optimizer; nearest: "
            "--phase forward-backward, or --option optimizer=sgd"
        )
    precision = one_of("--precision", args.precision or "fp32", CPU_PRECISIONS)
    layout = one_of("--layout", args.layout, LAYOUTS)
    if layout != "nhwc" and all(framework == "tensorflow" for framework, _ in subjects):
        raise UsageError(
            f"--layout {layout}: TensorFlow's convolutions on CPUs take nhwc only; nearest: "
            "--layout nhwc"
        )
    return CheckRequest(
        model=model,
        model_options=variant,
        phase=phase,
        precision=precision,
        subjects=subjects,
        rounds=args.rounds,
        time_limit_s=args.time_limit,
        layout=layout,
        feed=one_of("--feed", args.feed or FEEDS[0], FEEDS),
        options={
            "threads": args.threads,
            "seed": args.seed,
            "budget_s": args.budget,
            "keep_samples": True,  # for the store
            "estimate": True,
        },
        notes=notes,
    )


def check_room(request: CheckRequest) -> None:
    """Make sure that each check has room in the memory that is free now.

    They run one after the other, and what a step takes hangs neither on framework nor on mode.

    Raises:
        UsageError: it has not; with the largest batch that has.
    """
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.records.step import StepSpec
    from pydlbench.steps.run import check_memory_of_parts

    step = StepSpec(
        model=request.model.name,
        phase=request.phase,
        framework=request.subjects[0][0],
        precision=request.precision,
    )
    check_memory_of_parts(request.model, step, read_cpu_facts().memory_available_bytes)


def _subjects(
    frameworks: Sequence[str] | None, modes: Sequence[str] | None
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return framework and mode of each check, and notes.

    A framework that is named and has none of the modes takes their counterparts: what one calls
    ``compiled`` is ``xla`` to the other.
    """
    from pydlbench.backends import capabilities
    from pydlbench.records.step import FRAMEWORK_MODES, FRAMEWORKS

    named = choices("--framework", frameworks, FRAMEWORKS, "all") if frameworks else _installed()
    wanted = choices("--mode", modes, capabilities.modes(), "all") if modes else None
    valid = [mode for name in named for mode in FRAMEWORK_MODES[name]]
    for mode in [] if wanted is None or "all" in ",".join(modes or ()).split(",") else wanted:
        if mode not in valid:
            has = f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'}"
            near = valid[_place(mode)]
            raise UsageError(f"--mode {mode}: {has} no such mode; nearest: {near}")
    found: list[tuple[str, str]] = []
    notes = []
    for name in named:
        own = FRAMEWORK_MODES[name]
        fitting = list(own[:1]) if wanted is None else [mode for mode in own if mode in wanted]
        if not fitting and frameworks:
            places = sorted({_place(mode) for mode in wanted or ()})
            fitting = [own[place] for place in places]
            notes.append(
                f"{name} has no mode {', '.join(wanted or ())}; its own are checked: "
                f"{', '.join(fitting)}"
            )
        elif not fitting:
            notes.append(f"{name} has no mode {', '.join(wanted or ())}, left out")
        found += [(name, mode) for mode in fitting]
    return tuple(found), tuple(notes)


def _place(mode: str) -> int:
    """Return 0 for a framework's plain way to run, 1 for its compiler."""
    from pydlbench.records.step import FRAMEWORK_MODES

    return next(own.index(mode) for own in FRAMEWORK_MODES.values() if mode in own)


def _installed() -> list[str]:
    from pydlbench.backends.capabilities import is_there, of
    from pydlbench.records.step import FRAMEWORKS

    found = [name for name in FRAMEWORKS if is_there(of(name))]
    if not found:
        ways = " or ".join(of(name).install for name in FRAMEWORKS)
        raise BackendMissingError(f"--framework: none is installed; get one with: {ways}")
    return found


# -----------------------------------------------------------------------------
# A check of each framework and mode; the first measures the native rows, which all share.

# Besides its rounds: parts, step and log.
_STAGES: Final = 3


@dataclass(frozen=True, kw_only=True)
class CheckTask(Task):
    """The check of one framework and mode; what fails costs itself only.

    Attributes:
        request: the step.
        checker: takes the place of ``pydlbench.ladder.check.check``.
    """

    kind: ClassVar[str] = "check"
    # Not with other tasks: it opens workers with several allocators.
    opens: ClassVar[str] = "check"
    request: CheckRequest
    checker: Callable[..., Any] | None = None

    def seconds(self) -> float:
        """Return the sampling that is allowed for: native kernels, and the rounds."""
        native = 2 * len(self.request.model.nodes) * float(self.options["budget_s"])
        return native + self.request.time_limit_s

    def native(self, session: Any, view: View, stages: int) -> Generator[Result, None, NativeSum]:
        """Measure what is not there yet of the native rows, and sum them.

        Args:
            session: measures.
            view: of the task.
            stages: that come after them.
        """
        from pydlbench.ladder.estimate import plan
        from pydlbench.ladder.native import native_sum

        asked = self.request
        cache = session.cache_bytes("cpu")
        wanted = plan(asked.model, asked.phase, asked.precision, "cpu", cache)
        rows = yield from kernels(self, wanted.cases, session, view, stages)
        return native_sum(wanted, rows)

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Measure the native rows, then predict and run the step."""
        asked, (row,) = self.request, self.rows
        check_room(asked)
        stages = asked.rounds + _STAGES
        native = yield from self.native(session, view, stages)
        framework, mode = row.case
        done = 0

        def advance(what: str) -> None:
            nonlocal done
            view.advance(done, stages, f"{framework} {mode}: {what}")
            done += 1

        try:
            record = (self.checker or _check)(
                asked.model.name,
                asked.model_options,
                asked.model.batch,
                asked.phase,
                asked.precision,
                framework,
                mode,
                session,
                rounds=asked.rounds,
                time_limit_s=asked.time_limit_s,
                native=native,
                layout=asked.layout,
                feed=asked.feed,
                tell=advance,
            )
        except PydlbenchError as error:
            status = "skipped" if isinstance(error, UnsupportedError) else "failed"
            result = asked.result(
                framework, mode, status=status, reason=" ".join(str(error).split())
            )
        else:
            result = asked.result(framework, mode, record=record)
        yield Result("check", result.to_dict(), row, detail=result)

    def refused(self, row: Row, status: str, reason: str) -> Result:
        """Return a check's result without numbers."""
        result = self.request.result(*row.case, status=status, reason=reason)
        return Result("check", result.to_dict(), row, detail=result)


def _check(*arguments: Any, **options: Any) -> Any:
    from pydlbench.ladder.check import check

    return check(*arguments, **options)


def tasks(request: CheckRequest, checker: Callable[..., Any] | None = None) -> list[Task]:
    """Return a task for each framework and mode."""
    model, threads = request.model, request.options.get("threads")
    shared = {
        **(
            {"option": " ".join(f"{name}={one}" for name, one in request.model_options.items())}
            if request.model_options
            else {}
        ),
        "model": model.name,
        "batch": str(model.batch),
        "phase": request.phase,
        "precision": request.precision,
    }
    rest = {
        "layout": request.layout,
        "feed": request.feed,
        "device": "cpu",
        "threads": "default" if threads is None else str(threads),
    }
    what = f"{model.name} batch {model.batch} {request.phase} {request.precision}"
    return [
        CheckTask(
            rows=(
                Row(
                    fields={**shared, "framework": framework, "mode": mode, **rest},
                    label=f"{what} {framework} {mode}",
                    case=(framework, mode),
                ),
            ),
            options=request.options,
            request=request,
            checker=checker,
        )
        for framework, mode in request.subjects
    ]


def read_tasks(args: argparse.Namespace) -> tuple[list[Task], tuple[str, ...]]:
    """Return the tasks of a sweep's table, and notes on it."""
    request = read_check(args)
    return tasks(request), request.notes


# -----------------------------------------------------------------------------
# What is shown of checks.


def show(results: Results, outputs: Outputs, *, several: bool, explain: bool) -> None:
    """Write the files, and print.

    Args:
        results: with at least one check.
        outputs: where to.
        several: more than one check was asked for: JSON has a list of them.
        explain: how each term was measured.

    Raises:
        PydlbenchError: a file could not be written after all; the report is printed before.
    """
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.check import check_report
    from pydlbench.report.json import dump
    from pydlbench.report.text import Style, as_markdown, as_text, run_lines

    native = [one.document for one in results.parts.values()]
    objects = [one.document for one in results.outcomes]
    found: list[CheckResult] = [one.result.detail for one in results.outcomes]
    rows = [Measurement.from_dict(one) for one in native]

    def report() -> list[Block]:
        return check_report(results.run, found, rows, explain=explain)

    def document() -> str:
        head = {"kind": "check", "interrupted": results.early, "run": results.run.to_dict()}
        checks: Mapping[str, Any] = {"checks": objects} if several else objects[0]
        return dump({**head, **checks, "measurements": native})

    outputs.write(
        {"json": document, "md": lambda: as_markdown([*report(), run_lines(results.run)])},
        lambda: as_text(report(), Style.of(sys.stdout)),
    )
