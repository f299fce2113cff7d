"""What commands about a whole model's step have in common: their options, read and checked."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydlbench.cli.machine import check_threads, device_of
from pydlbench.cli.options import OWN, ModelOptions
from pydlbench.cli.values import choices, one_of
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.runner.tasks import Result, Task, TaskRow
from pydlbench.words import (
    CODE_LIMIT_S,
    CPU_PRECISIONS,
    FRAMEWORK_MODES,
    FRAMEWORKS,
    GPU_FRAMEWORK,
    GPU_PRECISIONS,
    ONNX_FRAMEWORK,
    check_gpu_framework,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.cli.options import ExplainedStep
    from pydlbench.cli.step_options import StepOptions
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.tasks import View


def settings(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the values of ``--set`` by name; which there are, the model knows.

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


# -----------------------------------------------------------------------------
# The model: of the catalogue, or the user's own.

#: So many layers are expected of a model that nobody knows yet.
EXPECTED_NODES: Final = 100
_MODES: Final = tuple(dict.fromkeys(mode for modes in FRAMEWORK_MODES.values() for mode in modes))
#: Options of a model of the user's own, as attributes.
OWN_OPTIONS: Final = tuple(
    name for name, each in ModelOptions.declared().items() if each.group == OWN
)


def read_model(args: ModelOptions, batch: int | None) -> tuple[Model | None, dict[str, Any]]:
    """Return the graph of the model that was asked for, and what names it in a ``StepSpec``.

    Args:
        args: the options.
        batch: that was asked for; None is the model's own.

    Returns:
        The graph, or None of a model of the user's own; model, options, own and batch.

    Raises:
        UsageError: no such model, option or batch; an option that is for the other kind of model.
    """
    from pydlbench.models import build_model
    from pydlbench.models.user_model import find_onnx, find_user_model, is_onnx, is_user_model
    from pydlbench.records.user_model import UserInput, UserModelSpec

    if not is_user_model(args.model):
        args.refuse(OWN_OPTIONS, "with a model of the catalogue")
        options = settings(args.set_)
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
    own = UserModelSpec(
        inputs=tuple(map(UserInput.parse, args.input)),
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
    """Return the frameworks that are named, or that a model of the user's own is likely to be of.

    Returns:
        None where none is named of a model of the catalogue; and whether the framework is a guess
        that has to be settled, see :class:`ModelTask`.
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
        guessed: whether their framework is a guess: the user's own model, when it is built, shows
            which it is.
    """

    guessed: bool = False

    @abstractmethod
    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Yield what :meth:`measure` does; the framework is settled."""

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Yield each result as soon as it is finished; it answers the row that was asked for."""
        task = self._settled(session) if self.guessed else self
        own_rows = {id(row): own for row, own in zip(task.rows, self.rows, strict=True)}
        for measure_step in task.measure_steps(session, view):
            yield (
                measure_step
                if measure_step.row is None
                else replace(measure_step, row=own_rows[id(measure_step.row)])
            )

    def without_numbers(self, row: TaskRow, error: PydlbenchError) -> Result:
        """Return the result of a step without numbers: why there are none.

        Raises:
            PydlbenchError: the error itself, where it is a mistake in what the user has said.
        """
        step = row.spec
        if mistaken(step, error):
            raise error
        names = ("model", "batch", "phase", "precision", "framework", "mode", "layout", "feed")
        document = {name: getattr(step, name) for name in (*names, "device")}
        status = "skipped" if isinstance(error, UnsupportedError) else "failed"
        document |= {"options": dict(step.options), "status": status}
        document |= {"reason": " ".join(str(error).split())}
        document |= {"own": step.own.to_dict()} if step.own is not None else {}
        return Result(self.kind, document, row)

    def _settled(self, session: Any) -> Self:
        """Return the task with its steps in the framework that their model is of."""
        from pydlbench.steps.prepare import settled

        def renamed(row: TaskRow, step: StepSpec) -> TaskRow:
            before, now = (f"{each.framework} {each.mode}" for each in (row.spec, step))
            return replace(row, spec=step, label=row.label.replace(before, now))

        cases = settled([row.spec for row in self.rows], session)
        rows = tuple(renamed(*both) for both in zip(self.rows, cases, strict=True))
        return replace(self, rows=rows, guessed=False)


def code_limit(args: ModelOptions) -> dict[str, float]:
    """Return the keyword of ``session.Options`` that limits the user's own code; none without."""
    from pydlbench.models.user_model import is_user_model

    return {"code_limit_s": args.time_limit or CODE_LIMIT_S} if is_user_model(args.model) else {}


def mistaken(step: StepSpec, error: PydlbenchError) -> bool:
    """Whether an error is a mistake in what the user has said of a model of their own.

    It shows only when the model is built, and is no matter of the row: all others would end so.
    """
    return step.own is not None and isinstance(error, UsageError)


def check_phase(model: Model | None, phase: str) -> None:
    """Make sure that a model can be trained where that is asked for.

    Args:
        model: the graph; None of a model of the user's own, which ``StepSpec`` checks.
        phase: ``forward``, ``forward-backward`` or ``training``.

    Raises:
        UsageError: it has no optimizer.
    """
    if model is None:
        return
    if phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {model.name} has no optimizer; nearest: "
            "--phase forward-backward, or --set optimizer=sgd"
        )


def check_layout(layout: str | None, frameworks: Sequence[str]) -> None:
    """Make sure that one of the frameworks can take images in this layout on a CPU.

    Raises:
        UsageError: none can.
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
    """Return the steps that a command is asked for, one for each framework and mode.

    Args:
        args: the command's options.
        usual: frameworks of a model of the catalogue where none is named; None is all that are
            installed.

    Returns:
        The model's graph, or None of a model of the user's own; rows whose specs are the steps;
        notes; and whether their framework is a guess, see :func:`frameworks_of`.

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
    subjects, more = subjects_of(frameworks, args.mode, usual, guessed=guessed)
    for framework, _ in subjects:
        check_gpu_framework(framework, device)
    notes = (*notes, *more)
    check_phase(model, args.phase)
    if model is not None:  # the user's own says its layout itself
        check_layout(args.layout, [framework for framework, _ in subjects])
    rows = []
    for framework, mode in subjects:
        step = StepSpec(
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
        names = ("model", "batch", "phase", "precision", "framework", "mode", "layout", "feed")
        fields = fields_of(args, values_of(step, *names, "device"))
        rows.append(TaskRow(fields=fields, label=step.label, spec=step))
    return model, rows, notes, guessed


def _precision(args: ExplainedStep, device: str) -> str:
    """Return the precision that was asked for; a GPU's bf16 is that of its tensor cores."""
    if device == "cpu":
        return one_of("--precision", args.autocast or args.precision, CPU_PRECISIONS)
    name = f"{args.autocast}-tc" if args.autocast else args.precision
    return one_of("--precision", name, GPU_PRECISIONS)


def summands(args: ModelOptions, budget_s: float) -> dict[str, Any]:
    """Return the keywords of ``session.Options`` for native rows that are summed into a step."""
    return {
        "threads": args.threads,
        "seed": args.seed,
        "budget_s": budget_s,
        "keep_samples": True,  # for the store
        "estimate": True,
        **code_limit(args),
    }


def fields_of(args: ModelOptions, values: Mapping[str, object]) -> dict[str, str]:
    """Return what tells a step's row from others, as text: by the names that ``exclude`` uses.

    Args:
        args: the options; ``set_`` and ``threads`` are read.
        values: what stands between the model's options and the threads; None is what was not given.
    """
    variant = {"set": " ".join(sorted("=".join(value) for value in args.set_))} if args.set_ else {}
    every = {**values, "threads": args.threads}
    plain = {name: "default" if value is None else str(value) for name, value in every.items()}
    return {**variant, **plain}


def values_of(step: StepSpec, *names: str) -> dict[str, object]:
    """Return attributes of a step by name, for :func:`fields_of`."""
    values = {name: getattr(step, name) for name in names}
    if step.own is not None:
        from pydlbench.records.step import options_text

        values["own"] = " ".join(filter(None, [options_text(step.options), *step.own.words()]))
    return values


def subjects_of(
    frameworks: Sequence[str] | None,
    modes: Sequence[str] | None,
    usual: Sequence[str] | None = None,
    *,
    guessed: bool = False,
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return framework and mode of each step that is asked for, and notes.

    A framework that is named and has none of the modes takes their counterparts: what one calls
    ``compiled`` is ``xla`` to the other. One that is guessed takes those of all that are not its
    own, as the other framework may be the model's.

    Args:
        frameworks: that are named, or the guessed one; None where none is.
        modes: that are named; None or empty is each framework's first.
        usual: frameworks where none is named, as far as they have the modes; None is all that are
            installed.
        guessed: see :func:`frameworks_of`.

    Raises:
        UsageError: no such mode, or none of the frameworks has it.
        BackendMissingError: no framework is named and none is installed.
    """
    named = frameworks or usual or _installed()
    wanted = choices("--mode", ",".join(modes), _MODES, "all") if modes else None
    if guessed and wanted is not None:
        of_either = {mode for name in FRAMEWORKS for mode in FRAMEWORK_MODES[name]}
        own = FRAMEWORK_MODES[named[0]]
        wanted = [own[_place(mode)] if mode in of_either else mode for mode in wanted]
    valid = [mode for name in named for mode in FRAMEWORK_MODES[name]]
    for mode in [] if wanted is None or "all" in (modes or ()) else wanted:
        if mode not in valid:
            has = f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'}"
            near = valid[min(_place(mode), len(valid) - 1)]
            raise UsageError(f"--mode {mode}: {has} no such mode; nearest: {near}")
    subjects: list[tuple[str, str]] = []
    notes = []
    for name in named:
        own = FRAMEWORK_MODES[name]
        fitting = list(own[:1]) if wanted is None else [mode for mode in own if mode in wanted]
        if not fitting and frameworks:
            # One that has its compiler only runs that, whatever is asked for.
            places = sorted({min(_place(mode), len(own) - 1) for mode in wanted or ()})
            fitting = [own[place] for place in places]
            notes.append(
                f"{name} has no mode {', '.join(wanted or ())}; its own are taken: "
                f"{', '.join(fitting)}"
            )
        elif not fitting:
            notes.append(f"{name} has no mode {', '.join(wanted or ())}, left out")
        subjects += [(name, mode) for mode in fitting]
    return tuple(subjects), tuple(notes)


def _place(mode: str) -> int:
    """Return 0 for a framework's plain way to run, 1 for its compiler, which JAX has alone."""
    return next(own.index(mode) for own in FRAMEWORK_MODES.values() if mode in own)


def _installed() -> list[str]:
    from pydlbench.backends.capabilities import declaration, is_installed

    installed = [name for name in FRAMEWORKS if is_installed(declaration(name))]
    if not installed:
        ways = " or ".join(declaration(name).install for name in FRAMEWORKS)
        raise BackendMissingError(f"--framework: none is installed; get one with: {ways}")
    return installed


def devices(args: StepOptions) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the devices that were named, or the default one and notes on it.

    Raises:
        UsageError: ``--threads`` is given and no CPU.
    """
    usual, notes = device_of(args.device[0] if args.device else None)
    named = args.device or (usual,)
    if "cpu" not in named:
        check_threads(args.threads, named[0])
    return named, notes


class StepsTask(Task):
    """Steps that are measured."""

    # Not in processes of layers: what has run in a process decides how many page faults a step has.
    opens: ClassVar[str] = "steps"
    kind: ClassVar[str] = "step"
