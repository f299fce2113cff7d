"""What commands about a whole model's step have in common: their options, read and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.options import add, choices, refuse
from pydlbench.errors import BackendMissingError, UsageError
from pydlbench.words import FRAMEWORK_MODES, FRAMEWORKS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec

__all__ = [
    "OWN_OPTIONS",
    "add_own",
    "build",
    "check_layout",
    "check_phase",
    "fields_of",
    "read_model",
    "read_options",
    "summands",
    "values_of",
]


def read_options(given: Sequence[str] | None, option: str = "--option") -> dict[str, str]:
    """Return the values of ``--option`` by name; which there are, the model knows.

    Args:
        given: on the command line.
        option: ``--option``, or ``--arg`` of a model of the user's own.

    Raises:
        UsageError: one without a name or a value, or one that is given twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, mark, value = (part.strip() for part in text.partition("="))
        if not mark or not name or not value:
            raise UsageError(f"{option} {text}: not NAME=VALUE; nearest: {option} classes=1001")
        key = name.replace("-", "_")
        if key in found:
            raise UsageError(f"{option} {text}: {name} is given twice; nearest: leave one out")
        found[key] = value
    return found


# -----------------------------------------------------------------------------
# The model: of the catalogue, or the user's own.

#: Options of a model of the user's own, as attributes.
OWN_OPTIONS: Final = (
    *("arg", "input", "loss", "optimizer"),
    *("train_mode", "eval_mode", "autocast"),
)


def add_own(parser: argparse.ArgumentParser) -> None:
    """Add the options of a model of the user's own."""
    group = parser.add_argument_group(
        "a model of one's own: FILE.py:CALLABLE, package.module:CALLABLE or, with e2e, FILE.onnx"
    )
    add(group, *(one.replace("_", "-") for one in OWN_OPTIONS))


def read_model(
    args: argparse.Namespace, batch: int | None, *, onnx: bool = False
) -> tuple[Model | None, dict[str, Any]]:
    """Return the graph of the model that was asked for, and what names it in a ``StepSpec``.

    Args:
        args: the options, those of :func:`add_own` among them.
        batch: that was asked for; None is the model's own.
        onnx: whether the command runs ``FILE.onnx``.

    Returns:
        The graph, or None of a model of the user's own; model, options, own and batch.

    Raises:
        UsageError: no such model, option or batch; an option that is for the other kind of model.
    """
    from pydlbench.models.own import find_onnx, find_own, is_onnx, is_own
    from pydlbench.records.own import OwnInput, OwnSpec

    if not is_own(args.model):
        refuse(args, OWN_OPTIONS, "with a model of the catalogue")
        model = build(args, batch)
        options = read_options(args.option)
        return model, {"model": args.model, "options": options, "batch": model.batch}
    if is_onnx(args.model):
        find_onnx(args.model)
        if not onnx:
            raise _only_e2e(args.model)
        refuse(args, ("option", "autocast"), f"with {args.model}", "leave it out")
    else:
        find_own(args.model)
        refuse(args, ("option",), f"with {args.model}", "--arg NAME=VALUE")
    if batch is not None and not is_onnx(args.model):
        raise UsageError(
            f"--batch {batch}: the inputs of {args.model} have theirs; nearest: "
            f"--input {batch}x3x224x224"
        )
    if args.train_mode and args.eval_mode:
        raise UsageError("--train-mode: with --eval-mode; nearest: leave one out")
    if args.autocast and args.precision not in (None, "fp32"):
        raise UsageError(
            f"--autocast {args.autocast}: --precision says it already; nearest: leave one out"
        )
    own = OwnSpec(
        inputs=tuple(map(OwnInput.of, args.input or ())),
        loss=args.loss,
        optimizer=args.optimizer or "sgd",
        train=True if args.train_mode else False if args.eval_mode else None,
    )
    if own.loss is not None and ":" in own.loss:
        find_own(own.loss)
    options = read_options(args.arg, "--arg")
    return None, {"model": args.model, "options": options, "own": own, "batch": batch}


def _only_e2e(model: str) -> UsageError:
    return UsageError(
        f"{model}: ONNX files are timed as a whole, with onnxruntime's own profile; nearest: "
        f"pydlbench e2e {model}"
    )


def build(args: argparse.Namespace, batch: int | None) -> Model:
    """Return the graph of the model that was asked for, with this batch or its own.

    Raises:
        UsageError: no such model, option or batch; or a model of the user's own, which has none.
    """
    from pydlbench.models import build_model
    from pydlbench.models.own import find_onnx, find_own, is_onnx, is_own

    if is_onnx(args.model):
        find_onnx(args.model)
        raise _only_e2e(args.model)
    if is_own(args.model):
        find_own(args.model)
        raise UsageError(
            f"{args.model}: not of the catalogue, whose models this command takes; nearest: "
            f"pydlbench check {args.model}, or e2e, or forecast"
        )
    return build_model(args.model, batch, **read_options(args.option))


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
            "--phase forward-backward, or --option optimizer=sgd"
        )


def check_layout(layout: str | None, frameworks: Sequence[str]) -> None:
    """Make sure that one of the frameworks can take images in this layout on a CPU.

    Raises:
        UsageError: none can.
    """
    if layout == "nchw" and set(frameworks) == {"tensorflow"}:
        raise UsageError(
            f"--layout {layout}: TensorFlow's convolutions on CPUs take nhwc only; nearest: "
            "--layout nhwc"
        )


def summands(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of ``session.Options`` for native rows that are summed into a step."""
    return {
        "threads": args.threads,
        "seed": args.seed,
        "budget_s": args.budget,
        "keep_samples": True,  # for the store
        "estimate": True,
    }


def fields_of(args: argparse.Namespace, values: Mapping[str, object]) -> dict[str, str]:
    """Return what tells a step's row from others, as text: by the names that ``exclude`` uses.

    Args:
        args: the options; ``option`` and ``threads`` are read.
        values: what stands between the model's options and the threads; None is what was not given.
    """
    variant = {"option": " ".join(sorted(args.option))} if args.option else {}
    every = {**values, "threads": args.threads}
    plain = {name: "default" if one is None else str(one) for name, one in every.items()}
    return {**variant, **plain}


def values_of(step: StepSpec, *names: str) -> dict[str, object]:
    """Return attributes of a step by name, for :func:`fields_of`."""
    found = {name: getattr(step, name) for name in names}
    if step.own is not None:
        from pydlbench.records.step import options_text

        found["own"] = " ".join(filter(None, [options_text(step.options), *step.own.words()]))
    return found


def subjects_of(
    frameworks: Sequence[str] | None, modes: Sequence[str] | None
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return framework and mode of each step that is asked for, and notes.

    A framework that is named and has none of the modes takes their counterparts: what one calls
    ``compiled`` is ``xla`` to the other.
    """
    from pydlbench.backends import capabilities

    named = frameworks or _installed()
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
                f"{name} has no mode {', '.join(wanted or ())}; its own are taken: "
                f"{', '.join(fitting)}"
            )
        elif not fitting:
            notes.append(f"{name} has no mode {', '.join(wanted or ())}, left out")
        found += [(name, mode) for mode in fitting]
    return tuple(found), tuple(notes)


def _place(mode: str) -> int:
    """Return 0 for a framework's plain way to run, 1 for its compiler."""
    return next(own.index(mode) for own in FRAMEWORK_MODES.values() if mode in own)


def _installed() -> list[str]:
    from pydlbench.backends.capabilities import is_there, of

    found = [name for name in FRAMEWORKS if is_there(of(name))]
    if not found:
        ways = " or ".join(of(name).install for name in FRAMEWORKS)
        raise BackendMissingError(f"--framework: none is installed; get one with: {ways}")
    return found
