"""``pydlbench check``: the ledger, a step's estimate against the real step in a framework."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.cli.recorder import Recorder
from pydlbench.cli.terminal import tell
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.report.check import Limits, limits
from pydlbench.report.text import STDOUT, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pydlbench.cli.output import Outputs
    from pydlbench.cli.terminal import OneInterrupt
    from pydlbench.ladder.native import NativeSum
    from pydlbench.models.graph import Model
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.report.check import CheckResult

__all__ = ["CheckRequest", "Checks", "add_parser", "check_room", "read_check", "run"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.options import add_store_option

    parser = subparsers.add_parser(
        "check",
        help="hold the estimate of a step against PyTorch and TensorFlow, term by term",
        description="Predict a framework's step from its operators, each run alone, run the step "
        "in turn with them, and name what lies between the hardware's roof and the measured time.",
    )
    parser.add_argument("model", metavar="MODEL", help="alexnet-owt, vgg16, resnet50...")
    many: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument(
        "--framework",
        **many,
        metavar="NAME",
        help="torch, tensorflow or all; default: those that are installed",
    )
    parser.add_argument(
        "--mode",
        **many,
        metavar="MODE",
        help="eager, compiled (torch), graph, xla (tensorflow) or all; default: eager and graph",
    )
    parser.add_argument(
        "--phase",
        metavar="PHASE",
        default="forward",
        help="forward (default), forward-backward or training (with loss and optimizer)",
    )
    parser.add_argument("--batch", metavar="N", help="images per step; default: as published")
    parser.add_argument("--precision", metavar="P", default="fp32", help="fp32 (default), bf16...")
    parser.add_argument(
        "--layout",
        metavar="L",
        default="nhwc",
        help="of PyTorch's images: nhwc (channels last; default) or nchw",
    )
    parser.add_argument(
        "--feed",
        metavar="FROM",
        default="resident",
        help="resident images (default), or new ones from the host in each step",
    )
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="a variant of the model: lrn=off, classes=1001",
    )
    parser.add_argument(
        "--rounds", metavar="N", default="15", help="rounds at the most, 5 at the least (15)"
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        default="60",
        help="no round of a framework and mode begins after so many seconds (60)",
    )
    parser.add_argument("--threads", metavar="N", help="default: one per physical core")
    parser.add_argument(
        "--budget", metavar="S", default="0.25", help="seconds of sampling per native kernel (0.25)"
    )
    parser.add_argument("--seed", metavar="N", default="0", help="seed of data and order (0)")
    parser.add_argument(
        "--explain", action="store_true", help="how each term was measured, all parts and rounds"
    )
    for kind in ("json", "md"):
        parser.add_argument(f"--{kind}", metavar="FILE", help=f"write {kind}; - is stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress and no warnings")
    add_store_option(parser)
    # What the outputs of other commands have besides.
    parser.set_defaults(csv=None, samples=False, algorithms=False)


def run(
    args: argparse.Namespace,
    session_factory: Callable[..., Any] | None = None,
    checker: Callable[..., Any] | None = None,
) -> int:
    """Check the step in each framework and mode, and show what was found.

    Args:
        args: the command's options.
        session_factory: gives a session for the options of ``measure.Options`` as keywords.
        checker: takes the place of ``pydlbench.ladder.check.check``.

    Returns:
        0; 1 if no check is ok; 130 after Ctrl-C, with the checks that were finished.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.output import Outputs
    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.terminal import OneInterrupt, Progress, tell

    request = read_check(args)
    check_room(request)
    outputs = Outputs.from_args(args)
    for note in () if args.quiet else request.notes:
        tell(f"note: {note}")
    progress = Progress(sys.stderr, quiet=args.quiet)
    with Recorder.of(args, "check") as recorder, OneInterrupt() as interrupts:
        checks = Checks(request, progress, session_factory, checker, recorder)
        try:
            checks.take(interrupts)
        finally:
            progress.close()
        if checks.run is not None:
            recorder.finish(checks.run, "interrupted" if checks.interrupted else "done")
        if checks.results:
            show(checks, outputs)
    if checks.interrupted:
        tell(f"interrupted: {len(checks.results)} of {len(request.subjects)} checks finished")
        return 130
    return 0 if any(one.record is not None for one in checks.results) else 1


# -----------------------------------------------------------------------------
# From the options of ``check`` to the steps to be checked, or to one line of complaint.

# Fewer rounds have no median to speak of.
_ROUNDS = 5


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
        from pydlbench.report.check import CheckResult

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
    from pydlbench.cli.options import one_of, positive_seconds, read_options, whole_number
    from pydlbench.models import build_model
    from pydlbench.models.work import PHASES
    from pydlbench.records.specs import CPU_PRECISIONS
    from pydlbench.records.step import FEEDS, LAYOUTS

    batch = None if args.batch is None else whole_number("--batch", args.batch, 1)
    variant = read_options(args.option or [])
    model = build_model(args.model, batch, **variant)
    subjects, notes = _subjects(args.framework, args.mode)
    phase = one_of("--phase", args.phase, PHASES)
    if phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {model.name} has no optimizer; nearest: "
            "--phase forward-backward, or --option optimizer=sgd"
        )
    precision = one_of("--precision", args.precision, CPU_PRECISIONS)
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
        rounds=whole_number("--rounds", args.rounds, _ROUNDS),
        time_limit_s=positive_seconds("--time-limit", args.time_limit),
        layout=layout,
        feed=one_of("--feed", args.feed, FEEDS),
        options={
            "threads": None if args.threads is None else whole_number("--threads", args.threads, 1),
            "seed": whole_number("--seed", args.seed, 0),
            "budget_s": positive_seconds("--budget", args.budget),
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
    from pydlbench.cli.options import choices
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
# Native rows once, then a check for each framework and mode; what fails costs itself only.

# Besides its rounds: parts, step and log.
_STAGES = 3


class Checks:
    """The checks of one request; what is finished survives whatever ends them early.

    Args:
        request: the step and the ways to run it.
        progress: called with steps done, steps in all and what is done next.
        session_factory: gives a session for the options of ``measure.Options`` as keywords.
        checker: takes the place of ``pydlbench.ladder.check.check``.
        recorder: keeps native rows and results as soon as they are finished; None keeps nothing.

    Attributes:
        request: as given.
        results: of the checks that were finished, in the order of the request.
        rows: native rows.
        limits: the two lowest rungs.
        run: when and where; None until the session ends.
        interrupted: Ctrl-C came before all were finished.
    """

    def __init__(
        self,
        request: CheckRequest,
        progress: Callable[[int, int, str], None],
        session_factory: Callable[..., AbstractContextManager[Any]] | None = None,
        checker: Callable[..., Any] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.request = request
        self.results: list[CheckResult] = []
        self.rows: dict[KernelSpec, Measurement] = {}
        self.limits = Limits(theoretical_s=None, roof_s=None)
        self.run: RunRecord | None = None
        self.interrupted = False
        self._progress = progress
        self._factory = session_factory or _open_session
        self._checker = checker or _check
        self._recorder = recorder or Recorder(None, "check")
        self._done = 0
        self._total = 1

    def take(self, interrupts: OneInterrupt) -> None:
        """Take all checks; returns early after Ctrl-C.

        Raises:
            PydlbenchError: there is no session, or native rows cannot be measured at all.
        """
        try:
            try:
                with self._factory(**self.request.options) as session:
                    try:
                        self._all(session)
                    finally:
                        self._describe(session)
            finally:
                # Inside the outer try: no moment is left in which Ctrl-C could get past it.
                interrupts.ignore()
        except KeyboardInterrupt:
            self.interrupted = True

    def _describe(self, session: Any) -> None:
        # Only now: peaks and bandwidths are probed while rows are measured.
        try:
            self.run = session.run
        except KeyboardInterrupt:  # the only one there is: see OneInterrupt
            self.run = session.run
            self.interrupted = True

    def _all(self, session: Any) -> None:
        native = self._native(session)
        for framework, mode in self.request.subjects:
            before = self._done
            result = self._one(session, native, framework, mode)
            self.results.append(result)
            self._recorder.add("check", result.to_dict(self.limits))
            self._done = before + self.request.rounds + _STAGES

    def _native(self, session: Any) -> NativeSum:
        """Measure the native rows, which all checks share."""
        from pydlbench.ladder.estimate import plan
        from pydlbench.ladder.native import native_sum

        asked = self.request
        cache = session.cache_bytes("cpu")
        wanted = plan(asked.model, asked.phase, asked.precision, "cpu", cache)
        cases = wanted.cases
        self._total = len(cases) + len(asked.subjects) * (asked.rounds + _STAGES)

        def advance(done: int, _total: int, label: str) -> None:
            self._progress(done, self._total, label)

        self._recorder.start(session.run)
        for case, row in zip(cases, session.measure(cases, progress=advance), strict=True):
            self.rows[case] = msgspec.structs.replace(row, samples_s=None)
            self._recorder.layer(row)
        self._done = len(cases)
        self.limits = limits(wanted, self.rows)
        return native_sum(wanted, self.rows)

    def _one(self, session: Any, native: NativeSum, framework: str, mode: str) -> CheckResult:
        asked = self.request

        def advance(what: str) -> None:
            self._progress(self._done, self._total, f"{framework} {mode}: {what}")
            self._done += 1

        try:
            record = self._checker(
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
            why = " ".join(str(error).split())
            return asked.result(framework, mode, status=status, reason=why)
        return asked.result(framework, mode, record=record)


def _open_session(**options: Any) -> AbstractContextManager[Any]:
    from pydlbench.runner.session import Options, Session

    return Session(Options(**options))


def _check(*arguments: Any, **options: Any) -> Any:
    from pydlbench.ladder.check import check

    return check(*arguments, **options)


# -----------------------------------------------------------------------------
# Where ``check`` puts its results: files first, then standard output.


def show(checks: Checks, outputs: Outputs) -> None:
    """Write the files, warn, and print.

    Args:
        checks: with at least one result.
        outputs: where to.

    Raises:
        PydlbenchError: a file could not be written after all; the report is printed before.
    """
    troubles = []
    for kind, target in outputs.files.items():
        if target != STDOUT:
            try:
                write_text(target, _export(kind, checks))
            except OSError as error:
                troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
    if not outputs.quiet:
        _warn(checks)
    on_stdout = next((kind for kind, to in outputs.files.items() if to == STDOUT), None)
    if on_stdout is not None:
        write_text(STDOUT, _export(on_stdout, checks))
    else:
        _print(checks, outputs.explain)
    if troubles:
        raise PydlbenchError("; ".join(troubles))


def to_json(checks: Checks) -> str:
    """Return the document: the object of a single check, or all under ``checks``."""
    from pydlbench.report.json import dump

    objects = [one.to_dict(checks.limits) for one in checks.results]
    found = objects[0] if len(checks.request.subjects) == 1 else {"checks": objects}
    return dump(
        {
            "interrupted": checks.interrupted,
            "run": None if checks.run is None else checks.run.to_dict(),
            **found,
            "measurements": [row.to_dict() for row in checks.rows.values()],
        }
    )


def _export(kind: str, checks: Checks) -> str:
    if kind == "json":
        return to_json(checks)
    from pydlbench.report.check import checks_markdown

    assert checks.run is not None  # it is read before anything is shown
    return checks_markdown(checks.run, checks.results, checks.limits, diagnose=_diagnose())


def _print(checks: Checks, explain: bool) -> None:
    from pydlbench.report.check import render_checks
    from pydlbench.report.text import Style

    assert checks.run is not None  # it is read before anything is shown
    text = render_checks(
        checks.run,
        checks.results,
        checks.limits,
        explain=explain,
        diagnose=_diagnose(),
        style=Style.of(sys.stdout),
    )
    print(text, flush=True)


def _warn(checks: Checks) -> None:
    contended = sum(row.contended for row in checks.rows.values())
    if contended:
        tell(
            f"warning: other work disturbed {contended} of {len(checks.rows)} native kernels; "
            "repeat when quiet"
        )


def _diagnose() -> bool:
    """Whether there is a command that says what to do about it."""
    from pydlbench.cli.parser import COMMANDS

    return "diagnose" in COMMANDS
