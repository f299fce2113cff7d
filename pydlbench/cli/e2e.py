"""``pydlbench e2e``: a real framework step, also in the published scripts' own protocols."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from pydlbench.cli.options import (
    choices,
    one_of,
    positive_seconds,
    read_options,
    whole_number,
    wholes,
)
from pydlbench.cli.terminal import tell
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.models import build_model
from pydlbench.models.work import PHASES
from pydlbench.records.specs import CPU_PRECISIONS, GPU_PRECISIONS, PRECISIONS, check_device
from pydlbench.records.step import FRAMEWORK_MODES, FRAMEWORKS, StepSpec
from pydlbench.report.text import STDOUT, check_writable, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.terminal import OneInterrupt, Progress
    from pydlbench.models.graph import Model
    from pydlbench.records.run import RunRecord
    from pydlbench.records.step import StepRecord
    from pydlbench.report.e2e import StepRow
    from pydlbench.steps.checks import Agreement
    from pydlbench.steps.protocols.runner import ProtocolResult, ProtocolSpec

__all__ = [
    "Outputs",
    "add_parser",
    "device_options",
    "devices",
    "open_session",
    "read_request",
    "run",
]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.options import add_store_option

    parser = subparsers.add_parser(
        "e2e",
        help="a real framework step, also as the published scripts time and print it",
        description="Check that PyTorch's and TensorFlow's steps are the model, then time them in "
        "turn; or run a published benchmark's own protocol and print what its script prints.",
    )
    many: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="alexnet-owt, vgg16, resnet50, mnist..."
    )
    what = parser.add_argument_group("what is timed")
    what.add_argument(
        "--framework", **many, metavar="NAME", help="torch, tensorflow or all (default)"
    )
    what.add_argument(
        "--mode",
        **many,
        metavar="MODE",
        help="eager, compiled (torch), graph, xla (tensorflow) or all; default: eager and graph",
    )
    what.add_argument(
        "--phase",
        **many,
        metavar="PHASE",
        help="forward (default), forward-backward, training (with L2 terms and optimizer) or all",
    )
    what.add_argument("--batch", metavar="N", help="images per step; default: as published")
    what.add_argument(
        "--sweep", metavar="batch=N,N", help="several batch sizes one after another: batch=16,32,64"
    )
    what.add_argument(
        "--precision",
        **many,
        metavar="P",
        help="fp32 (default), bf16, fp16; on a GPU fp32, tf32, fp16-tc, bf16-tc; or all",
    )
    what.add_argument(
        "--cast",
        metavar="HOW",
        help="below fp32: mixed (weights stay in fp32: autocast; default) or whole",
    )
    what.add_argument("--layout", metavar="LAYOUT", default="nhwc", help="nhwc (default) or nchw")
    what.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="a variant of the model: lrn=off, classes=1001",
    )
    what.add_argument(
        "--feed",
        metavar="FROM",
        help="resident images (default), or new ones from the host in each step",
    )

    how = parser.add_argument_group("how it is timed")
    how.add_argument(
        "--device",
        **many,
        metavar="DEVICE",
        help="cpu, cuda:N, or both for their ratio; default: the GPU if there is one",
    )
    how.add_argument("--threads", metavar="N", help="default: one per physical core")
    how.add_argument("--budget", metavar="S", help="seconds of sampling per step (10)")
    how.add_argument("--seed", metavar="N", default="0", help="seed of weights and images (0)")
    how.add_argument("--no-checks", action="store_true", help="time without checking first")
    how.add_argument(
        "--agree", action="store_true", help="hold the two frameworks' numbers against each other"
    )

    script = parser.add_argument_group("as a published script")
    script.add_argument(
        "--protocol",
        metavar="NAME",
        help="alexnet-tutorial, mnist-tutorial, cifar10-tutorial, tf-cnn-benchmarks, "
        "deep-learning-benchmark, convnet-benchmarks, convnet-benchmarks-tf",
    )
    script.add_argument("--steps", metavar="N", help="steps that count; default: the script's")
    script.add_argument("--warmup", metavar="N", help="steps before them")
    script.add_argument("--every", metavar="N", help="steps between two lines")
    script.add_argument("--epochs", metavar="X", help="of mnist-tutorial, instead of --steps (10)")
    script.add_argument(
        "--quirk",
        action="append",
        metavar="NAME[=off]",
        help="switch one of the script's oddities on or off",
    )
    script.add_argument(
        "--data", metavar="DIR", help="MNIST's or CIFAR-10's files; default: generated images"
    )
    script.add_argument(
        "--download", metavar="URL-BASE", help="fetch the files that --data lacks from there"
    )

    output = parser.add_argument_group("what is shown")
    for kind in ("json", "csv", "md"):
        output.add_argument(f"--{kind}", metavar="FILE", help=f"write {kind}; - is stdout")
    output.add_argument("--quiet", action="store_true", help="no progress and no remarks")
    add_store_option(output)


def run(args: argparse.Namespace, session_factory: Callable[..., Any] | None = None) -> int:
    """Time steps, or run a published protocol.

    Args:
        args: the command's options.
        session_factory: gives a session (see :mod:`pydlbench.cli.e2e`) for the options of
            ``measure.Options`` as keywords.

    Returns:
        0; 1 if no row is ok, or the frameworks disagree; 130 after Ctrl-C.

    Raises:
        UsageError: bad input; nothing was run and nothing written.
    """
    if args.protocol is not None:
        from pydlbench.cli.e2e_protocol import run_protocol

        return run_protocol(args, session_factory)

    return run_steps(args, session_factory)


# -----------------------------------------------------------------------------
# From the options of ``e2e`` to the steps that are timed, or to one line that says what is bad.

_PROTOCOL_ONLY: Final = ("steps", "warmup", "every", "epochs", "quirk", "data", "download")
_MODES: Final = tuple(mode for modes in FRAMEWORK_MODES.values() for mode in modes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Steps of one batch and phase, timed in turn."""

    model: Model
    cases: tuple[StepSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be run.

    Attributes:
        groups: one after another.
        options: keywords of ``measure.Options``.
        notes: what was left out, and why.
    """

    groups: tuple[Group, ...]
    options: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many steps there are."""
        return sum(len(group.cases) for group in self.groups)


def read_request(args: argparse.Namespace) -> Request:
    """Check the options of ``e2e`` without a protocol and combine them.

    Raises:
        UsageError: a value is bad, or two options exclude each other.
    """
    for name in _PROTOCOL_ONLY:
        value = getattr(args, name)
        if value is not None:
            text = value[0] if isinstance(value, list) else value
            raise UsageError(
                f"--{name} {text}: for published scripts only; nearest: --protocol NAME"
            )
    if args.model is None:
        raise UsageError("MODEL: none given; nearest: pydlbench e2e alexnet-owt --batch 16")
    ways, notes = _ways(args)
    on, more = devices(args.device)
    precisions = _precisions(args.precision, on)
    phases = choices("--phase", args.phase or ["forward"], PHASES, "all")
    shared: dict[str, Any] = {
        "options": read_options(args.option or []),
        "cast": one_of("--cast", args.cast or "mixed", ("mixed", "whole")),
        "layout": one_of("--layout", args.layout, ("nhwc", "nchw")),
        "feed": one_of("--feed", args.feed or "resident", ("resident", "host")),
        "seed": whole_number("--seed", args.seed, 0),
    }
    options = {"budget_s": positive_seconds("--budget", args.budget or "10")}
    groups = []
    for batch, phase in product(_batches(args), phases):
        model = build_model(args.model, batch, **shared["options"])
        if phase == "training" and model.optimizer.kind == "none":
            raise UsageError(
                f"--phase training: {model.name} has no optimizer; nearest: "
                "--phase forward-backward, or --option optimizer=sgd"
            )
        cases = [
            StepSpec(
                model=args.model,
                batch=model.batch,
                phase=phase,
                framework=framework,
                mode=mode,
                precision=precision,
                device=device,
                **shared,
            )
            for precision, (framework, mode), device in product(precisions, ways, on)
        ]
        groups.append(Group(model=model, cases=tuple(cases)))
    if args.agree and {case.framework for group in groups for case in group.cases} != {*FRAMEWORKS}:
        raise UsageError("--agree: needs both frameworks; nearest: --framework all")
    return Request(
        groups=tuple(groups),
        options={**options, **device_options(args, on)},
        notes=(*notes, *more),
    )


def device_options(args: argparse.Namespace, on: Sequence[str]) -> dict[str, Any]:
    """Return the keywords of ``measure.Options`` that every way of running steps has."""
    if args.threads is not None and "cpu" not in on:
        raise UsageError(f"--threads {args.threads}: for CPUs only; nearest: leave it out")
    threads = None if args.threads is None else whole_number("--threads", args.threads, 1)
    return {"threads": threads, "seed": whole_number("--seed", args.seed, 0)}


def devices(given: Sequence[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the devices that were named, or the default one and what has to be said of it."""
    if not given:
        from pydlbench.backends.capabilities import default_device

        device, notes = default_device()
        return [device], notes
    named = [one.strip() for word in given for one in word.split(",")]
    for device in named:
        check_device(device)
    return list(dict.fromkeys(named)), ()


def _ways(args: argparse.Namespace) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return frameworks with their modes, and notes on what was left out."""
    frameworks = choices("--framework", args.framework or ["all"], FRAMEWORKS, "all")
    if not args.mode:
        return [(one, FRAMEWORK_MODES[one][0]) for one in frameworks], ()
    modes = choices("--mode", args.mode, _MODES, "all")
    found = [(one, mode) for one in frameworks for mode in modes if mode in FRAMEWORK_MODES[one]]
    if not found:
        known = ", ".join(mode for one in frameworks for mode in FRAMEWORK_MODES[one])
        raise UsageError(
            f"--mode {modes[0]}: {', '.join(frameworks)} has no such mode; nearest: {known}"
        )
    idle = [one for one in frameworks if one not in dict(found)]
    notes = tuple(f"{one} has no mode {','.join(modes)}, left out" for one in idle)
    return found, notes


def _precisions(given: Sequence[str] | None, on: Sequence[str]) -> list[str]:
    cpu, gpu = "cpu" in on, any(device != "cpu" for device in on)
    here = [
        one
        for one in PRECISIONS
        if (cpu and one in CPU_PRECISIONS) or (gpu and one in GPU_PRECISIONS)
    ]
    if cpu and not gpu:
        for one in (part.strip() for word in given or () for part in word.split(",")):
            if one in GPU_PRECISIONS and one not in CPU_PRECISIONS:
                raise UsageError(f"--precision {one}: for GPUs only; nearest: --device cuda:0")
    return choices("--precision", given or ["fp32"], here, "all")


def _batches(args: argparse.Namespace) -> list[int | None]:
    if args.sweep is None:
        return [None if args.batch is None else whole_number("--batch", args.batch, 1)]
    if args.batch is not None:
        raise UsageError(
            f"--batch {args.batch}: --sweep {args.sweep} has batches already; nearest: --sweep "
            f"{args.sweep},{args.batch}"
        )
    axis, mark, values = args.sweep.partition("=")
    if axis.strip() != "batch" or not mark:
        raise UsageError(f"--sweep {args.sweep}: only batches; nearest: --sweep batch=16,32,64")
    return list(wholes("--sweep batch", [values]))


# -----------------------------------------------------------------------------
# ``pydlbench e2e MODEL``: times steps group by group and shows them.


def run_steps(args: argparse.Namespace, session_factory: Callable[..., Any] | None) -> int:
    """Time what ``args`` ask for and show it; see :func:`pydlbench.cli.e2e.run`."""
    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.terminal import OneInterrupt, Progress, tell

    outputs = Outputs.from_args(args)
    request = read_request(args)
    for note in () if args.quiet else request.notes:
        tell(f"note: {note}")
    progress = Progress(sys.stderr, quiet=args.quiet)
    with (
        Recorder.of(args, "e2e") as recorder,
        OneInterrupt() as interrupts,
        (session_factory or open_session)(**request.options) as session,
    ):
        finished = _Finished(recorder, checks=not args.no_checks, agree=args.agree)
        try:
            finished.measure(session, request, progress, interrupts)
        finally:
            progress.close()
        run: RunRecord = session.run
        recorder.finish(run, "interrupted" if finished.interrupted else "done")
        models = [group.model for group in request.groups]
        outputs.show(run, models, finished.rows, finished.agreements, early=finished.interrupted)
    if finished.interrupted:
        tell(f"interrupted: {len(finished.rows)} of {request.rows} rows finished")
        return 130
    disagree = any(one["status"] != "ok" for one in finished.agreements)
    return 0 if any(row.ok for row in finished.rows) and not disagree else 1


@dataclass(slots=True)
class _Finished:
    """What is finished; survives whatever ends the timing early."""

    recorder: Recorder
    checks: bool
    agree: bool
    rows: list[StepRecord] = field(default_factory=list)
    agreements: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    kept: int = 0

    def measure(
        self,
        session: StepSession,
        request: Request,
        progress: Progress,
        interrupts: OneInterrupt,
    ) -> None:
        from pydlbench.steps.run import check_memory

        for group in request.groups:  # before the first of them is built
            check_memory(group.model, group.cases, session.memory_bytes)
        self.recorder.start(session.run)
        try:
            try:
                for group in request.groups:
                    self._group(session, group, progress, request.rows)
            finally:
                interrupts.ignore()
                self._catch_up()
        except KeyboardInterrupt:
            self.interrupted = True

    def _group(self, session: StepSession, group: Group, progress: Progress, total: int) -> None:
        before = len(self.rows)

        def advance(done: int, _total: int, label: str) -> None:
            progress(before + done, total, label)

        if self.agree:
            self._compare(session, group)
        self.rows += session.steps(group.cases, checks=self.checks, progress=advance)
        self._catch_up()

    def _catch_up(self) -> None:
        """Keep the rows that are not yet."""
        for row in self.rows[self.kept :]:
            self.kept += 1
            self.recorder.add("step", row.to_dict())

    def _compare(self, session: StepSession, group: Group) -> None:
        """Hold frameworks against each other, once per batch and phase."""
        case = group.cases[0]
        where = {"batch": case.batch, "phase": case.phase}
        try:
            found = session.agreement(case)
        except PydlbenchError as error:  # its rows may do all the same
            document = {**where, "status": "failed", "detail": str(error)}
        else:
            check = found.check
            document = {
                **where,
                "status": check.status,
                "detail": check.detail,
                **found.to_dict(),
            }
        self.agreements.append(document)
        self.recorder.add("agreement", document)


# -----------------------------------------------------------------------------
# Where ``e2e`` puts its rows: files, and on standard output a table or one of the formats.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The destinations of one run.

    Attributes:
        files: format (``json``, ``csv``, ``md``) to path or ``-``.
        quiet: no warnings.
    """

    files: Mapping[str, str]
    quiet: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Outputs:
        """Read the options and make sure that every file can be written.

        Raises:
            UsageError: it cannot, or two formats collide.
        """
        given = {kind: getattr(args, kind) for kind in ("json", "csv", "md")}
        files = {kind: target for kind, target in given.items() if target is not None}
        taken: dict[str, str] = {}
        for kind, target in files.items():
            place = target if target == STDOUT else os.path.realpath(target)
            if place in taken:
                raise UsageError(
                    f"--{kind} {target}: --{taken[place]} goes there already; "
                    f"nearest: --{kind} results.{kind}"
                )
            taken[place] = kind
            check_writable(f"--{kind}", target)
        return cls(files=files, quiet=args.quiet)

    def show(
        self,
        run: RunRecord,
        models: Sequence[Model],
        rows: Sequence[StepRecord],
        agreements: Sequence[Mapping[str, Any]],
        *,
        early: bool,
    ) -> None:
        """Write the files, then print.

        Args:
            run: the run.
            models: one for each batch and phase.
            rows: what is finished; with none, nothing is written.
            agreements: what came of ``--agree``.
            early: more was asked for.

        Raises:
            PydlbenchError: a file could not be written after all; the table is printed before.
        """
        if not rows:
            return
        from pydlbench.report.e2e import StepRow, conclude

        shown = [StepRow.of(row, models) for row in rows]
        lines = [*conclude(shown), *map(_agreement, agreements)]

        texts = _Texts(run, shown, agreements, lines, early)
        troubles = self._write_files(texts)
        for line in () if self.quiet else _warnings(rows):
            tell(f"warning: {line}")
        on_stdout = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if on_stdout is not None:
            write_text(STDOUT, texts.text(on_stdout))
        else:
            from pydlbench.report.e2e import render_steps
            from pydlbench.report.text import Style

            print(render_steps(run, shown, lines, Style.of(sys.stdout)), flush=True)
        if troubles:
            raise PydlbenchError("; ".join(troubles))

    def _write_files(self, texts: _Texts) -> list[str]:
        """Write as many files as possible; return what the system refused."""
        troubles = []
        for kind, target in self.files.items():
            if target != STDOUT:
                try:
                    write_text(target, texts.text(kind))
                except OSError as error:
                    reason = error.strerror or error
                    troubles.append(f"--{kind} {target}: not written: {reason}")
        return troubles


@dataclass(frozen=True, slots=True)
class _Texts:
    """What a run is in each of the formats."""

    run: RunRecord
    rows: Sequence[StepRow]
    agreements: Sequence[Mapping[str, Any]]
    conclusion: Sequence[str]
    early: bool

    def text(self, kind: str) -> str:
        from pydlbench.report import e2e as export

        if kind == "csv":
            return export.to_csv(self.run, self.rows)
        if kind == "md":
            return export.to_markdown(self.run, self.rows, self.conclusion)
        return export.to_json(
            self.run, self.rows, self.agreements, self.conclusion, interrupted=self.early
        )


def _agreement(found: Mapping[str, Any]) -> str:
    """One line for a comparison of the frameworks."""
    return (
        f"agreement of the frameworks, batch {found['batch']}, {found['phase']}: "
        f"{found['status']}: {found['detail']}"
    )


def _warnings(rows: Sequence[StepRecord]) -> list[str]:
    found: dict[str, int] = {}
    for row in rows:
        for text in row.warnings:
            found[text] = found.get(text, 0) + 1
    several = len(rows) > 1
    return [f"{text} ({n} of {len(rows)} rows)" if several else text for text, n in found.items()]


# -----------------------------------------------------------------------------
# What ``e2e`` needs of a session; the tests of the command line invent one.


class StepSession(Protocol):
    """Times steps, compares frameworks, plays protocols."""

    @property
    def run(self) -> RunRecord:
        """The record of the run."""

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of memory that are available."""

    def steps(
        self,
        cases: Sequence[StepSpec],
        *,
        checks: bool,
        progress: Callable[[int, int, str], None],
    ) -> list[StepRecord]:
        """Check steps and time them in turn."""

    def agreement(self, case: StepSpec) -> Agreement:
        """Hold the two frameworks' numbers against each other."""

    def protocol(
        self, case: ProtocolSpec, write: Callable[[str], None], note: Callable[[str], None]
    ) -> ProtocolResult:
        """Run a published protocol."""


class _Session:
    """The real one."""

    def __init__(self, options: dict[str, Any]) -> None:
        from pydlbench.runner.session import Options, Session

        self._session = Session(Options(**options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()

    @property
    def run(self) -> RunRecord:
        return self._session.run

    @property
    def memory_bytes(self) -> int | None:
        return self._session.facts.memory_available_bytes

    def steps(
        self,
        cases: Sequence[StepSpec],
        *,
        checks: bool,
        progress: Callable[[int, int, str], None],
    ) -> list[StepRecord]:
        from pydlbench.records.step import StepPreparation
        from pydlbench.steps.run import run_in_turn

        how = StepPreparation(checks=checks)
        return run_in_turn(cases, self._session, preparation=how, progress=progress)

    def agreement(self, case: StepSpec) -> Agreement:
        from pydlbench.steps.checks import agree

        return agree(case, self._session)

    def protocol(
        self, case: ProtocolSpec, write: Callable[[str], None], note: Callable[[str], None]
    ) -> ProtocolResult:
        from pydlbench.steps.protocols.runner import run_in_worker

        return run_in_worker(case, self._session, write, note)


def open_session(**options: Any) -> _Session:
    """Open a session for the options of ``measure.Options``."""
    return _Session(options)
