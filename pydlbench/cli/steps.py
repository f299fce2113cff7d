"""Commands about a model's step: their common options, read and checked, and their tasks."""

from __future__ import annotations

import contextlib
import functools
import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydlbench.cli.machine import check_threads, device_of
from pydlbench.cli.options import (
    BATCH,
    BUDGET,
    DEVICE,
    FAIL_ON,
    FEED,
    FRAMEWORK,
    HOW,
    LAYOUT,
    MODE,
    MODEL,
    PHASE,
    PRECISION,
    REPETITIONS,
    RESUME,
    SCRIPT,
    USER_MODEL,
    WHAT,
    WIDTH,
    ExplainedStep,
    ModelOptions,
    TableOutput,
    flag,
    option,
)
from pydlbench.cli.values import (
    choices,
    device_names,
    interpreters,
    one_of,
    real,
    splits,
    whole_number,
    wholes,
)
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.grouping import group_by
from pydlbench.runner.tasks import Result, Task, TaskRow, View
from pydlbench.words import (
    CASTS,
    CODE_LIMIT_S,
    CPU_PRECISIONS,
    FRAMEWORK_MODES,
    FRAMEWORKS,
    GPU_FRAMEWORK,
    GPU_PRECISIONS,
    ONNX_FRAMEWORK,
    PHASES,
    check_gpu_framework,
)

if TYPE_CHECKING:
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec


def _count(least: int) -> Callable[[str, str], int]:
    return partial(whole_number, least=least)


class StepOptions(ModelOptions, TableOutput):
    """The command's options."""

    description = (
        "Time real steps of a model in PyTorch, TensorFlow or JAX, or of an ONNX file in "
        "onnxruntime, and list the modules and calls that dominate. Steps are timed in turn, each "
        "in new processes; in the first its framework is checked to compute the model. With "
        "--protocol, run a published benchmark as its script does and print what that prints."
    )
    model: str = MODEL(argument="?", default="")
    framework: tuple[str, ...] | None = FRAMEWORK(
        help="torch, tensorflow, jax, or all; default: torch and tensorflow"
    )
    mode: tuple[str, ...] | None = MODE()
    phase: tuple[str, ...] = PHASE(
        help=f"{PHASE.help}, or all",
        many=True,
        read=partial(choices, allowed=PHASES, every="all"),
        default=PHASES[:1],
    )
    batch: tuple[int, ...] = BATCH(many=True, read=wholes, default=())
    precision: tuple[str, ...] = PRECISION(
        help=f"{PRECISION.help}, or all", many=True, read=splits, default=("fp32",)
    )
    cast: str | None = option(
        "HOW",
        "of bf16 and fp16: mixed (default; autocast, weights stay in fp32) or whole (weights, too)",
        group=WHAT,
        read=partial(one_of, allowed=CASTS),
    )
    layout: str | None = LAYOUT()
    # No default, because a published script defines its own.
    feed: str | None = FEED(default=None)
    device: tuple[str, ...] = DEVICE(
        help="cpu or cuda:N, or both (cpu,cuda:0) for their ratio; default: the GPU if there is "
        "one",
        many=True,
        read=device_names,
        default=(),
    )
    budget: float | None = BUDGET(
        help="sampling time in seconds per row, over all repetitions (default: 10)"
    )
    repetitions: int | None = REPETITIONS()
    width: float | None = WIDTH()
    python: dict[str, str] | None = option(
        "FRAMEWORK=PYTHON,...",
        "the Python interpreter of a framework that is installed elsewhere, with a pydlbench: "
        "torch=A/bin/python,tensorflow=B/bin/python",
        group=HOW,
        read=interpreters,
        not_in_sweeps="names files of one machine; nearest: pydlbench step MODEL --python ...",
    )
    no_checks: bool = flag("do not check first that the steps compute the model", group=HOW)
    no_trace: bool = flag("do not trace a step: no table of modules and calls", group=HOW)
    agree: bool = flag(
        "compare what two frameworks compute: outputs and gradients",
        group=HOW,
        not_in_sweeps="compares numbers, it times nothing; nearest: pydlbench step MODEL --agree",
    )
    protocol: str | None = option(
        "NAME",
        "alexnet-tutorial, mnist-tutorial, cifar10-tutorial, tf-cnn-benchmarks, "
        "deep-learning-benchmark, convnet-benchmarks, convnet-benchmarks-tf",
        group=SCRIPT,
    )
    steps: int | None = option(
        "N", "steps that are timed; default: as the script", group=SCRIPT, read=_count(1)
    )
    warmup: int | None = option(
        "N", "steps before those that are timed", group=SCRIPT, read=_count(0)
    )
    every: int | None = option("N", "steps between two printed lines", group=SCRIPT, read=_count(1))
    epochs: float | None = option(
        "X",
        "epochs of mnist-tutorial, instead of --steps (default: 10)",
        group=SCRIPT,
        read=partial(real, near="10"),
    )
    quirk: tuple[str, ...] = option(
        "NAME[=off]",
        "switch a known peculiarity of the script on or off",
        group=SCRIPT,
        many=True,
        read=splits,
        default=(),
    )
    data: str | None = option(
        "DIR", "folder with the files of MNIST or CIFAR-10; default: generated images", group=SCRIPT
    )
    fail_on: tuple[str, float] | None = FAIL_ON()
    resume: str | None = RESUME()


def settings(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the values of ``--set`` by name; the model checks the names.

    Raises:
        UsageError: one is given twice.
    """
    values: dict[str, str] = {}
    for name, value in given:
        key = name.replace("-", "_")
        if key in values:
            raise UsageError(f"--set {name}={value}: {name} is given twice; nearest: leave one out")
        values[key] = value
    return values


def catalogue_settings(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the values of ``--set`` for a model of the catalogue, see :func:`settings`.

    Raises:
        UsageError: one is given twice, or is the batch, which has an option of its own.
    """
    values = settings(given)
    if (batch := values.get("batch")) is not None:
        raise UsageError(f"--set batch={batch}: no option of a model; nearest: --batch {batch}")
    return values


# -----------------------------------------------------------------------------
# The model: of the catalogue, or the user's own.

#: Assumed number of layers of a user model, which is unknown before it has run.
USER_MODEL_NODES: Final = 100
_MODES: Final = tuple(dict.fromkeys(mode for modes in FRAMEWORK_MODES.values() for mode in modes))
#: Names of the options for user models.
USER_MODEL_OPTIONS: Final = tuple(
    name for name, option in ModelOptions.declared().items() if option.group == USER_MODEL
)
#: Attributes that identify a step among the rows of a sweep.
_STEP_FIELDS: Final = (
    *("model", "batch", "phase", "precision", "framework", "mode", "layout", "feed", "device"),
)


def read_model(args: ModelOptions, batch: int | None) -> tuple[Model | None, dict[str, Any]]:
    """Return the graph of a model, and the fields of ``StepSpec`` that name it.

    Args:
        args: the command's options.
        batch: batch size; None for the model's own batch size.

    Returns:
        The graph, None for a user model; and model, options, own and batch.

    Raises:
        UsageError: no such model, option or batch; an option that is for the other kind of model.
    """
    from pydlbench.models import build_model
    from pydlbench.models.user_model import find_onnx, find_user_model, is_onnx, is_user_model
    from pydlbench.records.user_model import UserInput, UserModelSpec

    if not is_user_model(args.model):
        args.refuse(USER_MODEL_OPTIONS, "with a model of the catalogue")
        options = catalogue_settings(args.set_)
        model = build_model(args.model, batch, **options)
        return model, {"model": args.model, "options": options, "batch": model.batch}
    if is_onnx(args.model):
        find_onnx(args.model)
        args.refuse(("set_", "autocast"), f"with {args.model}")
    else:
        find_user_model(args.model)
    if batch is not None and not is_onnx(args.model):
        raise UsageError(
            f"--batch {batch}: the inputs of {args.model} have theirs; nearest: "
            f"--input {batch}x3x224x224, if it takes such images"
        )
    if args.train_mode and args.eval_mode:
        raise UsageError("--train-mode: with --eval-mode; nearest: leave one out")
    if args.autocast and args.given.get("precision", "fp32") != "fp32":
        raise UsageError(
            f"--autocast {args.autocast}: --precision says it already; nearest: leave one out"
        )
    # A folder has a file for each input, as those of ONNX's tests.
    listed = [
        sorted(map(str, Path(text).glob("input_*.pb")), key=lambda name: (len(name), name))
        or [text]
        for text in args.input
    ]
    own = UserModelSpec(
        inputs=tuple(map(UserInput.parse, itertools.chain(*listed))),
        loss=args.loss,
        optimizer=args.optimizer or "sgd",
        train=True if args.train_mode else False if args.eval_mode else None,
    )
    if own.loss is not None and ":" in own.loss:
        find_user_model(own.loss)
    options = settings(args.set_)
    return None, {"model": args.model, "options": options, "own": own, "batch": batch}


def frameworks_of(
    model: str, named: Sequence[str] | None = None
) -> tuple[Sequence[str] | None, bool]:
    """Return the named frameworks, or the likely one of a user model.

    Returns:
        The frameworks, None if none is named for a model of the catalogue; and whether they are a
        guess, see :class:`ModelTask`.
    """
    from pydlbench.models.user_model import is_onnx, is_user_model, likely_framework

    if named or not is_user_model(model):
        return named, False
    if is_onnx(model):
        return [ONNX_FRAMEWORK], False
    likely = likely_framework(model)
    return [likely or _installed()[0]], likely is None


@dataclass(frozen=True, kw_only=True)
class ModelTask(Task):
    """Steps of one model.

    Attributes:
        guessed: whether the framework of the steps is a guess; it is known when the user model is
            built.
    """

    guessed: bool = False

    @abstractmethod
    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Yield each result as soon as it is finished; the framework is known."""

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Yield each result as soon as it is finished, with the row of this task."""
        task = self._with_framework(session) if self.guessed else self
        rows = {id(row): original for row, original in zip(task.rows, self.rows, strict=True)}
        for result in task.measure_steps(session, view):
            yield result if result.row is None else replace(result, row=rows[id(result.row)])

    def without_numbers(self, row: TaskRow, error: PydlbenchError) -> Result:
        """Return the result of a step that has failed or was skipped, with the reason.

        Raises:
            UsageError: the error itself, if a user model is used in a wrong way. That shows when
                the model is built, and all other rows would end in the same way.
        """
        step = row.spec
        if step.own is not None and isinstance(error, UsageError):
            raise error
        document = {
            **{name: getattr(step, name) for name in _STEP_FIELDS},
            "options": dict(step.options),
            "status": "skipped" if isinstance(error, UnsupportedError) else "failed",
            "reason": " ".join(str(error).split()),
        }
        document |= {} if step.own is None else {"own": step.own.to_dict()}
        return Result(self.kind, document, row)

    def answers(
        self, session: Any, row: TaskRow, records: Iterator[Any], **head: Any
    ) -> Iterator[Result]:
        """Yield a row's answers so far and the last one; without any, a result without numbers.

        Args:
            session: session of the task.
            row: row of this task.
            records: records of the answers, the last one complete.
            head: first fields of their documents.

        Raises:
            PydlbenchError: it ended the answers; the last one stays.
        """
        result = None
        try:
            self.check(session)
            for record in records:
                document = head | record.to_dict()
                result = Result(self.kind, document, row, detail=record, so_far=True)
                yield result
        except PydlbenchError as error:
            if result is not None:
                raise
            yield self.without_numbers(row, error)
            return
        assert result is not None, "there is always a last one"
        yield replace(result, so_far=False)

    def _with_framework(self, session: Any) -> Self:
        """Return the task with its steps in the framework of the model."""
        from pydlbench.steps.run import in_own_framework

        def renamed(row: TaskRow, step: StepSpec) -> TaskRow:
            before, now = (f"{each.framework} {each.mode}" for each in (row.spec, step))
            return replace(row, spec=step, label=row.label.replace(before, now))

        models = group_by([row.spec for row in self.rows], lambda step: step.model).values()
        cases = [step for steps in models for step in in_own_framework(steps, session)]
        rows = tuple(renamed(*both) for both in zip(self.rows, cases, strict=True))
        return replace(self, rows=rows, guessed=False)


def code_limit(args: ModelOptions) -> dict[str, float]:
    """Return the session's option that limits the time of a user model; empty without one."""
    from pydlbench.models.user_model import is_user_model

    return {"code_limit_s": args.time_limit or CODE_LIMIT_S} if is_user_model(args.model) else {}


def check_phase(model: Model | None, phase: str) -> None:
    """Make sure that a model has an optimizer if the phase is ``training``.

    Args:
        model: graph of the model; None for a user model, which ``StepSpec`` checks.
        phase: ``forward``, ``forward-backward`` or ``training``.

    Raises:
        UsageError: the model has no optimizer.
    """
    if model is not None and phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {model.name} has no optimizer; nearest: "
            "--phase forward-backward, or --set optimizer=sgd"
        )


def _check_layout(layout: str | None, frameworks: Sequence[str]) -> None:
    """Make sure that one of the frameworks can take images in this layout on a CPU.

    Raises:
        UsageError: no framework can.
    """
    from pydlbench.backends.capabilities import declaration

    known = [declaration(name).steps.layouts for name in frameworks]
    if layout is not None and known and not any(layout in layouts for layouts in known):
        (near, *_), name = known[0], frameworks[0]
        raise UsageError(
            f"--layout {layout}: {name}'s convolutions on CPUs take {', '.join(known[0])} only; "
            f"nearest: --layout {near}"
        )


def read_steps(
    args: ExplainedStep, usual: Sequence[str] | None = None
) -> tuple[Model | None, list[TaskRow], tuple[str, ...], bool]:
    """Return the steps of a command, one for each framework and mode.

    Args:
        args: the command's options.
        usual: default frameworks for a model of the catalogue; None for all installed frameworks.

    Returns:
        The model's graph, None for a user model; rows whose specs are the steps; notes; and whether
        their framework is a guess, see :func:`frameworks_of`.

    Raises:
        UsageError: a value is bad.
        BackendMissingError: no framework is named and none is installed.
    """
    from pydlbench.records.step import StepSpec

    model, named = read_model(args, args.batch)
    device, notes = device_of(args.device)
    frameworks, guessed = frameworks_of(args.model, args.framework)
    if device != "cpu" and args.device is None and {*(frameworks or ())} - {GPU_FRAMEWORK}:
        notes = (f"on the CPU: on {device} only PyTorch's steps are explained call by call",)
        device = "cpu"
    check_threads(args.threads, device)
    if device != "cpu":
        usual = (GPU_FRAMEWORK,)
    pairs, more = framework_modes(frameworks, args.mode, usual, guessed=guessed)
    for framework, _ in pairs:
        check_gpu_framework(framework, device)
    check_phase(model, args.phase)
    if model is not None:  # a user model has its own layout
        _check_layout(args.layout, [framework for framework, _ in pairs])
    steps = [
        StepSpec(
            **named,
            phase=args.phase,
            framework=framework,
            mode=mode,
            precision=_precision(args, device),
            layout=args.layout or "",
            device=device,
            feed=args.feed,
            seed=args.seed,
        )
        for framework, mode in pairs
    ]
    rows = [step_row(args, step, _STEP_FIELDS) for step in steps]
    return model, rows, (*notes, *more), guessed


def _precision(args: ExplainedStep, device: str) -> str:
    """Return the precision; bf16 of ``--autocast`` uses tensor cores on a GPU."""
    if device == "cpu":
        return one_of("--precision", args.autocast or args.precision, CPU_PRECISIONS)
    name = f"{args.autocast}-tc" if args.autocast else args.precision
    return one_of("--precision", name, GPU_PRECISIONS)


def with_framework_ahead(command: Callable[..., int]) -> Callable[..., int]:
    """Make a command start its framework's process before it imports what it needs itself.

    Only a single framework that is named, of this interpreter and on a CPU, is known so early.

    Args:
        command: takes the command's options, and a function that opens a session.
    """

    @functools.wraps(command)
    def run(args: Any, session_factory: Callable[..., Any] | None = None) -> int:
        with contextlib.ExitStack() as processes:
            named: Sequence[str] = args.framework or ()
            known = len(named) == 1 and named[0] in FRAMEWORK_MODES and "python" not in args.given
            if session_factory is None and known and device_of(_first(args.device))[0] == "cpu":
                from pydlbench.devices.cpu.affinity import choose_cpus
                from pydlbench.devices.cpu.facts import read_cpu_facts
                from pydlbench.workers.host import launch_early

                cpus = choose_cpus(read_cpu_facts(), args.threads)
                processes.enter_context(launch_early(named[0], "cpu", cpus))
            return command(args, session_factory)

    return run


def _first(device: str | Sequence[str] | None) -> str | None:
    """Return the first of the devices that are named."""
    return device if device is None or isinstance(device, str) else next(iter(device), None)


def kernel_options(args: ModelOptions, budget_s: float) -> dict[str, Any]:
    """Return the session's options for native kernels that are summed into a step."""
    return {
        "threads": args.threads,
        "seed": args.seed,
        "budget_s": budget_s,
        "keep_samples": True,  # for the store
        "estimate": True,
        **code_limit(args),
    }


def step_row(args: ModelOptions, step: StepSpec, names: Sequence[str], label: str = "") -> TaskRow:
    """Return the row of a step.

    Args:
        args: the command's options; ``set_`` and ``threads`` are read.
        step: specification of the step.
        names: attributes that identify the step among the rows of a sweep, in the order of the
            sweep's plan.
        label: label of the row; by default the step's label.
    """
    values = {name: getattr(step, name) for name in names}
    if step.own is not None:
        from pydlbench.records.step import options_text

        values["own"] = " ".join(filter(None, [options_text(step.options), *step.own.words()]))
    values["threads"] = args.threads
    fields = {name: "default" if value is None else str(value) for name, value in values.items()}
    if args.set_:
        fields = {"set": " ".join(sorted("=".join(pair) for pair in args.set_)), **fields}
    return TaskRow(fields=fields, label=label or step.label, spec=step)


def framework_modes(
    frameworks: Sequence[str] | None,
    modes: Sequence[str] | None,
    usual: Sequence[str] | None = None,
    *,
    guessed: bool = False,
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the framework and mode of each step, and notes.

    A named framework that has none of the modes uses their counterparts: ``xla`` for ``compiled``.
    So does a guessed framework for each mode of the other one, which may be the model's.

    Args:
        frameworks: named frameworks, or the guessed framework; None if there is neither.
        modes: named modes; by default the first mode of each framework.
        usual: default frameworks; those without the modes are left out. None for all installed
            frameworks.
        guessed: whether the framework is a guess, see :func:`frameworks_of`.

    Raises:
        UsageError: no such mode, or none of the frameworks has it.
        BackendMissingError: no framework is named and none is installed.
    """
    named = frameworks or usual or _installed()
    chosen = choices("--mode", ",".join(modes), _MODES, "all") if modes else []
    if guessed:
        of_either = {mode for name in FRAMEWORKS for mode in FRAMEWORK_MODES[name]}
        likely = FRAMEWORK_MODES[named[0]]
        chosen = [likely[_mode_index(mode)] if mode in of_either else mode for mode in chosen]
    valid = [mode for name in named for mode in FRAMEWORK_MODES[name]]
    for mode in [] if "all" in (modes or ()) else chosen:
        if mode not in valid:
            has = f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'}"
            near = valid[min(_mode_index(mode), len(valid) - 1)]
            raise UsageError(f"--mode {mode}: {has} no such mode; nearest: {near}")
    pairs: list[tuple[str, str]] = []
    notes = []
    for name in named:
        known = FRAMEWORK_MODES[name]
        fitting = [mode for mode in known if mode in chosen] if modes else list(known[:1])
        if not fitting and frameworks:
            # A framework with a compiler only runs that for any mode.
            indices = sorted({min(_mode_index(mode), len(known) - 1) for mode in chosen})
            fitting = [known[index] for index in indices]
            notes.append(f"{name} has no mode {', '.join(chosen)}; it uses {', '.join(fitting)}")
        elif not fitting:
            notes.append(f"{name} has no mode {', '.join(chosen)}, left out")
        pairs += [(name, mode) for mode in fitting]
    return tuple(pairs), tuple(notes)


def _mode_index(mode: str) -> int:
    """Return 0 for a framework's uncompiled mode, 1 for its compiler; JAX has a compiler only."""
    return next(modes.index(mode) for modes in FRAMEWORK_MODES.values() if mode in modes)


def _installed() -> list[str]:
    from pydlbench.backends.capabilities import declaration, is_installed

    installed = [name for name in FRAMEWORKS if is_installed(declaration(name))]
    if not installed:
        ways = " or ".join(declaration(name).install for name in FRAMEWORKS)
        raise BackendMissingError(f"--framework: none is installed; get one with: {ways}")
    return installed


def devices_of(args: StepOptions) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the named devices, or the default one with notes on it.

    Raises:
        UsageError: ``--threads`` is given without a CPU.
    """
    usual, notes = device_of(args.device[0] if args.device else None)
    named = args.device or (usual,)
    if "cpu" not in named:
        check_threads(args.threads, named[0])
    return named, notes


class StepsTask(Task):
    """A task of the command ``step``."""

    # Not in processes of layers: the page faults of a step depend on earlier work of its process.
    opens: ClassVar[str] = "steps"
    kind: ClassVar[str] = "step"
