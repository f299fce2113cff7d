"""From the options of ``check`` to the steps to be checked, or to one line of complaint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydlbench.errors import BackendMissingError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pydlbench.models.graph import Model
    from pydlbench.report.check_result import CheckResult

__all__ = ["CheckRequest", "check_room", "read_check"]

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
        from pydlbench.report.check_result import CheckResult

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
    from pydlbench.backends.case import CPU_PRECISIONS
    from pydlbench.cli.model_options import one_of, read_options
    from pydlbench.cli.values import positive_seconds, whole_number
    from pydlbench.endtoend.step import FEEDS, LAYOUTS
    from pydlbench.models import build_model
    from pydlbench.models.work import PHASES

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
    from pydlbench.devices.cpu import read_cpu_facts
    from pydlbench.endtoend.memory import check_memory_of_parts
    from pydlbench.endtoend.step import StepCase

    step = StepCase(
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
    from pydlbench.backends.case import MODES
    from pydlbench.cli.values import choices
    from pydlbench.endtoend import FRAMEWORK_MODES, FRAMEWORKS

    named = choices("--framework", frameworks, FRAMEWORKS, "all") if frameworks else _installed()
    wanted = choices("--mode", modes, MODES, "all") if modes else None
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
    from pydlbench.endtoend import FRAMEWORK_MODES

    return next(own.index(mode) for own in FRAMEWORK_MODES.values() if mode in own)


def _installed() -> list[str]:
    from pydlbench.backends.offers import is_there, offer
    from pydlbench.endtoend import FRAMEWORKS

    found = [name for name in FRAMEWORKS if is_there(offer(name))]
    if not found:
        ways = " or ".join(offer(name).install for name in FRAMEWORKS)
        raise BackendMissingError(f"--framework: none is installed; get one with: {ways}")
    return found
